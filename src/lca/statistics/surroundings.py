"""Where features lie: how far from every class, from the middle of all classes, and from the background.

All distances are squared, under the pooled covariance shrunk by half: |v|² = vᵀ Σ⁻¹ v. With the class means μ_c, their
mean g and the background's means b_j, a feature x has d_c = |x - μ_c|², e = |x - g|² and b = min_j |x - b_j|².
"""

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lca.statistics.gaussians import GaussianMemory

AT_ONCE = 4096
"""Images that are left out at once: many numbers in double precision for each."""


@dataclass(frozen=True)
class Surroundings:
    """Of n features the squared distances to the classes (n, classes), to their middle (n,) and to the nearest mean of
    the background (n,)."""

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
    """Of images that were learnt, each as if it had not been, which is what a new image is asked: it is taken away from
    Σ, from the mean of its class and from the middle of the classes. Arguments and NaN are as for
    `GaussianMemory.leave_one_out`."""
    if images is None and len(features) > AT_ONCE:
        parts = [
            left_out_surroundings(memory, some, their, background)
            for some, their in zip(features.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
        ]
        return Surroundings(*(torch.cat(each) for each in zip(*map(astuple, parts), strict=True)))
    without = memory.left_out(features, labels, images)
    plain, own = features[: len(without.left)].double().cpu(), labels[: len(without.left)].cpu()
    means, metric = memory.means().double().cpu(), memory.left_out_metric(without)
    middles = means.mean(0) + (without.means - means[own]) / len(means)
    alone = metric.between(plain, without.means)
    return Surroundings(
        metric.to(plain, means).scatter(1, own[:, None], alone[:, None]),
        metric.between(plain, middles),
        metric.to(plain, background.double().cpu()).amin(1),
    )


def typical_surroundings(memory: GaussianMemory, background: Tensor) -> Surroundings:
    """Of a typical image of every class, as if it had not been learnt, from the stored Gaussians alone: of each class
    one row, with the distance to its own class. NaN for a class with one image.

    d is the typical leave-one-out distance. The image lies K / (K - 1) as far from what is left of its class as from
    the class's mean, so the others are e = ((K - 1) / K)² d + |μ_c - g|² and b = ((K - 1) / K)² d + min_j |μ_c - b_j|².
    """
    means, counts = surroundings(memory, memory.means(), background), memory.counts().double()
    apart = memory.typical_distances().double()
    spread = ((counts - 1) / counts).square() * apart
    return Surroundings(apart[:, None], spread + means.centre.cpu(), spread + means.background.cpu())
