"""Incremental Merging with Local Classifier Alignment (Tran et al., ICLR 2026), and its branches.

A task goes through: observe (features of its images under the backbone so far), finetune, merge, and then, per branch,
statistics and alignment. The first three are the trunk: all branches share them, and none feeds back into them.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import model_validator
from torch import Tensor

from lca.data.streams import Task
from lca.errors import LcaError
from lca.files import State, nbytes
from lca.heads.growing import HeadChoice, HeadOptions, LinearOptions, PrototypeHead
from lca.merging.incremental import IncrementalMerge
from lca.merging.operators import Agree, First, Last, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting, Step
from lca.methods._observing import Observing, ObservingOptions
from lca.training.loop import FineTuning


class ImOptions(ObservingOptions):
    name: Literal["im"] = "im"
    merge: OperatorChoice = Agree()
    """How the tensors of all tasks so far become one: an operator of `lca operators`, and its settings."""
    init_from: Literal["merged", "previous", "base"] = "merged"
    """Where a task's fine-tuning starts: the merge so far, the last task's own tensors, or the base."""
    head: HeadChoice = LinearOptions()
    """The head a task is trained with; all heads together answer."""

    @model_validator(mode="after")
    def _consistent(self) -> "ImOptions":
        try:
            self.merge.check(self.init_from)
        except LcaError as error:
            raise ValueError(str(error)) from None
        return self


@methods.register("im")
class IncrementalMerging(Observing):
    info = MethodInfo(
        title="Incremental Merging + Local Classifier Alignment",
        reference="Tran, Vargas, Than: LCA: Local Classifier Alignment for Continual Learning, ICLR 2026",
        trains="the tuner and the task's head, then all heads on samples of the class Gaussians",
    )
    Options: ClassVar = ImOptions
    distils = True
    instant = True
    options: ImOptions
    remembers: ClassVar[tuple[str, ...]] = (*Observing.remembers, "training")

    def __init__(self, setting: Setting, options: ImOptions) -> None:
        super().__init__(setting, options)
        self.merge = IncrementalMerge.start(options.merge, setting.extractor.tensors())
        self.previous: dict[str, Tensor] = {}
        self.training = FineTuning(setting)

    def head_options(self) -> HeadOptions:
        return self.options.head

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        if not self.trains(task):
            yield from self.instant_steps(task, labels)
            return
        yield Step("observe", lambda: self.observe(task, labels), trunk=True)
        yield from self.finetuning(lambda epoch: self._finetune(task, epoch), trunk=True)
        yield Step("merge", lambda: self._merge(task, labels), trunk=True)
        yield from self.branch_steps(task)

    def trains(self, task: Task) -> bool:
        """A single class has no cross-entropy gradient."""
        return len(task.classes) > 1

    def instant_steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        """The backbone stays, and head rows come from class means."""
        yield Step("observe", lambda: self.observe(task, labels, sparing=True), trunk=True)
        yield Step("head from mean", lambda: self._heads_from_means(task, labels), trunk=True)
        yield from self.branch_steps(task)

    def rows_seen(self, images: int) -> tuple[int, int]:
        views, stays = self.options.looks.views(images), self.options.merge == First() or not self.tuned_bytes()
        return views, 0 if stays else views + self.options.looks.anchors

    def statistics_of_task(self) -> None:
        seen = self.observed
        self.branch_set.observe(
            seen["labels"],
            seen["tuned"],
            seen["merged"],
            seen.get("before"),
            seen.get("images"),
            seen.get("families"),
            seen.get("spoilt"),
        )

    def statistics_features(self, branch: str) -> Tensor:
        return self.observed["merged" if self.branch_set.options[branch].statistics == "after" else "tuned"]

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        others, copies = (
            super().expected_bytes(tasks, classes, images),
            3 if self.options.init_from == "previous" else 2,
        )
        own = nbytes(self.setting.extractor.tuner.pretrained_tensors())
        return None if others is None else others + copies * self.tuned_bytes() - own

    def observe(self, task: Task, labels: list[int], sparing: bool = False) -> None:
        """Features of the new images under the merged backbone so far, where they are needed: drift is measured from
        here, once there are classes that can drift, and an instant lesson stays here."""
        self.setting.extractor.load(self.merge.parameters())
        self.see(task, labels, sparing)
        if sparing or self.tasks:
            self.observed["before"] = self.extract(task, "before", sparing)

    def _finetune(self, task: Task, epoch: int) -> dict[str, float]:
        merged = self.merge.parameters()
        if epoch == 0:
            start = {"merged": merged, "previous": self.previous or merged, "base": self.merge.base}
            self.setting.extractor.load(start[self.options.init_from])
        return self.training.epoch(task, epoch, self.heads, teacher=merged if self.tasks else None)

    def _merge(self, task: Task, labels: list[int]) -> None:
        extractor, learnt = self.setting.extractor, sum(self.heads.sizes)
        self.training.finish(task, self.heads, self.heads.new_places(labels))
        tuned = extractor.tensors()
        self.previous = tuned if self.options.init_from == "previous" else {}
        self.observed["tuned"] = self.extract(task, "tuned")  # for any branch: others may share this trunk
        self.merge = self.merge.add(tuned)
        extractor.load(self.merge.parameters())
        same = self.options.merge == Last()
        self.observed["merged"] = self.observed["tuned"] if same else self.extract(task, "merged")
        self.observe_background(task, moved=True)
        self.centre.add(self.plain("merged"))
        if isinstance(self.heads.tasks[-1], PrototypeHead) and max(labels) >= learnt:
            self.heads.tasks[-1].set_from_means(self.class_means(learnt, "merged"), norm=1.0)

    def _heads_from_means(self, task: Task, labels: list[int]) -> None:
        self.observed |= {"tuned": self.observed["before"], "merged": self.observed["before"]}
        self.observe_background(task, moved=False)
        learnt = sum(self.heads.sizes)
        if max(labels) >= learnt:
            self.append_means(self.class_means(learnt, "before"), task.index)
        self.centre.add(self.plain("before"))

    def trunk_state(self) -> State:
        """Of the base only what is not the backbone's own weights, which are there anyway."""
        state, known = super().trunk_state(), self.setting.extractor.tuner.pretrained_tensors()
        base = {name: tensor for name, tensor in self.merge.base.items() if name not in known}
        state.parts |= {"base": base, "vector": dict(self.merge.vector), "previous": self.previous}
        state.meta["merged"] = self.merge.count
        return state

    def load_trunk_state(self, state: State) -> None:
        super().load_trunk_state(state)
        base, vector = self.on_device(state.parts["base"]), self.on_device(state.parts["vector"])
        base = {name: base.get(name, tensor) for name, tensor in self.merge.base.items()}
        self.merge = IncrementalMerge(self.options.merge, base, vector, state.meta["merged"])
        self.previous = self.on_device(state.parts["previous"])
        self.setting.extractor.load(self.merge.parameters())
