"""The ledger: what the paper claims, what its logs support, what we measure. `python paper/ledger.py` prints it.

A claim of claims.yaml is decided by differences between classifiers of a pack, seed by seed, with the 95 % interval of
Student's t over seeds. One that is clearly above zero supports it, one clearly below contradicts it, and all others
leave it undecided. Claims about kept models have rules of their own, which ledger.md states.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lca.evaluation.intervals import student_interval
from lca.files import read_json
from lca.methods import methods
from lca.report.comparison import choose, why_none
from lca.results.classifiers import Classifier, classifiers, lower_is_better
from lca.results.metrics import columns
from lca.results.reading import collect
from lca.text import markdown_table

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = ["claim", "printed", "published logs", "ours, at mini scale", "verdict", "command"]
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
KINDS = {
    "AA": "",
    "forgets": "forgetting ",
    "clean": "clean ",
    "C": "corrupted ",
    "C at 5": "corrupted at severity 5 ",
    "P": "perturbed ",
    "C - clean": "corrupted less clean ",
    "P - clean": "perturbed less clean ",
    "flips": "flips ",
}
"""What may be compared, and how it is called in the table: average accuracy, forgetting, and on damaged images the
accuracy, what damage takes from it, and flips."""
SEEDS = 3
"""Of a complete pack."""
MANY = 3
"""More pairs than these are counted."""


class Finding(NamedTuple):
    """What one comparison says."""

    gain: float
    """Mean over seeds, above zero where it is for the claim."""
    text: str
    verdict: str


Judged = tuple[str, dict[str, str]]
"""Of a data set: in words, and one of the three verdicts for every comparison."""


def main() -> None:
    claims = yaml.safe_load((ROOT / "paper" / "claims.yaml").read_text(encoding="utf-8"))
    print(markdown_table(HEADINGS, [line(claim) for claim in claims]), end="")


def line(claim: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ours, verdict = judged(claim)
    command = f"`{claim['command']}`" + (f", then as in {claim['then']}" if "then" in claim else "")
    return [claim["claim"], claim["printed"], claim["logs"].strip(), ours, verdict, command]


def judged(claim: dict[str, Any]) -> tuple[str, str]:
    """What we measured, and the verdict."""
    if "untestable" in claim:
        return claim["untestable"].strip(), "not testable here"
    if "passes" in claim:
        return _passes(*claim["passes"])
    pack = ROOT / claim["pack"]
    if not pack.is_file():
        return "not run yet", ""
    found = _of_runs(pack, **claim["of_runs"]) if "of_runs" in claim else _of_classifiers(pack, claim["measure"])
    verdict = _verdict({place: verdicts for place, (_, verdicts) in found.items()})
    if "proxy" in claim:
        verdict += f" ({claim['proxy']})"
    return "; ".join(f"{place} {text}" for place, (text, _) in found.items()), verdict


def _passes(one: str, *others: str) -> tuple[str, str]:
    """Whether a method answers with one pass through the transformer, and the others with more."""
    said = {name: str(methods[name].info.passes) for name in (one, *others)}
    holds = said[one] == "1" and all(said[name] != "1" for name in others)
    text = ", ".join(f"{name} {passes}" for name, passes in said.items())
    verdict = SUPPORTED if holds else f"not supported: {CONTRADICTED}"
    return f"passes through the transformer per answer: {text}", verdict


def _of_classifiers(pack: Path, measure: dict[str, Any]) -> dict[str, Judged]:
    """By what a pack of runs says, on every data set."""
    by_set = classifiers(collect([pack]).runs)
    found = {source.removeprefix("folder:"): measured([rows], measure) for source, rows in by_set.items()}
    if measure.get("overall") and len(by_set) > 1:
        found = {"overall": measured([*by_set.values()], measure)} | found
    return found


def _of_runs(pack: Path, what: str, **options: Any) -> dict[str, Judged]:
    """By what `lca diagnose` or `lca theory` measured on runs, after the last task, on every data set."""
    by_set: dict[str, list[dict[str, Any]]] = {}
    for run in read_json(pack)["runs"]:
        by_set.setdefault(Path(run["recipe"]["data"]["source"]).name, []).append(run)
    return {place: OF_RUNS[what](runs, **options) for place, runs in by_set.items()}


def _gradual(runs: Sequence[dict[str, Any]], step: float) -> Judged:
    """Whether the similarity to the first backbone (linear CKA) never falls by more than a step from task to task."""
    curves = [[task["similarity"]["cka"] for task in run["tasks"]] for run in runs]
    largest = max(before - after for curve in curves for before, after in pairwise(curve))
    text = f"CKA {_mean(curve[-1] for curve in curves):.3f} after the last task, largest step {largest:.3f}"
    return text, {"": SUPPORTED if largest <= step else CONTRADICTED}


def _overlap(runs: Sequence[dict[str, Any]]) -> Judged:
    """Of classes of different tasks, as answered: LCA less its own loss without the pairwise term."""
    last = [run["tasks"][-1]["overlap"] for run in runs]
    with_term, without = (
        [100 * each[name]["as_answered"]["between_tasks"] for each in last] for name in ("lca", "λ=0")
    )
    found = _difference([one - two for one, two in zip(with_term, without, strict=True)], fewer=True)
    return f"overlap {found.text} points", {"": found.verdict}


def _theorem_1(runs: Sequence[dict[str, Any]], error: str) -> Judged:
    """Whether its right side, for the 0-1 loss, is at least an error: that under the stored Gaussians, the distribution
    it is about, or that on test images, which the paper concludes from it."""
    last = [run["branches"]["lca"][-1]["losses"]["zero-one"] for run in runs]
    means = {key: _mean(each[key] for each in last) for key in ("drawn", "robustness", "theorem_1", error)}
    text = "L(D) {drawn:.3f}, ε̄ {robustness:.4f}, right side {theorem_1:.3f}".format(**means)
    verdict = SUPPORTED if all(each["theorem_1"] >= each[error] for each in last) else CONTRADICTED
    return f"{text}, {ERRORS[error]} {means[error]:.3f}", {"": verdict}


ERRORS = {"gaussians": "error under the Gaussians", "test_images": "error on test images"}


def _theorem_2(runs: Sequence[dict[str, Any]]) -> Judged:
    """Whether the bound says anything."""
    last = [run["branches"]["lca"][-1] for run in runs]
    vacuous = sum("theorem_2" in each["losses"]["zero-one"]["vacuous"] for each in last)
    apart = _mean(each["drift"][0]["at_least"] for each in last)
    text = f"vacuous in {vacuous} of {len(last)} runs, TV >= {apart:.3f}"
    return text, {"": CONTRADICTED if vacuous else SUPPORTED}


OF_RUNS: dict[str, Callable[..., Judged]] = {
    "gradual": _gradual,
    "overlap": _overlap,
    "theorem 1": _theorem_1,
    "theorem 2": _theorem_2,
}


def _verdict(found: dict[str, dict[str, str]]) -> str:
    """Supported only where every comparison on every data set is; else what they say, and which of them."""
    alone = f", on {next(iter(found))} alone" if len(found) == 1 else ""
    all_verdicts = {verdict for verdicts in found.values() for verdict in verdicts.values()}
    if all_verdicts == {SUPPORTED}:
        return SUPPORTED + alone
    if len(all_verdicts) == 1:
        return f"not supported: {all_verdicts.pop()}{alone}"
    parts = []
    for verdict in (CONTRADICTED, UNDECIDED, SUPPORTED):
        places: dict[str, list[str]] = {}
        for place, verdicts in found.items():
            names = [name for name, each in verdicts.items() if each == verdict]
            if len(names) == len(verdicts):
                places.setdefault(" (all)" if len(names) > 1 else "", []).append(place)
            elif names and verdict != SUPPORTED:
                named = ", ".join(names) if len(names) <= MANY else f"{len(names)} of {len(verdicts)}"
                places.setdefault(f" ({named})", []).append(place)
        if places:
            parts.append(f"{verdict} on {', '.join(' and '.join(each) + which for which, each in places.items())}")
    return f"not supported: {'; '.join(parts)}"


def measured(sets: Sequence[Sequence[Classifier]], measure: dict[str, Any]) -> Judged:
    """What the classifiers of a data set say, or those of several, whose differences are averaged seed by seed.

    `better: [[A, B], ...]`: every A is better than its B. `best: {A: [B, ...], ...}`: every A is better than each of
    its rivals. `near: [...]` with `to: [...]` and `within: x`: each falls short of none of those by more than x
    points. `alike: [...]` with `within: x`: no two are farther apart. `everywhere: [[A, B], ...]`: every A is better
    than its B on every kind of damage. `stores: A`, with `only: [...]`: it keeps nothing but these. `of` names what is
    compared, else it is average accuracy.
    """
    if "stores" in measure:
        return _stores(choose(sets[0], measure["stores"]), measure["only"])
    pairs, texts = _named(_pairs(measure)), []
    verdicts: dict[str, str] = {}
    if "everywhere" in measure:
        kinds = {name: _everywhere(*(choose(sets[0], each) for each in pair)) for name, pair in pairs.items()}
        text = "; ".join(f"{name} {each.text}".strip() for name, each in kinds.items())
        return text, {name: each.verdict for name, each in kinds.items()}
    for of in measure.get("of", ["AA"]):
        found = {name: _compared(sets, *pair, of, measure.get("within", 0.0)) for name, pair in pairs.items()}
        texts.append(KINDS[of] + _in_words(found))
        verdicts |= {(KINDS[of] + name).strip(): each.verdict for name, each in found.items()}
    return ", ".join(texts), verdicts


def _named(pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Each by what is not the same in all of them."""
    firsts, seconds = (len({*each}) > 1 for each in zip(*pairs, strict=True))
    return {
        (f"{one} - {two}" if firsts and seconds else one if firsts else f"against {two}" if seconds else ""): (one, two)
        for one, two in pairs
    }


