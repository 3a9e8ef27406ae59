"""Linear maps of images: filters and zooms along the axes, and motion blur.

A filter along one axis, with its border, is a small matrix, so a whole batch is filtered by two products.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lca.damage.sampling import fold


def along_axes(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply (h′, h) along the columns and (w′, w) along the rows of images (..., h, w)."""
    device = images.device
    return rows.to(device) @ (images @ columns.to(device).mT)


def gaussian_blur(images: Tensor, sigma: float, cut: float = 4.0, border: str = "nearest") -> Tensor:
    """Separable Gaussian of radius int(cut·σ + ½)."""
    radius = int(cut * sigma + 0.5)
    if radius == 0:
        return images
    height, width = images.shape[-2:]
    return along_axes(
        images, gaussian_matrix(height, sigma, radius, border), gaussian_matrix(width, sigma, radius, border)
    )


@lru_cache(maxsize=256)
def gaussian_matrix(length: int, sigma: float, radius: int, border: str) -> Tensor:
    """The weights exp(−k²/2σ²), normalised, as a matrix of one axis."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = (-offsets.square() / (2 * sigma * sigma)).exp()
    return tap_matrix(length, weights / weights.sum(), border)


def tap_matrix(length: int, taps: Tensor, border: str) -> Tensor:
    """Correlation with an odd number of taps around each place, as a (length, length) matrix."""
    reach = len(taps) // 2
    sources = torch.arange(length)[:, None] + torch.arange(-reach, reach + 1)
    matrix = torch.zeros(length, length, dtype=torch.float64)
    return matrix.scatter_add_(1, fold(sources, length, border), taps.expand(length, -1).contiguous())


def correlate(images: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Correlation with an odd square kernel, as the sum of separable filters that its singular vectors are."""
    left, strength, right = torch.linalg.svd(kernel)
    height, width = images.shape[-2:]
    result = torch.zeros_like(images)
    for k in range(int((strength > 1e-12 * strength[0]).sum())):
        rows = tap_matrix(height, left[:, k] * strength[k], border)
        result += along_axes(images, rows, tap_matrix(width, right[k], border))
    return result


def clipped_zoom(images: Tensor, factor: float) -> Tensor:
    """The centre enlarged by a factor and cut to the old size; each axis for itself, so any shape will do."""
    height, width = images.shape[-2:]
    return along_axes(images, zoom_matrix(height, factor), zoom_matrix(width, factor))


@lru_cache(maxsize=256)
def zoom_matrix(length: int, factor: float) -> Tensor:
    """ceil(length / z) central samples, resampled linearly with aligned corners to round(· z), of which the middle."""
    crop = math.ceil(length / factor)
    enlarged = round(crop * factor)
    places = torch.arange(length, dtype=torch.float64) + (enlarged - length) // 2
    positions = places * (crop - 1) / max(enlarged - 1, 1)
    lower = positions.floor().clamp(0, crop - 1)
    share = positions - lower
    matrix = torch.zeros(length, length, dtype=torch.float64)
    offset = (length - crop) // 2
    for index, weight in ((lower, 1 - share), ((lower + 1).clamp(max=crop - 1), share)):
        matrix.scatter_add_(1, index.long()[:, None] + offset, weight[:, None])
    return matrix


def motion_offsets(taps: int, degrees: Sequence[float]) -> tuple[Tensor, Tensor]:
    """⌈i (w sin θ) / hypot(w sin θ, w cos θ) − ½⌉ for the taps i = 0 .. w − 1 of every angle, and with cos: (n, w).

    The length w is there because ImageMagick has it: it changes nothing but the rounding, which decides ties, as those
    of sin θ = −½.
    """
    angles = [math.pi * each / 180 for each in degrees]
    ends = [(taps * math.sin(angle), taps * math.cos(angle)) for angle in angles]
    rows = [(*end, math.hypot(*end)) for end in ends]
    down, right, length = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3, 1).unbind(1)
    steps = torch.arange(taps, dtype=torch.float64)
    return (steps * down / length - 0.5).ceil().long(), (steps * right / length - 0.5).ceil().long()


def motion_blur(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """One-sided blur along a line at an angle (n,) for each image, as ImageMagick's.

    Taps i = 0 .. 2⌈radius⌉ with weights ∝ exp(−i²/2σ²) read (y + ⌈i sin θ − ½⌉, x + ⌈i cos θ − ½⌉), edges repeated.
    """
    height, width = images.shape[-2:]
    taps = 2 * math.ceil(radius) + 1
    weights = [math.exp(-tap * tap / (2 * sigma * sigma)) for tap in range(taps)]
    down, right = (each.to(images.device) for each in motion_offsets(taps, degrees.tolist()))
    flat = images.flatten(2)
    result, total = torch.zeros_like(flat), sum(weights)
    for tap, weight in enumerate(weights):
        rows = (torch.arange(height, device=images.device) + down[:, tap, None]).clamp(0, height - 1)
        columns = (torch.arange(width, device=images.device) + right[:, tap, None]).clamp(0, width - 1)
        index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
        result.add_(flat.gather(2, index[:, None].expand_as(flat)), alpha=weight / total)
    return result.view_as(images)
