"""SimpleCIL: nothing is trained; an image belongs to the class whose mean pre-trained feature it points at."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lca.data.streams import Task
from lca.files import State
from lca.methods import methods
from lca.methods._base import Method, MethodInfo, MethodOptions, Setting, Step
from lca.statistics.prototypes import ClassMeans, mean_bytes


class SimpleCilOptions(MethodOptions):
    name: Literal["simplecil"] = "simplecil"


@methods.register("simplecil")
class SimpleCil(Method):
    """The tuner stays out of it, whichever it is: features are those of the backbone as it was pre-trained."""

    info = MethodInfo(
        title="SimpleCIL",
        reference="Zhou et al.: Revisiting Class-Incremental Learning with Pre-Trained Models, IJCV 2024",
        trains="nothing; class means of the pre-trained features are compared by cosine",
    )
    Options: ClassVar = SimpleCilOptions
    defaults: ClassVar = {"tuning": {"name": "none"}}

    def __init__(self, setting: Setting, options: SimpleCilOptions) -> None:
        super().__init__(setting, options)
        self.means = ClassMeans()

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        yield Step("means", lambda: self._learn_means(task, labels))

    def feature_parts(self) -> list[str]:
        return ["pretrained"]

    def embed(self, views: Tensor, part: str) -> Tensor:
        return self.setting.extractor.pretrained(views)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.means.cosines(features)

    def forget(self, label: int) -> None:
        self.means.forget(label)

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        return mean_bytes(classes, self.setting.extractor.width)

    def state(self) -> State:
        return State({"means": self.means.state()})

    def load_state(self, state: State) -> None:
        self.means.load(state.parts["means"], self.setting.extractor.compute.device)

    def _learn_means(self, task: Task, labels: list[int]) -> None:
        features = self.features(task.train, f"task {task.index + 1}, features")
        self.means.observe(torch.tensor(labels)[task.train.labels], features)
