"""The ledger: what the paper claims, what its logs support, what we measure. `python docs/ledger.py` prints it.

Our values are differences in average accuracy (over all test images seen so far), seed by seed, with the 95 % interval
of Student's t over seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lca.report.comparison import Classifier, best_first, choose, classifiers, differences
from lca.report.reading import collect
from lca.report.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = ["claim", "printed", "published logs", "ours, at mini scale", "verdict", "command"]


def main() -> None:
    claims = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text(encoding="utf-8"))
    print(markdown_table(HEADINGS, [line(claim) for claim in claims]), end="")


def line(claim: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ours, verdict = judged(claim)
    return [claim["claim"], claim["printed"], claim["logs"].strip(), ours, verdict, f"`{claim['command']}`"]


def judged(claim: dict[str, Any]) -> tuple[str, str]:
    """What we measured, and the verdict."""
    if "untestable" in claim:
        return claim["untestable"].strip(), "not testable here"
    pack = ROOT / claim["pack"]
    if not pack.is_file() or "measure" not in claim:
        return "not run yet" if not pack.is_file() else f"`lca show {claim['pack']}`", ""
    by_set = classifiers(collect([pack]).runs)
    found = {source.removeprefix("folder:"): measured(rows, claim["measure"]) for source, rows in by_set.items()}
    holding = [source for source, (_, holds) in found.items() if holds]
    verdict = "supported" if len(holding) == len(found) else f"supported on {', '.join(holding)} only"
    return "; ".join(f"{source} {text}" for source, (text, _) in found.items()), verdict if holding else "not supported"


def measured(rows: Sequence[Classifier], measure: dict[str, Any]) -> tuple[str, bool]:
    """In words, and whether it holds on these runs: a difference must be clear, which its interval decides."""
    if "range" in measure:
        means = [choose(rows, label).measured["AA"].mean for label in measure["range"]]
        return f"{max(means) - min(means):.1f} apart", max(means) - min(means) <= measure["within"]
    if "best" in measure:
        one = choose(rows, measure["best"])
        two = best_first([choose(rows, label) for label in measure["among"]])[0]
    else:
        one, two = (choose(rows, label) for label in measure["difference"])
    difference = differences(one, two)["AA"]
    mean, interval = difference.measured.mean, difference.measured.interval
    ends = f" [{interval[0]:+.1f}, {interval[1]:+.1f}]" if interval else ""
    against = f" against {two.label}" if "best" in measure else ""
    return f"{mean:+.1f}{ends}{against}", mean > 0 and difference.clear


if __name__ == "__main__":
    main()
