"""Near copies: the same picture in training and test, also when it was saved again, resized a little or recompressed.

A picture's hash is 64 bits: whether each of 8 x 8 cells is brighter than its right neighbour, on a grey picture of
8 x 9 (difference hash, Krawetz 2013). Two pictures are near copies if at most three bits differ and their thumbnails of
32 x 32, in colour, differ by little. The hashes are rows of 1 and -1, so that one product of matrices tells how many
bits differ.
"""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lca.data.images import Images, ImageSet
from lca.progress import Progress

CELLS, BITS = 64, 3
BATCH = 64
"""Images whose hashes are compared with all others at once."""
COARSE = 37
"""Of the values of a thumbnail every so many are looked at first, which is enough to tell most pictures apart."""
DIFFERENCE, LARGEST, CORRELATION, STRUCTURE = 6.0, 30.0, 0.98, 4.0
"""Thumbnails of copies differ by at most that much on average, of 255, and by at most so much in one place; their
patterns agree at least so well; a picture whose thumbnail varies by less has no pattern to recognise."""
_GREY = (0.299, 0.587, 0.114)


def near_copies(one: Images | ImageSet, two: Images | ImageSet, progress: Progress) -> list[tuple[int, int]]:
    """For every image j of the second set that has a near copy in the first, a pair (i, j), sorted by j."""
    if not len(one) or not len(two):
        return []
    hashes, thumbnails = _described(one, progress)
    others, other_thumbnails = _described(two, progress)
    few, other_few = (each[:, ::COARSE].short() for each in (thumbnails, other_thumbnails))
    pairs = []
    with progress.task("comparing images", len(two)) as advance:
        for start in range(0, len(two), BATCH):
            near = others[start : start + BATCH] @ hashes.T >= CELLS - 2 * BITS
            for number, row in enumerate(near, start):
                close = row.nonzero()[:, 0]
                close = close[(few[close] - other_few[number]).abs().amax(1) <= LARGEST]
                if len(close):
                    same = _alike(thumbnails[close].float(), other_thumbnails[number].float())
                    pairs += [(int(found), number) for found in close[same][:1]]
            advance(len(near))
    return pairs


def _alike(thumbnails: Tensor, other: Tensor) -> Tensor:
    """Which thumbnails (n, 3072) show the same as another one: close everywhere, and of the same pattern. What has no
    pattern at all is like nothing."""
    centred, own = thumbnails - thumbnails.mean(1, keepdim=True), other - other.mean()
    correlation = centred @ own / (centred.norm(dim=1) * own.norm()).clamp(min=1e-6)
    close = (thumbnails - other).abs()
    structured = (own.std() > STRUCTURE) & (centred.std(1) > STRUCTURE)
    return structured & (correlation >= CORRELATION) & (close.mean(1) <= DIFFERENCE) & (close.amax(1) <= LARGEST)


def _described(images: Images | ImageSet, progress: Progress) -> tuple[Tensor, Tensor]:
    """Hashes (n, 64) of 1 and -1, and thumbnails (n, 3072) of bytes."""
    small = torch.zeros(len(images), 3, 32, 32, dtype=torch.uint8)
    cells = torch.zeros(len(images), 8, 9)
    for number in progress.track(range(len(images)), "looking for copies", len(images)):
        small[number] = interpolate(images.image(number)[None], (32, 32), mode="bilinear", antialias=True)[0]
        grey = torch.einsum("chw,c->hw", small[number].float(), torch.tensor(_GREY))
        cells[number] = interpolate(grey[None, None], (8, 9), mode="bilinear", antialias=True)[0, 0]
    brighter = (cells[:, :, :-1] > cells[:, :, 1:]).flatten(1)
    return 2.0 * brighter - 1, small.flatten(1)
