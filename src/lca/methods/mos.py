"""MOS: one tuner goes from task to task, held near its earlier copies; answers say which of the copies to ask next."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lca.data.streams import Task
from lca.files import Part
from lca.heads.branch import BranchChoice
from lca.heads.growing import GrowingHeads, HeadOptions, LinearOptions
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._branched import PLAIN, BranchedOptions, presets
from lca.methods._subspaces import AlignedSubspaces, chosen, mean_answer
from lca.statistics.prototypes import ClassMeans
from lca.training.loop import FineTuning
from lca.tuning.base import expect_transformer

ROUNDS = 4
"""How many subspaces an image asks at most, one after the other."""
TEMPERATURE = 0.8
"""Of the orthogonality term, as published."""


presets.register("mos")(
    {**PLAIN, "redraw": True, "epochs": 30, "lr": 0.005, "samples": 240, "batch_size": 240}
)  # five times the batch of 48 that was published for CIFAR-100


class MosOptions(BranchedOptions):
    name: Literal["mos"] = "mos"
    align: tuple[BranchChoice, ...] = ("mos",)  # type: ignore[assignment]
    orthogonality: float = Field(0.1, ge=0)
    """Weight of the term that keeps features apart from each other and from the stored class means."""
    momentum: float = Field(0.1, ge=0, le=1)
    """m: after a step, what is tuned becomes (1 - m) w + m (mean of the earlier subspaces)."""
    repeated_ema: bool = False
    """Do this also once per block within every forward pass of training, as the published code does in effect. It does
    so in every other pass, too: from the second task's statistics on, its tensors are others than ours."""


def orthogonality(means: Tensor, features: Tensor) -> Tensor:
    """Cross-entropy of the rows of M Mᵀ / 0.8 against the identity, M the class means (k, d) and features (n, d)."""
    rows = torch.cat([means.reshape(-1, features.shape[1]), features])
    return functional.cross_entropy(rows @ rows.T / TEMPERATURE, torch.arange(len(rows), device=rows.device))


