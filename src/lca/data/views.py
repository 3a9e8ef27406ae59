"""Views: the crop of an image that the backbone sees, resized with antialiasing and scaled, for a whole batch at once.

Resizing an axis is a small matrix product, so a batch of crops of any sizes is two batched products on the device.
The weights are those of Pillow's resampling (a filter widened by the scale when shrinking, rows normalised).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from pydantic import Field, field_validator
from torch import Tensor

from lca.data.images import Pixels
from lca.errors import LcaError
from lca.options import Options


def _in_order(limits: tuple[float, float] | None) -> tuple[float, float] | None:
    if limits is not None and not 0 < limits[0] <= limits[1]:
        raise ValueError(f"expected 0 < smallest <= largest, got {limits}")
    return limits


class AugmentOptions(Options):
    """Training views: random resized crops and flips, drawn per image."""

    crop_scale: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest share of the image's area that a crop covers."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width-to-height ratio of a crop."""
    flip: bool = True
    """Mirror half of the images left to right."""

    _ordered = field_validator("crop_scale", "crop_ratio")(_in_order)


class ViewOptions(Options):
    """What of an image the backbone sees, in training and afterwards."""

    augment: AugmentOptions = AugmentOptions()
    centre_crop: float = Field(0.875, gt=0, le=1)
    """Share of the shorter side that the view for prediction shows."""


class ViewChanges(Options):
    """What a recipe changes of the view that the source's card describes; what is not given stays."""

    crop_scale: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] | None = None
    flip: bool | None = None
    centre_crop: float | None = Field(None, gt=0, le=1)

    _ordered = field_validator("crop_scale", "crop_ratio")(_in_order)

    def over(self, view: ViewOptions) -> ViewOptions:
        """The card's view with the changes."""
        given = self.model_dump(exclude_none=True)
        whole = {"centre_crop": given.pop("centre_crop", view.centre_crop)}
        return ViewOptions.model_validate({"augment": {**view.augment.model_dump(), **given}, **whole})


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone wants its input."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str


Scaling = Callable[[Tensor], Tensor]
"""Crops (n, 3, size, size) that may overshoot [0, 255] a little -> views."""


def evaluation_view(
    pixels: Pixels, preprocessing: Preprocessing, centre_crop: float, scaling: Scaling | None = None
) -> Tensor:
    """The central square that spans `centre_crop` of the shorter side, resized and scaled: (n, 3, size, size).

    `scaling` is `scaled` with this preprocessing, where it comes in a faster form.
    """
    crops = _resized(
        pixels, evaluation_boxes(pixels.sizes, centre_crop), preprocessing.size, preprocessing.interpolation
    )
    return scaling(crops) if scaling else scaled(crops, *channels(preprocessing, crops.device))


def evaluation_crop(pixels: Pixels, preprocessing: Preprocessing, centre_crop: float) -> Tensor:
    """The same square before it is scaled: float (n, 3, size, size) in [0, 255]."""
    boxes = evaluation_boxes(pixels.sizes, centre_crop)
    return resize_crops(pixels, boxes, preprocessing.size, preprocessing.interpolation)


def training_view(
    pixels: Pixels,
    boxes: Tensor,
    flips: Tensor,
    preprocessing: Preprocessing,
    scaling: Scaling | None = None,
    interpolation: str = "bilinear",
) -> Tensor:
    """The drawn crops, resized (bilinearly, as torchvision's RandomResizedCrop does), mirrored where drawn, scaled."""
    crops = _resized(pixels, boxes, preprocessing.size, interpolation, flips)
    return scaling(crops) if scaling else scaled(crops, *channels(preprocessing, crops.device))


