"""How classifiers look in all figures of a report: decided once, so that neighbouring pictures agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean

from lca.report.ablation import Ablation
from lca.report.drawing import LINES, PALETTE, Look
from lca.results.classifiers import Classifier

ALIGNMENTS = ("none", "ca", "lca", "best", "its own")
"""They have the first colours of the palette in every report."""


@dataclass(frozen=True)
class Looks:
    """What tells classifiers and alignments apart."""

    order: Sequence[str]
    """The labels as they were asked for; else the best over all data sets first."""
    labels: Mapping[str, Look]
    """Of classifiers, and of the lines that those are on which differ in a number."""
    alignments: Mapping[str, Look]


def alignment_of(row: Classifier) -> str:
    """The branch; one name for the own alignments of all methods."""
    return "its own" if row.own else row.branch


def looks_of(
    found: Mapping[str, Sequence[Classifier]], ablations: Mapping[str, Ablation], only: Sequence[str] = ()
) -> Looks:
    """Few methods have different lines, and their alignments the colours; of many methods, or alignments, every
    classifier has a colour of its own, as long as there are colours."""
    rows = {row.label: row for each in found.values() for row in each}
    lines = {
        row.label: (name, of)
        for of in ablations.values()
        for name, points in of.lines.items()
        for row in points.values()
    }

    def plain(label: str, text: str) -> str:
        return lines[label][1].without_number(text) if label in lines else text

    names = {label: lines[label][0] if label in lines else label for label in _order(found, only)}
    methods = _numbered(plain(label, rows[label].group) for label in [*lines, *rows])
    colours = alignment_places(plain(label, alignment_of(row)) for label, row in rows.items())
    one, few = len(methods) == 1, len(methods) <= len(LINES) and max(colours.values()) < len(PALETTE)
    if one or few:
        looks = {
            label: Look.of(colours[plain(label, alignment_of(row))], methods[plain(label, row.group)])
            for label, row in rows.items()
        }
    else:
        places = _numbered(names.values())
        looks = {label: Look.of(places[name]) for label, name in names.items()}
    alignments = alignment_places(map(alignment_of, rows.values()))
    return Looks(
        [*names],
        looks | {name: looks[label] for label, name in names.items()},
        {alignment: Look.of(number) for alignment, number in alignments.items()},
    )


def _order(found: Mapping[str, Sequence[Classifier]], only: Sequence[str]) -> list[str]:
    rows: dict[str, list[Classifier]] = {}
    for each in found.values():
        for row in each:
            rows.setdefault(row.label, []).append(row)

    def place(label: str) -> tuple[int, int, float]:
        asked = [number for number, name in enumerate(only) if name in rows[label][0].names]
        return min(asked, default=0), -len(rows[label]), -fmean(row.plain["AA"].mean for row in rows[label])

    return sorted(rows, key=place)


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def alignment_places(alignments: Iterable[str]) -> dict[str, int]:
    """Where their colours are in the palette; nothing else has the colour of one of those that have theirs."""
    free = (number for number in count() if number % len(PALETTE) >= len(ALIGNMENTS))
    names = dict.fromkeys(alignments)
    return {name: ALIGNMENTS.index(name) if name in ALIGNMENTS else next(free) for name in names}
