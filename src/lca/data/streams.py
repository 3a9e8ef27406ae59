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
from lca.data.sources import Domains, Source
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
    """A source cut into tasks: class order and task sizes of the literature, seeded.

    Images are put together in groups. A group is a class; or, where a task is a domain in which classes come back, a
    class of one domain.
    """

    def __init__(self, source: Source, options: DataOptions, seed: int) -> None:
        self.domains = domain_order(source.domains, options, seed)
        """The domain of every task; none where tasks bring classes of their own."""
        train, test = _grouped(source) if self.domains else (source.train, source.test)
        train = _limit(train, options, seed)
        held_out = share_mask(train, options.validation, seed)
        self._train = train.subset(~held_out)
        validation = train.subset(held_out)
        self._validation = validation if options.validation else None
        self._evaluation = validation if options.evaluate == "validation" else test
        if self.domains:
            self.task_classes = self._new_by_domain(_shuffled(source.classes, options, seed))
        else:
            self.task_classes = classes_of_tasks(source.classes, options, seed, source.tasks, source.sizes)
        self.classes = tuple(itertools.chain(*self.task_classes))
        self._returning = _returning(self.task_classes, options.returning, seed)
        self._task_of_image = torch.zeros(0) if self.domains else self._divided(seed)  # groups tell domains apart
        if options.returning and len(self) > 1 and not any(map(self._back, range(len(self)))):
            raise LcaError(
                f"data.returning={options.returning} brings no class back: a class needs two training images or more, "
                "and the share must be of at least one class"
            )
        self._open: Task | None = None

    def __len__(self) -> int:
        return len(self.task_classes)

    def open(self, index: int) -> AbstractContextManager[Task]:
        """The task's images, readable until the context ends. Only one task is open at a time."""
        train = self._train if self.domains else self._train.subset(self._task_of_image == index)
        return self._opened(index, self._learnt_in(index), self.domains[index : index + 1], train)

    def everything(self) -> AbstractContextManager[Task]:
        """All training images as one task: for methods that declare that they need all data."""
        return self._opened(0, self.classes, self.domains, self._train)

    def asked(self, index: int) -> tuple[str, ...]:
        """The classes among which the evaluation images of a task are: its new ones, or in a stream of domains all."""
        return self.classes if self.domains else self.task_classes[index]

    def test(self, upto: int) -> ImageSet:
        """The evaluation images of the tasks 0 to `upto`, task by task in class order. The evaluator's only."""
        groups = itertools.chain(*map(self._asked_groups, range(upto + 1)))
        return self._labelled(self._evaluation, [*groups], [*itertools.chain(*self.task_classes[: upto + 1])])

    def test_of(self, index: int) -> ImageSet:
        """The evaluation images of one task, in class order. The evaluator's only."""
        return self._labelled(self._evaluation, self._asked_groups(index), self.asked(index))

    def test_counts(self) -> list[int]:
        """Evaluation images per class, in class order; in a stream of domains of one domain after another."""
        counts = self._evaluation.counts()
        return [counts[group] for index in range(len(self)) for group in self._asked_groups(index)]

    def train_counts(self) -> list[int]:
        """Training images per class, in class order."""
        counts = self._train.counts()
        return [sum(counts[group] for group in groups_of([name], self.domains)) for name in self.classes]

    def _asked_groups(self, index: int) -> list[str]:
        return groups_of(self.asked(index), self.domains[index : index + 1])

    def _learnt_in(self, index: int) -> tuple[str, ...]:
        """The classes of which a task has training images, in a stream of classes the new ones first."""
        if not self.domains:
            return (*self.task_classes[index], *self._back(index))
        counts, names = self._train.counts(), self.classes
        there = zip(names, groups_of(names, [self.domains[index]]), strict=True)
        return tuple(name for name, group in there if counts[group])

    def _labelled(self, images: ImageSet, groups: Sequence[str], classes: Sequence[str]) -> ImageSet:
        """The images of some groups, group by group, labelled by their class."""
        chosen = images.of_classes(groups)
        if not self.domains:
            return chosen
        position = {group: number for number, name in enumerate(classes) for group in groups_of([name], self.domains)}
        labels = torch.tensor([position.get(group, -1) for group in groups])  # -1: no images of it are asked about
        return chosen.relabelled(labels[chosen.labels], classes)

    def _new_by_domain(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """The classes that every domain is the first to teach. What is asked about must have been taught."""
        train, asked, new = self._train.counts(), self._evaluation.counts(), list[tuple[str, ...]]()
        for domain in self.domains:
            known, groups = {*itertools.chain(*new)}, dict(zip(names, groups_of(names, [domain]), strict=True))
            if not any(train[group] for group in groups.values()):
                raise LcaError(f"the domain {domain!r} has no training images; add some, or remove its test images")
            new.append(tuple(name for name in names if train[groups[name]] and name not in known))
            for name in {*names} - known - {*new[-1]}:
                if asked[groups[name]]:
                    raise LcaError(
                        f"the domain {domain!r} has images of {name!r} to evaluate on, but of the domains up to it "
                        f"({', '.join(self.domains[: len(new)])}) none has any to learn; add some, or remove those"
                    )
        return new

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
    def _opened(self, index: int, classes: tuple[str, ...], domains: Sequence[str], train: ImageSet) -> Iterator[Task]:
        if self._open is not None:
            raise RuntimeError(f"task {self._open.index} is still open; tasks are learnt one at a time")
        groups = groups_of(classes, domains)
        validation = self._labelled(self._validation, groups, classes) if self._validation is not None else None
        self._open = Task(index, classes, self._labelled(train, groups, classes), validation)
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
    order = _shuffled(names, options, seed)
    if options.order == "domains":
        domains = list(dict.fromkeys(map(domain, order)))
        if len(domains) == len(order):
            raise LcaError(
                f"data.order=domains: no two of the {len(order)} classes have a domain in common, which is what stands "
                f"before the first - or _ of a name, as in pet-cat and pet-dog; got {', '.join(order[:3])}. Where the "
                "same classes come in several domains, lay them out as DOMAIN/CLASS and use data.source=domains:PATH"
            )
        order.sort(key=lambda name: domains.index(domain(name)))
    return tuple(order)


def _shuffled(names: Sequence[str], options: DataOptions, seed: int) -> list[str]:
    random = np.random.RandomState(seed if options.order_seed is None else options.order_seed)
    return [names[position] for position in random.permutation(len(names))]


def domain_order(domains: Domains | None, options: DataOptions, seed: int) -> tuple[str, ...]:
    """The domain of every task of a stream in which classes come back, in an order drawn like that of classes; none of
    other streams."""
    if domains is None or options.order != "domains":
        return ()
    if options.tasks is not None or options.base is not None or options.returning:
        raise LcaError(
            f"data.order=domains: a task is one of the {len(domains.names)} domains ({', '.join(domains.names)}), and "
            "all their classes come back; leave out data.tasks, data.base, data.increment and data.returning"
        )
    return tuple(_shuffled(domains.names, options, seed))


def groups_of(classes: Sequence[str], domains: Sequence[str]) -> list[str]:
    """The groups of some classes in some domains; without domains the classes themselves."""
    return [f"{domain}/{name}" for name in classes for domain in domains] if domains else [*classes]


def _grouped(source: Source) -> tuple[ImageSet, ImageSet]:
    """The training and the test images of a source, labelled by class and domain."""
    domains = source.domains
    assert domains is not None
    groups = [f"{domain}/{name}" for domain in domains.names for name in source.classes]
    train, test = (
        images.relabelled(numbers * len(source.classes) + images.labels, groups)
        for images, numbers in ((source.train, domains.train), (source.test, domains.test))
    )
    return train, test


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