class MosTraining(FineTuning):
    """Fine-tuning that keeps features apart and merges what is tuned with the earlier subspaces in every step.

    With `repeated_ema`, block l (from 0) of L computes with tensors that were merged l + 1 times in this forward pass.
    The gradients are taken there, and the update is applied to tensors that were merged L times. What lies in no block
    counts to the last one.
    """

    _means: Tensor
    _average: Part

    def __init__(self, method: "Mos") -> None:
        super().__init__(method.setting)
        self._method, self._mos = method, method.options
        if method.options.repeated_ema:
            vit = method.setting.extractor.vit
            expect_transformer(vit, "method.repeated_ema")
            self._depth = len(vit.blocks)

    def epoch(
        self, task: Task, number: int, heads: GrowingHeads, teacher: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        if self._running is None:  # a captured step reads these: they stay in place while the task lasts
            earlier = self._method.tuned()
            names = list(earlier[0]) if earlier else []
            self._average = {name: torch.stack([each[name] for each in earlier]).mean(0) for name in names}
            self._means = self._method.means.means.to(self._extractor.compute.device)
        return super().epoch(task, number, heads, teacher)

    def embed(self, views: Tensor) -> Tensor:
        if self._mos.repeated_ema:
            self._merge({name: self._block(name) + 1 for name in self._average})
        return super().embed(views)

    def penalty(
        self, views: Tensor, features: Tensor, labels: Tensor, teacher: Mapping[str, Tensor] | None
    ) -> Tensor | None:
        weight = self._mos.orthogonality
        return weight * orthogonality(self._means, features) if weight else None

    def before_update(self) -> None:
        if self._mos.repeated_ema:
            self._merge({name: self._depth - self._block(name) - 1 for name in self._average})

    def after_update(self) -> None:
        self._merge(dict.fromkeys(self._average, 1))

    @torch.no_grad()
    def _merge(self, times: Mapping[str, int]) -> None:
        """Merge tensors with the mean of the earlier subspaces, in place, as often as is said for each."""
        parameters = self.parameters()
        for name, count in times.items():
            parameters[name].lerp_(self._average[name], 1 - (1 - self._mos.momentum) ** count)

    def _block(self, name: str) -> int:
        found = re.search(r"\bblocks\.(\d+)\b", name)
        return int(found[1]) if found else self._depth - 1


@methods.register("mos")
class Mos(AlignedSubspaces):
    """The tuner goes on from where the last task left it; a copy after every task is its subspace. From the second one
    on, every step ends with a merge towards the mean of the earlier ones. A task's head is linear with a bias. Beside
    the heads there are class means in the first subspace, which answer by cosine and are not trained.

    An image is first asked which class mean it is nearest to. The heads then answer in the subspace of that class, then
    in the subspace of their own answer, until that is the one they answered in, four times at most. The result is the
    mean of the softmax of their last logits and that of the cosines times the number of tasks so far.

    Any tuner does; the published one is `adapter` with bottleneck 16, and its `training.tuner_lr` is ten times the
    head's `lr`. The published code merges once per block within every forward pass: while it trains, which
    `repeated_ema` reproduces, and also while it takes statistics, where it changes the current tuner with every batch,
    and while it answers, where it changes the stored subspaces. Here neither changes anything: the merges of
    `repeated_ema` are as published up to the end of the second task's training and no longer, since the second task's
    statistics and all that follows stand there on tensors that were merged meanwhile. Nor do heads of old tasks change
    while a new one is trained, which the published weight decay shrinks a little, and class means are taken without
    dropout.
    """

    info = MethodInfo(
        title="MOS",
        reference="Sun et al.: MOS: Model Surgery for Pre-Trained Model-Based CIL, AAAI 2025",
        trains="the tuner, merged with its earlier copies, and the task's head; then all heads on samples",
        passes="one per task",
    )
    Options: ClassVar = MosOptions
    defaults: ClassVar = {
        "tuning": {"name": "adapter", "bottleneck": 16},
        "training": {"epochs": 20, "batch_size": 48, "lr": 0.003, "tuner_lr": 0.03, "final_lr": 0.0},
    }
    options: MosOptions
    remembers: ClassVar[tuple[str, ...]] = (*AlignedSubspaces.remembers, "means", "prototypes")

    def __init__(self, setting: Setting, options: MosOptions) -> None:
        super().__init__(setting, options)
        self.training = MosTraining(self)
        self.means = ClassMeans()
        """Of every class in its own subspace."""
        self.prototypes = ClassMeans()
        """Of every class in the first subspace."""

    def head_options(self) -> HeadOptions:
        return LinearOptions(bias=True)

    def couples_images(self) -> str | None:
        return "method.orthogonality" if self.options.orthogonality else super().couples_images()

    def start(self) -> Part:
        return self.tuned()[-1] if self.tuned() else self.initial

    def freeze(self, task: Task, labels: list[int]) -> None:
        super().freeze(task, labels)
        classes, features = self.observed["labels"], self.observed["features"]
        self.means.observe(classes, features)
        if any(self.homes[label] for label in labels):
            features = self.features(task.train, "prototypes", list(self.subspaces)[:1])
        self.prototypes.observe(classes, features)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        if not self.homes:
            return features.new_zeros(len(features), 0)
        homes = torch.tensor(self.homes, device=features.device)
        cosines = self.prototypes.cosines(self.by_part(features)[:, 0])
        answers = self.answers(features, branch)
        following = homes[answers.argmax(2)]
        asked = homes[cosines.argmax(1)][:, None]
        for _ in range(ROUNDS - 1):  # one that follows itself stays
            asked = following.gather(1, asked)
        refined = chosen(answers, asked)
        return mean_answer(refined, max(self.tasks, 1) * cosines)
