"""The frozen backbone with class statistics: nothing is trained, so a lesson takes one pass over its images."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from torch import Tensor

from lca.data.streams import Task
from lca.heads.growing import HeadOptions, LinearOptions
from lca.methods import methods
from lca.methods._base import PRETRAINED, MethodInfo, Step
from lca.methods._observing import Observing, ObservingOptions


class FrozenOptions(ObservingOptions):
    name: Literal["frozen"] = "frozen"


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
    defaults: ClassVar = {"tuning": {"name": "none"}}

    def head_options(self) -> HeadOptions:
        return LinearOptions(bias=True)

    def feature_parts(self) -> list[str]:
        return [PRETRAINED]

    def rows_seen(self, images: int) -> tuple[int, int]:
        return self.options.looks.views(images), 0

    def trains(self, task: Task) -> bool:
        return False

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        yield Step("observe", lambda: self._observe(task, labels), trunk=True)
        yield from self.branch_steps(task)

    def statistics_of_task(self) -> None:
        features = self.observed["features"]
        self.branch_set.observe(self.observed["labels"], features, features, features, self.observed.get("images"))

    def statistics_features(self, branch: str) -> Tensor:
        return self.observed["features"]

    def _observe(self, task: Task, labels: list[int]) -> None:
        self.see(task, labels)
        self.observed["features"] = self.extract(task, "")
        learnt = sum(self.heads.sizes)
        if max(labels) >= learnt:
            self.append_means(self.class_means(learnt, "features"), task.index)
        self.centre.add(self.plain("features"))
