"""Bases of methods that keep the tuned tensors of every task, as subspaces that never change again."""

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from lca.data.streams import Task
from lca.errors import LcaError
from lca.files import Part, State
from lca.heads.growing import GrowingHeads
from lca.methods._base import PRETRAINED, Method, MethodOptions, Setting, Step
from lca.methods._branched import Branched
from lca.training.loop import FineTuning


def mean_answer(one: Tensor, two: Tensor) -> Tensor:
    """The mean of two softmaxes of logits (n, classes), as logits: its logarithm."""
    return torch.stack([one.log_softmax(1), two.log_softmax(1)]).logsumexp(0) - math.log(2)


def chosen(parts: Tensor, numbers: Tensor) -> Tensor:
    """Of answers (n, parts, classes) those of the part that `numbers` (n, 1) says for each image: (n, classes)."""
    return parts.gather(1, numbers[:, :, None].expand(-1, -1, parts.shape[2]))[:, 0]


class Subspaces(Method):
    """A task of several classes gets a subspace: a copy of what was tuned on it. Its new classes are at home there.

    A task of one class has nothing to train: the class is at home in the newest subspace. If there is none yet, the
    pre-trained features become the first subspace, and stay one. The same goes for a tuner without tensors. A class
    that returns stays where it is at home.
    """

    remembers: ClassVar[tuple[str, ...]] = ("training", "homes")

    def __init__(self, setting: Setting, options: MethodOptions) -> None:
        super().__init__(setting, options)
        self.initial = setting.extractor.tensors()
        self.training = FineTuning(setting)
        self.subspaces: dict[str, Part] = {}
        self.homes: list[int] = []
        """Of every class: the number of its subspace."""

    def start(self) -> Part:
        """Where the tuning of a task starts."""
        return self.initial

    def finetune(self, task: Task, epoch: int, heads: GrowingHeads) -> dict[str, float]:
        if epoch == 0:
            self.setting.extractor.load(self.start())
        return self.training.epoch(task, epoch, heads)

    def tunes(self, task: Task) -> bool:
        """Whether a task gets a subspace of its own."""
        return len(task.classes) > 1 and bool(self.initial)

    def tuned(self) -> list[Part]:
        """The subspaces that were tuned, oldest first."""
        return [part for name, part in self.subspaces.items() if name != PRETRAINED]

    def settle(self, task: Task, labels: list[int]) -> None:
        """Freeze what was tuned on a task as a new subspace, if there is anything; its new classes find a home."""
        if self.tunes(task):
            name = f"subspace {len(self.tuned())}"
            self.subspaces = {**self.subspaces, name: self.setting.extractor.tensors()}
        elif not self.subspaces:
            self.subspaces = {PRETRAINED: {}}
        new = max(labels) + 1 - len(self.homes)
        self.homes = self.homes + [len(self.subspaces) - 1] * new

    def feature_parts(self) -> list[str]:
        return list(self.subspaces)

    def embed(self, views: Tensor, part: str) -> Tensor:
        if part == PRETRAINED:
            return super().embed(views, part)
        return self.setting.extractor.forward_with(self.subspaces[part], views)

    def by_part(self, features: Tensor) -> Tensor:
        """Features (n, parts x d), as they lie side by side: (n, parts, d)."""
        return features.unflatten(1, (-1, self.setting.extractor.width))

    def forget(self, label: int) -> None:
        self.homes = self.homes[:label] + self.homes[label + 1 :]
        super().forget(label)

    def merge_classes(self, label: int, other: int) -> None:
        """What is known of a class is of features in its own subspace."""
        if self.homes[label] != self.homes[other]:
            raise LcaError(
                f"method {self.options.name!r} learnt the two classes in lessons with a subspace each, so what it "
                "knows of them cannot be combined; forget both and teach their images again as one class"
            )
        super().merge_classes(label, other)
        self.homes = self.homes[:other] + self.homes[other + 1 :]

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        others = super().expected_bytes(tasks, classes, images)
        return None if others is None else others + tasks * self.tuned_bytes()

    def state(self) -> State:
        state = super().state()
        state.parts |= self.subspaces
        state.meta["subspaces"] = list(self.subspaces)
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.subspaces = {name: self.on_device(state.parts[name]) for name in state.meta["subspaces"]}


class AlignedSubspaces(Branched, Subspaces):
    """Subspaces with a head per task over all of them, and branches that align the heads.

    The class statistics are those of a class's images in its own subspace. They never move: it does not matter what a
    branch says of drift, nor of statistics before or after a merge. A class that comes alone gets its mean feature as
    its head row.
    """

    tells_unknown = False
    remembers: ClassVar[tuple[str, ...]] = (*Branched.remembers, *Subspaces.remembers)

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        if len(task.classes) > 1:
            yield from self.finetuning(lambda epoch: self.finetune(task, epoch, self.heads), trunk=True)
        yield Step("freeze", lambda: self.freeze(task, labels), trunk=True)
        yield from self.branch_steps(task)

    def freeze(self, task: Task, labels: list[int]) -> None:
        """End the training of a task: its subspace, its head, and the features of its images."""
        new = self.heads.new_places(labels)
        if len(task.classes) > 1:
            self.training.finish(task, self.heads, new)
        self.settle(task, labels)
        self.observed = {"labels": torch.tensor(labels)[task.train.labels]}
        self.observed["features"] = self._at_home(task, self.observed["labels"])
        if len(task.classes) == 1 and new:
            self.append_means(self.observed["features"].mean(0, keepdim=True), task.index)
        self.centre.add(self.observed["features"])

    def answers(self, features: Tensor, branch: str) -> Tensor:
        """The logits of the heads in every part of the features: (n, parts, classes)."""
        parts = self.by_part(features)
        return self.branch_set.logits(parts.flatten(0, 1), branch).unflatten(0, (-1, parts.shape[1]))

    def _at_home(self, task: Task, labels: Tensor) -> Tensor:
        """Features (n, d) of the task's images, each in the subspace of its class."""
        homes, parts, found = torch.tensor(self.homes)[labels], list(self.subspaces), {}
        for home in homes.unique().tolist():
            rows = torch.nonzero(homes == home)[:, 0]
            found[home] = self.features(task.train.subset(rows), "features", [parts[home]])
        order = torch.cat([torch.nonzero(homes == home)[:, 0] for home in found]).argsort()
        return torch.cat(list(found.values()))[order.to(self.setting.extractor.compute.device)]

    def statistics_of_task(self) -> None:
        features = self.observed["features"]
        self.branch_set.observe(self.observed["labels"], features, features, features)
