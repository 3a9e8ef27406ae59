"""The terms of Theorem 1, and the right sides of Theorems 1 and 2 and of Corollary 1: as printed, and as they hold.

Everything starts from losses: of the n_i samples D_i of class i on which the heads were aligned, and of fresh samples
of its Gaussian N_i; and from whether each sample lies in the class's own cell Z_i, where its mean is the nearest.
docs/theory.md derives the corrected statements.
"""

import math
from collections.abc import Mapping, Sequence
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

    def mean_loss(self) -> tuple[float, float]:
        """The mean over classes, and its standard error."""
        means = [float(each.double().mean()) for each in self.losses]
        errors = [_standard_error(each.double()) for each in self.losses]
        return sum(means) / len(means), math.hypot(*errors) / len(errors)


SIDES = ("theorem_1", "corollary_1", "within_cells", "without_cells", "theorem_2", "theorem_2_corrected")
"""The right sides, by their names in JSON."""


@dataclass(frozen=True)
class Terms:
    """What the bounds are made of, (classes,) each, for a loss between 0 and `maximum`.

    A class with no sample inside its cell, drawn or fresh, has no robustness: the expectation is over nothing. It gets
    what makes it cost the largest loss, which always suffices: the loss of its drawn samples as that inside, and the
    rest as robustness.
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
    errors: Mapping[str, Tensor]
    """Standard errors of what fresh samples estimate, where D is given: `robustness`, `inside`, `expected`, and a
    class's parts of the bounds `within_cells` and `without_cells`."""

    @property
    def weights(self) -> Tensor:
        """n_i/n"""
        return self.counts / self.counts.sum()

    def error(self, key: str) -> float:
        """Standard error of the mean over classes, weighted by n_i/n for the robustness: their samples are apart."""
        weights = self.weights if key == "robustness" else 1 / len(self.counts)
        return float((weights * self.errors[key]).square().sum().sqrt())


def terms(drawn: Draws, fresh: Draws, maximum: float) -> Terms:
    """Measure the terms; expectations over N_i are means over the fresh samples."""
    classes = [
        _of_class(*each, maximum) for each in zip(drawn.losses, drawn.inside, fresh.losses, fresh.inside, strict=True)
    ]
    values = {key: torch.tensor([own[0][key] for own in classes], dtype=torch.float64) for key in classes[0][0]}
    errors = {key: torch.tensor([own[1][key] for own in classes], dtype=torch.float64) for key in classes[0][1]}
    counts = torch.tensor([len(losses) for losses in drawn.losses], dtype=torch.float64)
    return Terms(maximum, counts, **values, errors=errors)


def _of_class(
    drawn: Tensor, drawn_inside: Tensor, fresh: Tensor, fresh_inside: Tensor, maximum: float
) -> tuple[dict[str, float], dict[str, float]]:
    """The terms of a class, and the standard errors."""
    drawn, fresh = drawn.double(), fresh.double()
    distances, mean = mean_distances(fresh, drawn), float(drawn.mean())
    if drawn_inside.any() and fresh_inside.any():
        mean_inside = float(drawn[drawn_inside].mean())
        within = mean_distances(fresh[fresh_inside], drawn[drawn_inside])
    else:
        mean_inside, within = mean, fresh.new_tensor([maximum - mean])
    values = {
        "drawn": mean,
        "drawn_inside": mean_inside,
        "robustness": float(within.mean()),
        "spread": float(distances.mean()),
        "inside": float(fresh_inside.double().mean()),
        "expected": float(fresh.mean()),
    }
    costs = torch.full_like(fresh, maximum)  # what every fresh sample adds to the bound with cells
    costs[fresh_inside] = mean_inside + within
    samples = {
        "robustness": within,
        "inside": fresh_inside.double(),
        "expected": fresh,
        "within_cells": costs,
        "without_cells": distances,
    }
    return values, {key: _standard_error(each) for key, each in samples.items()}


def _standard_error(samples: Tensor) -> float:
    """Of the mean of independent samples; one alone has none to tell."""
    return float(samples.std()) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0


def mean_distances(one: Tensor, two: Tensor) -> Tensor:
    """For every a the mean of |a - b| over b, by one sort: Σ_b |a - b| = a (below - above) + sum above - sum below."""
    one, two = one.double(), two.double().sort().values
    below = torch.searchsorted(two, one)
    sums = torch.cat([two.new_zeros(1), two.cumsum(0)])
    total = one * (2 * below - len(two)) + sums[-1] - 2 * sums[below]
    return (total / len(two)).clamp(min=0.0)  # rounding


def uncertainty(classes: int, samples: int, delta: float, maximum: float) -> float:
    """ℓ_max sqrt((C ln 4 + 2 ln(1/δ)) / n), the last term of Theorem 1."""
    return maximum * math.sqrt((classes * math.log(4) + 2 * math.log(1 / delta)) / samples)


def theorem_1(found: Terms, delta: float) -> float:
    """As printed: Σ n_i/n (L(D_i, h) + ε̄_i) + uncertainty."""
    return float(found.weights @ (found.drawn + found.robustness)) + uncertainty(
        len(found.counts), int(found.counts.sum()), delta, found.maximum
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
