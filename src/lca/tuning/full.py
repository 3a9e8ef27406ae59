"""Full fine-tuning: every parameter of the backbone."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions


class FullOptions(TuningOptions):
    name: Literal["full"] = "full"


@tuners.register("full")
class FullTuning(Tuner):
    """Every parameter of the backbone.

    Of batch normalisation these are weight and bias; its running statistics stay as they were pre-trained.
    """

    Options: ClassVar = FullOptions
    any_backbone: ClassVar = True

    _pretrained: dict[str, Tensor]

    def attach(self, vit: nn.Module, generator: torch.Generator) -> None:
        self.tuned = dict(vit.requires_grad_(True).named_parameters())
        self._pretrained = self.tensors()

    def pretrained_tensors(self) -> dict[str, Tensor]:
        for name, parameter in self.tuned.items():
            self._pretrained[name] = self._pretrained[name].to(parameter.device)
        return self._pretrained

    def detach(self) -> None:
        self.load(self._pretrained)
        self.fold()

    def fold(self) -> None:
        for parameter in self.tuned.values():
            parameter.requires_grad_(False)
        self.tuned, self._pretrained = {}, {}
