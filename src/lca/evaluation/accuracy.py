"""The accuracy record of a run, and the metrics of the field computed from it, each in every definition in use.

After task t the test images of tasks 1 to t are asked about; a_tj is the accuracy on those of task j after task t, in
per cent, and T is the last task. Where a task is a domain in which all classes come back, every class has a count of
its own in each.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class AccuracyRecord:
    """Correct answers per class after every task: all metrics follow from these counts."""

    correct: list[list[int]]
    """After task t: one count per class seen so far, in class order, of domains one after another. (Fractions where
    images are weighted.)"""
    total: list[int]
    """Test images of every count."""
    task_sizes: list[int]
    """Counts per task."""
    domains: Sequence[str] = ()
    """Of every task, where all classes come back in them."""

    def matrix(self) -> list[list[float]]:
        """a_tj for j <= t, in per cent: a lower triangle, row by row."""
        return self._matrix

    @cached_property
    def _matrix(self) -> list[list[float]]:
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

    def after_each_task(self) -> dict[str, list[float]]:
        """A_t in both definitions."""
        return {"task_mean": self.task_mean(), "sample_weighted": self.sample_weighted()}

    def average_accuracy(self) -> dict[str, float]:
        """Mean over all tasks of A_t."""
        return {name: _mean(curve) for name, curve in self.after_each_task().items()}

    def last_accuracy(self) -> dict[str, float]:
        """A_T."""
        return {name: curve[-1] for name, curve in self.after_each_task().items()}

    def oldest_and_newest(self) -> dict[str, float]:
        """a_T1 and a_TT: what became of the task that was learnt first, and of the one that was learnt last."""
        last = self.matrix()[-1]
        return {"oldest": last[0], "newest": last[-1]}

    def forgetting(self) -> float | None:
        """Mean over all tasks but the last of max_t a_tj - a_Tj; None for a single task."""
        drops = self._drops()[:-1]
        return _mean(drops) if drops else None

    def by_domain(self) -> dict[str, Any] | None:
        """Of a stream of domains, by their names: a_Tj after the last task, and the drop max_t a_tj - a_Tj; and of the
        former the mean and the least. None of other streams."""
        if not self.domains:
            return None
        last = dict(zip(self.domains, self.matrix()[-1], strict=True))
        drops = dict(zip(self.domains, self._drops(), strict=True))
        return {"last": last, "forgetting": drops, "mean": _mean([*last.values()]), "worst": min(last.values())}

    def _drops(self) -> list[float]:
        """max_t a_tj - a_Tj for every task j."""
        matrix = self.matrix()
        return [max(row[task] for row in matrix[task:]) - last for task, last in enumerate(matrix[-1])]

    def learning_accuracies(self) -> list[float]:
        """a_jj for every task j: how well a task is known right after it was learnt."""
        return [row[-1] for row in self.matrix()]

    def learning_accuracy(self) -> float:
        """Mean over all tasks of a_jj."""
        return _mean(self.learning_accuracies())

    def backward_transfer(self) -> float | None:
        """Mean over all tasks but the last of a_Tj - a_jj: below zero, later tasks cost; None for a single task
        (Lopez-Paz and Ranzato 2017)."""
        changes = [last - first for first, last in zip(self.learning_accuracies(), self.matrix()[-1], strict=True)]
        return _mean(changes[:-1]) if len(changes) > 1 else None

    def by_class(self) -> list[list[float | None]]:
        """After task t, for every class c seen so far: 100 · right / test images of c; None without test images."""
        return [
            [100 * right / total if total else None for right, total in zip(row, self.total[: len(row)], strict=True)]
            for row in self.correct
        ]

    def by_task(self) -> list[tuple[int, int]]:
        """Right answers after the last task, and test images, of every task."""
        return [(sum(self.correct[-1][start:end]), sum(self.total[start:end])) for start, end in self._bounds()]

    def _bounds(self) -> list[tuple[int, int]]:
        ends = [sum(self.task_sizes[: number + 1]) for number in range(len(self.task_sizes))]
        return [(end - size, end) for end, size in zip(ends, self.task_sizes, strict=True)]


def running_means(curve: Sequence[float]) -> list[float]:
    """(A_1 + ... + A_t) / t after every task t, which the LCA paper plots as its curves; the last one is AA."""
    return [total / number for number, total in enumerate(itertools.accumulate(curve), start=1)]


def intransigence(record: AccuracyRecord, joint: AccuracyRecord) -> float:
    """Mean over all tasks j of a*_jj - a_jj, where a* is a run that learnt all data at once (Chaudhry et al. 2018).

    Both are asked among the classes of the tasks up to j. The joint run has seen the later tasks' images as well, where
    the original definition trains a reference anew for every j. Below zero, learning in sequence was better.
    """
    if (record.total, record.task_sizes) != (joint.total, joint.task_sizes):
        raise ValueError("the two runs have different tasks or test images")
    pairs = zip(joint.learning_accuracies(), record.learning_accuracies(), strict=True)
    return _mean([bound - reached for bound, reached in pairs])


def correct_by_class(right: Tensor, labels: Tensor, classes: int) -> list[int]:
    """How many images of every class were recognised: those of which `right` (n,) is true."""
    return torch.bincount(labels[right], minlength=classes).tolist()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percent(part: int, whole: int) -> float:
    if not whole:
        raise ValueError("the accuracy of a task without test images is not defined")
    return 100 * part / whole
