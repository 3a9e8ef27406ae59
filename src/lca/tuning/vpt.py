"""VPT, visual prompt tuning (Jia et al. 2022): trained tokens at the end of the sequence, without position embedding.

`deep` gives every block tokens of its own and cuts them off after it; `shallow` appends one set before the first block
and cuts it off after the last, before the final norm.

Tokens that start at zero learn all the same: a block sees them through its LayerNorm, which is steepest there (slope
1 / sqrt(eps)), and its bias already makes keys and values of them. But tokens that start equal have equal gradients
and stay equal, so n of them act as one with n-fold weight in the softmax; `spread` makes them differ.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import nn

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions, uniform
from lca.tuning.insertion import TokenInsertion


class VptOptions(TuningOptions):
    name: Literal["vpt"] = "vpt"
    kind: Literal["deep", "shallow"] = "deep"
    """`deep`: tokens of its own for every block. `shallow`: one set that goes through all blocks."""
    tokens: int = Field(5, ge=1)
    spread: float = Field(0.0, ge=0)
    """Tokens start as U(-spread, spread); 0, as in the published comparisons, starts them at zero."""


@tuners.register("vpt")
class Vpt(Tuner):
    """Visual prompt tuning: trained tokens at the end of the sequence, before every block or once."""

    Options: ClassVar = VptOptions
    options: VptOptions

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        shape = (self.options.tokens, vit.embed_dim)

        def insertion(name: str, *stages: nn.Module) -> TokenInsertion:
            own = self.tuned[name] = nn.Parameter(uniform(shape, self.options.spread, generator))
            return TokenInsertion(*stages, own=own)

        if self.options.kind == "deep":
            stages = [insertion(f"blocks.{number}.vpt", block) for number, block in enumerate(vit.blocks)]
            self.put(vit, "blocks", nn.Sequential(*stages))
        else:
            self.put(vit, "blocks", insertion("vpt", *vit.blocks))
