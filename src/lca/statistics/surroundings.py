"""Where features lie: how far from every class, from the middle of all classes, and from the background.

All distances are squared, under the pooled covariance shrunk by half: |v|² = vᵀ Σ⁻¹ v. With the class means μ_c, their
mean g and the background's means b_j, a feature x has d_c = |x - μ_c|², e = |x - g|² and b = min_j |x - b_j|².
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lca.statistics.gaussians import GaussianMemory
from lca.statistics.left_out import LeftOut

_AT_ONCE = 2**22
"""Numbers in the largest tensor that is made on the way."""


@dataclass(frozen=True)
class Surroundings:
    """Of n features the squared distances to the classes (n, classes), or to the nearest one (n, 1), to their middle
    (n,) and to the nearest mean of the background (n,)."""

    classes: Tensor
    centre: Tensor
    background: Tensor


def surroundings(memory: GaussianMemory, features: Tensor, background: Tensor) -> Surroundings:
    """Of features (n, d) beside the means of a background (j, d)."""
    root, means = memory.root(), memory.means().double()
    centre = means.mean(0)

    def whiten(rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(root, (rows.to(root) - centre).T, upper=False).T

    asked = whiten(features)
    return Surroundings(
        torch.cdist(asked, whiten(means)).square(),
        asked.square().sum(1),
        torch.cdist(asked, whiten(background)).square().amin(1),
    )


def left_out_surroundings(
    memory: GaussianMemory, features: Tensor, labels: Tensor, background: Tensor, images: Tensor | None = None
) -> Surroundings:
    """Of images that were learnt, each as if it had not been: from Σ, from the mean of its class and from the middle of
    the classes it is taken away. Arguments and NaN are as for `GaussianMemory.leave_one_out`; the class is the nearest.

    This is what a new image is asked, too. The distances to the other classes are those under Σ as it is.
    """
    without, axes = memory.left_out(features, labels, images), memory.pooled().spectrum[1].cpu()
    plain, own = features[: len(without.left)].double().cpu(), labels[: len(without.left)].cpu()
    means = memory.means().double().cpu()
    middles = means.mean(0) + (without.means - means[own]) / len(means)
    asked, alone, middles, near = (each @ axes for each in (plain, without.means, middles, background.double().cpu()))
    rows = []
    for some in torch.arange(len(plain)).split(max(1, _AT_ONCE // (near.numel() + 1))):
        points = torch.cat([alone[some, None], middles[some, None], near.expand(len(some), -1, -1)], dim=1)
        rows.append(memory.left_out_distances(without.of_rows(some), asked[some, None] - points))
    found = torch.cat(rows)
    others = memory.mahalanobis(plain).double().scatter(1, own[:, None], torch.inf).amin(1)
    return Surroundings(torch.minimum(found[:, 0], others)[:, None], found[:, 1], found[:, 2:].amin(1))


def typical_surroundings(memory: GaussianMemory, background: Tensor) -> Surroundings:
    """Of a typical image of every class, from the stored Gaussians alone: of each class one row, with the distance to
    its own class.

    d is the typical leave-one-out distance, NaN for a class with one image. With q = tr(Scatter_c Σ⁻¹) / n_c the others
    are e = q + |μ_c - g|² and b = q + min_j |μ_c - b_j|².
    """
    means = surroundings(memory, memory.means(), background)
    spread = memory.typical_spreads()
    return Surroundings(
        memory.typical_distances().double()[:, None], spread + means.centre.cpu(), spread + means.background.cpu()
    )
