"""Blurs: out of focus, behind frosted glass, moving, zooming, Gaussian."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from lca.damage import filters
from lca.damage.draws import Draws
from lca.damage.sampling import pick
from lca.damage.sizes import constants, levels, truncate, unit

DEFOCUS = {  # radius, smoothing
    32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    64: ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    299: ((4, 0.1), (5, 0.5), (7, 0.5), (10, 0.5), (12, 0.5)),
}
GLASS = {  # σ, largest displacement, passes
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    299: ((0.8, 1, 3), (1, 3, 1), (1.1, 2, 4), (1.2, 4, 2), (1.6, 5, 2)),
}
MOTION = {  # radius, σ
    32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    64: ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    299: ((12, 4), (17, 6), (17, 9), (17, 13), (22, 16)),
}
ZOOM_SMALL = ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01))
ZOOM_LARGE = ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03))
ZOOM = {32: ZOOM_SMALL, 64: ZOOM_SMALL, 224: ZOOM_LARGE, 299: ZOOM_LARGE}  # number of zooms, step
GAUSSIAN = {
    32: (0.4, 0.6, 0.7, 0.8, 1),
    64: (0.5, 0.75, 1, 1.25, 1.5),
    224: (1, 2, 3, 4, 6),
    299: (1.5, 2.5, 3.5, 4.5, 6.5),
}
MOTION_SNAP = 0.002
"""ImageMagick's truncation takes values this close below a level for the level."""


def defocus_blur(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Correlation with a smoothed disk, borders mirrored."""
    (radius, smoothing), factor = constants(DEFOCUS, images, severity)
    return levels(filters.correlate(unit(images), disk(radius * factor, smoothing * factor), "mirror"))


def glass_blur(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Blur, let pixels take the place of near ones, blur again."""
    (sigma, reach, passes), factor = constants(GLASS, images, severity)
    sigma, reach = sigma * factor, max(1, round(reach * factor))
    seen = levels(filters.gaussian_blur(unit(images), sigma))
    rows, columns = images.shape[2] - 2 * reach, images.shape[3] - 2 * reach
    if rows > 0 and columns > 0:
        for _ in range(passes):
            right, down = (draws.integers(-reach, reach, rows, columns) for _ in range(2))
            seen = displace(seen, down, right, reach)
    return levels(filters.gaussian_blur(unit(seen), sigma))


def motion_blur(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """One-sided blur along a line within 45° of the horizontal."""
    (radius, sigma), factor = constants(MOTION, images, severity)
    degrees = draws.uniform(low=-45, high=45)
    return truncate(filters.motion_blur(images.double(), radius * factor, sigma * factor, degrees), MOTION_SNAP)


def zoom_blur(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Mean of the image and of its zooms by 1, 1 + step, …"""
    (count, step), _ = constants(ZOOM, images, severity)
    x = unit(images)
    total = x.clone()
    for factor in zoom_factors(count, step):
        total += filters.clipped_zoom(x, factor)
    return levels(total / (count + 1))


def gaussian_blur(images: Tensor, severity: int, draws: Draws) -> Tensor:
    sigma, factor = constants(GAUSSIAN, images, severity)
    return levels(filters.gaussian_blur(unit(images), sigma * factor))


def zoom_factors(count: int, step: float) -> list[float]:
    """1, 1 + step, … with the rounding of a floating-point range: it decides how many pixels a zoom shows."""
    return [1 + number * ((1 + step) - 1) for number in range(count)]


@lru_cache(maxsize=64)
def disk(radius: float, smoothing: float) -> Tensor:
    """The pixels within a radius, equally weighted and smoothed over 3×3 (5×5 beyond radius 8), zeros cut off.

    The smoothing mirrors at the grid's border, which the disks of radius 8 and 10 touch: they sum to a little over 1.
    """
    reach, window = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = (line[:, None].square() + line.square() <= radius * radius).double()
    smooth = filters.gaussian_matrix(len(line), smoothing, window, "mirror")
    kernel = smooth @ (kernel / kernel.sum()) @ smooth.T
    spare = min(int((kernel.sum(1) > 1e-15).int().argmax()), reach)
    return kernel[spare : len(line) - spare, spare : len(line) - spare]


def displace(images: Tensor, down: Tensor, right: Tensor, reach: int) -> Tensor:
    """From the last pixel to the first, each takes the value of the pixel at its offset; the border stays.

    A pixel that reads one further on reads what that one has taken already. So each follows its sources until one
    comes before its reader, or stays: all pixels at once, by doubling the steps.
    """
    height, width = images.shape[2:]
    place = torch.arange(height * width, device=images.device).view(1, height, width)
    inner = (slice(None), slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    source = place.repeat(len(images), 1, 1)
    source[inner] += down * width + right
    moved = torch.zeros_like(source, dtype=torch.bool)
    moved[inner] = True
    source, moved = source.flatten(1), moved.flatten(1)
    further = (source > place.flatten(1)) & moved.gather(1, source)
    while bool(further.any()):
        source, further = (
            torch.where(further, source.gather(1, source), source),
            further & further.gather(1, source),
        )
    return pick(images, source.view(-1, height, width))
