"""Leaving out: what the statistics of a class would be without one of its images, all of its views."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LeftOut:
    """Of n images, each without itself: the mean of its class (n, d), how far it lies from there (n, d), the rows
    (n, r, d) that the scatter of its class loses, and how many images are left (n,). All in float64."""

    means: Tensor
    apart: Tensor
    lost: Tensor
    left: Tensor

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        means: Tensor,
        counts: Tensor,
        images: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> "LeftOut":
        """From features (rows, d) of images that were learnt, with the means and counts of all classes.

        `images` (rows,) tells which image each row is a view of; the first n rows are the plain views of the n images,
        in order. `asked` (n, d) are other features of these images, to be compared in the place of the plain views.
        Without image i with views x_v and their mean x̄, a class of K images has the mean
        μ - (x̄ - μ) / (K - 1), and its scatter loses K / (K - 1) (x̄ - μ)(x̄ - μ)ᵀ + mean_v (x_v - x̄)(x_v - x̄)ᵀ.
        """
        features, images = features.double(), torch.arange(len(features)) if images is None else images
        n = int(images.max()) + 1
        views = torch.bincount(images, minlength=n)
        middle = torch.zeros(n, features.shape[1], dtype=torch.float64).index_add_(0, images, features)
        middle = middle / views[:, None]
        own, count = means.double()[labels[:n]], counts.double()[labels[:n], None]
        others = (count - 1).clamp(min=1)
        rest = own + (own - middle) / others
        lost = ((count / others).sqrt() * (middle - own))[:, None]
        if int(views.max()) > 1:
            order = images.argsort(stable=True)
            place = torch.arange(len(images)) - (views.cumsum(0) - views)[images[order]]
            within = torch.zeros(n, int(views.max()), features.shape[1], dtype=torch.float64)
            spread = (features - middle[images]) / views[images, None].sqrt()
            within[images[order], place] = spread[order]
            lost = torch.cat([lost, within], dim=1)
        return cls(rest, (features[:n] if asked is None else asked.double()) - rest, lost, count[:, 0] - 1)


class LeftOutMetric:
    """Squared distances under a pooled, shrunk covariance as it would be without each of n images, in float64.

    Along the axes of the pooled scatter, its eigenvectors, the covariance (1 - s) Σ + s tr(Σ)/d I + ridge I is
    diagonal, and Woodbury's formula takes the loss of an image's rows L into account: with D the diagonal without them,
    |v|² = vᵀ D⁻¹ v + a vᵀ D⁻¹ Lᵀ (I - a L D⁻¹ Lᵀ)⁻¹ L D⁻¹ v, a = (1 - s) / freedom. NaN where nothing is left to
    measure with.
    """

    def __init__(
        self,
        without: LeftOut,
        values: Tensor,
        axes: Tensor,
        freedom: int,
        shrinkage: float,
        ridge: float,
        exact: bool = True,
    ) -> None:
        self._axes, self._share = axes, (1 - shrinkage) / freedom
        lost = without.lost @ axes * exact
        gone = lost.square().sum((1, 2))
        level = shrinkage * (values.sum() - gone) / (freedom * len(values)) + ridge
        self._weights = 1 / (self._share * values.clamp(min=0) + level[:, None])
        self._lost = lost * self._weights[:, None]
        inner, across = torch.linalg.eigh(torch.eye(lost.shape[1]).to(lost) - self._share * self._lost @ lost.mT)
        self._lost = (across / inner.clamp(min=1e-6).sqrt()[:, None]).mT @ self._lost  # > 0, but for rounding
        self._measurable = (without.left > 0) & (values.sum() - gone >= 1e-6 * values.sum())

    def between(self, one: Tensor, two: Tensor) -> Tensor:
        """Of n points each (n, d) from another one: (n,)."""
        apart = (one - two) @ self._axes
        gained = (self._lost @ apart[:, :, None]).square().sum((1, 2))
        return self._told((apart.square() * self._weights).sum(1) + self._share * gained)

    def to(self, points: Tensor, common: Tensor) -> Tensor:
        """Of n points (n, d) from each of k that are common to all of them (k, d): (n, k)."""
        one, two = points @ self._axes, common @ self._axes
        weighted = one * self._weights
        squares = (one * weighted).sum(1, keepdim=True) - 2 * weighted @ two.T + self._weights @ two.square().T
        gained = (self._lost @ one[:, :, None] - self._lost @ two.T).square().sum(1)
        return self._told(squares.clamp(min=0) + self._share * gained)

    def _told(self, distances: Tensor) -> Tensor:
        measurable = self._measurable if distances.ndim == 1 else self._measurable[:, None]
        return distances.where(measurable, torch.nan)
