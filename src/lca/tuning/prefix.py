"""Prefix tuning (Li and Liang 2021) on a vision transformer: trained rows in front of keys and values.

As in DualPrompt (Wang et al. 2022), in a few of the first blocks and starting from U(-1, 1).
"""

import warnings
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from timm.models import VisionTransformer
from torch import nn

from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions, uniform
from lca.tuning.insertion import PrefixAttention, plain_attention


def _in_range(layers: tuple[int | float, ...]) -> tuple[int | float, ...]:
    wrong = [each for each in layers if each < 0 or (isinstance(each, float) and each >= 1)]
    if wrong or not layers:
        raise ValueError(f"expected block numbers from 0 or shares of the depth in [0, 1), got {wrong or 'none'}")
    return layers


Layers = Annotated[tuple[int | float, ...], AfterValidator(_in_range)]
"""Blocks, counted from 0; or with a decimal point, at which share of the depth."""


class PrefixOptions(TuningOptions):
    name: Literal["prefix"] = "prefix"
    tokens: int = Field(5, ge=1)
    """Key rows, and as many value rows, in every chosen block."""
    layers: Layers = (0, 1, 2, 3, 4)
    """Blocks, counted from 0; or with a decimal point, at which share of the depth: 0.5 is the middle."""
    spread: float = Field(1.0, gt=0)
    """Rows start as U(-spread, spread)."""


def chosen_blocks(layers: Layers, depth: int, warn: Callable[[str], None] = warnings.warn) -> list[int]:
    """Block numbers in ascending order; numbers beyond the last block mean the last block, with a warning."""
    clipped = [each for each in layers if each >= depth]
    if clipped:
        warn(f"layers {clipped} are clipped to {depth - 1}: the transformer has {depth} blocks")
    numbers = [int(each * depth) if isinstance(each, float) else min(each, depth - 1) for each in layers]
    return sorted(set(numbers))


@tuners.register("prefix")
class Prefix(Tuner):
    """Prefix tuning: trained rows in front of the keys and values of chosen blocks."""

    Options: ClassVar = PrefixOptions
    options: PrefixOptions

    insertions: dict[str, PrefixAttention]
    """The attentions that have a prefix, by their names in the transformer."""

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        numbers = chosen_blocks(self.options.layers, len(vit.blocks))
        self.insertions = {}
        for name, attention in {f"blocks.{each}.attn": plain_attention(vit.blocks[each]) for each in numbers}.items():
            shape = (2, self.options.tokens, attention.num_heads * attention.head_dim)
            own = self.tuned[f"{name}.prefix"] = nn.Parameter(uniform(shape, self.options.spread, generator))
            self.insertions[name] = PrefixAttention(attention, own)
            self.put(vit, name, self.insertions[name])
