"""Full fine-tuning: every parameter of the transformer."""

from typing import ClassVar, Literal

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions


class FullOptions(TuningOptions):
    name: Literal["full"] = "full"


@tuners.register("full")
class FullTuning(Tuner):
    """Every parameter of the transformer."""

    Options: ClassVar = FullOptions

    _parameters: dict[str, nn.Parameter]
    _pretrained: dict[str, Tensor]

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        self._parameters = dict(vit.requires_grad_(True).named_parameters())
        self._pretrained = self.tensors()

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._parameters

    def pretrained_tensors(self) -> dict[str, Tensor]:
        for name, parameter in self._parameters.items():
            self._pretrained[name] = self._pretrained[name].to(parameter.device)
        return self._pretrained

    def detach(self) -> None:
        self.load(self._pretrained)
        self.fold()

    def fold(self) -> None:
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        self._parameters, self._pretrained = {}, {}
