"""Spatter: drops of water or mud on the lens."""

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from lca.damage import filters
from lca.damage.draws import Draws
from lca.damage.sampling import fold
from lca.damage.sizes import constants, levels, rounded, truncate, unit

SPATTER = {  # mean, standard deviation, σ, threshold, strength of water or σ of mud, mud
    32: (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    64: (
        (0.62, 0.1, 0.7, 0.7, 0.6, False),
        (0.65, 0.1, 0.8, 0.7, 0.6, False),
        (0.65, 0.3, 1, 0.69, 0.6, False),
        (0.65, 0.1, 0.7, 0.68, 0.6, True),
        (0.65, 0.1, 0.5, 0.67, 0.6, True),
    ),
    224: (
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    299: (
        (0.65, 0.3, 4, 0.69, 0.9, False),
        (0.65, 0.3, 3.5, 0.68, 0.9, False),
        (0.65, 0.3, 3, 0.68, 0.8, False),
        (0.65, 0.3, 1.2, 0.65, 1.8, True),
        (0.67, 0.4, 1.2, 0.65, 1.8, True),
    ),
}
WATER = (175, 238, 238)
MUD = (63, 42, 20)
FARTHEST = 20.0
STEPS = {
    1.0: ((0, 1), (0, -1), (1, 0), (-1, 0)),
    1.4: ((1, 1), (1, -1), (-1, 1), (-1, -1)),
    2.1969: ((1, 2), (1, -2), (-1, 2), (-1, -2), (2, 1), (2, -1), (-2, 1), (-2, -1)),
}
"""The steps of a 5×5 chamfer distance, by their length."""
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))


def spatter(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Drops where a smoothed normal field exceeds a threshold: lit water at 1 to 3, opaque mud at 4 and 5."""
    (mean, spread, sigma, threshold, strength, mud), factor = constants(SPATTER, images, severity)
    drops = drop_layer(images, (mean, spread), sigma * factor, threshold, draws)
    if not mud:
        return watered(images, drops, strength)
    mask = filters.gaussian_blur((drops > threshold).double(), strength * factor)
    mask = mask.masked_fill(mask < 0.8, 0)
    return levels(unit(images) * (1 - mask) + mask * _colour(MUD, images.device))


def drop_layer(images: Tensor, field: tuple[float, float], sigma: float, threshold: float, draws: Draws) -> Tensor:
    """Smoothed normal noise of a mean and spread, 0 below the threshold: (n, 1, h, w)."""
    mean, spread = field
    layer = filters.gaussian_blur(mean + spread * draws.normal(1, *images.shape[2:]), sigma)
    return layer.masked_fill(layer < threshold, 0)


def watered(images: Tensor, drops: Tensor, strength: float) -> Tensor:
    """x + m·c: the drops' thickness times a relief of their distance to the rims, largest value `strength`.

    A thickness above 1 counts as 1. The published code casts it to 8 bits, where it wraps to almost no water; that
    happens at severity 3 alone, whose field is wide beside its smoothing.
    """
    thickness = levels(drops)
    light = thickness.double() * relief(thickness).double()
    brightest = light.amax((1, 2, 3), keepdim=True)
    mask = strength * light / brightest.clamp(min=1)  # no drops, no light: the published code divides by zero
    return levels(unit(images) + mask * _colour(WATER, images.device))


def relief(thickness: Tensor) -> Tensor:
    """Distance to the nearest rim up to 20, smoothed, spread over all levels and lit from one corner: uint8."""
    distance = chamfer_distance(rims(thickness))
    distance = equalised(truncate(_box(distance)))
    lit = _correlate(distance.double(), RELIEF).clamp(0, 255)
    return rounded(_box(lit))


def rims(layer: Tensor, low: float = 50.0, high: float = 150.0) -> Tensor:
    """Canny's edges of uint8 (n, 1, h, w): thin ridges of |∂x| + |∂y| above `low` that touch one above `high`."""
    values = layer.double()
    right = _correlate(values, ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0)), "nearest")
    down = _correlate(values, ((-1.0, -2.0, -1.0), (0.0, 0.0, 0.0), (1.0, 2.0, 1.0)), "nearest")
    height = right.abs() + down.abs()
    slope, steep = down.abs(), right.abs()
    level, upright = slope < 0.41421356 * steep, slope > 2.41421356 * steep
    falling = (right * down) < 0

    def ridge(down: int, right: int, even: bool = False) -> Tensor:
        """Higher than the neighbours on both sides; `even`: the second may be as high."""
        before, after = _shifted(height, -down, -right), _shifted(height, down, right)
        return (height > before) & (height >= after if even else height > after)

    slanted = torch.where(falling, ridge(1, -1), ridge(1, 1))
    thin = torch.where(level, ridge(0, 1, even=True), torch.where(upright, ridge(1, 0, even=True), slanted))
    weak = thin & (height > low)
    edges = weak & (height > high)
    while True:  # grow the strong edges along the weak ones
        grown = weak & (functional.max_pool2d(edges.float(), 3, 1, 1) > 0)
        if bool((grown == edges).all()):
            return edges
        edges = grown


