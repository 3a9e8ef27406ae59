"""Classifiers that differ in a number of their labels, such as λ=0.1."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lca.results.classifiers import Classifier

NUMBER = re.compile(r"(?<!\S)(\S+?)=(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\S)")
FEWEST = 3
"""Numbers that make a line."""


@dataclass(frozen=True)
class Ablation:
    """What depends on a number, and the classifiers beside it."""

    name: str
    """Of the number."""
    lines: Mapping[str, Mapping[float, Classifier]]
    """By label without the number."""
    others: Sequence[Classifier]


def ablation(rows: Sequence[Classifier]) -> Ablation | None:
    """The classifiers by the number that most values of are found; None where no label has three of one."""
    numbers: dict[str, set[float]] = defaultdict(set)
    for row in rows:
        for name, value in NUMBER.findall(row.label):
            numbers[name].add(float(value))
    name = max(numbers, key=lambda each: len(numbers[each]), default="")
    lines: dict[str, dict[float, Classifier]] = defaultdict(dict)
    for row in rows:
        values = dict(NUMBER.findall(row.label))
        if name in values:
            lines[row.label.replace(f"{name}={values[name]}", name)][float(values[name])] = row
    long = {label: points for label, points in lines.items() if len(points) >= FEWEST}
    drawn = {id(row) for points in long.values() for row in points.values()}
    return Ablation(name, long, [row for row in rows if id(row) not in drawn]) if long else None
