"""The quadratic discriminant: every class keeps some of its own covariance, in closed form, exact and of low rank."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from lca.heads.branch import BranchOptions, kinds
from lca.heads.discriminant import Discriminant, DiscriminantOptions, left_out_scores
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.left_out import LeftOut

USUAL_SHARE, LARGEST_SHARE = 0.1, 0.2
"""Of a class's own covariance: with a handful of images, and with however many."""
_AT_ONCE = 8192
"""Rows of factors in one product."""


@kinds.register("quadratic")
class QuadraticBranch(BranchOptions, DiscriminantOptions):
    """A regularised Gaussian discriminant from the stored statistics; nothing else is stored."""

    kind: Literal["quadratic"] = "quadratic"
    derived: ClassVar[bool] = True
    share: float | None = Field(None, ge=0, lt=1)
    """a: share of a class's own covariance; by default min(0.2, max(0.1 (n - 1) / (n + 1), (n - 1) / (n - 1 + 4 d)))
    for a class of n images."""
    rank: int | None = Field(None, ge=1)
    """Directions in which a class's covariance is its own; the variance in the others is spread evenly. By default
    all there are."""

    def shares(self, counts: Tensor, width: int) -> Tensor:
        """a of classes with so many images; 0 for one image, and where all classes share one covariance."""
        if self.covariance.kind == "shared":
            return torch.zeros_like(counts)
        if self.share is not None:
            return self.share * (counts > 1).to(counts)
        few, many = USUAL_SHARE * (counts - 1) / (counts + 1), (counts - 1) / (counts - 1 + 4 * width)
        return torch.maximum(few, many).clamp(0, LARGEST_SHARE)

    def derive(self, memory: GaussianMemory) -> nn.Module:
        discriminant = Discriminant.of(memory, self)
        return QuadraticHead(discriminant, memory, self.shares(discriminant.counts, len(discriminant.root)), self.rank)

    def left_out(
        self,
        memory: GaussianMemory,
        features: Tensor,
        labels: Tensor,
        images: Tensor | None,
        asked: Tensor | None = None,
    ) -> Tensor:
        discriminant = Discriminant.of(memory, self)
        without = LeftOut.of(features, labels, memory.means(), memory.counts(), images, asked)
        shares = self.shares(without.left, features.shape[1])
        return left_out_scores(discriminant, memory, without, labels[: len(shares)], shares)


class QuadraticHead(nn.Module):
    """score_c(x) = -½ (x - m_c)ᵀ S_c⁻¹ (x - m_c) - ½ log det S_c, with S_c = (1 - a_c) W + a_c Cov_c.

    In coordinates z that W whitens, with Cov_c = RᵀR / (n - 1) of few rows, B = √(a / (α (n - 1))) R and α = 1 - a:

        S⁻¹ = (I - Bᵀ (I + B Bᵀ)⁻¹ B) / α,    log det S = d log α + log det(I + B Bᵀ) + log det W

    so no d x d matrix of a class exists. What the scores of all classes have in common, -½ |z|² - ½ log det W, is left
    out: it would leave float32 few digits for their differences. With a truncated R the lost variance comes back
    evenly: α gains a times what is lost per dimension.
    """

    whitening: Tensor
    centre: Tensor
    means: Tensor
    curvature: Tensor
    offset: Tensor
    order: Tensor

    def __init__(self, discriminant: Discriminant, memory: GaussianMemory, shares: Tensor, rank: int | None) -> None:
        super().__init__()
        means, width = discriminant.coordinates(discriminant.means), len(discriminant.root)
        alpha, volume = 1 - shares, torch.zeros_like(shares)
        blocks: list[tuple[Tensor, Tensor]] = []
        order = []
        for labels, rows in _of_similar_rank(memory, shares):
            factor = discriminant.rows(rows)
            kept, lost, gram = _factored(factor, rank)
            share = shares[labels]
            alpha[labels] += share * lost / width
            strength = (share / alpha[labels])[:, None, None]
            root = torch.linalg.cholesky(torch.eye(gram.shape[1]).to(gram) + strength * gram)
            volume[labels] = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
            solved = torch.linalg.solve_triangular(root, strength.sqrt() * kept, upper=False)
            solved = solved / alpha[labels][:, None, None].sqrt()
            blocks.append((solved, (solved @ means[labels][:, :, None])[:, :, 0]))
            order.append(labels)
        self._shapes = [rows.shape[:2] for rows, _ in blocks]
        linear = torch.cat([each.to(means.device) for each in order]) if order else torch.zeros(0, dtype=torch.long)
        buffers = {
            "whitening": torch.linalg.solve_triangular(discriminant.root, torch.eye(width).to(means), upper=False).T,
            "centre": discriminant.centre,
            "means": means / alpha[:, None],
            "curvature": (1 / alpha - 1) / 2,
            "offset": (means.square().sum(1) / alpha + width * alpha.log() + volume) / 2,
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor.float().contiguous())
        for number, (rows, shifts) in enumerate(blocks):
            self.register_buffer(f"rows_{number}", rows.flatten(0, 1).float().contiguous())
            self.register_buffer(f"shifts_{number}", shifts.flatten().float().contiguous())
        position = torch.full((len(shares),), len(linear), dtype=torch.long, device=means.device)
        position[linear] = torch.arange(len(linear), device=means.device)
        self.register_buffer("order", position)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, classes)."""
        z = (features - self.centre) @ self.whitening
        linear = functional.linear(z, self.means, -self.offset) - z.square().sum(1, keepdim=True) * self.curvature
        if not self._shapes:
            return linear
        corrections = []
        for number, (classes, rank) in enumerate(self._shapes):
            inside = functional.linear(z, getattr(self, f"rows_{number}"), -getattr(self, f"shifts_{number}"))
            corrections.append(inside.square().unflatten(1, (classes, rank)).sum(2) / 2)
        none = torch.zeros_like(z[:, :1])  # of classes without a covariance of their own
        return linear + torch.cat([*corrections, none], dim=1).index_select(1, self.order)


def _of_similar_rank(memory: GaussianMemory, shares: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Labels (g,) of classes with a covariance of their own, and their factors (g, k, d) divided by √(n - 1), filled up
    with rows of zeros: so many at a time as fit into one product."""
    groups: dict[int, list[int]] = {}
    for label, share in enumerate(shares.tolist()):
        rank = len(memory.rows_of(label))
        if share and rank:
            groups.setdefault(1 << (rank - 1).bit_length(), []).append(label)
    for size, labels in sorted(groups.items()):
        for start in range(0, len(labels), count := max(1, _AT_ONCE // size)):
            some = labels[start : start + count]
            factors = [memory.rows_of(label) for label in some]
            longest = max(map(len, factors))
            rows = torch.stack([functional.pad(each, (0, 0, 0, longest - len(each))) for each in factors]).double()
            freedom = torch.tensor([max(memory.classes[label].count - memory.options.unbiased, 1) for label in some])
            yield torch.tensor(some, device=rows.device), rows / freedom.to(rows.device).sqrt()[:, None, None]


def _factored(rows: Tensor, rank: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (g, k, d) with their leading directions only, the variance that is lost (g,), and the Gram matrices
    (g, k, k) of what is kept."""
    gram = rows @ rows.mT
    if rank is None or rank >= rows.shape[1]:
        return rows, rows.new_zeros(len(rows)), gram
    values, axes = torch.linalg.eigh(gram)
    kept = axes[:, :, -rank:].mT @ rows
    return kept, values[:, :-rank].sum(1), torch.diag_embed(values[:, -rank:])
