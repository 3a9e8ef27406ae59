"""Near copies: the same picture in training and test, also when it was saved again, resized a little or recompressed.

A picture's hash is 64 bits: whether each of 8 x 8 cells is brighter than its right neighbour, on a grey picture of
8 x 9 (difference hash, Krawetz 2013). Two pictures are near copies if at most three bits differ and their grey
thumbnails of 16 x 16 differ by little. Two hashes that differ in three bits agree in one of their four quarters, so
only pictures with a common quarter are compared.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.data.views import resize_crops

BITS, QUARTERS = 3, 4
DIFFERENCE = 6.0
"""Mean absolute difference of the thumbnails, of 255, up to which pictures are copies."""
_GREY = (0.299, 0.587, 0.114)


def near_copies(one: Pixels, two: Pixels) -> list[tuple[int, int]]:
    """Pairs (i, j) of near copies: image i of one set and image j of the other, sorted."""
    hashes, thumbnails = _described(one)
    others, other_thumbnails = _described(two)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, quarters in enumerate(others.view(np.uint16).reshape(-1, QUARTERS).tolist()):
        for place, quarter in enumerate(quarters):
            buckets[place, quarter].append(number)
    pairs = []
    for number, quarters in enumerate(hashes.view(np.uint16).reshape(-1, QUARTERS).tolist()):
        candidates = sorted({other for item in enumerate(quarters) for other in buckets.get(item, ())})
        if not candidates:
            continue
        apart = np.unpackbits((others[candidates] ^ hashes[number])[:, None].view(np.uint8), axis=1).sum(1)
        chosen = np.array(candidates)[apart <= BITS]
        differences = (other_thumbnails[chosen] - thumbnails[number]).abs().mean(1)
        pairs += [(number, int(other)) for other in chosen[(differences <= DIFFERENCE).numpy()]]
    return pairs


def _described(pixels: Pixels) -> tuple[np.ndarray, Tensor]:
    """Hashes (n,) of 64 bits, and thumbnails (n, 256)."""
    hashes, thumbnails = [np.zeros(0, np.uint64)], [torch.zeros(0, 256)]
    for index in torch.arange(len(pixels)).split(256):
        part = pixels[index]
        boxes = torch.cat([torch.zeros_like(part.sizes), part.sizes], dim=1)
        grey = torch.einsum("nchw,c->nhw", resize_crops(part, boxes, 16, "bilinear"), torch.tensor(_GREY))
        cells = torch.nn.functional.interpolate(grey[:, None], (8, 9), mode="bilinear", antialias=True)[:, 0]
        brighter = (cells[:, :, :-1] > cells[:, :, 1:]).flatten(1).numpy()
        hashes.append(np.packbits(brighter, axis=1).view(np.uint64)[:, 0])
        thumbnails.append(grey.flatten(1))
    return np.concatenate(hashes), torch.cat(thumbnails)


def told_copies(train: ImageSet, test: ImageSet, files: tuple[list[Path], list[Path]]) -> list[str]:
    """What a user should know of test images that look like training images; the files are those of all images."""
    pairs = near_copies(train.pixels, test.pixels)
    if not pairs:
        return []

    def name(images: ImageSet, paths: list[Path], number: int) -> str:
        if len(paths) == len(images):  # else some could not be read, and the numbers do not fit
            return str(Path(*paths[number].parts[-3:]))
        return f"an image of {images.classes[int(images.labels[number])]}"

    one, two = pairs[0]
    example = f"{name(test, files[1], two)} looks like {name(train, files[0], one)}"
    count = len({other for _, other in pairs})
    return [f"{count} test image(s) are near copies of training images, which flatters accuracies; {example}"]
