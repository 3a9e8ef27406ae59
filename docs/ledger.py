"""The ledger: what the paper claims, what its logs support, what we measure. `python docs/ledger.py` prints it.

A claim of claims.yaml is decided by differences between classifiers of a pack, seed by seed, with the 95 % interval of
Student's t over seeds. One that is clearly above zero supports it, one clearly below contradicts it, and all others
leave it undecided.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from lca.files import read_json
from lca.report.comparison import LOWER_IS_BETTER, Classifier, choose, classifiers, student_interval
from lca.report.reading import collect
from lca.report.tables import bytes_of, markdown_table

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = ["claim", "printed", "published logs", "ours, at mini scale", "verdict", "command"]
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
KINDS = {
    "AA": "",
    "C": "corrupted ",
    "P": "perturbed ",
    "flips": "flips ",
    "MB": "MB ",
}
"""What may be compared, and how it is called in the table: average accuracy, robustness, bytes stored."""
FEWER = (*LOWER_IS_BETTER, "MB")
"""Of these less is better."""
SEEDS = 3
"""Of a complete pack."""
MANY = 3
"""More pairs than these are counted."""

Finding = tuple[str, str]
"""In words, and one of the three verdicts."""


def main() -> None:
    claims = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text(encoding="utf-8"))
    print(markdown_table(HEADINGS, [line(claim) for claim in claims]), end="")


def line(claim: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ours, verdict = judged(claim)
    return [claim["claim"], claim["printed"], claim["logs"].strip(), ours, verdict, f"`{claim['command']}`"]


def judged(claim: dict[str, Any]) -> Finding:
    """What we measured, and the verdict."""
    if "untestable" in claim:
        return claim["untestable"].strip(), "not testable here"
    pack = ROOT / claim["pack"]
    if not pack.is_file():
        return "not run yet", ""
    if "of_runs" in claim:
        return _judged_runs(read_json(pack)["runs"], claim["of_runs"])
    by_set = classifiers(collect([pack]).runs)
    found = {source.removeprefix("folder:"): measured([rows], claim["measure"]) for source, rows in by_set.items()}
    if claim["measure"].get("overall") and len(by_set) > 1:
        found = {"overall": measured([*by_set.values()], claim["measure"])} | found
    return "; ".join(f"{place} {text}" for place, (text, _) in found.items()), _verdict(found)


def _judged_runs(runs: Sequence[dict[str, Any]], what: str) -> Finding:
    """By what `lca diagnose` or `lca theory` measured on runs, after the last task, on every data set."""
    by_set: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_set.setdefault(Path(run["recipe"]["data"]["source"]).name, []).append(run)
    found = {place: OF_RUNS[what](each) for place, each in by_set.items()}
    return "; ".join(f"{place} {text}" for place, (text, _) in found.items()), _verdict(found)


def _gradual(runs: Sequence[dict[str, Any]]) -> Finding:
    """Whether the similarity to the first backbone (linear CKA) ever falls by more than 0.05 from task to task."""
    curves = [[task["similarity"]["cka"] for task in run["tasks"]] for run in runs]
    step = max(before - after for curve in curves for before, after in pairwise(curve))
    text = f"CKA {_mean(curve[-1] for curve in curves):.3f} after the last task, largest step {step:.3f}"
    return text, SUPPORTED if step <= 0.05 else CONTRADICTED


def _overlap(runs: Sequence[dict[str, Any]]) -> Finding:
    """Of classes of different tasks, as answered: LCA less its own loss without the pairwise term."""
    last = [run["tasks"][-1]["overlap"] for run in runs]
    with_term, without = (
        [100 * each[name]["as_answered"]["between_tasks"] for each in last] for name in ("lca", "λ=0")
    )
    text, verdict = _difference([one - two for one, two in zip(with_term, without, strict=True)], 0.0, fewer=True)
    return f"overlap {text} points", verdict


def _theorem_1(runs: Sequence[dict[str, Any]]) -> Finding:
    """Whether its right side, for the 0-1 loss, is at least the loss on test images."""
    last = [run["branches"]["lca"][-1]["losses"]["zero-one"] for run in runs]
    side, images = (_mean(each[key] for each in last) for key in ("theorem_1", "test_images"))
    holds = all(each["theorem_1"] >= each["test_images"] for each in last)
    return f"right side {side:.3f}, error on test images {images:.3f}", SUPPORTED if holds else CONTRADICTED


def _theorem_2(runs: Sequence[dict[str, Any]]) -> Finding:
    """Whether the bound says anything."""
    last = [run["branches"]["lca"][-1] for run in runs]
    vacuous = sum("theorem_2" in each["losses"]["zero-one"]["vacuous"] for each in last)
    apart = _mean(each["drift"][0]["at_least"] for each in last)
    text = f"vacuous in {vacuous} of {len(last)} runs, TV >= {apart:.3f}"
    return text, CONTRADICTED if vacuous else SUPPORTED


OF_RUNS = {"gradual": _gradual, "overlap": _overlap, "theorem 1": _theorem_1, "theorem 2": _theorem_2}


def _verdict(found: dict[str, Finding]) -> str:
    """Supported only where it is on every data set; else what the others say."""
    by_verdict: dict[str, list[str]] = {}
    for place, (_, verdict) in found.items():
        by_verdict.setdefault(verdict, []).append(place)
    if [*by_verdict] == [SUPPORTED]:
        return SUPPORTED
    parts = [
        f"{verdict} on {', '.join(places)}" if len(by_verdict) > 1 else verdict
        for verdict, places in by_verdict.items()
    ]
    return f"not supported: {'; '.join(parts)}"


def measured(sets: Sequence[Sequence[Classifier]], measure: dict[str, Any]) -> Finding:
    """What the classifiers of a data set say, or those of several, whose values are averaged seed by seed.

    `better: [[A, B], ...]`: every A is better than its B. `best: A` with `among: [...]`: A is better than the best of
    them. `near: [...]` with `to: [...]` and `within: x`: each falls short of the best of those by x points at most.
    `alike: [...]` with `within: x`: the largest and the smallest mean are no farther apart. `everywhere: [A, B]`: the
    mean of A is above that of B on every kind of damage. `of` names what is compared, else it is average accuracy.
    """
    if "everywhere" in measure:
        return _everywhere(*(choose(sets[0], label) for label in measure["everywhere"]))
    findings = [_measured(sets, measure, of) for of in measure.get("of", ["AA"])]
    return ", ".join(text for text, _ in findings), _weakest(verdict for _, verdict in findings)


def _measured(sets: Sequence[Sequence[Classifier]], measure: dict[str, Any], of: str) -> Finding:
    def values(label: str) -> dict[int, float]:
        each = [_values(choose(rows, label), of) for rows in sets]
        seeds = set.intersection(*(set(one) for one in each))
        return {seed: _mean(one[seed] for one in each) for seed in sorted(seeds)}

    def mean(label: str) -> float:
        return _mean(values(label).values())

    if "alike" in measure:
        means = [mean(label) for label in measure["alike"]]
        apart = max(means) - min(means)
        return f"{KINDS[of]}{apart:.1f} apart", SUPPORTED if apart <= measure["within"] else CONTRADICTED
    pairs = measure.get("better")
    if pairs is None:
        best = max(measure.get("among") or measure["to"], key=mean)
        pairs = [(label, best) for label in measure.get("near") or [measure["best"]]]
    found = {}
    for one, two in pairs:
        ours, theirs = values(one), values(two)
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        found[one, two] = _difference(differences, measure.get("within", 0.0), fewer=of in FEWER)
    return KINDS[of] + _in_words(found, "better" in measure), _weakest(verdict for _, verdict in found.values())


def _in_words(found: dict[tuple[str, str], Finding], named: bool) -> str:
    """One difference as it is, a few with their names, of many only how many hold, and the others."""
    if len(found) == 1:
        ((_, two), (text, _)) = next(iter(found.items()))
        return text if named else f"{text} against {two}"
    lines = {f"{one} - {two} {text}": verdict for (one, two), (text, verdict) in found.items()}
    others = [line for line, verdict in lines.items() if verdict != SUPPORTED]
    if len(found) <= MANY:
        return "; ".join(lines)
    holding = f"{len(lines) - len(others)} of {len(lines)} are clear"
    return f"{holding}, not {'; '.join(others)}" if others else holding


def _weakest(verdicts: Iterable[str]) -> str:
    return min(verdicts, key=[CONTRADICTED, UNDECIDED, SUPPORTED].index)


def _difference(differences: Sequence[float], allowed: float, fewer: bool) -> Finding:
    """The mean and its interval, which decides: one seed alone cannot, equal differences do."""
    mean, interval = _mean(differences), student_interval(differences) if len(differences) > 1 else None
    low, high = interval or ((mean, mean) if len(differences) > 1 else (-math.inf, math.inf))
    text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" if interval else f"{mean:+.2f}"
    text += f" ({len(differences)} of {SEEDS} seeds)" if len(differences) < SEEDS else ""
    low, high = (-high, -low) if fewer else (low, high)
    return text, SUPPORTED if low > -allowed else CONTRADICTED if high < -allowed else UNDECIDED


def _everywhere(one: Classifier, two: Classifier) -> Finding:
    """The mean of every kind of damage must be above; one that is below contradicts only if its interval is."""
    seeds = [seed for seed in one.robustness if seed in two.robustness]
    ours, theirs = ([row.robustness[seed].by_kind() for seed in seeds] for row in (one, two))
    gains = {kind: [a[kind] - b[kind] for a, b in zip(ours, theirs, strict=True)] for kind in ours[0]}
    worst = min(gains, key=lambda kind: _mean(gains[kind]))
    above = sum(_mean(gain) > 0 for gain in gains.values())
    text, verdict = _difference(gains[worst], 0.0, fewer=False)
    if verdict != CONTRADICTED:
        verdict = SUPPORTED if above == len(gains) else UNDECIDED
    return f"{above} of {len(gains)} kinds, least {worst} {text}", verdict


def _values(row: Classifier, of: str) -> dict[int, float]:
    """By seed."""
    if of == "MB":
        return {run.seed: sum(bytes_of(run.results, row.branch).values()) / 1e6 for run in row.runs}
    return row.values(of)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
