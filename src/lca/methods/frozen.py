"""The frozen backbone with class statistics: nothing is trained, so a lesson takes one pass over its images."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor

from lca.data.streams import Task
from lca.heads.growing import HeadOptions, LinearOptions
from lca.methods import methods
from lca.methods._base import PRETRAINED, MethodInfo, Setting, Step
from lca.methods._observing import Observing, ObservingOptions
from lca.methods._second_pass import SecondPass, second_passes


class FrozenOptions(ObservingOptions):
    name: Literal["frozen"] = "frozen"

    @field_validator("second_pass")
    @classmethod
    def _sees_something_else(cls, value: SecondPass) -> SecondPass:
        if isinstance(value, FrozenPass):
            raise ValueError(
                "a second pass of the frozen backbone gives method frozen the same answer once more; "
                "use of: mirror, or a method that tunes, such as im"
            )
        return value


@methods.register("frozen")
class Frozen(Observing):
    """Features are those of the backbone as it was pre-trained, whatever the tuner, so the statistics are exact for
    good. The branch `none` answers with rows that point at the class means."""

    info = MethodInfo(
        title="Frozen backbone, class statistics",
        reference="the pre-trained features with the heads of every other method",
        trains="nothing but what a branch aligns; closed-form heads follow from the class statistics",
    )
    Options: ClassVar = FrozenOptions
    first_part: ClassVar[str] = PRETRAINED
    defaults: ClassVar = {"tuning": {"name": "none"}}

    def head_options(self) -> HeadOptions:
        return LinearOptions(bias=True)

    def rows_seen(self, images: int) -> tuple[int, int]:
        return self.options.looks.views(images), 0

    def trains(self, task: Task) -> bool:
        return False

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        yield Step("observe", lambda: self.observe(task, labels), trunk=True)
        yield from self.branch_steps(task)

    def statistics_of_task(self) -> None:
        features = self.observed["features"]
        seen = self.observed
        self.branch_set.observe(
            seen["labels"],
            features,
            features,
            features,
            seen.get("images"),
            seen.get("families"),
            seen.get("spoilt"),
        )

    def statistics_features(self, branch: str) -> Tensor:
        return self.observed["features"]

    def observe(self, task: Task, labels: list[int], sparing: bool = False) -> None:
        self.see(task, labels, sparing)
        self.observed["features"] = self.extract(task, "", sparing)
        self.observe_background(task, moved=False)
        learnt = sum(self.heads.sizes)
        if max(labels) >= learnt:
            self.append_means(self.class_means(learnt, "features"), task.index)
        self.centre.add(self.plain("features"))


class FrozenPartner(Frozen):
    """The frozen backbone beside one that is tuned. What training is for, and how far things lie from what is known,
    are the other's affairs."""

    tells_unknown = False
    distils = True


@second_passes.register("frozen")
class FrozenPass(SecondPass):
    """The logits and, weighted, those of the same branch on the pre-trained features, whose statistics never drift."""

    of: Literal["frozen"] = "frozen"
    weight: float = Field(0.25, gt=0)
    """Of the logits on the pre-trained features; those on the tuned ones count 1."""

    def parts(self, first: str) -> list[str]:
        return [PRETRAINED]

    def partner(self, setting: Setting, options: ObservingOptions) -> Observing:
        looks = options.looks.model_copy(update={"anchors": 0})  # they show how a backbone moves, and this one does not
        return FrozenPartner(setting, FrozenOptions(align=options.align, looks=looks))

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return first + self.weight * second
