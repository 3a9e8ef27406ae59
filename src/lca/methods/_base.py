"""The contract of a method: named, resumable steps per task, logits per branch, and a state that is all there is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.data.looks import Look
from lca.data.streams import Task
from lca.errors import LcaError
from lca.features import extract
from lca.files import Part, State, Stored, nbytes
from lca.options import NamedOptions
from lca.statistics.distances import KnownDistances
from lca.statistics.gaussians import GaussianMemory
from lca.training.setting import Setting

__all__ = ["MIRRORED", "PRETRAINED", "Method", "MethodInfo", "Passes", "Setting", "Step"]

T = TypeVar("T")
Passes = Literal["1", "2", "one per task", "one per task and one more"]
PRETRAINED = "pretrained"
"""The part of features that the backbone makes as it was pre-trained."""
MIRRORED = "mirrored "
"""Begins the name of a part that is another part's, of the mirrored view."""


class MethodOptions(NamedOptions):
    """Base of the options that live in each method's file."""


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know before choosing a method."""

    title: str
    reference: str
    trains: str
    needs_all_data: bool = False
    passes: Passes = "1"
    """How often an image goes through the transformer to be answered, with the method's default options."""


@dataclass(frozen=True)
class Step:
    """A piece of a task's work; once it has run, the state is enough to go on from there.

    A step of the trunk changes the backbone. The others only change heads and statistics on top of it, so many of them
    can share one trunk. The trunk comes first.
    """

    phase: str
    """Names the work; a phase may take several steps, an epoch each."""
    run: Callable[[], dict[str, float] | None]
    """Does it and returns what was measured."""
    number: int = 0
    """Which step of its phase this is."""
    count: int = 1
    """How many steps its phase has."""
    trunk: bool = False
    ends_trunk: bool = False
    """Whether the trunk is complete afterwards; `ContinualClassifier.steps` says so."""


