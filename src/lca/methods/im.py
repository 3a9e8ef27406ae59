"""Incremental Merging with Local Classifier Alignment (Tran et al., ICLR 2026), and its branches.

A task goes through: observe (features of its images under the backbone so far), finetune, merge, and then, per branch,
statistics and alignment. The first three are the trunk: all branches share them, and none feeds back into them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import field_validator, model_validator
from torch import Tensor

from lca.alignment import AlignmentOptions, align, branch
from lca.config import MethodOptions
from lca.data.streams import Task
from lca.drift import drifts
from lca.features import extract
from lca.files import Part, State
from lca.gaussians import GaussianMemory
from lca.heads import GrowingHeads, HeadOptions, PrototypeHead
from lca.merging import IncrementalMerge, MergeOptions, check_merge
from lca.methods import methods
from lca.methods.base import Method, MethodInfo, Phase, Setting
from lca.randomness import generator
from lca.training import FineTuning


class ImOptions(MethodOptions):
    name: Literal["im"] = "im"
    merge: MergeOptions = MergeOptions()
    init_from: Literal["merged", "previous", "base"] = "merged"
    """Where a task's fine-tuning starts: the merge so far, the last task's own tensors, or the base."""
    head: HeadOptions = HeadOptions()
    align: tuple[AlignmentOptions, ...] = ("best",)  # type: ignore[assignment]
    """Branches on the one trunk: preset names (none, ca, lca, lda, best) or mappings, each one row of results."""

    @field_validator("align", mode="before")
    @classmethod
    def _branches(cls, value: Any) -> Any:
        return [branch(each) for each in ([value] if isinstance(value, str | dict) else value)]

    @model_validator(mode="after")
    def _consistent(self) -> "ImOptions":
        names = [each.name for each in self.align]
        if not names:
            raise ValueError("align needs at least one branch; `none` is the heads as trained")
        if len(set(names)) < len(names):
            raise ValueError(f"every branch needs a name of its own, came {names}")
        check_merge(self.merge, self.init_from)
        for each in self.align:
            drifts[each.drift.model]
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
    options: ImOptions

    def __init__(self, setting: Setting, options: ImOptions) -> None:
        super().__init__(setting, options)
        extractor = setting.extractor
        self.merge = IncrementalMerge.start(options.merge, extractor.tensors())
        self.previous: dict[str, Tensor] = {}
        self.heads = GrowingHeads(extractor.width, options.head)
        self.aligned = {each.name: self.heads.copy() for each in options.align if each.kind != "none"}
        self.memories = {name: GaussianMemory(each.covariance) for name, each in self._statistics().items()}
        self.tasks = 0
        self.features: Part = {}
        self.training = FineTuning(extractor, setting.training, setting.augment, setting.seed, setting.progress)

    def phases(self, task: Task, labels: list[int]) -> Iterator[Phase]:
        yield Phase("observe", lambda _: self._observe(task, labels), trunk=True)
        if len(task.classes) > 1:
            epochs = self.setting.training.epochs
            yield Phase("finetune", lambda epoch: self._finetune(task, epoch), epochs, trunk=True)
            yield Phase("merge", lambda _: self._merge(task, labels), trunk=True)
        else:  # one class has no cross-entropy gradient: the backbone stays, the head row comes from the class mean
            yield Phase("head from mean", lambda _: self._head_from_mean(task, labels), trunk=True)
        yield Phase("statistics", lambda _: self._update_statistics())
        for each in self.options.align:
            if each.kind != "none":
                yield Phase(f"align {each.name}", partial(self._align, each, task))

    def logits(self, features: Tensor, branch: str) -> Tensor:
        logits: Tensor = self.aligned.get(branch, self.heads)(features)
        return logits

    def branches(self) -> list[str]:
        return [each.name for each in self.options.align]

    def unknown_score(self, features: Tensor, branch: str) -> Tensor | None:
        """Squared Mahalanobis distance to the nearest class, per dimension."""
        memory = next((self._memory(each) for each in self.options.align if each.name == branch), None)
        if memory is None:
            return None
        return memory.mahalanobis(features.cpu()).amin(1) / features.shape[1]

    def finish_task(self) -> None:
        self.features = {}
        self.tasks += 1

    # The trunk

    def _observe(self, task: Task, labels: list[int]) -> None:
        """Features of the new images under the merged backbone so far: drift is measured from here."""
        self.setting.extractor.load(self.merge.parameters())
        self.features = {
            "labels": torch.tensor(labels)[task.train.labels],
            "before": self._extract(task, "before"),
        }

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
        self.features["tuned"] = self._extract(task, "tuned")
        self.merge = self.merge.add(tuned)
        extractor.load(self.merge.parameters())
        self.features["merged"] = self._extract(task, "merged")
        if isinstance(self.heads.tasks[-1], PrototypeHead) and max(labels) >= learnt:
            self.heads.tasks[-1].set_from_means(self._class_means(learnt, "merged"), norm=1.0)

    def _head_from_mean(self, task: Task, labels: list[int]) -> None:
        self.features |= {"tuned": self.features["before"], "merged": self.features["before"]}
        if labels[0] == sum(self.heads.sizes):
            self.heads.append_from_means(
                self._class_means(labels[0], "before"), self.setting.generator("head", task.index)
            )

    # The branches

    def _update_statistics(self) -> None:
        """Move the old Gaussians with the backbone, then add the task's classes."""
        before, merged, labels = (self.features[name].cpu() for name in ("before", "merged", "labels"))
        for name, each in self._statistics().items():
            memory = self.memories[name]
            if memory.classes:
                transport = drifts[each.drift.model](before, merged, each.drift)
                memory.transport(transport.means, transport.rows)
            features = merged if each.statistics == "after" else self.features["tuned"].cpu()
            for label in labels.unique().tolist():
                memory.observe(label, features[labels == label])

    def _align(self, options: AlignmentOptions, task: Task, step: int) -> dict[str, float]:
        """Bring the new heads into the branch, then align all of them."""
        device = self.setting.extractor.compute.device
        heads = self.heads.copy() if options.start == "restart" else self.aligned[options.name].copy()
        heads.extend(self.heads)
        self.aligned[options.name] = heads.to(device)
        memory = self._memory(options)
        if memory is None or not (self.tasks or options.first_task or options.kind == "lda"):
            return {}
        with self.setting.progress.task(f"task {task.index + 1}, align {options.name}", options.epochs) as advance:
            self.aligned[options.name], measured = align(
                self.aligned[options.name],
                memory.to(device),
                options,
                lambda purpose, epoch, on: generator(self.setting.seed, purpose, task.index, epoch, on),
                lambda: advance(1),
            )
        return measured

    def _statistics(self) -> dict[str, AlignmentOptions]:
        """One set of Gaussians for all branches with the same statistics, named after the first of them."""
        chosen: dict[str, AlignmentOptions] = {}
        for each in self.options.align:
            if each.kind != "none" and each.memory_key not in {other.memory_key for other in chosen.values()}:
                chosen[each.name] = each
        return chosen

    def _memory(self, options: AlignmentOptions) -> GaussianMemory | None:
        named = (name for name, each in self._statistics().items() if each.memory_key == options.memory_key)
        return self.memories[next(named)] if options.kind != "none" else None

    def _extract(self, task: Task, when: str) -> Tensor:
        what = f"task {task.index + 1}, features {when}"
        return extract(self.setting.extractor, task.train, self.setting.progress, what)

    def _class_means(self, first: int, when: str) -> Tensor:
        """Mean features of the task's classes from label `first` on."""
        labels, features = self.features["labels"], self.features[when]
        return torch.stack([features[labels == label].mean(0) for label in labels.unique().tolist() if label >= first])

    # The state

    def trunk_state(self) -> State:
        heads, heads_meta = self.heads.state()
        parts = {"base": dict(self.merge.base), "vector": dict(self.merge.vector), "previous": self.previous}
        parts |= {"heads": heads, "features": self.features, "training": self.training.state()}
        return State(parts, {"heads": heads_meta, "merged": self.merge.count, "tasks": self.tasks})

    def load_trunk_state(self, state: State) -> None:
        device = self.setting.extractor.compute.device
        parts = {name: {key: each.to(device) for key, each in part.items()} for name, part in state.parts.items()}
        self.merge = IncrementalMerge(self.options.merge, parts["base"], parts["vector"], state.meta["merged"])
        self.previous, self.features = parts["previous"], parts["features"]
        self.tasks = state.meta["tasks"]
        self.heads.load(parts["heads"], state.meta["heads"])
        self.training.load(parts["training"])
        self.setting.extractor.load(self.merge.parameters())

    def state(self) -> State:
        state = self.trunk_state()
        for name, heads in self.aligned.items():
            state.parts[f"heads/{name}"], state.meta[f"heads/{name}"] = heads.state()
        for name, memory in self.memories.items():
            state.parts[f"gaussians/{name}"], state.meta[f"gaussians/{name}"] = memory.state()
        return state

    def load_state(self, state: State) -> None:
        self.load_trunk_state(state)
        for name, heads in self.aligned.items():
            heads.load(state.parts[f"heads/{name}"], state.meta[f"heads/{name}"])
            heads.to(self.setting.extractor.compute.device)
        for name, memory in self.memories.items():
            memory.load(state.parts[f"gaussians/{name}"], state.meta[f"gaussians/{name}"])
