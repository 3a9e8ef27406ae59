"""Streams: the tasks of a run, one at a time. What is not the current task cannot be read."""

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lca.data.folders import class_name
from lca.data.images import ImageSet
from lca.data.options import DataOptions
from lca.data.sources import Source
from lca.errors import LcaError, nearest
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
        self.task_classes = classes_of_tasks(source.classes, options, seed, source.tasks, source.sizes)
        self.classes = tuple(itertools.chain(*self.task_classes))
        train = _limit(source.train, options, seed)
        held_out = share_mask(train, options.validation, seed)
        self._train = train.subset(~held_out)
        self._returning = _returning(self.task_classes, options.returning, seed)
        self._task_of_image = self._divided(seed)
        if options.returning and len(self) > 1 and not any(map(self._back, range(len(self)))):
            raise LcaError(
                f"data.returning={options.returning} brings no class back: a class needs two training images or more, "
                "and the share must be of at least one class"
            )
        validation = train.subset(held_out)
        self._validation = validation if options.validation else None
        self._evaluation = validation if options.evaluate == "validation" else source.test
        self._open: Task | None = None

    def __len__(self) -> int:
        return len(self.task_classes)

    def open(self, index: int) -> AbstractContextManager[Task]:
        """The task's images, readable until the context ends. Only one task is open at a time."""
        train = self._train.subset(self._task_of_image == index)
        return self._opened(index, (*self.task_classes[index], *self._back(index)), train)

    def everything(self) -> AbstractContextManager[Task]:
        """All training images as one task: for methods that declare that they need all data."""
        return self._opened(0, self.classes, self._train)

    def test(self, upto: int) -> ImageSet:
        """The evaluation images of the tasks 0 to `upto`, in class order. The evaluator's only."""
        return self._evaluation.of_classes([*itertools.chain(*self.task_classes[: upto + 1])])

    def test_of(self, index: int) -> ImageSet:
        """The evaluation images of one task, in class order. The evaluator's only."""
        return self._evaluation.of_classes(self.task_classes[index])

    def evaluation_count(self, classes: Sequence[str]) -> int:
        """How many evaluation images these classes have."""
        return len(self._evaluation.of_classes(classes))

    def train_counts(self) -> list[int]:
        """Training images per class, in class order."""
        return [*self._train.of_classes(self.classes).counts().values()]

    def _back(self, index: int) -> list[str]:
        """The classes of earlier tasks of which this one has images."""
        labels = self._train.labels[self._task_of_image == index]
        there = {self._train.classes[label] for label in labels.unique().tolist()}
        return [name for name in self._returning[index] if name in there]

    def _divided(self, seed: int) -> Tensor:
        """The task of every training image: a class that returns has some in each of its tasks, while they last."""
        task_of_image = torch.zeros(len(self._train), dtype=torch.long)
        for label, name in enumerate(self._train.classes):
            rows = self._train.rows_of(label)
            first = next(number for number, classes in enumerate(self.task_classes) if name in classes)
            tasks = torch.tensor([first, *(number for number, back in enumerate(self._returning) if name in back)])
            order = rows[torch.randperm(len(rows), generator=generator(seed, "returning", label))]
            task_of_image[order] = tasks[torch.arange(len(rows)) % len(tasks)]
        return task_of_image

    @contextmanager
    def _opened(self, index: int, classes: tuple[str, ...], train: ImageSet) -> Iterator[Task]:
        if self._open is not None:
            raise RuntimeError(f"task {self._open.index} is still open; tasks are learnt one at a time")
        validation = self._validation.of_classes(classes) if self._validation is not None else None
        self._open = Task(index, classes, train.of_classes(classes), validation)
        try:
            yield self._open
        finally:
            self._open.train.close()
            if validation is not None:
                validation.close()
            self._open = None


def classes_of_tasks(
    names: Sequence[str], options: DataOptions, seed: int, default_tasks: int, default_sizes: Sequence[int] = ()
) -> list[tuple[str, ...]]:
    """The classes that are new in every task."""
    order = class_order(names, options, seed)
    rest = iter(order)
    return [tuple(itertools.islice(rest, size)) for size in task_sizes(order, options, default_tasks, default_sizes)]


def class_order(names: Sequence[str], options: DataOptions, seed: int) -> tuple[str, ...]:
    """The classes in the order they are learnt. The literature's is one permutation from NumPy's legacy generator,
    seeded with the run's seed."""
    if options.order == "natural":
        return tuple(names)
    if options.order_file is not None:
        return _order_from_file(options.order_file, names)
    random = np.random.RandomState(seed if options.order_seed is None else options.order_seed)
    order = [names[position] for position in random.permutation(len(names))]
    if options.order == "domains":
        domains = list(dict.fromkeys(map(domain, order)))
        if len(domains) == len(order):
            raise LcaError(
                f"data.order=domains: no two of the {len(order)} classes have a domain in common, which is what stands "
                f"before the first - or _ of a name, as in pet-cat and pet-dog; got {', '.join(order[:3])}"
            )
        order.sort(key=lambda name: domains.index(domain(name)))
    return tuple(order)


