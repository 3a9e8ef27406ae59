"""No tuning: the backbone stays frozen and only heads are trained."""

from typing import ClassVar, Literal

import torch
from timm.models import VisionTransformer

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions


class NoneOptions(TuningOptions):
    name: Literal["none"] = "none"


@tuners.register("none")
class NoTuning(Tuner):
    """Nothing to train in the backbone."""

    Options: ClassVar = NoneOptions

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        pass
