"""How far a number could be elsewhere: Wilson of a share, Student's t over seeds, and a percentile bootstrap.

The bootstrap: test images are drawn with replacement within each class, and an image takes along its answers after all
tasks. Of n images n - 1 are drawn, each counting n / (n - 1) times, so that every class keeps its weight and the
variance is not too small where classes have few images (McCarthy and Snowden 1985). Where runs have the same test
images, each draw is the same for all of them. Seeds are drawn with replacement as well. Draws are seeded: the same
question has the same answer.

There is no interval where resampling cannot tell: for a handful of images, and where every draw gives the same number,
as for answers that are all right.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lca.errors import needs
from lca.evaluation.accuracy import AccuracyRecord

DRAWS, TOGETHER = 1000, 50
LEVEL = 0.95
FEWEST, ALONE = 20, 0.05
"""Test images that an interval takes, and the largest share of them that may be the only one of their class."""

Ends = tuple[float, float]
"""Low and high end of an interval."""
Summary = Callable[[AccuracyRecord], Mapping[str, float]]
"""The metrics to resample, by name."""


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean over seeds, and the sample standard deviation where there are at least two."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def student_interval(values: Sequence[float], whole: float | None = None) -> Ends | None:
    """95 % interval of the mean of a few normal values; None where they do not vary. Of shares it ends at 0 and at the
    whole."""
    with needs("an interval over seeds", "scipy"):
        from scipy import stats

    mean, deviation = mean_and_deviation(values)
    if not deviation:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * deviation / len(values) ** 0.5
    low, high = mean - half, mean + half
    return (low, high) if whole is None else (max(low, 0.0), min(high, whole))


def wilson_interval(correct: int, total: int, z: float = 1.96) -> Ends:
    """95 % interval of a proportion, in per cent (Wilson 1927): sensible also for few images and near 0 or 100 %."""
    if not total:
        raise ValueError("the interval of no answers is not defined")
    share, spread = correct / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return 100 * max(centre - half, 0.0), 100 * min(centre + half, 1.0)


@dataclass(frozen=True)
class Outcomes:
    """Which test images a run recognised, after each task."""

    classes: Sequence[str]
    """Where classes come back in domains: those of every domain, under names of their own."""
    task_sizes: list[int]
    labels: Tensor
    """(n,) of all test images, class by class."""
    right: Sequence[Tensor]
    """After task t: one bool for each image of the classes seen so far."""
    domains: Sequence[str] = ()
    """Of every task, where classes come back in them."""

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
            AccuracyRecord([rows[draw] for rows in correct], totals[draw], self.task_sizes, self.domains)
            for draw in range(len(weights))
        ]


def seed_intervals(
    runs: Sequence[Outcomes], shared: bool, summary: Summary, draws: int = DRAWS, seed: int = 0
) -> dict[str, Ends | None]:
    """95 % intervals of the mean over runs that differ in their seed: seeds are drawn, and test images. By the name of
    the metric; None where there is none.

    `shared`: the runs have the same test images. A single run has its test images drawn only. With few seeds the
    interval is too narrow rather than too wide, for so few cannot show how much seeds differ.
    """
    drawn = _summaries(runs, shared, summary, draws, seed)
    chosen = torch.randint(len(runs), (draws, len(runs)), generator=torch.Generator().manual_seed(seed + 1))
    ends = {name: _percentiles(values.gather(1, chosen).mean(1)) for name, values in drawn.items()}
    enough = all(enough_images(run) for run in runs)
    return {name: (low, high) if enough and high - low > 1e-9 else None for name, (low, high) in ends.items()}


def paired_differences(
    first: Outcomes, second: Outcomes, summary: Summary, draws: int = DRAWS, seed: int = 0
) -> dict[str, tuple[float, Ends | None]]:
    """By metric: first minus second on the same test images, and the ends of its 95 % interval (None for a handful).

    The images are drawn, the same for both; what other seeds would give is not in it. An interval that does not hold
    zero says that the difference is more than the choice of test images explains.
    """
    if _counts(first) != _counts(second):
        raise ValueError("the two runs have different test images")
    one, two = (summary(run.record()) for run in (first, second))
    drawn = _summaries([first, second], True, summary, draws, seed)
    ends = {name: _percentiles(values[:, 0] - values[:, 1]) for name, values in drawn.items()}
    return {name: (one[name] - two[name], pair if enough_images(first) else None) for name, pair in ends.items()}


def enough_images(run: Outcomes) -> bool:
    """Whether resampling a run's test images can tell anything."""
    images = run.images
    return sum(images) >= FEWEST and images.count(1) <= ALONE * sum(images)


def _summaries(runs: Sequence[Outcomes], shared: bool, summary: Summary, draws: int, seed: int) -> dict[str, Tensor]:
    """Every metric that all runs have, of every draw and run: (draws, runs)."""
    columns: list[list[Mapping[str, float]]] = [[] for _ in runs]
    generators = [torch.Generator().manual_seed(seed + (0 if shared else 2 * number)) for number in range(len(runs))]
    for start in range(0, draws, TOGETHER):
        for run, random, column in zip(runs, generators, columns, strict=True):
            weights = _draw(run, min(TOGETHER, draws - start), random)
            column += [summary(record) for record in run.records(weights)]
    names = [name for name in columns[0][0] if all(name in column[0] for column in columns)]
    return {
        name: torch.tensor([[drawn[name] for drawn in column] for column in columns], dtype=torch.float64).T
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


def _percentiles(values: Tensor) -> Ends:
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = torch.quantile(values, ends).tolist()
    return low, high
