"""The accuracy record of a run, and the metrics of the field computed from it, each in every definition in use.

After task t the classes of tasks 0 to t are tested; a_tj is the accuracy on task j's test images after task t.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class AccuracyRecord:
    """Correct answers per class after every task: all metrics follow from these counts."""

    correct: list[list[int]]
    """After task t: one count per class seen so far, in class order."""
    total: list[int]
    """Test images per class."""
    task_sizes: list[int]
    """Classes per task."""

    def matrix(self) -> list[list[float]]:
        """a_tj for j <= t, in per cent: a lower triangle, row by row."""
        return [
            [_percent(sum(row[start:end]), sum(self.total[start:end])) for start, end in self._bounds()[: number + 1]]
            for number, row in enumerate(self.correct)
        ]

    def task_mean(self) -> list[float]:
        """A_t = mean over tasks j <= t of a_tj: every task counts the same (the LCA paper's own rows)."""
        return [_mean(row) for row in self.matrix()]

    def sample_weighted(self) -> list[float]:
        """A_t = correct / all test images seen so far: every image counts the same (PILOT, all baseline rows)."""
        return [_percent(sum(row), sum(self.total[: len(row)])) for row in self.correct]

    def forgetting(self) -> float | None:
        """Mean over all tasks but the last of max_t a_tj - a_Tj; None for a single task."""
        matrix = self.matrix()
        drops = [max(row[task] for row in matrix[task:]) - matrix[-1][task] for task in range(len(self.task_sizes) - 1)]
        return _mean(drops) if drops else None

    def metrics(self) -> dict[str, Any]:
        """The numbers a table shows, in per cent."""
        task_mean, weighted = self.task_mean(), self.sample_weighted()
        return {
            "average_accuracy": {"task_mean": _mean(task_mean), "sample_weighted": _mean(weighted)},
            "last_accuracy": {"task_mean": task_mean[-1], "sample_weighted": weighted[-1]},
            "forgetting": self.forgetting(),
            "after_each_task": {"task_mean": task_mean, "sample_weighted": weighted},
        }

    def _bounds(self) -> list[tuple[int, int]]:
        ends = [sum(self.task_sizes[: number + 1]) for number in range(len(self.task_sizes))]
        return [(end - size, end) for end, size in zip(ends, self.task_sizes, strict=True)]


def correct_by_class(predictions: Tensor, labels: Tensor, classes: int) -> list[int]:
    """How many images of every class were recognised."""
    return torch.bincount(labels[predictions == labels], minlength=classes).tolist()


def mean_and_deviation(values: list[float]) -> tuple[float, float | None]:
    """Mean over seeds, and the sample standard deviation where there are at least two."""
    mean = _mean(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
