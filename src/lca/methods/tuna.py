"""TUNA: every task tunes a subspace of its own, and a universal one is made of all of them; two of them answer."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from lca.data.streams import Task
from lca.files import Part, State
from lca.heads.branch import BranchChoice
from lca.heads.growing import CosineOptions, HeadOptions
from lca.heads.loss import softmax_entropy
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._branched import PLAIN, BranchedOptions, presets
from lca.methods._subspaces import AlignedSubspaces, chosen, mean_answer

presets.register("tuna")(
    {**PLAIN, "redraw": True, "epochs": 30, "lr": 0.005, "samples": 80, "batch_size": 80}
)  # five times the batch of 16 that was published for CIFAR-100


class TunaOptions(BranchedOptions):
    name: Literal["tuna"] = "tuna"
    align: tuple[BranchChoice, ...] = ("tuna",)  # type: ignore[assignment]
    scale: float = Field(20.0, gt=0)
    """Factor on the cosines of the heads, never trained."""
    margin: float = Field(0.0, ge=0)
    """CosFace: what is taken from the cosine of an image's own class while a task is trained."""


def merged(tensors: Sequence[Tensor]) -> Tensor:
    """For every entry: the sign of the mean, and the largest magnitude among the entries that have this sign."""
    rows = torch.stack(list(tensors))
    sign = rows.mean(0).sign()
    return sign * torch.where(rows.sign() == sign, rows.abs(), 0).amax(0)


@methods.register("tuna")
class Tuna(AlignedSubspaces):
    """A task's subspace is the tuner's initial values, trained with a cosine head. The universal subspace is made of
    the tensors of all of them, see `merged`, anew after every task. The answer is the mean of two softmaxes over all
    classes: that of the subspace in which the heads are surest (the lowest entropy), and that of the universal one.
    Any tuner does; the published one is `adapter` with bottleneck 16.

    This follows the idea and the published settings, not the code. Every task starts from the same initial values. The
    orthogonality of up-projections, which is for adapters and off on CIFAR-100, is left out, and so is the scaling of
    class means, which was not what it was meant to be. While there is one tuned subspace, it is the universal one as
    well.
    """

    info = MethodInfo(
        title="TUNA",
        reference="Wang et al.: Integrating Task-Specific and Universal Adapters for Pre-Trained Model-based CIL, "
        "ICCV 2025, arXiv 2508.08165",
        trains="the tuner, anew for every task, and the task's cosine head; then all heads on samples",
        passes="one per task and one more",
    )
    Options: ClassVar = TunaOptions
    defaults: ClassVar = {
        "tuning": {"name": "adapter", "bottleneck": 16},
        "training": {"epochs": 15, "batch_size": 16, "lr": 0.01, "final_lr": 0.0},
    }
    options: TunaOptions

    def __init__(self, setting: Setting, options: TunaOptions) -> None:
        super().__init__(setting, options)
        self.universal: Part = {}
        """Follows from the subspaces, so it is no part of the state."""

    def head_options(self) -> HeadOptions:
        return CosineOptions(scale=self.options.scale, train_scale=False, margin=self.options.margin)

    def settle(self, task: Task, labels: list[int]) -> None:
        super().settle(task, labels)
        self._rebuild()

    def feature_parts(self) -> list[str]:
        return [*self.subspaces, *[""] * bool(self.universal)]

    def embed(self, views: Tensor, part: str) -> Tensor:
        if part:
            return super().embed(views, part)
        return self.setting.extractor.forward_with(self.universal, views)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        answers = self.answers(features, branch)
        surest = softmax_entropy(answers[:, : len(self.subspaces)].mT).argmin(1, keepdim=True)
        return mean_answer(chosen(answers, surest), answers[:, -1])

    def load_trunk_state(self, state: State) -> None:
        super().load_trunk_state(state)
        self._rebuild()

    def _rebuild(self) -> None:
        """With fewer than two tuned subspaces, the newest is the universal one."""
        tuned = self.tuned()
        self.universal = {name: merged([each[name] for each in tuned]) for name in tuned[0]} if len(tuned) > 1 else {}
