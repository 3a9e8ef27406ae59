"""AdaptFormer (Chen et al. 2022): a small bottleneck beside the MLP of every block.

With x the residual stream after attention, a block adds s (W_up relu(W_down x + b_down) + b_up) to what its MLP branch
adds. The bottleneck sees x itself, the MLP sees norm2(x).
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional

from lca.errors import LcaError
from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions


class AdapterOptions(TuningOptions):
    name: Literal["adapter"] = "adapter"
    bottleneck: int = Field(64, ge=1)
    """Width between the two projections."""
    scale: float = Field(0.1, gt=0)
    """What the adapter's output is multiplied with."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the bottleneck, in training."""


class AdaptedMlp(nn.Module):
    """A block's MLP branch (norm2, mlp, ls2) with the bottleneck beside it."""

    def __init__(self, block: Block, options: AdapterOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.norm, self.mlp, self.layer_scale = block.norm2, block.mlp, block.ls2
        self.scale, self.dropout = options.scale, options.dropout
        width = len(block.attn.proj.weight)  # of the residual stream
        down = torch.empty(options.bottleneck, width)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.down = nn.Parameter(down)
        self.down_bias = nn.Parameter(torch.zeros(options.bottleneck))
        self.up = nn.Parameter(torch.zeros(width, options.bottleneck))  # the model starts unchanged
        self.up_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu(functional.linear(x, self.down, self.down_bias))
        inside = functional.dropout(inside, self.dropout, self.training)
        beside = functional.linear(inside, self.up, self.up_bias)
        branch: Tensor = self.layer_scale(self.mlp(self.norm(x)))
        return branch + self.scale * beside


@tuners.register("adapter")
class Adapter(Tuner):
    """AdaptFormer: a bottleneck with ReLU beside the MLP of every block."""

    Options: ClassVar = AdapterOptions
    options: AdapterOptions

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        if other := sorted({type(block).__name__ for block in vit.blocks if not isinstance(block, Block)}):
            raise LcaError(f"the adapter goes beside the MLP of timm's Block; this transformer has {other}")
        for number, block in enumerate(vit.blocks):
            adapted, place = AdaptedMlp(block, self.options, generator), f"blocks.{number}"
            own = adapted.named_parameters(recurse=False)
            self.tuned |= {f"{place}.adapter.{name}": parameter for name, parameter in own}
            for name, module in (("mlp", adapted), ("norm2", nn.Identity()), ("ls2", nn.Identity())):
                self.put(vit, f"{place}.{name}", module)
