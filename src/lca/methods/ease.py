"""EASE: every task gets a subspace, tuned tensors of its own that are then frozen; all subspaces answer together."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lca.data.streams import Task
from lca.files import State
from lca.heads.growing import CosineOptions, GrowingHeads, HeadChoice
from lca.methods import methods
from lca.methods._base import PRETRAINED, MethodInfo, MethodOptions, Setting, Step
from lca.methods._subspaces import Subspaces
from lca.statistics.prototypes import combined, updated


class EaseOptions(MethodOptions):
    name: Literal["ease"] = "ease"
    head: HeadChoice = CosineOptions(scale=1.0)
    """The head a task's subspace is tuned with; it is dropped afterwards."""
    alpha: float = Field(0.1, ge=0)
    """α: what all the subspaces together count that are not a class's own, which counts 1."""
    beta: float | None = Field(None, ge=0)
    """β: what the pre-trained features count, for every class alike; by default they do not answer at all."""


def synthesise(means: Tensor, seen: Tensor, homes: Tensor) -> Tensor:
    """The prototypes (classes, subspaces, d) of all classes in all subspaces.

    `means` (classes, subspaces, d) are mean features, valid where `seen` (classes, subspaces) says that images of the
    class went through the subspace; there they are the prototypes. For a class a at home in subspace i = homes[a], a
    prototype that is missing in subspace d is mixed from the classes C_d that were seen there, by how similar they
    look in i, where a and all of C_d were seen:

        p_a^(d) = Σ_{c in C_d} softmax_{c in C_d}( cos(p_a^(i), p_c^(i)) ) p_c^(d)

    While no class returns, C_d are the classes of the task of d and of all later ones, as published. Where C_d is empty
    (its classes were forgotten), the prototype is 0 and has no say.
    """
    unit, home = functional.normalize(means, dim=2), homes[:, None, None]
    cosines = torch.einsum("ad,csd->acs", unit.take_along_dim(home, 1)[:, 0], unit).take_along_dim(home, 2)
    shares = torch.where(seen.any(0), cosines.masked_fill(~seen, -torch.inf).softmax(1), 0)
    return torch.where(seen[:, :, None], means, torch.einsum("acs,csd->asd", shares, means))


def subspace_weights(homes: Tensor, subspaces: int, alpha: float, beta: float | None) -> Tensor:
    """What each subspace counts for each class: (classes, subspaces).

    A class's own subspace counts 1, each of the k others α / k; published as α / t for the task t = 0, 1, ..., which is
    the same while every task has a subspace. With a β, the first subspace is the pre-trained branch: it counts β, and
    is not one of the k.
    """
    own = homes[:, None] == torch.arange(subspaces, device=homes.device)
    branch = torch.zeros_like(own)
    branch[:, :1] = beta is not None
    others = ~own & ~branch
    weights = alpha * others / others.sum(1, keepdim=True).clamp(min=1) + (beta or 0.0) * branch
    return torch.where(own, 1.0, weights)


@methods.register("ease")
class Ease(Subspaces):
    """A task's subspace is the tuner's initial values (the same for every task; published are ones drawn anew), trained
    with a head of the task's own. The task's images then go through all subspaces so far, once; their class means are
    the prototypes. What the old classes lack in new subspaces is synthesised, see `synthesise`. The logit of a class is
    Σ_j w_j cos(x_j, p_j) over the subspaces j, see `subspace_weights`. Any tuner does; the published one is `adapter`.

    The means of a class that returns move by the number of its images, and in subspaces that it had not seen they take
    the place of what was synthesised.
    """

    info = MethodInfo(
        title="EASE",
        reference="Zhou et al.: Expandable Subspace Ensemble for Pre-Trained Model-Based CIL, CVPR 2024",
        trains="the tuner, anew for every task; then class means in all subspaces, compared by cosine",
        passes="one per task",
    )
    Options: ClassVar = EaseOptions
    defaults: ClassVar = {
        "tuning": {"name": "adapter"},
        "training": {"epochs": 20, "batch_size": 48, "lr": 0.025, "final_lr": 0.0},
    }
    options: EaseOptions

    def __init__(self, setting: Setting, options: EaseOptions) -> None:
        super().__init__(setting, options)
        if options.beta is not None:
            self.subspaces = {PRETRAINED: {}}
        self.means = torch.zeros(0, 0, setting.extractor.width, device=setting.extractor.compute.device)
        self.counts = self.means[:, :, 0]
        self._rebuild()

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        heads = GrowingHeads(self.setting.extractor.width, self.options.head)
        if self.tunes(task):
            yield from self.finetuning(lambda epoch: self.finetune(task, epoch, heads))
        yield Step("prototypes", lambda: self._learn_classes(task, labels, heads))

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return functional.linear(functional.normalize(self.by_part(features), dim=2).flatten(1), self._rows)

    def forget(self, label: int) -> None:
        kept = [each for each in range(len(self.homes)) if each != label]
        super().forget(label)
        self.means, self.counts = self.means[kept], self.counts[kept]
        self._rebuild()

    @property
    def combines(self) -> bool:
        return True

    def merge_classes(self, label: int, other: int) -> None:
        super().merge_classes(label, other)
        self.means, self.counts = combined(self.means, self.counts, label, other)
        self._rebuild()

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        subspaces = tasks + (self.options.beta is not None) if self.initial else 1
        means = 4 * subspaces * classes * (self.setting.extractor.width + 1)
        return means + (super().expected_bytes(tasks, classes, images) or 0)

    def state(self) -> State:
        state = super().state()
        state.parts["means"] = {"means": self.means, "counts": self.counts}
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        means = self.on_device(state.parts["means"])
        self.means, self.counts = means["means"], means["counts"]
        self._rebuild()

    def _learn_classes(self, task: Task, labels: list[int], heads: GrowingHeads) -> None:
        """The subspace of a task, then the class means in all subspaces."""
        if self.tunes(task):
            self.training.finish(task, heads, list(range(len(task.classes))))
        self.settle(task, labels)
        features = self.features(task.train, "features")
        self._observe(torch.tensor(labels)[task.train.labels], self.by_part(features))
        self._rebuild()

    def _observe(self, labels: Tensor, features: Tensor) -> None:
        """Add features (n, subspaces, d) of classes, new or known."""
        (old, earlier), classes = self.counts.shape, len(self.homes)
        means = features.new_zeros(classes, *features.shape[1:])
        counts = features.new_zeros(means.shape[:2])
        means[:old, :earlier], counts[:old, :earlier] = self.means, self.counts
        self.means, self.counts = updated(means, counts, labels, features)

    def _rebuild(self) -> None:
        """The rows of the classifier (classes, subspaces x d): all prototypes, of length w_j in subspace j."""
        homes = torch.tensor(self.homes, dtype=torch.long, device=self.means.device)
        prototypes = functional.normalize(synthesise(self.means, self.counts > 0, homes), dim=2)
        weights = subspace_weights(homes, self.means.shape[1], self.options.alpha, self.options.beta)
        self._rows = (weights[:, :, None] * prototypes).flatten(1)
