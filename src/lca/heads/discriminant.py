"""What closed-form heads take from the stored Gaussians: a shared covariance, and means that allow for chance."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from lca.options import Options
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.left_out import LeftOut


class DiscriminantOptions(Options):
    """How covariance and means are estimated."""

    shrinkage: float | None = Field(None, ge=0, le=1)
    """s: share of the isotropic part in the covariance all classes share; by default min(0.7, max(0.1, 3 / K)), with K
    the harmonic mean of the images per class."""
    means: Literal["plain", "bayes"] = "bayes"
    """`bayes`: means of few images lie too far apart by chance, so they are drawn towards the centre (empirical
    Bayes). `plain`: as stored."""


@dataclass(frozen=True)
class Discriminant:
    """The Gaussians in coordinates in which the shared covariance W = (1 - s) P + s tr(P)/d I is the identity.

    P is the pooled covariance within classes. With w = tr(W⁻¹ P) / d, the spread of the means around their centre
    T = Σ |μ_c - μ̄|²_W / ((C - 1) d), and ψ = max(0.02 T, T - w mean(1 / n_c)), what of it is no chance, a class mean is
    worth l_c = n_c ψ / (n_c ψ + w): m_c = g + l_c (μ_c - g), where g is the l-weighted mean of all.
    """

    root: Tensor
    """Cholesky's L of W."""
    plain: Tensor
    """(classes, d): the stored means."""
    counts: Tensor
    within: float
    """w"""
    between: float
    """ψ; infinite where the means are taken as they are."""

    @classmethod
    def of(cls, memory: GaussianMemory, options: DiscriminantOptions) -> "Discriminant":
        means, counts = memory.means().double(), memory.counts().double().to(memory.means().device)
        pooled, width = memory.pooled(), means.shape[1]
        shrinkage = options.shrinkage
        if shrinkage is None:
            shrinkage = min(0.7, max(0.1, 3 * float((1 / counts).mean())))
        root = torch.linalg.cholesky(pooled.shrunk(shrinkage, memory.options.ridge))
        spread = torch.linalg.solve_triangular(root, (means - means.mean(0)).T, upper=False)
        total = float(spread.square().sum()) / (max(len(means) - 1, 1) * width)
        if options.means == "plain" or total == 0:
            return cls(root, means, counts, 0.0, torch.inf)
        covariance = pooled.scatter / max(pooled.freedom, 1)
        within = float(torch.cholesky_solve(covariance, root).trace()) / width
        between = max(0.02 * total, total - within * float((1 / counts).mean()))
        return cls(root, means, counts, within, between)

    def worth(self, counts: Tensor) -> Tensor:
        """l of classes with so many images."""
        return torch.ones_like(counts) if self.between == torch.inf else counts / (counts + self.within / self.between)

    @cached_property
    def origin(self) -> Tensor:
        """g (d,)."""
        worth = self.worth(self.counts)[:, None]
        return (worth * self.plain).sum(0) / worth.sum()

    def shrunk(self, means: Tensor, counts: Tensor) -> Tensor:
        """m of means (n, d) of so many images."""
        return self.origin + self.worth(counts)[:, None] * (means - self.origin)

    @cached_property
    def means(self) -> Tensor:
        """m_c (classes, d)."""
        return self.shrunk(self.plain, self.counts)

    @cached_property
    def centre(self) -> Tensor:
        """The mean of the class means: where the coordinates begin."""
        return self.means.mean(0)

    def coordinates(self, points: Tensor) -> Tensor:
        """Points (n, d) as seen from the centre, whitened."""
        return self.rows(points.double() - self.centre)

    def rows(self, rows: Tensor) -> Tensor:
        """Directions (..., d), whitened."""
        flat = torch.linalg.solve_triangular(self.root, rows.double().reshape(-1, len(self.root)).T, upper=False).T
        return flat.reshape(rows.shape)


def left_out_scores(
    discriminant: Discriminant, memory: GaussianMemory, without: LeftOut, labels: Tensor, shares: Tensor
) -> Tensor:
    """Of n learnt images, the score of their own class as if they had not been learnt: (n,), NaN for a class of one.

    What all classes share stays as it is. `shares` (n,) is how much of the class's own covariance counts, with one
    image less: S = (1 - a) I + a / (K - 2) (RᵀR - UᵀU) in whitened coordinates, U the rows that are lost; Woodbury's
    formula takes them out of a factorisation that all images of a class have in common.
    """
    scores = torch.full((len(labels),), torch.nan, dtype=torch.float64)
    size = len(discriminant.root)
    middle = discriminant.coordinates(discriminant.shrunk(without.means, without.left))
    points = discriminant.coordinates(without.means + without.apart)
    lost = discriminant.rows(without.lost)
    for label in labels.unique().tolist():
        chosen = torch.nonzero((labels == label) & (without.left > 0))[:, 0]
        if not len(chosen):
            continue
        share, freedom = float(shares[chosen[0]]), max(float(without.left[chosen[0]]) - memory.options.unbiased, 1)
        rows = discriminant.rows(memory.rows_of(label)) if share else middle.new_zeros(0, size)
        base = (1 - share) * torch.eye(size).to(middle) + share / freedom * rows.T @ rows
        root = torch.linalg.cholesky(base)
        apart = (points - middle)[chosen]
        white = torch.linalg.solve_triangular(root, apart.T, upper=False).T
        distance, volume = white.square().sum(1), 2 * root.diagonal().log().sum()
        if share and memory.is_exact:
            gone = torch.linalg.solve_triangular(root, lost[chosen].flatten(0, 1).T, upper=False).T
            gone = gone.unflatten(0, lost[chosen].shape[:2])
            left, axes = torch.linalg.eigh(torch.eye(gone.shape[1]).to(gone) - share / freedom * gone @ gone.mT)
            left = left.clamp(min=1e-6)  # positive, but for rounding
            across = (axes.mT @ gone @ white[:, :, None])[:, :, 0]
            distance = distance + share / freedom * (across.square() / left).sum(1)
            volume = volume + left.log().sum(1)
        scores[chosen] = points[chosen].square().sum(1) / 2 - distance / 2 - volume / 2
    return scores
