"""The terms of Theorem 1, and the right sides of Theorems 1 and 2 and of Corollary 1: as printed, and as they hold.

Everything starts from losses: of the n_i samples D_i of class i on which the heads were aligned, and of fresh samples
of its Gaussian N_i; and from whether each sample lies in the class's own cell Z_i, where its mean is the nearest.
docs/theory.md derives the corrected statements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """Losses of samples, class by class, and which of the samples lie in the cell of their class."""

    losses: Sequence[Tensor]
    inside: Sequence[Tensor]

    @classmethod
    def joined(cls, pieces: Sequence["Draws"]) -> "Draws":
        """Several draws as one."""
        losses = [torch.cat(each) for each in zip(*(piece.losses for piece in pieces), strict=True)]
        return cls(losses, [torch.cat(each) for each in zip(*(piece.inside for piece in pieces), strict=True)])


@dataclass(frozen=True)
class Terms:
    """What the bounds are made of, (classes,) each, for a loss between 0 and `maximum`.

    A class with no sample inside its cell, drawn or fresh, has no robustness: the expectation is over nothing. Its
    terms inside are the worst there is.
    """

    maximum: float
    counts: Tensor
    """n_i"""
    drawn: Tensor
    """L(D_i, h)"""
    drawn_inside: Tensor
    """L(D_i ∩ Z_i, h)"""
    robustness: Tensor
    """ε̄_i = E |ℓ(z) - ℓ(s)|, z of N_i and s of D_i, both in Z_i."""
    spread: Tensor
    """E |ℓ(z) - ℓ(s)| without the cells."""
    inside: Tensor
    """q_i = N_i(Z_i)"""
    expected: Tensor
    """L(N_i, h)"""
    error: float
    """Standard error of the mean of `expected`, which is measured with as many fresh samples as there are."""


def terms(drawn: Draws, fresh: Draws, maximum: float) -> Terms:
    """Measure the terms; expectations over N_i are means over the fresh samples."""
    kept = [
        (own[mask], new[also]) if mask.any() and also.any() else None
        for own, mask, new, also in zip(drawn.losses, drawn.inside, fresh.losses, fresh.inside, strict=True)
    ]
    variances = torch.stack([losses.double().var() / len(losses) for losses in fresh.losses])
    return Terms(
        maximum,
        torch.tensor([len(losses) for losses in drawn.losses], dtype=torch.float64),
        _means(drawn.losses),
        torch.tensor([maximum if pair is None else float(pair[0].mean()) for pair in kept], dtype=torch.float64),
        torch.tensor([maximum if pair is None else mean_distance(*pair) for pair in kept], dtype=torch.float64),
        torch.tensor([mean_distance(*pair) for pair in zip(drawn.losses, fresh.losses, strict=True)]).double(),
        _means(fresh.inside),
        _means(fresh.losses),
        float(variances.sum().sqrt()) / len(variances),
    )


def mean_distance(one: Tensor, two: Tensor) -> float:
    """The mean of |a - b| over all pairs, by one sort: Σ_b |a - b| = a (below - above) + (sum above - sum below)."""
    one, two = one.double(), two.double().sort().values
    below = torch.searchsorted(two, one)
    sums = torch.cat([two.new_zeros(1), two.cumsum(0)])
    total = one * (2 * below - len(two)) + sums[-1] - 2 * sums[below]
    return max(float(total.mean()) / len(two), 0.0)  # rounding


def uncertainty(classes: int, samples: int, delta: float, maximum: float) -> float:
    """ℓ_max sqrt((C ln 4 + 2 ln(1/δ)) / n), the last term of Theorem 1."""
    return maximum * math.sqrt((classes * math.log(4) + 2 * math.log(1 / delta)) / samples)


def theorem_1(found: Terms, delta: float) -> float:
    """As printed: Σ n_i/n (L(D_i, h) + ε̄_i) + uncertainty."""
    weights = found.counts / found.counts.sum()
    return float(weights @ (found.drawn + found.robustness)) + uncertainty(
        len(weights), int(found.counts.sum()), delta, found.maximum
    )


def corollary_1(found: Terms, delta: float) -> float:
    """As printed, for n_i = m: mean of L(D_i, h) + ε̄_i, and ℓ_max sqrt(ln 4 / m + 2 ln(1/δ) / (m C))."""
    sizes = set(found.counts.tolist())
    if len(sizes) > 1:
        raise ValueError(f"Corollary 1 is about equally many samples of every class, got {sorted(sizes)}")
    each, classes = sizes.pop(), len(found.counts)
    rest = found.maximum * math.sqrt(math.log(4) / each + 2 * math.log(1 / delta) / (each * classes))
    return float((found.drawn + found.robustness).mean()) + rest


def within_cells(found: Terms) -> float:
    """What Theorem 1 means, and holds for every h: 1/C Σ [q_i (L(D_i ∩ Z_i, h) + ε̄_i) + (1 - q_i) ℓ_max]."""
    inside = found.inside * (found.drawn_inside + found.robustness)
    return float((inside + (1 - found.inside) * found.maximum).mean())


def without_cells(found: Terms) -> float:
    """The same without cells, and holds for every h: 1/C Σ [L(D_i, h) + E |ℓ(z) - ℓ(s)|]."""
    return float((found.drawn + found.spread).mean())


def theorem_2(bound: float, total_variation: float, maximum: float) -> float:
    """As printed: 2 ℓ_max TV + the right side of Theorem 1."""
    return 2 * maximum * total_variation + bound


def theorem_2_corrected(bound: float, total_variation: float, maximum: float) -> float:
    """ℓ_max TV + a bound for the stored Gaussians: of a loss between 0 and ℓ_max, TV can change no more."""
    return maximum * total_variation + bound


def is_vacuous(bound: float, maximum: float) -> bool:
    """Whether a bound says nothing: the loss cannot be above its maximum anyway."""
    return bound >= maximum


def _means(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.double().mean() for each in values])
