"""Linear probe: the backbone stays as it was pre-trained, and every task trains a linear head on its features."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lca.data.streams import Task
from lca.heads.growing import HeadChoice, LinearOptions
from lca.methods import methods
from lca.methods._base import PRETRAINED, MethodInfo, Setting
from lca.methods.finetune import SequentialFineTuning, SequentialOptions
from lca.training.loop import FineTuning, Inputs


class LinearProbeOptions(SequentialOptions):
    name: Literal["linear_probe"] = "linear_probe"
    head: HeadChoice = LinearOptions(bias=True)


class Features(Inputs):
    """The features of a task's images: nothing about them is drawn."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __call__(self, index: Tensor) -> Tensor:
        return self._rows[index]


class Probing(FineTuning):
    """Trains a head on features that are computed once."""

    def __init__(self, method: "LinearProbe") -> None:
        super().__init__(method.setting)
        self._method = method
        self.rows = torch.empty(0)
        """The features of the task's images."""

    def parameters(self) -> dict[str, nn.Parameter]:
        return {}

    def inputs(self, task: Task) -> Inputs:
        self.rows = self._method.features(task.train, "features")
        return Features(self.rows)

    def embed(self, views: Tensor) -> Tensor:
        return views


@methods.register("linear_probe")
class LinearProbe(SequentialFineTuning):
    """The tuner stays out of it, whichever it is. Images are seen as they are, without crops and flips. What sequential
    fine-tuning gains over this comes from the backbone; what both lack, from heads that never saw each other's
    classes."""

    info = MethodInfo(
        title="Linear probe",
        reference="the plain baseline of pre-trained features",
        trains="the task's head, on pre-trained features",
    )
    Options: ClassVar = LinearProbeOptions
    defaults: ClassVar = {"tuning": {"name": "none"}}
    training: Probing
    remembers: ClassVar[tuple[str, ...]] = ("heads", "centre", "training")
    distils: ClassVar = False

    def __init__(self, setting: Setting, options: LinearProbeOptions) -> None:
        super().__init__(setting, options)
        self.training = Probing(self)

    def some_features(self, task: Task) -> Tensor:
        return self.training.rows

    def feature_parts(self) -> list[str]:
        return [PRETRAINED]
