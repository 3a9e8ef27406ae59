"""Percentile bootstrap: how far a metric could be elsewhere had other test images, or other seeds, been drawn.

Test images are drawn with replacement within each class, and an image takes along its answers after all tasks. Of n
images n - 1 are drawn, each counting n / (n - 1) times, so that every class keeps its weight and the variance is not
too small where classes have few images (McCarthy and Snowden 1985). Where runs have the same test images, each draw is
the same for all of them. Seeds are drawn with replacement as well. Draws are seeded: the same question has the same
answer.

There is no interval where resampling cannot tell: for a handful of images, and where every draw gives the same number,
as for answers that are all right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lca.evaluation.accuracy import AccuracyRecord

DRAWS, TOGETHER = 1000, 50
LEVEL = 0.95
FEWEST, ALONE = 20, 0.05
"""Test images that an interval takes, and the largest share of them that may be the only one of their class."""

Intervals = dict[str, tuple[float, float] | None]
"""Low and high end by the name of a metric, as in `AccuracyRecord.summary`; None where they are not defined."""


@dataclass(frozen=True)
class Outcomes:
    """Which test images a run recognised, after each task."""

    classes: Sequence[str]
    task_sizes: list[int]
    labels: Tensor
    """(n,) of all test images, class by class."""
    right: Sequence[Tensor]
    """After task t: one bool for each image of the classes seen so far."""

    @property
    def images(self) -> list[int]:
        """Test images per class."""
        return torch.bincount(self.labels.long(), minlength=len(self.classes)).tolist()

    def record(self) -> AccuracyRecord:
        """The counts, each image counting once."""
        return self.records(torch.ones(1, len(self.labels), dtype=torch.float64))[0]

    def records(self, weights: Tensor) -> list[AccuracyRecord]:
        """The counts with every image counting as often as the rows of `weights` (draws, n) say."""
        labels, correct, classes = self.labels.long(), [], 0
        for right, size in zip(self.right, self.task_sizes, strict=True):
            classes += size
            counts = weights.new_zeros(len(weights), classes)
            correct.append(counts.index_add(1, labels[: len(right)], weights[:, : len(right)] * right).tolist())
        totals = weights.new_zeros(len(weights), len(self.classes)).index_add(1, labels, weights).tolist()
        return [
            AccuracyRecord([rows[draw] for rows in correct], totals[draw], self.task_sizes)
            for draw in range(len(weights))
        ]


def seed_intervals(runs: Sequence[Outcomes], shared: bool, draws: int = DRAWS, seed: int = 0) -> Intervals:
    """95 % intervals of the mean over runs that differ in their seed: seeds are drawn, and test images.

    `shared`: the runs have the same test images. A single run has its test images drawn only. With few seeds the
    interval is too narrow rather than too wide, for so few cannot show how much seeds differ.
    """
    drawn = _summaries(runs, shared, draws, seed)
    chosen = torch.randint(len(runs), (draws, len(runs)), generator=torch.Generator().manual_seed(seed + 1))
    ends = {name: _percentiles(values.gather(1, chosen).mean(1)) for name, values in drawn.items()}
    enough = all(enough_images(run) for run in runs)
    return {name: (low, high) if enough and high - low > 1e-9 else None for name, (low, high) in ends.items()}


def paired_differences(
    first: Outcomes, second: Outcomes, draws: int = DRAWS, seed: int = 0
) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """By metric: first minus second on the same test images, and the ends of its 95 % interval (None for a handful).

    The images are drawn, the same for both; what other seeds would give is not in it. An interval that does not hold
    zero says that the difference is more than the choice of test images explains.
    """
    if _counts(first) != _counts(second):
        raise ValueError("the two runs have different test images")
    measured = [run.record().summary() for run in (first, second)]
    drawn = _summaries([first, second], True, draws, seed)
    ends = {name: _percentiles(values[:, 0] - values[:, 1]) for name, values in drawn.items()}
    return {
        name: (measured[0][name] - measured[1][name], each if enough_images(first) else None)
        for name, each in ends.items()
    }


def enough_images(run: Outcomes) -> bool:
    """Whether resampling a run's test images can tell anything."""
    images = run.images
    return sum(images) >= FEWEST and images.count(1) <= ALONE * sum(images)


def _summaries(runs: Sequence[Outcomes], shared: bool, draws: int, seed: int) -> dict[str, Tensor]:
    """Every metric that all runs have, of every draw and run: (draws, runs)."""
    columns: list[list[dict[str, float]]] = [[] for _ in runs]
    generators = [torch.Generator().manual_seed(seed + (0 if shared else 2 * number)) for number in range(len(runs))]
    for start in range(0, draws, TOGETHER):
        for run, random, column in zip(runs, generators, columns, strict=True):
            weights = _draw(run, min(TOGETHER, draws - start), random)
            column += [record.summary() for record in run.records(weights)]
    names = [name for name in columns[0][0] if all(name in column[0] for column in columns)]
    return {
        name: torch.tensor([[each[name] for each in column] for column in columns], dtype=torch.float64).T
        for name in names
    }


def _draw(run: Outcomes, draws: int, random: torch.Generator) -> Tensor:
    """How much each image counts: (draws, n). Classes are drawn in the order of their names, so that runs with other
    class orders, and generators in the same state, draw the same images."""
    images = run.images
    order = sorted(range(len(images)), key=lambda label: run.classes[label])
    weights: list[Tensor] = [torch.empty(0)] * len(images)
    for label in order:
        count = images[label]
        drawn = count - (count > 1)
        places = (torch.rand(draws, drawn, generator=random, dtype=torch.float64) * count).long().clamp(max=count - 1)
        weights[label] = torch.zeros(draws, count, dtype=torch.float64)
        weights[label].scatter_(1, places, count / max(drawn, 1), reduce="add")
    return torch.cat(weights, dim=1)


def _counts(run: Outcomes) -> dict[str, int]:
    return dict(zip(run.classes, run.images, strict=True))


def _percentiles(values: Tensor) -> tuple[float, float]:
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = torch.quantile(values, ends).tolist()
    return low, high
