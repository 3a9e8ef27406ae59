"""Noise: every pixel and channel is disturbed by itself."""

from functools import lru_cache

import torch
from torch import Tensor

from lca.damage.draws import Draws
from lca.damage.sizes import constants, levels, unit

GAUSSIAN = {
    32: (0.04, 0.06, 0.08, 0.09, 0.10),
    64: (0.04, 0.08, 0.12, 0.15, 0.18),
    224: (0.08, 0.12, 0.18, 0.26, 0.38),
    299: (0.09, 0.13, 0.19, 0.27, 0.40),
}
SHOT = {
    32: (500, 250, 100, 75, 50),
    64: (250, 100, 50, 30, 15),
    224: (60, 25, 12, 5, 3),
    299: (50, 20, 10, 5, 3),
}
IMPULSE = {
    32: (0.01, 0.02, 0.03, 0.05, 0.07),
    64: (0.01, 0.02, 0.05, 0.08, 0.14),
    224: (0.03, 0.06, 0.09, 0.17, 0.27),
    299: (0.04, 0.07, 0.10, 0.18, 0.28),
}
SPECKLE = {
    32: (0.06, 0.10, 0.12, 0.16, 0.20),
    64: (0.15, 0.20, 0.25, 0.30, 0.35),
    224: (0.15, 0.20, 0.35, 0.45, 0.60),
    299: (0.16, 0.21, 0.36, 0.46, 0.61),
}


def gaussian_noise(images: Tensor, severity: int, draws: Draws) -> Tensor:
    return add_gaussian(images, constants(GAUSSIAN, images, severity)[0], draws)


def shot_noise(images: Tensor, severity: int, draws: Draws) -> Tensor:
    return add_shot(images, constants(SHOT, images, severity)[0], draws)


def impulse_noise(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Salt and pepper: with probability p a channel of a pixel becomes 0 or 255, each with p/2."""
    share = constants(IMPULSE, images, severity)[0]
    place = draws.uniform(*images.shape[1:])
    return images.masked_fill(place < share, 255).masked_fill(place < share / 2, 0)


def speckle_noise(images: Tensor, severity: int, draws: Draws) -> Tensor:
    return add_speckle(images, constants(SPECKLE, images, severity)[0], draws)


def add_gaussian(images: Tensor, sigma: float, draws: Draws) -> Tensor:
    """x + σn, n standard normal."""
    return levels(unit(images) + sigma * draws.normal(*images.shape[1:]))


def add_speckle(images: Tensor, sigma: float, draws: Draws) -> Tensor:
    """x + xσn, n standard normal."""
    x = unit(images)
    return levels(x + x * sigma * draws.normal(*images.shape[1:]))


def add_shot(images: Tensor, rate: int, draws: Draws) -> Tensor:
    """Poisson(xλ)/λ. There are 256 levels only, so a count is looked up in the table of their distributions."""
    table = poisson_table(rate).to(images.device)
    wanted = images.to(torch.float64) + draws.uniform(*images.shape[1:])
    counts = torch.searchsorted(table, wanted, right=True) - images.long() * (rate + 1)
    return levels(counts.clamp(0, rate).double() / rate)


@lru_cache(maxsize=32)
def poisson_table(rate: int) -> Tensor:
    """level + P(Poisson(λ·level/255) ≤ k) for all levels and k = 0 .. λ in one ascending row. Counts above λ are λ."""
    level = torch.arange(256, dtype=torch.float64)[:, None]
    counts = torch.arange(rate + 1, dtype=torch.float64)
    below = torch.special.gammaincc(counts + 1, (level * rate / 255).expand(-1, rate + 1))
    below[:, -1] = 1.0
    return (level + below).flatten()
