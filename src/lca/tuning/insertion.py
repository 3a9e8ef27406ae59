"""How prompts get into a transformer: as tokens in the sequence, or as rows in front of an attention's keys and values.

An insertion holds rows of its own that are trained, or none. `inserting` gives it others for a while, the same for all
images of a batch or one set per image, as methods do that choose prompts by the image; gradients flow into them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from lca.errors import LcaError


class Insertion(nn.Module):
    """What all insertions have: `own`, the trained rows, and what `inserting` puts in their place."""

    own: nn.Parameter | None
    _given: tuple[Tensor | None] | None = None

    def rows(self) -> Tensor | None:
        """What is inserted now; None is nothing at all."""
        return self.own if self._given is None else self._given[0]


@contextmanager
def inserting(values: Mapping[Insertion, Tensor | None]) -> Iterator[None]:
    """Insert these rows instead of the own ones, with or without a leading batch dimension; None inserts nothing,
    which is how the query of a prompt method sees the image."""
    before = {insertion: insertion._given for insertion in values}
    try:
        for insertion, rows in values.items():
            insertion._given = (rows,)  # a tuple: a module would register a bare parameter as its own
        yield
    finally:
        for insertion, given in before.items():
            insertion._given = given


class TokenInsertion(nn.Sequential, Insertion):
    """Stages of a transformer that see extra tokens: rows ([batch,] tokens, width).

    The tokens enter before the first stage after the first `at` tokens of the sequence, at its end by default, and are
    cut out after the last stage. With `pool` the mean of what became of them is returned instead, as `pool` equal
    tokens: whichever tokens a transformer pools, it then pools this mean.
    """

    position: Tensor | None

    def __init__(
        self,
        *stages: nn.Module,
        own: nn.Parameter | None,
        at: int | None = None,
        position: Tensor | None = None,
        pool: int = 0,
    ) -> None:
        super().__init__(*stages)
        self.own, self.at, self.pool = own, at, pool
        self.register_buffer("position", position, persistent=False)
        self.training = stages[0].training

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows()
        if rows is None:
            return self._stages(x)
        if self.position is not None:
            rows = rows + self.position
        at = x.shape[1] if self.at is None else self.at
        end = at + rows.shape[-2]
        tokens = rows.to(x.dtype).expand(x.shape[0], -1, -1)
        seen = self._stages(torch.cat([x[:, :at], tokens, x[:, at:]], 1))
        if self.pool:
            return seen[:, at:end].mean(1, keepdim=True).expand(-1, self.pool, -1)
        return seen[:, :at] if self.at is None else torch.cat([seen[:, :at], seen[:, end:]], 1)

    def _stages(self, x: Tensor) -> Tensor:
        for stage in self:
            x = stage(x)
        return x


class PrefixAttention(Insertion):
    """timm's attention with rows in front of its keys and values: ([batch,] 2, tokens, width), keys first.

    Queries do not change. Prefix keys are taken as they are, also where the attention normalises its own.
    """

    def __init__(self, inner: Attention, own: nn.Parameter | None) -> None:
        super().__init__()
        self.inner, self.own = inner, own
        self.training = inner.training

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        inner, rows = self.inner, self.rows()
        if rows is None:
            plain: Tensor = inner(x, attn_mask=attn_mask, is_causal=is_causal)
            return plain
        if attn_mask is not None or is_causal:
            raise LcaError("prefixes cannot be combined with masked attention")
        by_head = (inner.num_heads, inner.head_dim)
        query, key, value = inner.qkv(x).unflatten(-1, (3, *by_head)).permute(2, 0, 3, 1, 4)
        query, key = inner.q_norm(query), inner.k_norm(key)
        rows = rows if rows.dim() == 4 else rows[None]
        front = rows.unflatten(-1, by_head).permute(1, 0, 3, 2, 4).expand(-1, x.shape[0], -1, -1, -1)
        mixed = functional.scaled_dot_product_attention(
            query,
            torch.cat([front[0].to(key.dtype), key], 2),
            torch.cat([front[1].to(value.dtype), value], 2),
            dropout_p=inner.attn_drop.p if self.training else 0.0,
        )
        mixed = inner.norm(mixed.transpose(1, 2).flatten(2))
        if inner.gate is not None:
            mixed = mixed * inner.gate(x).sigmoid()
        result: Tensor = inner.proj_drop(inner.proj(mixed))
        return result


def plain_attention(block: nn.Module) -> Attention:
    """A block's attention; one that makes its keys and values in another way is a readable error."""
    attention = getattr(block, "attn", None)
    if type(attention) is not Attention:
        what = type(block if attention is None else attention).__name__
        raise LcaError(f"prefixes need timm's plain Attention, got {what}; `vpt` and `prompt` work with any attention")
    return attention


def insert_tokens(
    vit: VisionTransformer, own: nn.Parameter | None, position: Tensor | None = None, pool: bool = False
) -> TokenInsertion:
    """Make a place for tokens behind all prefix tokens (class, distillation, registers) and through all blocks. With
    `pool` the transformer's feature is made of their outputs after the final norm, which therefore becomes a stage."""
    at = vit.num_prefix_tokens
    stages = (*vit.blocks, vit.norm) if pool else (*vit.blocks,)
    insertion = TokenInsertion(*stages, own=own, at=at, position=position, pool=at + 1 if pool else 0)
    vit.blocks = insertion
    if pool:
        vit.norm = nn.Identity()
    return insertion


def insert_prefix(vit: VisionTransformer, block: int, own: nn.Parameter | None) -> PrefixAttention:
    """Make a place for a prefix in a block's attention."""
    vit.blocks[block].attn = insertion = PrefixAttention(plain_attention(vit.blocks[block]), own)
    return insertion


def remove_insertions(vit: Any) -> None:
    """Take out all tokens and prefixes that were put in by the functions above, where there are any."""
    if isinstance(getattr(vit, "blocks", None), TokenInsertion):
        stages = list(vit.blocks)
        if vit.blocks.pool:
            vit.norm = stages.pop()
        vit.blocks = nn.Sequential(*stages).train(vit.blocks.training)
    for parent in list(vit.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PrefixAttention):
                setattr(parent, name, child.inner)
