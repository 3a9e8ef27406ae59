"""The contract of a method: named, resumable steps per task, logits per branch, and a state that is all there is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.data.streams import Task
from lca.errors import LcaError
from lca.features import extract
from lca.files import Part, State, nbytes
from lca.options import NamedOptions
from lca.statistics.distances import KnownDistances
from lca.statistics.gaussians import GaussianMemory
from lca.training.setting import Setting

__all__ = ["Method", "MethodInfo", "Setting", "Step"]


class MethodOptions(NamedOptions):
    """Base of the options that live in each method's file."""


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know before choosing a method."""

    title: str
    reference: str
    trains: str
    needs_all_data: bool = False
    passes: Literal["1", "2", "one per task", "one per task and one more"] = "1"
    """How often an image goes through the transformer to be answered."""


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
    branch_keys: ClassVar[frozenset[str]] = frozenset()
    """Options that influence only what happens after the trunk."""

    def __init__(self, setting: Setting, options: MethodOptions) -> None:
        self.setting = setting
        self.options = options
        if setting.training.distillation and not self.distils:
            raise LcaError(f"training.distillation does nothing with method {options.name!r}; leave it out")

    @abstractmethod
    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        """The work of one task. `labels` gives the label of every class of the task, known ones included."""

    @abstractmethod
    def logits(self, features: Tensor, branch: str) -> Tensor:
        """(n, width) -> (n, classes learnt)."""

    @abstractmethod
    def state(self) -> State:
        """All of the method, also in the middle of a task."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """The inverse of `state`, into a method built with the same setting and options."""

    def finetuning(self, epoch: Callable[[int], dict[str, float]], trunk: bool = False) -> Iterator[Step]:
        """A step for every epoch of the training; `epoch` takes its number."""
        epochs = self.setting.training.epochs
        for number in range(epochs):
            yield Step("finetune", partial(epoch, number), number, epochs, trunk)

    def feature_parts(self) -> list[str]:
        """Names of what an image's feature is made of, one after the other.

        A named part of an image never changes, so it need not be computed again when later tasks are learnt. The empty
        name is for features that change with every task.
        """
        return [""]

    def frozen_inputs(self) -> list[str]:
        """Names of what `embed` starts from besides the views, in the order it takes them: parts that never change
        either, but are no features themselves."""
        return []

    def embed(self, views: Tensor, part: str) -> Tensor:
        """One part of the features of views: (n, 3, size, size) -> (n, width of the part)."""
        features: Tensor = self.setting.extractor(views)
        return features

    def features(
        self,
        images: ImageSet | Pixels,
        what: str,
        parts: list[str] | None = None,
        known: Sequence[Tensor] = (),
        centre_crop: float | None = None,
    ) -> Tensor:
        """Features (n, width) of images: the given parts side by side, by default all. `known` are the frozen inputs
        of the images, where they were computed before; `centre_crop` is another than the usual one."""
        if type(self).embed is Method.embed:  # the extractor itself, whose weights are settled once for all batches
            return extract(self.setting.extractor, images, self.setting.progress, what, centre_crop=centre_crop)
        names = self.feature_parts() if parts is None else parts

        def embed(views: Tensor, *inputs: Tensor) -> Tensor:
            return torch.cat([self.embed(views, part, *inputs) for part in names], dim=1)

        return extract(
            self.setting.extractor,
            images,
            self.setting.progress,
            what,
            embed=embed,
            known=known,
            centre_crop=centre_crop,
        )

    def couples_images(self) -> str | None:
        """The option by which images of a batch influence each other, if one does: ranks cannot share them out then."""
        return "training.loss" if self.setting.training.loss == "lca" else None

    def branches(self) -> list[str]:
        """Names of the classifiers that stand on the one backbone."""
        return ["default"]

    def finish_task(self) -> None:
        """Drop what only the steps of the finished task needed."""
        return

    def trunk_state(self) -> State:
        """What the trunk of a task left behind, for other runs with the same trunk."""
        return self.state()

    def load_trunk_state(self, state: State) -> None:
        """Take over a trunk; the branches stay as they are."""
        self.load_state(state)

    def unknown_scores(self, features: Tensor) -> dict[str, Tensor]:
        """How far features lie from every known class, for the branches that keep statistics."""
        return {}

    def percentiles(self, features: Tensor, branch: str) -> Tensor | None:
        """How far features lie from every known class, as percentiles of what known images have: (n, classes).

        None for a method or branch that keeps no class statistics.
        """
        return None

    def statistics(self, branch: str) -> tuple[GaussianMemory, KnownDistances] | None:
        """The class statistics that `percentiles` reads, for export; None where there are none."""
        return None

    def correct_distances(self, features: Tensor, labels: Tensor) -> None:
        """Correct what `percentiles` compares with by images of the last task that were held out, where there are
        statistics to correct."""
        return

    def forget(self, label: int) -> None:
        """Remove a class from heads and statistics; the labels above move down by one."""
        raise LcaError(f"method {self.options.name!r} has no way to forget a class")

    def storage(self, branch: str | None = None) -> dict[str, int]:
        """Bytes by part, as they lie on disk: of everything, or of what one branch needs."""
        return self.state().bytes_by_part()

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        """What `storage` will come to after tasks of equal size and so many classes in all, with so many images each;
        None where that is not known beforehand."""
        return None

    def on_device(self, part: Part) -> Part:
        """A part of a loaded state where this method computes."""
        return {name: tensor.to(self.setting.extractor.compute.device) for name, tensor in part.items()}

    def tuned_bytes(self) -> int:
        """Bytes of one copy of everything that is tuned."""
        return nbytes(self.setting.extractor.tensors())
