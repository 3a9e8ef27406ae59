"""The 19 common corruptions, each in five severities, for any images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lca.damage import blur, digital, noise, weather
from lca.damage.draws import Draws
from lca.damage.spatter import spatter
from lca.errors import LcaError
from lca.registry import Registry

Corruption = Callable[[Tensor, int, Draws], Tensor]
"""(images (n, 3, h, w) in uint8, severity, random numbers) -> images of the same shape."""

STANDARD: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
"""The corruptions that count, in the usual order."""
EXTRA: dict[str, Corruption] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter,
    "saturate": digital.saturate,
}
"""Those set aside for choosing a method's settings."""
NAMES = (*STANDARD, *EXTRA)
SEVERITIES = (1, 2, 3, 4, 5)
AT_ONCE = {"cpu": 2**20, "cuda": 2**25}
"""Values computed together: larger batches are cut, which changes nothing but the memory."""

corruptions: Registry[Corruption] = Registry("corruption")
for _name, _corruption in (STANDARD | EXTRA).items():
    corruptions.register(_name)(_corruption)


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, numbers: Sequence[int] | None = None) -> Tensor:
    """Corrupt images (n, 3, h, w) in uint8, on their device.

    What happens to an image depends on (seed, corruption, severity, its number) only, not on the others in the batch.
    The numbers are 0, 1, 2, … if none are given.
    """
    corruption = corruptions[name]
    if severity not in SEVERITIES:
        raise LcaError(f"severity {severity} does not exist; expected one of 1, 2, 3, 4, 5")
    numbers = checked(images, numbers)
    results = [
        corruption(part, severity, Draws.of(seed, f"corruption {name}", severity, own, images.device))
        for part, own in parts(images, numbers)
    ]
    return torch.cat([images[:0], *results])


def checked(images: Tensor, numbers: Sequence[int] | None) -> Sequence[int]:
    """The images' numbers, or 0, 1, 2, …"""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"expected uint8 images (n, 3, h, w), got {images.dtype} {tuple(images.shape)}")
    if numbers is not None and len(numbers) != len(images):
        raise ValueError(f"got {len(numbers)} numbers for {len(images)} images; expected one of each")
    return range(len(images)) if numbers is None else [int(number) for number in numbers]


def parts(images: Tensor, numbers: Sequence[int]) -> list[tuple[Tensor, Sequence[int]]]:
    """The batch in pieces that fit into memory."""
    each = max(AT_ONCE.get(images.device.type, 2**20) // max(images[:1].numel(), 1), 1)
    return [(images[start : start + each], numbers[start : start + each]) for start in range(0, len(images), each)]
