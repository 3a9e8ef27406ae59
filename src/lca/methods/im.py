"""Incremental Merging with Local Classifier Alignment (Tran et al., ICLR 2026), and its branches.

A task goes through: observe (features of its images under the backbone so far), finetune, merge, and then, per branch,
statistics and alignment. The first three are the trunk: all branches share them, and none feeds back into them.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from lca.branches import BranchedOptions, BranchSet
from lca.data.streams import Task
from lca.errors import LcaError
from lca.features import extract
from lca.files import Part, State
from lca.gaussians import GaussianMemory
from lca.heads import GrowingHeads, HeadOptions, PrototypeHead
from lca.merging import IncrementalMerge, MergeOptions, check_merge
from lca.methods import methods
from lca.methods.base import Method, MethodInfo, Phase, Setting
from lca.training import FineTuning
from lca.unknown import KnownDistances


class ImOptions(BranchedOptions):
    name: Literal["im"] = "im"
    merge: MergeOptions = MergeOptions()
    init_from: Literal["merged", "previous", "base"] = "merged"
    """Where a task's fine-tuning starts: the merge so far, the last task's own tensors, or the base."""
    head: HeadOptions = HeadOptions()

    @model_validator(mode="after")
    def _consistent(self) -> "ImOptions":
        try:
            check_merge(self.merge, self.init_from)
        except LcaError as error:
            raise ValueError(str(error)) from None
        return self


@methods.register("im")
class IncrementalMerging(Method):
    info = MethodInfo(
        title="Incremental Merging + Local Classifier Alignment",
        reference="Tran, Vargas, Than: LCA: Local Classifier Alignment for Continual Learning, ICLR 2026",
        trains="the tuner and the task's head, then all heads on samples of the class Gaussians",
    )
    Options: ClassVar = ImOptions
    branch_keys = frozenset({"align"})
    distils = True
    options: ImOptions

    def __init__(self, setting: Setting, options: ImOptions) -> None:
        super().__init__(setting, options)
        extractor = setting.extractor
        self.merge = IncrementalMerge.start(options.merge, extractor.tensors())
        self.previous: dict[str, Tensor] = {}
        self.heads = GrowingHeads(extractor.width, options.head)
        self.branch_set = BranchSet(options.align, self.heads)
        self.tasks = 0
        self.observed: Part = {}
        self.training = FineTuning(setting)

    def phases(self, task: Task, labels: list[int]) -> Iterator[Phase]:
        yield Phase("observe", lambda _: self._observe(task, labels), trunk=True)
        if len(task.classes) > 1:
            epochs = self.setting.training.epochs
            yield Phase("finetune", lambda epoch: self._finetune(task, epoch), epochs, trunk=True)
            yield Phase("merge", lambda _: self._merge(task, labels), trunk=True)
        else:  # one class has no cross-entropy gradient: the backbone stays, the head row comes from the class mean
            yield Phase("head from mean", lambda _: self._head_from_mean(task, labels), trunk=True)
        yield Phase("statistics", lambda _: self.branch_set.observe(**self.observed))
        for name in self.branch_set.heads:
            yield Phase(f"align {name}", lambda _, name=name: self._align(name, task.index))  # type: ignore[misc]

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.branch_set.logits(features, branch)

    def branches(self) -> list[str]:
        return [each.name for each in self.options.align]

    def unknown_scores(self, features: Tensor) -> dict[str, Tensor]:
        return self.branch_set.unknown_scores(features)

    def percentiles(self, features: Tensor, branch: str) -> Tensor | None:
        return self.branch_set.percentiles(features, branch)

    def statistics(self, branch: str) -> tuple[GaussianMemory, KnownDistances] | None:
        return self.branch_set.statistics(branch)

    def correct_distances(self, features: Tensor, labels: Tensor) -> None:
        self.branch_set.correct_distances(features, labels)

    def forget(self, label: int) -> None:
        """The backbone stays as it is; the heads of the classes that are left are aligned again."""
        self.heads.forget(label)
        self.branch_set.forget(label)
        if sum(self.heads.sizes) > 1:
            for name in self.branch_set.heads:
                self._align(name, self.tasks)

    def storage(self, branch: str | None = None) -> dict[str, int]:
        sizes = super().storage()
        if branch is None:
            return sizes
        own = self.branch_set.parts_of(branch)
        return {part: size for part, size in sizes.items() if part in own or part not in self.branch_set.state().parts}

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        copies = 3 if self.options.init_from == "previous" else 2
        branches = self.branch_set.expected_bytes(tasks, classes, images)
        trunk = copies * self.tuned_bytes() + self.heads.expected_bytes(tasks, classes)
        return None if branches is None else trunk + branches

    def finish_task(self) -> None:
        self.observed = {}
        self.tasks += 1

    def _observe(self, task: Task, labels: list[int]) -> None:
        """Features of the new images under the merged backbone so far: drift is measured from here, once there are
        classes that can drift."""
        self.setting.extractor.load(self.merge.parameters())
        self.observed = {"labels": torch.tensor(labels)[task.train.labels]}
        if self.tasks or len(task.classes) == 1:  # the head of a class alone is made from them
            self.observed["before"] = self._extract(task, "before")

    def _finetune(self, task: Task, epoch: int) -> dict[str, float]:
        merged = self.merge.parameters()
        if epoch == 0:
            start = {"merged": merged, "previous": self.previous or merged, "base": self.merge.base}
            self.setting.extractor.load(start[self.options.init_from])
        return self.training.epoch(task, epoch, self.heads, teacher=merged if self.tasks else None)

    def _merge(self, task: Task, labels: list[int]) -> None:
        extractor, learnt = self.setting.extractor, sum(self.heads.sizes)
        self.training.finish(task, self.heads, [place for place, label in enumerate(labels) if label >= learnt])
        tuned = extractor.tensors()
        self.previous = tuned if self.options.init_from == "previous" else {}
        self.observed["tuned"] = self._extract(task, "tuned")  # for any branch: others may share this trunk
        self.merge = self.merge.add(tuned)
        extractor.load(self.merge.parameters())
        same = (self.options.merge.operator, self.options.merge.alpha) == ("last", 1.0)
        self.observed["merged"] = self.observed["tuned"] if same else self._extract(task, "merged")
        if isinstance(self.heads.tasks[-1], PrototypeHead) and max(labels) >= learnt:
            self.heads.tasks[-1].set_from_means(self._class_means(learnt, "merged"), norm=1.0)

    def _head_from_mean(self, task: Task, labels: list[int]) -> None:
        self.observed |= {"tuned": self.observed["before"], "merged": self.observed["before"]}
        if labels[0] == sum(self.heads.sizes):
            self.heads.append_from_means(
                self._class_means(labels[0], "before"), self.setting.generator("head", task.index)
            )

    def _align(self, name: str, task: int) -> dict[str, float]:
        setting = self.setting
        return self.branch_set.align(
            name,
            task,
            first=self.tasks == 0,
            seed=setting.seed,
            device=setting.extractor.compute.device,
            progress=setting.progress,
        )

    def _extract(self, task: Task, when: str) -> Tensor:
        what = f"task {task.index + 1}, features {when}"
        return extract(self.setting.extractor, task.train, self.setting.progress, what)

    def _class_means(self, first: int, when: str) -> Tensor:
        """Mean features of the task's classes from label `first` on."""
        labels, features = self.observed["labels"], self.observed[when]
        return torch.stack([features[labels == label].mean(0) for label in labels.unique().tolist() if label >= first])

    def trunk_state(self) -> State:
        heads, heads_meta = self.heads.state()
        parts = {"base": dict(self.merge.base), "vector": dict(self.merge.vector), "previous": self.previous}
        parts |= {"heads": heads, "features": self.observed, "training": self.training.state()}
        return State(parts, {"heads": heads_meta, "merged": self.merge.count, "tasks": self.tasks})

    def load_trunk_state(self, state: State) -> None:
        device = self.setting.extractor.compute.device

        def part(name: str) -> Part:
            return {key: tensor.to(device) for key, tensor in state.parts[name].items()}

        self.merge = IncrementalMerge(self.options.merge, part("base"), part("vector"), state.meta["merged"])
        self.previous, self.observed, self.tasks = part("previous"), part("features"), state.meta["tasks"]
        self.heads.load(part("heads"), state.meta["heads"])
        self.training.load(part("training"))
        self.setting.extractor.load(self.merge.parameters())

    def state(self) -> State:
        trunk, branches = self.trunk_state(), self.branch_set.state()
        return State(trunk.parts | branches.parts, trunk.meta | branches.meta)

    def load_state(self, state: State) -> None:
        self.load_trunk_state(state)
        self.branch_set.load_state(state, self.setting.extractor.compute.device)
