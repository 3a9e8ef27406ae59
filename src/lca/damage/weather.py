"""Weather: snow, frost and fog."""

import torch
from torch import Tensor

from lca.damage import filters
from lca.damage.draws import Draws
from lca.damage.frost_textures import SIDE, frost_textures
from lca.damage.sizes import constants, levels, tier_of, truncate, unit

SNOW_LARGE = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
SNOW = {  # mean, standard deviation, zoom, threshold, radius and σ of the motion, weight of the image
    32: (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    64: (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    224: SNOW_LARGE,
    299: SNOW_LARGE,
}
FROST_LARGE = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
FROST = {  # weight of the image, weight of the frost
    32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    64: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    224: FROST_LARGE,
    299: FROST_LARGE,
}
FROST_RESOLUTION = {32: 0.2, 64: 0.3, 224: 1.0, 299: 1.0}
FOG = {  # amount, decay
    32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    64: ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    299: ((1.5, 2), (2, 2), (2.5, 1.8), (2.5, 1.6), (3, 1.5)),
}
GREY = (0.299, 0.587, 0.114)


def snow(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Flakes fall at an angle of 45° to 135°, over a paler image."""
    (mean, spread, zoom, threshold, radius, sigma, weight), factor = constants(SNOW, images, severity)
    flakes = snow_flakes(images, (mean, spread), max(1.0, zoom * factor), threshold, draws)
    degrees = draws.uniform(low=-135, high=-45)
    return snowed(images, flakes, radius * factor, sigma * factor, degrees, weight)


def snow_flakes(images: Tensor, field: tuple[float, float], zoom: float, threshold: float, draws: Draws) -> Tensor:
    """Normal noise of a mean and spread, enlarged, and dark below a threshold: uint8 (n, 1, h, w)."""
    mean, spread = field
    layer = filters.clipped_zoom(mean + spread * draws.normal(1, *images.shape[2:]), zoom)
    return levels(layer.masked_fill(layer < threshold, 0))


def snowed(images: Tensor, flakes: Tensor, radius: float, sigma: float, degrees: Tensor, weight: float) -> Tensor:
    """m·x + (1−m)·max(x, 1.5 grey + ½), plus the moving flakes, plus the same turned by 180°."""
    layer = unit(truncate(filters.motion_blur(flakes.double(), radius, sigma, degrees), 0.002))
    x = unit(images)
    grey = (x * torch.tensor(GREY, dtype=x.dtype).to(x.device)[:, None, None]).sum(1, keepdim=True)
    pale = torch.maximum(x, 1.5 * grey + 0.5)
    return levels(weight * x + (1 - weight) * pale + layer + layer.flip(2, 3))


def frost(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """a·x + b·F, with F a random part of a frost texture.

    The published files use photographs that are not ours to ship. Ours are generated, with their colours and nearly
    their histograms and roughness, and taken as often. Small images see them coarsely, by leaving out pixels.
    """
    (weight, amount), factor = constants(FROST, images, severity)
    resolution = min(1.0, FROST_RESOLUTION[tier_of(images)[0]] * factor)
    texture = torch.tensor([0, 1, 1, 2, 3], device=images.device)[draws.integers(0, 5)]
    corner = draws.integers(0, SIDE, 2)
    rows, columns = (
        (corner[:, axis, None] + _coarse(images.shape[2 + axis], resolution, images.device)) % SIDE for axis in (0, 1)
    )
    bank = frost_textures().to(images.device)
    overlay = bank[texture[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return truncate(weight * images.double() + amount * overlay.double())


def _coarse(length: int, resolution: float, device: torch.device) -> Tensor:
    """Places in the texture that the pixels of an axis show: 5i + 2 at resolution 0.2."""
    places = ((torch.arange(length, dtype=torch.float64) + 0.5) / resolution + 1e-9).floor()
    return places.long().to(device)


def fog(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """(x + A·P)·M/(M + A), with P a plasma fractal and M the largest value of the image."""
    (amount, decay), _ = constants(FOG, images, severity)
    height, width = images.shape[2:]
    plasma = plasma_fractal(max(height, width), decay, draws)[:, None, :height, :width]
    x = unit(images)
    largest = x.amax((1, 2, 3), keepdim=True)
    return levels((x + amount * plasma) * largest / (largest + amount))


def plasma_fractal(side: int, decay: float, draws: Draws) -> Tensor:
    """Diamond-square on a torus, scaled to [0, 1]: (n, L, L), L the next power of two.

    At every octave the centres of the cells, then the middles of their edges, become the mean of their four neighbours
    plus noise, whose amplitude falls by decay² an octave: in the published code the amplitude enters twice.
    """
    length = 1 << max(side - 1, 1).bit_length()
    noise = draws.uniform(length, length, low=-1, high=1)
    plasma = torch.zeros_like(noise)
    step, amplitude = length, 1.0
    while step >= 2:
        half = step // 2
        corners = plasma[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = (pairs + pairs.roll(-1, 2)) / 4 + amplitude * noise[:, half::step, half::step]
        across = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
        along = corners + corners.roll(-1, 1) + centres + centres.roll(1, 2)
        plasma[:, half::step, half::step] = centres
        plasma[:, ::step, half::step] = across / 4 + amplitude * noise[:, ::step, half::step]
        plasma[:, half::step, ::step] = along / 4 + amplitude * noise[:, half::step, ::step]
        step, amplitude = half, amplitude / decay**2
    plasma -= plasma.amin((1, 2), keepdim=True)
    return plasma / plasma.amax((1, 2), keepdim=True)
