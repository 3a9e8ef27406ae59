"""Token prompts as in L2P (Wang et al. 2022), without the pool: trained tokens between class token and patches.

They enter after the position embedding, behind all prefix tokens (class, distillation, registers), and go through all
blocks. L2P adds the class token's position embedding to them and makes the feature from their outputs.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.config import TuningOptions
from lca.errors import LcaError
from lca.tuning import tuners
from lca.tuning.base import Tuner, uniform
from lca.tuning.insertion import TokenInsertion


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
    _before: tuple[nn.Module, nn.Module]

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        options = self.options
        position = class_position(vit) if options.position == "class" else None
        own = uniform((options.tokens, vit.embed_dim), options.spread, generator)
        self._vit, self._before = vit, (vit.blocks, vit.norm)
        # the mean is taken after the final norm, which therefore becomes a stage
        stages = (*vit.blocks, vit.norm) if options.pool == "prompts" else (*vit.blocks,)
        self.insertion = TokenInsertion(
            *stages,
            own=own.to(next(vit.parameters()).device),
            at=vit.num_prefix_tokens,
            position=position,
            pool=vit.num_prefix_tokens + 1 if options.pool == "prompts" else 0,
        )
        vit.blocks = self.insertion
        if options.pool == "prompts":
            vit.norm = nn.Identity()

    def parameters(self) -> dict[str, nn.Parameter]:
        return {} if self.insertion.own is None else {"prompt": self.insertion.own}

    def detach(self) -> None:
        self._vit.blocks, self._vit.norm = self._before


def class_position(vit: VisionTransformer) -> Tensor:
    """The class token's position embedding (1, width)."""
    if vit.cls_token is None or vit.pos_embed is None or vit.no_embed_class:
        raise LcaError("this transformer's class token has no position embedding; use position: none")
    return vit.pos_embed.detach()[0, :1].clone()
