"""Drift: when the backbone moves, the stored Gaussians of old classes must move with it.

What can be seen of the move are the new task's images, before and after. A drift model is fitted on those pairs
and then moves the old means and factors. `none` leaves them, which is what the paper and its code do.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from lca.options import Options, one_of
from lca.registry import Registry


@dataclass(frozen=True)
class Transport:
    """A map of feature space: `means` moves points (n, d), `rows` moves factors (k, d) by its linear part, and
    `residual` is a factor (at most d, d) of the covariance that the map leaves unexplained, where that is wanted."""

    means: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]
    residual: Tensor | None = None


class Drift(Options):
    """How old Gaussians follow the backbone; each model adds its own options."""

    model: str

    @property
    def leaves_residual(self) -> bool:
        """Whether its transports have a residual."""
        return False

    @abstractmethod
    def fit(self, before: Tensor, after: Tensor) -> Transport:
        """Fit a transport on features (n, d) of the same images before and after."""


drifts: Registry[type[Drift]] = Registry("drift model")
choose_drift = one_of(drifts, "none", "model", shared=True)
DriftChoice = Annotated[SerializeAsAny[Drift], BeforeValidator(choose_drift)]


@drifts.register("none")
class NoDrift(Drift):
    """Old Gaussians stay where they are."""

    model: Literal["none"] = "none"

    def fit(self, before: Tensor, after: Tensor) -> Transport:
        return Transport(lambda means: means, lambda rows: rows)


@drifts.register("mean_shift")
class MeanShift(Drift):
    """SDC (Yu et al. 2020): each old mean moves by the kernel-weighted mean move of the new features around it."""

    model: Literal["mean_shift"] = "mean_shift"
    bandwidth: float = Field(0.5, gt=0)
    """Width of the kernel, in units of the spread of the new features."""

    def fit(self, before: Tensor, after: Tensor) -> Transport:
        before, moves = before.double(), (after - before).double()
        variance = (self.bandwidth**2) * before.var(0, correction=0).sum().clamp(min=1e-12)

        def move(means: Tensor) -> Tensor:
            distances = torch.cdist(means.double(), before).square()
            weights = torch.softmax(-distances / (2 * variance), dim=1)
            return (means.double() + weights @ moves).to(means.dtype)

        return Transport(move, lambda rows: rows)


@drifts.register("affine")
class Affine(Drift):
    """The identity plus a ridge-regularised affine correction, after SLDC's linear map (arXiv 2511.09926).

    With X the centred features before and D the centred moves: W = (XᵀX + γ I)⁻¹ XᵀD, γ = strength · n · mean
    variance; x -> x + (x - x̄) W + d̄. The penalty shrinks the map towards a plain shift, never towards zero.
    """

    model: Literal["affine"] = "affine"
    strength: float = Field(0.05, gt=0)
    """Ridge penalty, in units of n times the mean feature variance."""
    residual: bool = False
    """Whether the old classes gain the covariance Σ_e of what the map does not explain. With y = A x + e the moved
    covariance is A Σ Aᵀ + Σ_e; without, old classes shrink a little with every task."""

    @property
    def leaves_residual(self) -> bool:
        return self.residual

    def fit(self, before: Tensor, after: Tensor) -> Transport:
        before, moves = before.double(), (after - before).double()
        centre, shift = before.mean(0), moves.mean(0)
        gram = (before - centre).T @ (before - centre)
        size = len(gram)
        penalty = self.strength * gram.trace() / size
        penalty = penalty.clamp(min=1e-12) * torch.eye(size, dtype=gram.dtype, device=gram.device)
        correction = torch.linalg.solve(gram + penalty, (before - centre).T @ (moves - shift))
        residual = None
        if self.residual:  # divided by what the fit has left of the n - 1 degrees of freedom
            spent = torch.linalg.solve(gram + penalty, gram).trace()
            errors = moves - shift - (before - centre) @ correction
            rows = torch.linalg.qr(errors, mode="r").R
            residual = (rows / (len(before) - 1 - spent).clamp(min=1).sqrt()).float()

        def move_means(means: Tensor) -> Tensor:
            return (means.double() + (means.double() - centre) @ correction + shift).to(means.dtype)

        def move_rows(rows: Tensor) -> Tensor:
            return (rows.double() + rows.double() @ correction).to(rows.dtype)

        return Transport(move_means, move_rows, residual)
