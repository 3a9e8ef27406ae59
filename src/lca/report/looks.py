"""How classifiers look in all figures of a report: decided once, so that neighbouring pictures agree."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean

from lca.report.ablation import ablation
from lca.report.drawing import PALETTE, Look
from lca.results.classifiers import Classifier

ALIGNMENTS = ("none", "ca", "lca", "best", "its own")
"""They have the first colours of the palette in pictures of alignments alone."""


@dataclass(frozen=True)
class Looks:
    """What tells classifiers apart."""

    order: Sequence[str]
    """The labels as they were asked for; else the best over all data sets first."""
    labels: Mapping[str, Look]
    """Of classifiers, and of the lines that those are on which differ in a number."""


def looks_of(found: Mapping[str, Sequence[Classifier]], only: Sequence[str] = ()) -> Looks:
    """Every classifier has a colour of its own, as long as there are colours; then a line, or a hatch, too. Those on
    one line, which differ in a number only, share its colour and differ in marker and line."""
    lines = {
        row.label: name
        for rows in found.values()
        if (of := ablation(rows))
        for name, points in of.lines.items()
        for row in points.values()
    }
    looks: dict[str, Look] = {}
    taken: Counter[str] = Counter()
    order = _order(found, only)
    for label in order:
        name = lines.get(label, label)
        first = looks.setdefault(name, Look.of(len(taken)))
        looks[label] = Look(first.place, first.line + taken[name])
        taken[name] += 1
    return Looks(order, looks)


def _order(found: Mapping[str, Sequence[Classifier]], only: Sequence[str]) -> list[str]:
    rows: dict[str, list[Classifier]] = {}
    for each in found.values():
        for row in each:
            rows.setdefault(row.label, []).append(row)

    def place(label: str) -> tuple[int, int, float]:
        asked = [number for number, name in enumerate(only) if name in rows[label][0].names]
        return min(asked, default=0), -len(rows[label]), -fmean(row.plain["AA"].mean for row in rows[label])

    return sorted(rows, key=place)


def alignment_places(alignments: Iterable[str]) -> dict[str, int]:
    """Where their colours are in the palette; nothing else has the colour of one of those that have theirs."""
    free = (number for number in count() if number % len(PALETTE) >= len(ALIGNMENTS))
    names = dict.fromkeys(alignments)
    return {name: ALIGNMENTS.index(name) if name in ALIGNMENTS else next(free) for name in names}
