"""Leaving out: what the statistics of a class would be without one of its images, all of its views."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LeftOut:
    """Of n images, each without itself: the mean of its class (n, d), how far it lies from there (n, d), the rows
    (n, r, d) that the scatter of its class loses, and how many images are left (n,). All in float64."""

    means: Tensor
    apart: Tensor
    lost: Tensor
    left: Tensor

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        means: Tensor,
        counts: Tensor,
        images: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> "LeftOut":
        """From features (rows, d) of images that were learnt, with the means and counts of all classes.

        `images` (rows,) tells which image each row is a view of; the first n rows are the plain views of the n images,
        in order. `asked` (n, d) are other features of these images, to be compared in the place of the plain views.
        Without image i with views x_v and their mean x̄, a class of K images has the mean
        μ - (x̄ - μ) / (K - 1), and its scatter loses K / (K - 1) (x̄ - μ)(x̄ - μ)ᵀ + mean_v (x_v - x̄)(x_v - x̄)ᵀ.
        """
        features, images = features.double(), torch.arange(len(features)) if images is None else images
        n = int(images.max()) + 1
        views = torch.bincount(images, minlength=n)
        middle = torch.zeros(n, features.shape[1], dtype=torch.float64).index_add_(0, images, features)
        middle = middle / views[:, None]
        own, count = means.double()[labels[:n]], counts.double()[labels[:n], None]
        others = (count - 1).clamp(min=1)
        rest = own + (own - middle) / others
        lost = ((count / others).sqrt() * (middle - own))[:, None]
        if int(views.max()) > 1:
            order = images.argsort(stable=True)
            place = torch.arange(len(images)) - (views.cumsum(0) - views)[images[order]]
            within = torch.zeros(n, int(views.max()), features.shape[1], dtype=torch.float64)
            spread = (features - middle[images]) / views[images, None].sqrt()
            within[images[order], place] = spread[order]
            lost = torch.cat([lost, within], dim=1)
        return cls(rest, (features[:n] if asked is None else asked.double()) - rest, lost, count[:, 0] - 1)

    def of_rows(self, rows: Tensor) -> "LeftOut":
        """That of some of the images."""
        return LeftOut(self.means[rows], self.apart[rows], self.lost[rows], self.left[rows])
