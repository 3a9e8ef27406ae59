"""Linear discriminant analysis: heads in closed form."""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from lca.heads.branch import BranchOptions, Draws, kinds
from lca.heads.discriminant import Discriminant, DiscriminantOptions, left_out_scores
from lca.heads.growing import GrowingHeads, linear_heads
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.left_out import LeftOut


@kinds.register("lda")
class LdaBranch(BranchOptions, DiscriminantOptions):
    """Closed-form heads from the covariance that all classes share."""

    kind: Literal["lda"] = "lda"
    shrinkage: float | None = Field(0.1, ge=0, le=1)
    means: Literal["plain", "bayes"] = "plain"

    @property
    def closed_form(self) -> bool:
        return True

    def fit(
        self, heads: GrowingHeads, memory: GaussianMemory, draws: Draws, on_round: Callable[[], None] = lambda: None
    ) -> tuple[GrowingHeads, dict[str, float]]:
        return lda_heads(memory, heads, self), {}

    def left_out(
        self,
        memory: GaussianMemory,
        features: Tensor,
        labels: Tensor,
        images: Tensor | None,
        asked: Tensor | None = None,
    ) -> Tensor:
        without = LeftOut.of(features, labels, memory.means(), memory.counts(), images, asked)
        nothing = torch.zeros_like(without.left)  # of the class's own covariance
        own = labels[: len(nothing)]
        return left_out_scores(Discriminant.of(memory, self), memory, without, own, nothing)


def lda_heads(memory: GaussianMemory, heads: GrowingHeads, options: DiscriminantOptions) -> GrowingHeads:
    """The heads of `linear_discriminant`, task by task as the given ones."""
    weight, bias = linear_discriminant(memory, options)
    return linear_heads(weight, bias, heads.sizes, heads)


def linear_discriminant(memory: GaussianMemory, options: DiscriminantOptions) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis in closed form: w_c = W⁻¹ (m_c - m̄), b_c = -½ w_cᵀ (m_c + m̄); (classes, d) and
    (classes,).

    W is the pooled covariance, shrunk, and m_c the class means as stored or by empirical Bayes. m̄, the mean of the
    class means, only takes the same amount from all logits of an image. Without that, logits in the thousands would
    leave float32 no digits for their differences.
    """
    discriminant = Discriminant.of(memory, options)
    means, centre = discriminant.means, discriminant.centre
    weight = torch.cholesky_solve((means - centre).T, discriminant.root).T
    bias = -0.5 * (weight * (means + centre)).sum(1)
    return weight.float(), bias.float()