def chamfer_distance(edges: Tensor) -> Tensor:
    """Length of the shortest way to an edge by steps of 1, 1.4 and 2.1969, at most 20."""
    height, width = edges.shape[-2:]
    distance = torch.where(edges, 0.0, FARTHEST)
    while True:
        padded = functional.pad(distance, (2, 2, 2, 2), value=FARTHEST)
        nearer = distance
        for length, steps in STEPS.items():
            views = [padded[..., 2 + down : 2 + down + height, 2 + right : 2 + right + width] for down, right in steps]
            nearer = torch.minimum(nearer, reduce(torch.minimum, views) + length)
        if bool((nearer == distance).all()):
            return distance.double()
        distance = nearer


def equalised(layer: Tensor) -> Tensor:
    """Histogram equalisation of each image: 255·(pixels up to this level)/(all), the lowest level not counted."""
    flat = layer.flatten(1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64, device=layer.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    lowest = counts.gather(1, flat.amin(1, keepdim=True))
    spread = flat.shape[1] - lowest
    table = ((counts.cumsum(1) - lowest) * 255 / spread.clamp(min=1)).round().clamp(0, 255)
    result = torch.where(spread > 0, table.gather(1, flat), flat.to(table.dtype))
    return result.to(torch.uint8).view_as(layer)


def _box(values: Tensor) -> Tensor:
    """Mean over 3×3, borders mirrored."""
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    height, width = values.shape[-2:]
    return filters.along_axes(
        values, filters.tap_matrix(height, thirds, "mirror"), filters.tap_matrix(width, thirds, "mirror")
    )


def _correlate(values: Tensor, kernel: tuple[tuple[float, ...], ...], border: str = "mirror") -> Tensor:
    """Correlation with a 3×3 kernel of whole numbers, exactly."""
    height, width = values.shape[-2:]
    rows = fold(torch.arange(-1, height + 1, device=values.device), height, border)
    columns = fold(torch.arange(-1, width + 1, device=values.device), width, border)
    weights = torch.tensor(kernel, dtype=values.dtype, device=values.device)[None, None]
    return functional.conv2d(values[..., rows, :][..., columns], weights)


def _shifted(values: Tensor, down: int, right: int) -> Tensor:
    """What lies one row or column away from each pixel, 0 outside."""
    height, width = values.shape[-2:]
    padded = functional.pad(values, (1, 1, 1, 1))
    return padded[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]


def _colour(levels_of_channels: tuple[int, int, int], device: torch.device) -> Tensor:
    return (torch.tensor(levels_of_channels, dtype=torch.float64) / 255).to(device)[:, None, None]
