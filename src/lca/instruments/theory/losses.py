"""Losses with a maximum: the theorems need one, and cross-entropy has none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

CLIP = 5.0
"""An answer costs no more than if the true class had the probability exp(-5), 0.7 per cent."""


@dataclass(frozen=True)
class BoundedLoss:
    """A loss between 0 and `maximum`; `of` maps logits (n, classes) and labels (n,) to losses (n,)."""

    maximum: float
    of: Callable[[Tensor, Tensor], Tensor]


def bounded_losses(clip: float = CLIP) -> Mapping[str, BoundedLoss]:
    """Cross-entropy clipped from above, and the 0-1 loss."""

    def clipped(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits.double(), labels, reduction="none").clamp(max=clip)

    def zero_one(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.argmax(1) != labels).double()

    return {"clipped": BoundedLoss(clip, clipped), "zero-one": BoundedLoss(1.0, zero_one)}