class Method(ABC):
    """A way to keep learning. Labels are the positions of classes in the order they were learnt."""

    info: ClassVar[MethodInfo]
    Options: ClassVar[type[MethodOptions]]
    defaults: ClassVar[Mapping[str, Any]] = {}
    """What a recipe leaves open of `tuning` and `training` when it names this method: as published for ViT-B."""
    distils: ClassVar[bool] = False
    """Whether `training.distillation` has a meaning here."""
    remembers: ClassVar[tuple[str, ...]] = ()
    """Attributes that are the state: what is `Stored` is the part of that name, all else is JSON."""
    branch_keys: ClassVar[frozenset[str]] = frozenset()
    """Options that influence only what happens after the trunk."""
    instant: ClassVar[bool] = False
    """Whether it can do without training where `steps` trains: then it has `instant_steps` of its own."""

    def __init__(self, setting: Setting, options: MethodOptions) -> None:
        self.setting = setting
        self.options = options
        if setting.training.distillation and not self.distils:
            raise LcaError(f"training.distillation does nothing with method {options.name!r}; leave it out")

    @abstractmethod
    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        """The work of one task. `labels` gives the label of every class of the task, known ones included."""

    def trains(self, task: Task) -> bool:
        """Whether `steps` trains on this task. Where it does not, they are its instant steps, too."""
        return True

    def instant_steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        """The work of one task without training: statistics, and heads from them, on the backbone as it is."""
        if self.trains(task):
            raise LcaError(
                f"method {self.options.name!r} cannot learn these classes without training; teach them with "
                "effort='thorough' (--thorough), or make a model with a method that can, such as 'im' or 'frozen'"
            )
        return self.steps(task, labels)

    @property
    def passes(self) -> Passes:
        """How often an image goes through the transformer to be answered."""
        return self.info.passes

    @abstractmethod
    def logits(self, features: Tensor, branch: str) -> Tensor:
        """(n, width) -> (n, classes learnt)."""

    def state(self) -> State:
        """All of the method, also in the middle of a task."""
        stored = self._stored()
        state = State.of(stored)
        state.meta |= {name: getattr(self, name) for name in self.remembers if name not in stored}
        return state

    def load_state(self, state: State) -> None:
        """The inverse of `state`, into a method built with the same setting and options."""
        stored = self._stored()
        state.restore(stored, self.setting.extractor.compute.device)
        for name in set(self.remembers) - set(stored):
            setattr(self, name, state.meta[name])

    def finetuning(self, epoch: Callable[[int], dict[str, float]], trunk: bool = False) -> Iterator[Step]:
        """A step for every epoch of the training; `epoch` takes its number."""
        epochs = self.setting.training.epochs
        for number in range(epochs):
            yield Step("finetune", partial(epoch, number), number, epochs, trunk)

    def feature_parts(self) -> list[str]:
        """Names of what an image's feature is made of, one after the other.

        A named part of an image never changes, so it need not be computed again when later tasks are learnt. The empty
        name is for features that change with every task, and `MIRRORED` before either for those of the mirrored view.
        """
        return [""]

    @staticmethod
    def lasts(part: str) -> bool:
        """Whether this part of an image's feature never changes."""
        return part not in ("", MIRRORED)

    def frozen_inputs(self) -> list[str]:
        """Names of what `embed` starts from besides the views, in the order it takes them: parts that never change
        either, but are no features themselves."""
        return []

    def embed(self, views: Tensor, part: str) -> Tensor:
        """One part of the features of views: (n, 3, size, size) -> (n, width of the part)."""
        if part.startswith(MIRRORED):
            return self.embed(views.flip(-1), part.removeprefix(MIRRORED))
        extractor = self.setting.extractor
        features: Tensor = extractor.pretrained(views) if part == PRETRAINED else extractor(views)
        return features

    def features(
        self,
        images: ImageSet | Pixels,
        what: str,
        parts: list[str] | None = None,
        known: Sequence[Tensor] = (),
        centre_crop: float | None = None,
        look: Look | None = None,
    ) -> Tensor:
        """Features (n, width) of images: the given parts side by side, by default all. `known` are the frozen inputs
        of the images, where they were computed before; `centre_crop` is another than the usual one, and `look` another
        way to see (some of) them."""
        names, extractor = self.feature_parts() if parts is None else parts, self.setting.extractor

        def embed(views: Tensor, *inputs: Tensor) -> Tensor:
            return torch.cat([self.embed(views, part, *inputs) for part in names], dim=1)

        # the extractor itself has its weights settled once for all batches
        as_tuned = type(self).embed is Method.embed and not any(map(self.lasts, names))
        with extractor.settled() if as_tuned else nullcontext():
            progress, crop = self.setting.progress, centre_crop
            return extract(extractor, images, progress, what, embed=embed, known=known, centre_crop=crop, look=look)

    def couples_images(self) -> str | None:
        """The option by which images of a batch influence each other, if one does: ranks cannot share them out then."""
        return "training.loss" if self.setting.training.loss == "lca" else None

    def branches(self) -> list[str]:
        """Names of the classifiers that stand on the one backbone."""
        return ["default"]

    def derives(self, branch: str) -> bool:
        """Whether a branch's heads are computed from its statistics before the first answer, which takes a while."""
        return False

    def finish_task(self) -> None:
        """Drop what only the steps of the finished task needed."""
        return

    def trunk_state(self) -> State:
        """What the trunk of a task left behind, for other runs with the same trunk."""
        return self.state()

    def load_trunk_state(self, state: State) -> None:
        """Take over a trunk; the branches stay as they are."""
        self.load_state(state)

    def statistics(self, branch: str) -> tuple[GaussianMemory, KnownDistances] | None:
        """The Gaussians of a branch, and how far known images lie from them; None where there are none."""
        return None

    def unknown_scores(self, features: Tensor) -> dict[str, Tensor]:
        """The squared Mahalanobis distance to the nearest class, per dimension, for branches with statistics."""
        width = self.setting.extractor.width
        return self._by_statistics(lambda memory, _: self._distances(memory, features).amin(1) / width)

    def percentiles(self, features: Tensor, branch: str) -> Tensor | None:
        """How far features lie from every known class, beside what known images have (`KnownDistances.percentiles`):
        (n, classes), on the CPU. None for a method or branch that keeps no class statistics."""
        statistics = self.statistics(branch)
        return None if statistics is None else statistics[1].percentiles(statistics[0], self._first(features))

    def left_out_logits(self, branch: str, images: ImageSet) -> tuple[Tensor, Tensor] | None:
        """Logits (n, classes) of the images of the last task as if they had not been learnt, and their labels, until
        `finish_task`. None where the heads have no formula for that."""
        return None

    def correct_distances(self, features: Tensor, labels: Tensor) -> None:
        """Correct what `percentiles` compares with by images of the last task that were held out, where there are
        statistics to correct."""
        self._by_statistics(lambda memory, known: known.correct(memory, self._first(features), labels.cpu()))

    def forget(self, label: int) -> None:
        """Remove a class from heads and statistics; the labels above move down by one."""
        stored = self._stored().values()
        if type(self).forget is Method.forget and all(type(each).forget is Stored.forget for each in stored):
            raise LcaError(f"method {self.options.name!r} has no way to forget a class")
        for each in stored:
            each.forget(label)

    @property
    def combines(self) -> bool:
        """Whether it keeps statistics of classes, by which two of them become one as if taught as one."""
        return any(each.combines for each in self._stored().values())

    def merge_classes(self, label: int, other: int) -> None:
        """Make two classes one in heads and statistics: what is known of `other` goes to `label`, and the labels above
        `other` move down by one."""
        if not self.combines:
            raise LcaError(
                f"method {self.options.name!r} keeps no class statistics here, so two classes cannot be made one; "
                "forget both and teach their images again as one class"
            )
        for each in self._stored().values():
            each.merge(label, other)

    def refit(self) -> None:
        """Fit again what answers, after classes were forgotten or made one."""
        return

    def storage(self, branch: str | None = None) -> dict[str, int]:
        """Bytes by part, as they lie on disk: of everything, or of what one branch needs."""
        return self.state().bytes_by_part()

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        """What `storage` will come to after tasks of equal size and so many classes in all, with so many images each;
        None where that is not known beforehand."""
        width = self.setting.extractor.width
        sizes = [each.expected_bytes(tasks, classes, images, width) for each in self._stored().values()]
        return None if None in sizes or not sizes else sum(filter(None, sizes))

    def on_device(self, part: Part) -> Part:
        """A part of a loaded state where this method computes."""
        return {name: tensor.to(self.setting.extractor.compute.device) for name, tensor in part.items()}

    def tuned_bytes(self) -> int:
        """Bytes of one copy of everything that is tuned."""
        return nbytes(self.setting.extractor.tensors())

    def _stored(self) -> dict[str, Stored]:
        named = {name: getattr(self, name) for name in self.remembers}
        return {name: each for name, each in named.items() if isinstance(each, Stored)}

    def _distances(self, memory: GaussianMemory, features: Tensor) -> Tensor:
        """How far features lie from every class, (n, classes): by the first of their parts, which Gaussians are of."""
        return memory.mahalanobis(self._first(features))

    def _first(self, features: Tensor) -> Tensor:
        """Their first part, on the CPU."""
        return features[:, : self.setting.extractor.width].cpu()

    def _by_statistics(self, measure: Callable[[GaussianMemory, KnownDistances], T]) -> dict[str, T]:
        """What is measured on the statistics of branches that have any: once on those that several share."""
        found = {branch: self.statistics(branch) for branch in self.branches()}
        once = cache(measure)
        return {branch: once(*statistics) for branch, statistics in found.items() if statistics is not None}
