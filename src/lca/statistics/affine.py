"""An affine map of feature space: ridge regression of how far features moved on where they were."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Features (n, d) of the same images before and after, as a regression sees them."""

    before: Tensor
    moves: Tensor

    @cached_property
    def centre(self) -> Tensor:
        """x̄ (d,)."""
        return self.before.mean(0)

    @cached_property
    def shift(self) -> Tensor:
        """d̄ (d,)."""
        return self.moves.mean(0)

    @cached_property
    def centred(self) -> Tensor:
        """X (n, d)."""
        return self.before - self.centre

    @cached_property
    def gram(self) -> Tensor:
        """XᵀX (d, d)."""
        return self.centred.T @ self.centred

    @cached_property
    def cross(self) -> Tensor:
        """XᵀD (d, d)."""
        return self.centred.T @ (self.moves - self.shift)


@dataclass(frozen=True)
class AffineMap:
    """The ridge regression of the moves on where they began."""

    pairs: Pairs
    strength: float

    @cached_property
    def correction(self) -> Tensor:
        """W (d, d)."""
        return torch.linalg.solve(self._penalised, self.pairs.cross)

    @cached_property
    def errors(self) -> Tensor:
        """What the map leaves of the moves: (n, d)."""
        return self.pairs.moves - self.pairs.shift - self.pairs.centred @ self.correction

    def means(self, means: Tensor) -> Tensor:
        points = means.double()
        return (points + (points - self.pairs.centre) @ self.correction + self.pairs.shift).to(means.dtype)

    def rows(self, rows: Tensor) -> Tensor:
        return (rows.double() + rows.double() @ self.correction).to(rows.dtype)

    def residual(self) -> Tensor:
        """The factor of the covariance of the errors, divided by what the fit has left of n - 1 degrees of freedom."""
        spent = torch.linalg.solve(self._penalised, self.pairs.gram).trace()
        rows = torch.linalg.qr(self.errors, mode="r").R
        return (rows / (len(self.errors) - 1 - spent).clamp(min=1).sqrt()).float()

    @property
    def _penalised(self) -> Tensor:
        gram = self.pairs.gram
        penalty = (self.strength * gram.trace() / len(gram)).clamp(min=1e-12)
        return gram + penalty * torch.eye(len(gram)).to(gram)
