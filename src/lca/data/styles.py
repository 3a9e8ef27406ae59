"""Domains made of any source: every image gets one of a few styles, so that classes come back looking otherwise."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from lca.data.images import ImageSet, packed
from lca.data.options import DataOptions
from lca.data.sources import Domains, Source, sources
from lca.errors import LcaError
from lca.progress import Progress
from lca.randomness import generator

GREY = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in what is seen as brightness (ITU-R BT.601)."""


def clear(image: Tensor) -> Tensor:
    """As it is."""
    return image


def sketch(image: Tensor) -> Tensor:
    """Dark lines where the brightness changes: 255 - sqrt(gx² + gy²) / 2 by Sobel's filters."""
    grey = (image.float() * torch.tensor(GREY)[:, None, None]).sum(0)
    sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    edges = conv2d(pad(grey[None, None], (1, 1, 1, 1), "replicate"), torch.stack([sobel, sobel.T])[:, None])
    lines = 255 - edges[0].norm(dim=0) / 2
    return lines.round().clamp(0, 255).to(torch.uint8).expand(3, -1, -1)


def negative(image: Tensor) -> Tensor:
    """255 - x, as on a film."""
    return 255 - image


def far(image: Tensor) -> Tensor:
    """As from far away: a quarter of the pixels either way, and enlarged again."""
    height, width = image.shape[1:]
    small = interpolate(image[None].float(), (max(height // 4, 1), max(width // 4, 1)), mode="area")
    again = interpolate(small, (height, width), mode="bilinear", align_corners=False)
    return again[0].round().to(torch.uint8)


def turned(image: Tensor) -> Tensor:
    """Other colours: the hue turned by a third of its circle, where red is green, green is blue and blue is red."""
    return image[[2, 0, 1]]


STYLES: dict[str, Callable[[Tensor], Tensor]] = {
    "clear": clear,
    "sketch": sketch,
    "negative": negative,
    "far": far,
    "turned": turned,
}
"""Of an image (3, h, w) in uint8."""


@sources.register("styles")
def styles(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`styles:SOURCE`, such as `styles:folder:PATH`: any other source, its images divided among five styles: as they
    are, as sketches, as negatives, as from far away, in other colours. With `data.order=domains` a task is a style."""
    name, _, rest = argument.partition(":")
    if not name:
        raise LcaError(
            "data.source styles:SOURCE needs another source, for example styles:digits or styles:folder:PATH"
        )
    source = sources[name](rest, options, seed, working_size, progress)
    if source.domains is not None:
        raise LcaError(
            f"data.source styles:{argument}: the images of {source.name} have domains already; leave out styles:"
        )
    drawn = {
        part: _divided(images, options.split_seed, part)
        for part, images in (("train", source.train), ("test", source.test))
    }
    return replace(
        source,
        name=f"styles:{source.name}",
        train=_seen(source.train, drawn["train"], progress),
        test=_seen(source.test, drawn["test"], progress),
        as_published=None,
        domains=Domains(tuple(STYLES), drawn["train"], drawn["test"]),
    )


def _divided(images: ImageSet, seed: int, part: str) -> Tensor:
    """The number of the style of every image: those of a class are dealt out, in an order drawn by seed."""
    numbers = torch.empty(len(images), dtype=torch.long)
    for label in range(len(images.classes)):
        rows = images.rows_of(label)
        order = torch.randperm(len(rows), generator=generator(seed, f"styles, {part}", label))
        numbers[rows[order]] = torch.arange(len(rows)) % len(STYLES)
    return numbers


def _seen(images: ImageSet, numbers: Tensor, progress: Progress) -> ImageSet:
    """The images, each with its style."""
    change = [*STYLES.values()]
    drawn = [
        change[number](images.image(row))
        for row, number in enumerate(progress.track(numbers.tolist(), "giving images their styles", len(images)))
    ]
    return ImageSet(packed(torch.cat([each.flatten() for each in drawn]), images.sizes), images.labels, images.classes)
