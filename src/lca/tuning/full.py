"""Full fine-tuning: every parameter of the transformer."""

from typing import ClassVar, Literal

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.config import TuningOptions
from lca.tuning import tuners
from lca.tuning.base import Tuner


class FullOptions(TuningOptions):
    name: Literal["full"] = "full"


@tuners.register("full")
class FullTuning(Tuner):
    """All of the transformer's parameters; `detach` puts the pre-trained values back."""

    Options: ClassVar = FullOptions

    _vit: VisionTransformer
    _pretrained: dict[str, Tensor]

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        self._vit = vit.requires_grad_(True)
        self._pretrained = self.tensors()

    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._vit.named_parameters())

    def detach(self) -> None:
        self.load(self._pretrained)
        self._vit.requires_grad_(False)
