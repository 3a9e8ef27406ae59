"""Looks: the ways in which the images of a task are seen for statistics. As they are first; then, where few images tell
little, mirrored and cropped; and, to see how the backbone moves beyond them, cut and mixed."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.data.views import AugmentOptions, Preprocessing, Scaling, draw_crops, evaluation_boxes, training_view
from lca.options import Options

CROPS = AugmentOptions(crop_scale=(0.4, 1.0))
"""Of a look that shows a part of the image."""


class LookOptions(Options):
    """In which looks beside the plain one the statistics see an image. Each costs another pass over these images; what
    is counted stays images."""

    mirror_up_to: int = Field(0, ge=0)
    """Classes with at most so many images in a task are seen mirrored as well."""
    crops: int = Field(4, ge=1)
    """Random crops of every image, where there are any."""
    crops_up_to: int = Field(0, ge=0)
    """Classes with at most so many images in a task are seen in random crops as well."""
    anchors: int = Field(0, ge=0)
    """Cut and mixed copies of every image: they belong to no class, and only show drift models more of how the backbone
    moved."""

    def sparing(self) -> "LookOptions":
        """What a lesson that is to take seconds can afford: more views of an image only where images are few."""
        return self.model_copy(update={"mirror_up_to": min(self.mirror_up_to, self.crops_up_to), "anchors": 0})

    def views(self, images: int) -> int:
        """How often statistics see an image of a class with so many."""
        return 1 + (images <= self.mirror_up_to) + self.crops * (images <= self.crops_up_to)


@dataclass(frozen=True)
class Look:
    """How some of the images of a task are seen: which ones, and a box and a flip for each. A mixed image has a patch
    of its partner, at the same place of the view."""

    rows: Tensor
    boxes: Tensor
    flips: Tensor
    partners: Tensor | None = None
    patches: Tensor | None = None

    def view(
        self,
        images: ImageSet | Pixels,
        index: Tensor,
        preprocessing: Preprocessing,
        scaling: Scaling,
        device: torch.device,
    ) -> Tensor:
        """Views (n, 3, size, size) of the rows of these numbers."""
        seen = partial(_seen, images, preprocessing, scaling, device)
        views = seen(self.rows[index], self.boxes[index], self.flips[index])
        if self.partners is None or self.patches is None:
            return views
        partner = self.partners[index]
        others = seen(self.rows[partner], self.boxes[partner], self.flips[partner])
        size = views.shape[-1]
        top, left, height, width = (self.patches[index].to(device) * size).round().T[:, :, None]
        along = torch.arange(size, device=device)
        rows, columns = (along >= top) & (along < top + height), (along >= left) & (along < left + width)
        return torch.where((rows[:, :, None] & columns[:, None])[:, None], others, views)


def _seen(
    images: ImageSet | Pixels,
    preprocessing: Preprocessing,
    scaling: Scaling,
    device: torch.device,
    rows: Tensor,
    boxes: Tensor,
    flips: Tensor,
) -> Tensor:
    pixels: Pixels = images.batch(rows).to(device)
    return training_view(pixels, boxes, flips, preprocessing, scaling, preprocessing.interpolation)


def looks(images: ImageSet, options: LookOptions, centre_crop: float, draws: torch.Generator) -> tuple[list[Look], int]:
    """The looks of a task's images beside the plain one: those for the statistics, then those that are anchors only;
    and how many are of the first kind."""
    counts = torch.bincount(images.labels, minlength=len(images.classes))[images.labels]
    boxes = evaluation_boxes(images.sizes, centre_crop)
    found = []
    mirrored = torch.nonzero(counts <= options.mirror_up_to)[:, 0]
    if len(mirrored):
        found.append(Look(mirrored, boxes[mirrored], torch.ones(len(mirrored), dtype=torch.bool)))
    cropped = torch.nonzero(counts <= options.crops_up_to)[:, 0]
    drawn = range(options.crops if len(cropped) else 0)
    found += [Look(cropped, *draw_crops(images.sizes[cropped], CROPS, draws)) for _ in drawn]
    of_classes, everything = len(found), torch.arange(len(images))
    for _ in range(options.anchors):
        flips = torch.rand(len(images), generator=draws) < 0.5
        partners = torch.randperm(len(images), generator=draws)
        found.append(Look(everything, boxes, flips, partners, _patches(len(images), draws)))
    return found, of_classes


def _patches(count: int, draws: torch.Generator) -> Tensor:
    """Top, left, height and width of patches, as shares of the side, which cover a fifth to a half of the view."""
    area, ratio, top, left = torch.rand(4, count, generator=draws)
    area, ratio = 0.2 + 0.3 * area, (math.log(2) * (2 * ratio - 1)).exp()
    height, width = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return torch.stack([top * (1 - height), left * (1 - width), height, width], dim=1)
