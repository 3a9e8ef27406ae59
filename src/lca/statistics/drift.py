"""Drift: when the backbone moves, the stored Gaussians of old classes must move with it.

What can be seen of the move are the new task's images, before and after. A drift model is fitted on those pairs
and then moves the old means and factors. `none` leaves them, which is what the paper and its code do.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor
from torch.nn import functional

from lca.options import Options, one_of
from lca.registry import Registry
from lca.statistics.affine import AffineMap, Pairs


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
    def fit(self, before: Tensor, after: Tensor, labels: Tensor) -> Transport:
        """Fit a transport on features (n, d) of the same images before and after. `labels` (n,) are those of their
        classes, -1 of none."""


drifts: Registry[type[Drift]] = Registry("drift model")
choose_drift = one_of(drifts, "none", "model", shared=True)
DriftChoice = Annotated[SerializeAsAny[Drift], BeforeValidator(choose_drift)]


@drifts.register("none")
class NoDrift(Drift):
    """Old Gaussians stay where they are."""

    model: Literal["none"] = "none"

    def fit(self, before: Tensor, after: Tensor, labels: Tensor) -> Transport:
        return Transport(lambda means: means, lambda rows: rows)


@drifts.register("mean_shift")
class MeanShift(Drift):
    """SDC (Yu et al. 2020): each old mean moves by the kernel-weighted mean move of the new features around it."""

    model: Literal["mean_shift"] = "mean_shift"
    bandwidth: float = Field(0.5, gt=0)
    """Width of the kernel, in units of the spread of the new features."""

    def fit(self, before: Tensor, after: Tensor, labels: Tensor) -> Transport:
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
    strength: Annotated[float, Field(gt=0)] | Literal["chosen"] = 0.05
    """Ridge penalty, in units of n times the mean feature variance; `chosen` anew for every lesson by leaving some of
    its classes out of the fit (`chosen_strength`; 0.2 in a lesson of fewer than three classes)."""
    residual: bool = False
    """Whether the old classes gain the covariance Σ_e of what the map does not explain. With y = A x + e the moved
    covariance is A Σ Aᵀ + Σ_e; without, old classes shrink a little with every task."""

    @property
    def leaves_residual(self) -> bool:
        return self.residual

    def fit(self, before: Tensor, after: Tensor, labels: Tensor) -> Transport:
        before, after, strength = before.double(), after.double(), self.strength
        if strength == "chosen":
            strength = chosen_strength(self.transport, before, after, labels)
        fitted = AffineMap(Pairs(before, after - before), strength)
        return replace(self.transport(fitted), residual=fitted.residual() if self.residual else None)

    def transport(self, fitted: AffineMap) -> Transport:
        """What a fitted map moves, and how."""
        return Transport(fitted.means, fitted.rows)


@drifts.register("local")
class Local(Affine):
    """The affine map, and means also by what it leaves of the moves of features in their direction, damped.

    μ -> affine(μ) + share · Σ w_i e_i, w = softmax(cos(μ - x̄, x_i - x̄) / temperature), e_i the errors of the fit. These
    average to 0, so a mean that resembles no feature gains nothing. Factors and Σ_e are those of the affine map alone.
    After HopDC (arXiv 2602.00144), which moves samples of the Gaussians by the whole moves of their nearest features.
    """

    model: Literal["local"] = "local"  # type: ignore[assignment]
    temperature: float = Field(0.05, gt=0)
    """Of the softmax; the lower, the fewer features count."""
    share: float = Field(0.9, gt=0, le=1)
    """What of the mean error counts."""

    def transport(self, fitted: AffineMap) -> Transport:
        directions = functional.normalize(fitted.pairs.centred)

        def move(means: Tensor) -> Tensor:
            cosines = functional.normalize(means.double() - fitted.pairs.centre) @ directions.T
            errors = torch.softmax(cosines / self.temperature, dim=1) @ fitted.errors
            return (fitted.means(means.double()) + self.share * errors).to(means.dtype)

        return Transport(move, fitted.rows)


STRENGTHS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""From which a strength is chosen."""
UNCHOSEN = 0.2
"""Where there are too few classes to choose by: what the recipe `best` says."""
FOLDS = 5


def chosen_strength(
    transport: Callable[[AffineMap], Transport], before: Tensor, after: Tensor, labels: Tensor
) -> float:
    """The strength whose transport misses the classes that were left out of the fit least.

    Old classes are to be moved by what other classes did, and so it is tried: the lesson's classes are dealt out to
    five groups, or as many as there are, each of them left out in turn. Features without a class (label -1) always stay
    in. With fewer than three classes it is `UNCHOSEN`.
    """
    classes = labels[labels >= 0].unique()
    if len(classes) < 3:
        return UNCHOSEN
    white, missed = _whitening(after, labels, classes), torch.zeros(len(STRENGTHS), dtype=torch.float64)
    rows = {label: labels == label for label in classes.tolist()}
    for fold in range(min(FOLDS, len(classes))):
        out = classes[fold::FOLDS]
        kept = ~torch.isin(labels, out)
        pairs = Pairs(before[kept], (after - before)[kept])
        for number, strength in enumerate(STRENGTHS):
            move = transport(AffineMap(pairs, strength))
            for label in out.tolist():
                missed[number] += miss(move, before[rows[label]], after[rows[label]], white)
    return STRENGTHS[int(missed.argmin())]


def miss(move: Transport, before: Tensor, after: Tensor, whitening: Tensor) -> Tensor:
    """How far a class is transported from where its n images really went, in whitened coordinates: the squared
    Wasserstein distance of two Gaussians, |m - μ|² + tr(S + Σ - 2 (S^½ Σ S^½)^½).

    With factors, S = RᵀR and Σ = QᵀQ, the trace of that root is the sum of the singular values of R Qᵀ.
    """
    apart = (move.means(before.mean(0, keepdim=True)) - after.mean(0)) @ whitening
    moved = move.rows(_factor(before)) @ whitening
    true = _factor(after) @ whitening
    common = torch.linalg.matrix_norm(moved @ true.T, "nuc")
    return apart.square().sum() + moved.square().sum() + true.square().sum() - 2 * common


def _factor(features: Tensor) -> Tensor:
    """At most d rows with the covariance of features (n, d) as their Gram matrix RᵀR."""
    rows = (features - features.mean(0)) / max(len(features) - 1, 1) ** 0.5
    return torch.linalg.qr(rows, mode="r").R


def _whitening(features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """W with W Wᵀ = (½ P + ½ tr(P)/d I)⁻¹, P the covariance within classes: half is isotropic, as in the distances."""
    within = torch.cat([features[labels == label] - features[labels == label].mean(0) for label in classes.tolist()])
    covariance = within.T @ within / max(len(within) - len(classes), 1)
    level = (covariance.trace() / len(covariance)).clamp(min=1e-12)
    identity = torch.eye(len(covariance)).to(covariance)
    root = torch.linalg.cholesky((covariance + level * identity) / 2)
    return torch.linalg.solve_triangular(root, identity, upper=False).T
