"""No tuning: the backbone stays frozen and only heads are trained."""

from typing import ClassVar, Literal

import torch
from torch import nn

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions


class NoneOptions(TuningOptions):
    name: Literal["none"] = "none"


@tuners.register("none")
class NoTuning(Tuner):
    """Nothing to train in the backbone."""

    Options: ClassVar = NoneOptions
    any_backbone: ClassVar = True

    def attach(self, vit: nn.Module, generator: torch.Generator) -> None:
        pass
