"""Token prompts as in L2P (Wang et al. 2022), without the pool: trained tokens between class token and patches.

They enter after the position embedding, behind all prefix tokens (class, distillation, registers), and go through all
blocks. L2P adds the class token's position embedding to them and makes the feature from their outputs.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.errors import LcaError
from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions, uniform
from lca.tuning.insertion import TokenInsertion, insert_tokens, remove_insertions


class PromptOptions(TuningOptions):
    name: Literal["prompt"] = "prompt"
    tokens: int = Field(5, ge=1)
    spread: float = Field(1.0, gt=0)
    """Tokens start as U(-spread, spread)."""
    position: Literal["none", "class"] = "none"
    """`class` adds the class token's position embedding to every prompt, as L2P does."""
    pool: Literal["backbone", "prompts"] = "backbone"
    """`backbone`: the prompts are cut out and the transformer pools as ever. `prompts`: the mean of their outputs after
    the final norm takes the place of every token, so that it is what the transformer pools. Where norms or attention
    pooling come after the pooling, they are applied to this mean."""


@tuners.register("prompt")
class Prompt(Tuner):
    """Prompt tokens between the class token and the patches, through all blocks (L2P's without the pool)."""

    Options: ClassVar = PromptOptions
    options: PromptOptions

    insertion: TokenInsertion
    """The blocks with the tokens: where others can be inserted."""
    _vit: VisionTransformer

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        options = self.options
        position = class_position(vit) if options.position == "class" else None
        if position is None and options.position == "class":
            raise LcaError("this transformer's class token has no position embedding; use position: none")
        own = uniform((options.tokens, vit.embed_dim), options.spread, generator)
        self.tuned["prompt"] = nn.Parameter(own.to(next(vit.parameters()).device))
        self._vit = vit
        self.insertion = insert_tokens(vit, self.tuned["prompt"], position, pool=options.pool == "prompts")

    def detach(self) -> None:
        remove_insertions(self._vit)


def class_position(vit: VisionTransformer) -> Tensor | None:
    """The class token's position embedding (1, width), if it has one."""
    if vit.cls_token is None or vit.pos_embed is None or vit.no_embed_class:
        return None
    return vit.pos_embed.detach()[0, :1].clone()
