"""Which constants an image size takes, and pixels as numbers.

The authors tuned the constants by hand for images of 32, 64, 224 and 299 pixels. Another size takes the nearest of
these in log₂ of the shorter side (up to 45: 32, up to 119: 64, up to 258: 224, above: 299), and lengths in pixels are
multiplied by shorter side / tier. Noise levels, colours, ratios and qualities stay as they are.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

TIERS = (32, 64, 224, 299)
SNAP = 1e-6
"""A value this close below the next level counts as that level: rounding errors, which depend on the batch and the
device, decide no pixel. Flat areas stay flat."""

T = TypeVar("T")


def tier_of(images: Tensor) -> tuple[int, float]:
    """The size whose constants hold for images (..., h, w), and by what to multiply lengths in pixels."""
    side = min(images.shape[-2:])
    tier = min(TIERS, key=lambda size: abs(math.log2(side / size)))
    return tier, side / tier


def constants(table: Mapping[int, tuple[T, ...]], images: Tensor, severity: int) -> tuple[T, float]:
    """A table's entry for these images at this severity, and by what to multiply lengths in pixels."""
    tier, factor = tier_of(images)
    return table[tier][severity - 1], factor


def unit(images: Tensor) -> Tensor:
    """Levels 0 .. 255 as float64 in [0, 1]."""
    return images.to(torch.float64) / 255


def levels(values: Tensor) -> Tensor:
    """Values in [0, 1] as levels: clip, then truncate (not round), as the published files were made."""
    return truncate(values * 255)


def truncate(values: Tensor, snap: float = SNAP) -> Tensor:
    """Values in [0, 255] to uint8 by truncation."""
    return (values.clamp(0, 255) + snap).floor().to(torch.uint8)


def rounded(values: Tensor) -> Tensor:
    """Values in [0, 255] to uint8, halves upwards."""
    return (values.clamp(0, 255) + 0.5 + SNAP).floor().to(torch.uint8)
