"""Painted patterns as a source: any number of classes, no files."""

import torch
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.data.options import DataOptions
from lca.data.sources import Source, read_card, settings, sources
from lca.errors import LcaError
from lca.progress import Progress
from lca.randomness import generator

SYNTHETIC = {"classes": 10, "train": 20, "test": 5, "size": 32, "seed": 0}


@sources.register("synthetic")
def synthetic(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`synthetic:classes=1000,train=20,test=5,size=32,seed=0`: painted patterns, any number of classes and of images
    per class; what is left out is as in `classes=10,train=20,test=5,size=32,seed=0`."""
    example = "synthetic:classes=1000,train=20,test=5,size=32,seed=0"
    given = dict(SYNTHETIC)
    for key, value in settings(argument, SYNTHETIC, example).items():
        lowest = {"classes": 2, "seed": 0, "size": 4}.get(key, 1)
        if not value.isdecimal() or int(value) < lowest:
            raise LcaError(f"data.source: synthetic {key}={value}; expected a whole number from {lowest} on")
        given[key] = int(value)
    count, train, test, size = (given[key] for key in ("classes", "train", "test", "size"))
    names = tuple(f"pattern{number:0{len(str(count - 1))}}" for number in range(count))
    canvas = torch.empty(count, train + test, 3, size, size, dtype=torch.uint8)
    for number in progress.track(range(count), "painting patterns", count):
        canvas[number] = _painted(generator(given["seed"], "synthetic", number), train + test, size)

    def part(canvas: Tensor) -> ImageSet:
        labels = torch.arange(count).repeat_interleave(canvas.shape[1])
        return ImageSet(Pixels.whole(canvas.flatten(0, 1)), labels, names)

    return Source.of_card(read_card("synthetic"), "synthetic", part(canvas[:, :train]), part(canvas[:, train:]))


def _painted(random: torch.Generator, count: int, size: int) -> Tensor:
    """Images (count, 3, size, size) of one class: its soft pattern of colours, shifted, dimmed and with noise."""
    coarse = torch.rand(1, 3, 4, 4, generator=random)
    pattern = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)[0]
    shifts = torch.randint(-(size // 16), size // 16 + 1, (count, 2), generator=random).tolist()
    images = torch.stack([pattern.roll(shift, (1, 2)) for shift in shifts])
    images = images * (0.8 + 0.4 * torch.rand(count, 1, 1, 1, generator=random))
    images = images + 0.08 * torch.randn(images.shape, generator=random)
    return (255 * images).round().clamp(0, 255).to(torch.uint8)
