"""How far two Gaussians are apart: bounds on their total variation in closed form, and a Monte-Carlo estimate."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from lca.statistics.gaussians import GaussianMemory

SINGULAR = 1e-13
"""A covariance whose smallest variance is less than this share of its largest has no density in float64."""


@dataclass(frozen=True)
class Distance:
    """Bounds on the total variation of two distributions.

    Where one of them is singular, nothing but 0 and 1 is known, unless they are equal.
    """

    at_least: float
    """H² = 1 - BC ≤ TV, BC the affinity ∫ sqrt(p q) (Bhattacharyya) and H Hellinger's distance."""
    hellinger: float
    """TV ≤ H sqrt(2 - H²) = sqrt(1 - BC²); never above 1."""
    pinsker: float
    """TV ≤ sqrt(KL / 2), KL the smaller of the two directions; may be anything."""
    estimate: float | None
    """E_p max(0, 1 - q/p), which is the total variation, by samples of p."""
    error: float | None
    """Standard error of the estimate."""

    @property
    def at_most(self) -> float:
        return min(self.hellinger, self.pinsker, 1.0)


@dataclass(frozen=True)
class Normal:
    """A Gaussian of mean (d,) and covariance (d, d), in float64."""

    mean: Tensor
    covariance: Tensor
    extremes: Tensor
    """The smallest and the largest eigenvalue of the covariance."""

    @classmethod
    def of(cls, mean: Tensor, covariance: Tensor) -> "Normal":
        return cls(mean.double(), covariance, torch.linalg.eigvalsh(covariance)[[0, -1]])

    def widened(self, variance: float) -> "Normal":
        """With so much variance added in every direction."""
        more = variance * torch.eye(len(self.mean)).to(self.covariance)
        return Normal(self.mean, self.covariance + more, self.extremes + variance)

    @property
    def is_singular(self) -> bool:
        return bool(self.extremes[0] <= SINGULAR * self.extremes[1])

    def equals(self, other: "Normal") -> bool:
        return torch.equal(self.mean, other.mean) and torch.equal(self.covariance, other.covariance)


def distance(p: Normal, q: Normal, samples: int, generator: torch.Generator) -> Distance:
    """Of two Gaussians on the device of the generator."""
    if p.equals(q):
        return Distance(0.0, 0.0, 0.0, 0.0, 0.0)
    if p.is_singular or q.is_singular:
        return Distance(0.0, 1.0, math.inf, None, None)
    one, two = (MultivariateNormal(each.mean, each.covariance, validate_args=False) for each in (p, q))
    affinity = min(math.exp(log_affinity(one, two)), 1.0)
    divergence = max(min(float(kl_divergence(one, two)), float(kl_divergence(two, one))), 0.0)
    noise = torch.randn(samples, len(p.mean), generator=generator, dtype=torch.float64, device=generator.device)
    points = one.loc + noise @ one.scale_tril.T
    excess = (1 - (two.log_prob(points) - one.log_prob(points)).exp()).clamp(min=0)
    return Distance(
        1 - affinity,
        math.sqrt(max(1 - affinity**2, 0.0)),
        math.sqrt(divergence / 2),
        float(excess.mean()),
        float(excess.std()) / math.sqrt(samples),
    )


def log_affinity(one: MultivariateNormal, two: MultivariateNormal) -> float:
    """ln ∫ sqrt(p q) = ¼ ln|Σ₁| + ¼ ln|Σ₂| - ½ ln|Σ̄| - ⅛ δᵀ Σ̄⁻¹ δ, with Σ̄ the mean of the covariances."""
    middle = torch.linalg.cholesky((one.covariance_matrix + two.covariance_matrix) / 2)
    apart = torch.linalg.solve_triangular(middle, (one.loc - two.loc)[:, None], upper=False)
    logs = [root.diagonal().log().sum() for root in (one.scale_tril, two.scale_tril, middle)]
    return float((logs[0] + logs[1]) / 2 - logs[2] - apart.square().sum() / 8)


def covariance(memory: GaussianMemory, label: int) -> Tensor:
    """The covariance (d, d) of a class's samples without their ridge, in float64."""
    options, gaussian = memory.options, memory.classes[label]
    if options.kind == "shared" or gaussian.count < 2:
        pooled = memory.pooled()
        found = pooled.scatter / max(pooled.freedom, 1)
        return found.diagonal().diag() if options.kind == "diagonal" else found
    rows = gaussian.factor.double()
    rows = rows.diag() if options.kind == "diagonal" else rows
    return rows.T @ rows / max(gaussian.count - options.unbiased, 1)
