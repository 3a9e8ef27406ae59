"""Linear discriminant analysis: heads in closed form."""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field

from lca.heads.branch import BranchOptions, Draws, kinds
from lca.heads.growing import GrowingHeads, linear_heads
from lca.statistics.gaussians import GaussianMemory


@kinds.register("lda")
class LdaBranch(BranchOptions):
    """Closed-form heads from the pooled covariance."""

    kind: Literal["lda"] = "lda"
    shrinkage: float = Field(0.1, ge=0, le=1)
    """Share of the isotropic part in the pooled covariance."""

    @property
    def closed_form(self) -> bool:
        return True

    def fit(
        self, heads: GrowingHeads, memory: GaussianMemory, draws: Draws, on_round: Callable[[], None] = lambda: None
    ) -> tuple[GrowingHeads, dict[str, float]]:
        return lda_heads(memory, heads, self.shrinkage), {}


def lda_heads(memory: GaussianMemory, heads: GrowingHeads, shrinkage: float) -> GrowingHeads:
    """Linear discriminant analysis in closed form: w_c = Σ⁻¹ (μ_c - μ̄), b_c = -½ w_cᵀ (μ_c + μ̄), Σ pooled and shrunk.

    μ̄, the mean of the class means, only takes the same amount from all logits of an image. Without that, logits in
    the thousands would leave float32 no digits for their differences.
    """
    means = memory.means().double()
    centre = means.mean(0)
    covariance = memory.pooled().shrunk(shrinkage, memory.options.ridge)
    weight = torch.linalg.solve(covariance, (means - centre).T).T
    bias = -0.5 * (weight * (means + centre)).sum(1)
    return linear_heads(weight.float(), bias.float(), heads.sizes, heads)
