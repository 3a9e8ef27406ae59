"""SimpleCIL: nothing is trained; an image belongs to the class whose mean pre-trained feature it points at."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lca.data.streams import Task
from lca.methods import methods
from lca.methods._base import PRETRAINED, Method, MethodInfo, MethodOptions, Setting, Step
from lca.statistics.prototypes import ClassMeans


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
    remembers: ClassVar[tuple[str, ...]] = ("means",)

    def __init__(self, setting: Setting, options: SimpleCilOptions) -> None:
        super().__init__(setting, options)
        self.means = ClassMeans()

    def trains(self, task: Task) -> bool:
        return False

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        yield Step("means", lambda: self._learn_means(task, labels))

    def feature_parts(self) -> list[str]:
        return [PRETRAINED]

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.means.cosines(features)

    def _learn_means(self, task: Task, labels: list[int]) -> None:
        features = self.features(task.train, "features")
        self.means.observe(torch.tensor(labels)[task.train.labels], features)
