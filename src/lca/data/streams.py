"""Streams: the tasks of a run, one at a time. What is not the current task cannot be read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from lca.config import DataOptions
from lca.data.images import ImageSet
from lca.data.sources import Source
from lca.errors import LcaError
from lca.randomness import generator


@dataclass(frozen=True)
class Task:
    """One batch of classes. A class may have been learnt before; the method treats it accordingly."""

    index: int
    classes: tuple[str, ...]
    train: ImageSet
    validation: ImageSet | None = None


class Stream:
    """A source cut into tasks: class order and task sizes of the literature, seeded."""

    def __init__(self, source: Source, options: DataOptions, seed: int) -> None:
        names = source.classes
        self.classes = tuple(names[position] for position in class_order(len(names), options, seed))
        self.task_classes: list[tuple[str, ...]] = []
        start = 0
        for size in task_sizes(len(names), options, source.tasks):
            self.task_classes.append(self.classes[start : start + size])
            start += size
        train = _limit(source.train, options.train_limit, seed)
        held_out = share_mask(train, options.validation, seed)
        self._train = train.subset(torch.nonzero(~held_out)[:, 0])
        self._validation = train.subset(torch.nonzero(held_out)[:, 0]) if options.validation else None
        self._evaluation = self._validation if options.evaluate == "validation" else source.test
        self._open: Task | None = None

    def __len__(self) -> int:
        return len(self.task_classes)

    @contextmanager
    def open(self, index: int) -> Iterator[Task]:
        """The task's images, readable until the context ends. Only one task is open at a time."""
        with self._opened(index, self.task_classes[index]) as task:
            yield task

    @contextmanager
    def everything(self) -> Iterator[Task]:
        """All training images as one task: for methods that declare that they need all data."""
        with self._opened(0, self.classes) as task:
            yield task

    def test(self, upto: int) -> ImageSet:
        """The evaluation images of the tasks 0 to `upto`, in class order. The evaluator's only."""
        seen = [name for classes in self.task_classes[: upto + 1] for name in classes]
        assert self._evaluation is not None
        return self._evaluation.of_classes(seen)

    def test_of(self, index: int) -> ImageSet:
        """The evaluation images of one task, in class order. The evaluator's only."""
        assert self._evaluation is not None
        return self._evaluation.of_classes(self.task_classes[index])

    def evaluation_count(self, classes: Sequence[str]) -> int:
        """How many evaluation images these classes have."""
        assert self._evaluation is not None
        return len(self._evaluation.of_classes(classes))

    def train_counts(self) -> list[int]:
        """Training images per class, in class order."""
        labels = self._train.of_classes(self.classes).labels
        return torch.bincount(labels, minlength=len(self.classes)).tolist()

    @contextmanager
    def _opened(self, index: int, classes: tuple[str, ...]) -> Iterator[Task]:
        if self._open is not None:
            raise RuntimeError(f"task {self._open.index} is still open; tasks are learnt one at a time")
        validation = self._validation.of_classes(classes) if self._validation is not None else None
        self._open = Task(index, classes, self._train.of_classes(classes), validation)
        try:
            yield self._open
        finally:
            self._open.train.close()
            if validation is not None:
                validation.close()
            self._open = None


def class_order(count: int, options: DataOptions, seed: int) -> list[int]:
    """The literature's order: one permutation from NumPy's legacy generator, seeded with the run's seed."""
    if options.order == "natural":
        return list(range(count))
    order_seed = seed if options.order_seed is None else options.order_seed
    return [int(position) for position in np.random.RandomState(order_seed).permutation(count)]


def task_sizes(count: int, options: DataOptions, default_tasks: int) -> list[int]:
    """Classes per task: a list as given, base + increments (the last may be short), or nearly equal parts."""
    if options.base is not None and options.increment is not None:
        if options.base > count:
            raise LcaError(f"data.base is {options.base}, but there are only {count} classes")
        rest = count - options.base
        full, short = divmod(rest, options.increment)
        return [options.base, *[options.increment] * full, *([short] if short else [])]
    if isinstance(options.tasks, list):
        if sum(options.tasks) != count:
            raise LcaError(f"data.tasks {options.tasks} hold {sum(options.tasks)} classes, the source has {count}")
        return options.tasks
    tasks = default_tasks if options.tasks is None else options.tasks
    if tasks > count:
        raise LcaError(f"data.tasks is {tasks}, but there are only {count} classes")
    return [count // tasks + (number < count % tasks) for number in range(tasks)]


def _limit(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    if limit is None:
        return images
    rows = []
    for label in range(len(images.classes)):
        own = torch.nonzero(images.labels == label)[:, 0]
        chosen = torch.randperm(len(own), generator=generator(seed, "train limit", label))[:limit]
        rows.append(own[chosen.sort().values])
    return images.subset(torch.cat(rows))


def share_mask(images: ImageSet, share: float, seed: int, smallest: int = 2) -> torch.Tensor:
    """Which images are held out: the same share of every class, at least one but never all of it, and none of a class
    with fewer than `smallest` images."""
    mask = torch.zeros(len(images), dtype=torch.bool)
    for label in range(len(images.classes)) if share else ():
        own = torch.nonzero(images.labels == label)[:, 0]
        if len(own) >= smallest:
            count = min(max(round(share * len(own)), 1), len(own) - 1)
            mask[own[torch.randperm(len(own), generator=generator(seed, "validation", label))[:count]]] = True
    return mask