def draw_crops(sizes: Tensor, options: AugmentOptions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random resized crops and flips for images of `sizes` (n, 2): boxes (n, 4): top, left, height, width; flips (n,).

    The rule is torchvision's: ten tries of an area share and a log-uniform ratio, the first that fits; else the
    largest central crop within the ratio limits.
    """
    count, tries = len(sizes), 10
    height, width = sizes[:, 0:1].double(), sizes[:, 1:2].double()

    def uniform(low: float, high: float) -> Tensor:
        draws = torch.rand(count, tries, generator=generator, dtype=torch.float64)
        return low + (high - low) * draws

    area = height * width * uniform(*options.crop_scale)
    ratio = uniform(math.log(options.crop_ratio[0]), math.log(options.crop_ratio[1])).exp()
    crop_width, crop_height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (crop_width > 0) & (crop_width <= width) & (crop_height > 0) & (crop_height <= height)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.gather(1, first)

    own_ratio = width / height
    low, high = options.crop_ratio
    fallback_width = torch.where(own_ratio > high, (height * high).round(), width)
    fallback_height = torch.where(own_ratio < low, (width / low).round(), height)
    crop_width = torch.where(found, crop_width.gather(1, first), fallback_width)
    crop_height = torch.where(found, crop_height.gather(1, first), fallback_height)

    place = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    spare = torch.cat([height - crop_height, width - crop_width], dim=1)
    corner = torch.where(found, (place * (spare + 1)).floor().minimum(spare), (spare / 2).floor())
    flips = (torch.rand(count, generator=generator) < 0.5) & torch.tensor(options.flip)
    return torch.cat([corner, crop_height, crop_width], dim=1).long(), flips


def resize_crops(pixels: Pixels, boxes: Tensor, size: int, interpolation: str) -> Tensor:
    """Crop each image to its box and resize to (size, size), antialiased: float (n, 3, size, size) in [0, 255]."""
    return _resized(pixels, boxes, size, interpolation).clamp(0, 255)


def _resized(pixels: Pixels, boxes: Tensor, size: int, interpolation: str, flips: Tensor | None = None) -> Tensor:
    """The crops before overshoots are cut off. Mirrored are the weights of columns, much the smaller tensor."""
    height, width = pixels.canvas.shape[2:]
    boxes = boxes.to(pixels.canvas.device)
    rows = resize_weights(boxes[:, 0], boxes[:, 2], height, size, interpolation)
    columns = resize_weights(boxes[:, 1], boxes[:, 3], width, size, interpolation)
    if flips is not None:
        columns = torch.where(flips[:, None, None].to(columns.device), columns.flip(1), columns)
    resized = torch.einsum("nsh,nchw->ncsw", rows, pixels.canvas.to(rows.dtype))
    return torch.einsum("ntw,ncsw->ncst", columns, resized)


def evaluation_boxes(sizes: Tensor, centre_crop: float) -> Tensor:
    """The boxes (n, 4) of the central squares of images of `sizes` (n, 2). They lie as torchvision cuts them."""
    side = (centre_crop * sizes.amin(1)).round().clamp(min=1).long()
    corner = ((sizes - side[:, None]) / 2).round().long()
    return torch.cat([corner, side[:, None], side[:, None]], dim=1)


def resize_weights(start: Tensor, length: Tensor, extent: int, size: int, interpolation: str) -> Tensor:
    """The (n, size, extent) matrices that resize [start, start + length) of an axis to `size` samples."""
    if interpolation not in KERNELS:
        raise LcaError(f"unknown interpolation {interpolation!r}; expected one of {sorted(KERNELS)}")
    scale = length[:, None].float() / size
    centres = start[:, None] + (torch.arange(size, device=start.device) + 0.5) * scale
    pixels = torch.arange(extent, device=start.device) + 0.5
    distances = (pixels - centres[:, :, None]) / scale[:, None].clamp(min=1)
    inside = (pixels > start[:, None]) & (pixels < (start + length)[:, None])
    weights = KERNELS[interpolation](distances.abs()) * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def _bilinear(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _bicubic(distance: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance.square() + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


KERNELS = {"bilinear": _bilinear, "bicubic": _bicubic}


def scaled(crops: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Crops as the backbone wants its input, with a mean and a deviation per channel."""
    return (crops.clamp(0, 255) / 255 - mean) / std


@cache
def channels(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel, brought to the device once."""
    mean, std = (torch.tensor(each, device=device)[:, None, None] for each in (preprocessing.mean, preprocessing.std))
    return mean, std