def _pairs(measure: dict[str, Any]) -> list[tuple[str, str]]:
    """Of which the first is to be better than the second, or near to it."""
    if clear := measure.get("better") or measure.get("everywhere"):
        return [(one, two) for one, two in clear]
    if "best" in measure:
        return [(one, two) for one, rivals in measure["best"].items() for two in rivals]
    return [*permutations(measure["alike"], 2)] if "alike" in measure else [*product(measure["near"], measure["to"])]


def _compared(sets: Sequence[Sequence[Classifier]], one: str, two: str, of: str, within: float) -> Finding:
    rows = [(choose(each, one), choose(each, two)) for each in sets]
    gains = [_gains(*pair, of) for pair in rows]
    seeds = sorted(set.intersection(*(set(each) for each in gains)))
    if not seeds:
        reasons = [why_none(*pair, damaged=of not in columns()) for pair in rows]
        return Finding(-math.inf, f"not compared ({', '.join(filter(None, reasons))})", UNDECIDED)
    return _difference([_mean(each[seed] for each in gains) for seed in seeds], within, fewer=lower_is_better(of))


def _gains(one: Classifier, two: Classifier, of: str) -> dict[int, float]:
    """One less two by seed, where `lca report` compares them: on the same tasks, test images and damage."""

    def alone(row: Classifier, seed: int) -> Classifier:
        return replace(row, runs=[run for run in row.runs if run.seed == seed])

    ours, theirs = _values(one, of), _values(two, of)
    return {
        seed: value - theirs[seed]
        for seed, value in ours.items()
        if seed in theirs and not why_none(alone(one, seed), alone(two, seed), damaged=of not in columns())
    }