def domain(name: str) -> str:
    """What stands before the first `-` or `_` of a class's name."""
    return re.split(r"[-_]", name, maxsplit=1)[0]


def _order_from_file(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    try:
        lines = path.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LcaError(f"data.order_file {path} cannot be read: {error}") from error
    order = [class_name(line.strip()) for line in lines if line.strip()]
    if repeated := sorted({name for name in order if order.count(name) > 1}):
        raise LcaError(f"{path} names these classes more than once: {', '.join(repeated[:5])}")
    if unknown := [name for name in order if name not in names]:
        raise LcaError(f"{path} names {unknown[0]!r}, which is no class of the source; {nearest(unknown[0], names)}")
    if missing := [name for name in names if name not in order]:
        raise LcaError(f"{path} leaves out {len(missing)} of {len(names)} classes: {', '.join(missing[:5])}")
    return tuple(order)


def task_sizes(
    classes: Sequence[str], options: DataOptions, default_tasks: int, default_sizes: Sequence[int] = ()
) -> list[int]:
    """Classes per task: a list as given, base + increments (the last may be short), or nearly equal parts.

    Where nothing is given: a task per domain if the order is by domains, or else the literature's sizes, if they fit.
    """
    count = len(classes)
    if options.tasks is None and options.base is None:
        if options.order == "domains":
            return [len(list(group)) for _, group in itertools.groupby(classes, domain)]
        if sum(default_sizes) == count:
            return [*default_sizes]
    if options.base is not None and options.increment is not None:
        if options.base > count:
            raise LcaError(f"data.base is {options.base}, but there are only {count} classes")
        return base_and_increments(count, options.base, options.increment)
    if isinstance(options.tasks, list):
        if sum(options.tasks) != count:
            raise LcaError(f"data.tasks {options.tasks} hold {sum(options.tasks)} classes, the source has {count}")
        return options.tasks
    tasks = default_tasks if options.tasks is None else options.tasks
    if tasks > count:
        raise LcaError(f"data.tasks is {tasks}, but there are only {count} classes")
    return [count // tasks + (number < count % tasks) for number in range(tasks)]


def base_and_increments(classes: int, base: int, increment: int) -> list[int]:
    """Classes per task: a base, then equal increments, of which the last may be short."""
    full, short = divmod(classes - base, increment)
    return [base, *[increment] * full, *([short] if short else [])]


def _limit(images: ImageSet, options: DataOptions, seed: int) -> ImageSet:
    """Few images of every class, or ever fewer from class to class."""
    if options.train_limit is None and options.long_tail is None:
        return images
    last, kept = max(len(images.classes) - 1, 1), []
    ranks = torch.randperm(len(images.classes), generator=generator(seed, "long tail")).tolist()
    for label, rank in enumerate(ranks):
        rows = images.rows_of(label)
        count = min(len(rows), options.train_limit or len(rows))
        if options.long_tail is not None:
            count = max(round(count * options.long_tail ** (-rank / last)), min(count, 1))
        chosen = torch.randperm(len(rows), generator=generator(seed, "train limit", label))[:count]
        kept.append(rows[chosen.sort().values])
    return images.subset(torch.cat(kept))


def _returning(tasks: Sequence[Sequence[str]], share: float, seed: int) -> list[tuple[str, ...]]:
    """The classes of earlier tasks that come back in every task."""
    returning, earlier = [], list[str]()
    for number, classes in enumerate(tasks):
        chosen = torch.randperm(len(earlier), generator=generator(seed, "returning classes", number))
        returning.append(tuple(earlier[place] for place in sorted(chosen[: round(share * len(earlier))].tolist())))
        earlier += classes
    return returning


def share_mask(images: ImageSet, share: float, seed: int, smallest: int = 2) -> Tensor:
    """Which images are held out: the same share of every class, at least one but never all of it, and none of a class
    with fewer than `smallest` images."""
    mask = torch.zeros(len(images), dtype=torch.bool)
    for label in range(len(images.classes)) if share else ():
        rows = images.rows_of(label)
        if len(rows) >= smallest:
            count = min(max(round(share * len(rows)), 1), len(rows) - 1)
            mask[rows[torch.randperm(len(rows), generator=generator(seed, "validation", label))[:count]]] = True
    return mask
