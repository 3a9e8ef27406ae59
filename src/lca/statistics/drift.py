"""Drift: when the backbone moves, the stored Gaussians of old classes must move with it.

What can be seen of the move are the new task's images, before and after. A drift model is fitted on those pairs
and then moves the old means and factors. `none` leaves them, which is what the paper and its code do.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from lca.options import Options
from lca.registry import Registry


class DriftOptions(Options):
    """How old Gaussians follow the backbone."""

    model: str = "none"
    """One of the registered drift models."""
    strength: float = Field(0.05, gt=0)
    """`affine`: ridge penalty, in units of n times the mean feature variance."""
    bandwidth: float = Field(0.5, gt=0)
    """`mean_shift`: width of the kernel, in units of the spread of the new features."""


@dataclass(frozen=True)
class Transport:
    """A map of feature space: `means` moves points (n, d), `rows` moves factors (k, d) by its linear part."""

    means: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]


DriftModel = Callable[[Tensor, Tensor, DriftOptions], Transport]
"""Fit a transport on features (n, d) of the same images before and after."""

drifts: Registry[DriftModel] = Registry("drift model")


@drifts.register("none")
def none(before: Tensor, after: Tensor, options: DriftOptions) -> Transport:
    """Old Gaussians stay where they are."""
    return Transport(lambda means: means, lambda rows: rows)


@drifts.register("mean_shift")
def mean_shift(before: Tensor, after: Tensor, options: DriftOptions) -> Transport:
    """SDC (Yu et al. 2020): each old mean moves by the kernel-weighted mean move of the new features around it."""
    before, moves = before.double(), (after - before).double()
    variance = (options.bandwidth**2) * before.var(0, correction=0).sum().clamp(min=1e-12)

    def move(means: Tensor) -> Tensor:
        distances = torch.cdist(means.double(), before).square()
        weights = torch.softmax(-distances / (2 * variance), dim=1)
        return (means.double() + weights @ moves).to(means.dtype)

    return Transport(move, lambda rows: rows)


@drifts.register("affine")
def affine(before: Tensor, after: Tensor, options: DriftOptions) -> Transport:
    """The identity plus a ridge-regularised affine correction, after SLDC's linear map (arXiv 2511.09926).

    With X the centred features before and D the centred moves: W = (XᵀX + γ I)⁻¹ XᵀD, γ = strength · n · mean
    variance; x -> x + (x - x̄) W + d̄. The penalty shrinks the map towards a plain shift, never towards zero.
    """
    before, moves = before.double(), (after - before).double()
    centre, shift = before.mean(0), moves.mean(0)
    gram = (before - centre).T @ (before - centre)
    size = len(gram)
    penalty = options.strength * gram.trace() / size
    penalty = penalty.clamp(min=1e-12) * torch.eye(size, dtype=gram.dtype, device=gram.device)
    correction = torch.linalg.solve(gram + penalty, (before - centre).T @ (moves - shift))

    def move_means(means: Tensor) -> Tensor:
        return (means.double() + (means.double() - centre) @ correction + shift).to(means.dtype)

    def move_rows(rows: Tensor) -> Tensor:
        return (rows.double() + rows.double() @ correction).to(rows.dtype)

    return Transport(move_means, move_rows)
