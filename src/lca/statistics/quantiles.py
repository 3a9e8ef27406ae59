"""Quantiles of measured values: a few are kept of many, and a distribution function is made of what is kept."""

from dataclasses import dataclass

import torch
from torch import Tensor

EDGES = torch.cat([torch.arange(16) * 0.05, 0.8 + torch.arange(8) * 0.02, 0.96 + torch.arange(9) * 0.005]).double()
"""Of many values, the middles of these quantile intervals are kept: finer where unknown things begin."""
KEPT = len(EDGES) - 1
"""Values kept: all of so few, quantiles of more."""


def weights(count: int) -> Tensor:
    """How many values each kept one of `count` stands for."""
    return torch.ones(count, dtype=torch.float64) if count <= KEPT else count * EDGES.diff()


def kept(values: Tensor, weights: Tensor) -> Tensor:
    """The places of those of weighted values (n,) that are kept, at most `KEPT`, in the order of the values."""
    order = values.argsort(stable=True)
    if len(values) <= KEPT:
        return order
    inside = (weights[order].cumsum(0) - weights[order] / 2) / weights.sum()
    return order[torch.searchsorted(inside, (EDGES[1:] + EDGES[:-1]) / 2).clamp(max=len(values) - 1)]


@dataclass(frozen=True)
class Distribution:
    """A distribution function of values of any sign: linear between points, and beyond them an exponential tail.

    The heights leave a place for one more value, so that they would never exceed n / (n + 1): a model of ten images
    could not call anything unknown. The tails therefore go on, and fall as steeply as those of a Gaussian of the same
    spread do about there: 1 - F(x) = (1 - h) exp(-2 (x - x_n) / σ).
    """

    points: Tensor
    heights: Tensor
    rate: float

    @classmethod
    def of(cls, values: Tensor, weights: Tensor, spread: float) -> "Distribution":
        """Of weighted values (n,), in any order, with the standard deviation that tails go by."""
        points, order = values.double().sort()
        before, total = weights[order].cumsum(0) - weights[order] / 2, weights.sum()
        return cls(points, before / (total + 1), 2 / spread)

    def above(self, asked: Tensor) -> Tensor:
        """The share of values that are greater, 1 - F, of values of any shape."""
        points, heights = self.points, self.heights
        asked = asked.double()
        upper = torch.searchsorted(points, asked).clamp(1, max(len(points) - 1, 1))
        low, high = points[upper - 1], points[upper.clamp(max=len(points) - 1)]
        share = ((asked - low) / (high - low).clamp(min=1e-30)).clamp(0, 1)
        inside = heights[upper - 1] + share * (heights[upper.clamp(max=len(points) - 1)] - heights[upper - 1])
        over = (1 - heights[-1]) * torch.exp(-self.rate * (asked - points[-1]).clamp(min=0))
        under = heights[0] * torch.exp(-self.rate * (points[0] - asked).clamp(min=0))
        return torch.where(asked > points[-1], over, 1 - torch.where(asked < points[0], under, inside))