def _in_words(found: dict[str, Finding]) -> str:
    """One difference as it is, a few with their names, of many only how many hold, and the others or the least."""
    lines = [f"{name} {each.text}" for name, each in found.items()]
    if len(found) == 1:
        return next(iter(found.values())).text
    if len(found) <= MANY:
        return "; ".join(lines)
    others = [line for line, each in zip(lines, found.values(), strict=True) if each.verdict != SUPPORTED]
    least = min(found, key=lambda name: found[name].gain)
    rest = f"not: {'; '.join(others)}" if others else f"least {least} {found[least].text}"
    return f"{len(lines) - len(others)} of {len(lines)} are clear, {rest}"


def _weakest(verdicts: Iterable[str]) -> str:
    return min(verdicts, key=[CONTRADICTED, UNDECIDED, SUPPORTED].index)


def _difference(differences: Sequence[float], allowed: float = 0.0, fewer: bool = False) -> Finding:
    """The mean and its interval, which decides: one seed alone cannot, equal differences do."""
    mean, interval = _mean(differences), student_interval(differences) if len(differences) > 1 else None
    low, high = interval or ((mean, mean) if len(differences) > 1 else (-math.inf, math.inf))
    text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" if interval else f"{mean:+.2f}"
    text += f" ({len(differences)} of {SEEDS} seeds)" if len(differences) < SEEDS else ""
    mean, low, high = (-mean, -high, -low) if fewer else (mean, low, high)
    return Finding(mean, text, SUPPORTED if low > -allowed else CONTRADICTED if high < -allowed else UNDECIDED)


def _everywhere(one: Classifier, two: Classifier) -> Finding:
    if why := why_none(one, two, damaged=True):
        return Finding(-math.inf, f"not compared ({why})", UNDECIDED)
    kinds = next(iter(one.robustness.values())).by_kind()
    found = {kind: _difference([*_gains(one, two, kind).values()]) for kind in kinds}
    above = sum(each.gain > 0 for each in found.values())
    clear = sum(each.verdict == SUPPORTED for each in found.values())
    least = min(found, key=lambda kind: found[kind].gain)
    text = f"{above} of {len(found)} means above, {clear} clear, least {least} {found[least].text}"
    return Finding(found[least].gain, text, _weakest(each.verdict for each in found.values()))


def _stores(row: Classifier, only: Sequence[str]) -> Judged:
    """Whether it keeps nothing but these parts, by its first run; a part of a branch is named `PART/BRANCH`."""
    parts: Counter[str] = Counter()
    for part, count in row.runs[0].bytes(row.branch).items():
        parts[part.partition("/")[0]] += count
    text = "MB " + ", ".join(f"{name} {count / 1e6:.2f}" for name, count in parts.items())
    return text, {"": SUPPORTED if parts.keys() <= {*only} else CONTRADICTED}


def _values(row: Classifier, of: str) -> dict[int, float]:
    """By seed; what is no column is a kind of damage."""
    if of.endswith(" - clean"):
        clean = row.values("clean")
        return {seed: value - clean[seed] for seed, value in row.values(of.removesuffix(" - clean")).items()}
    if of in KINDS:
        return row.values(of)
    return {seed: scores.by_kind()[of] for seed, scores in row.robustness.items()}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
