"""Near copies: the same picture in training and test, also when it was saved again, resized a little or recompressed.

A picture's hash is 64 bits: whether each of 8 x 8 cells is brighter than its right neighbour, on a grey picture of
8 x 9 (difference hash, Krawetz 2013). Two pictures are near copies if at most three bits differ and their grey
thumbnails of 32 x 32 differ by little. Two hashes that differ in three bits agree in one of their four quarters, so
only pictures with a common quarter are compared.
"""

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lca.data.images import Images
from lca.progress import Progress

BITS, QUARTERS = 3, 4
DIFFERENCE, CORRELATION, STRUCTURE = 6.0, 0.98, 4.0
"""Thumbnails of copies differ by at most that much on average, of 255, and by five times as much in one place; their
patterns agree at least so well; a picture whose thumbnail varies by less has no pattern to recognise."""
_GREY = (0.299, 0.587, 0.114)


def near_copies(one: Images, two: Images, progress: Progress) -> list[tuple[int, int]]:
    """For every image j of the second set that has a near copy in the first, a pair (i, j), sorted by j."""
    if not len(one) or not len(two):
        return []
    hashes, thumbnails = _described(one, progress)
    others, other_thumbnails = _described(two, progress)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, quarters in enumerate(hashes.view(np.uint16).reshape(-1, QUARTERS).tolist()):
        for place, quarter in enumerate(quarters):
            buckets[place, quarter].append(number)
    pairs = []
    for number, quarters in enumerate(others.view(np.uint16).reshape(-1, QUARTERS).tolist()):
        candidates = sorted({other for item in enumerate(quarters) for other in buckets.get(item, ())})
        if not candidates:
            continue
        apart = np.unpackbits((hashes[candidates] ^ others[number])[:, None].view(np.uint8), axis=1).sum(1)
        close = torch.from_numpy(np.array(candidates)[apart <= BITS])
        if len(close):
            same = _alike(thumbnails[close], other_thumbnails[number])
            pairs += [(int(found), number) for found in close[same][:1]]
    return pairs


def _alike(thumbnails: Tensor, other: Tensor) -> Tensor:
    """Which thumbnails (n, 1024) show the same as another one: close everywhere, and of the same pattern. What has no
    pattern at all is like nothing."""
    centred, own = thumbnails - thumbnails.mean(1, keepdim=True), other - other.mean()
    correlation = centred @ own / (centred.norm(dim=1) * own.norm()).clamp(min=1e-6)
    close = (thumbnails - other).abs()
    structured = (own.std() > STRUCTURE) & (centred.std(1) > STRUCTURE)
    return structured & (correlation >= CORRELATION) & (close.mean(1) <= DIFFERENCE) & (close.amax(1) <= 5 * DIFFERENCE)


def _described(images: Images, progress: Progress) -> tuple[np.ndarray, Tensor]:
    """Hashes (n,) of 64 bits, and thumbnails (n, 1024)."""
    grey = torch.zeros(len(images), 32, 32)
    for number in progress.track(range(len(images)), "looking for copies", len(images)):
        small = interpolate(images.image(number)[None], (32, 32), mode="bilinear", antialias=True)[0]
        grey[number] = torch.einsum("chw,c->hw", small.float(), torch.tensor(_GREY))
    cells = interpolate(grey[:, None], (8, 9), mode="bilinear", antialias=True)[:, 0]
    brighter = (cells[:, :, :-1] > cells[:, :, 1:]).flatten(1).numpy()
    return np.packbits(brighter, axis=1).view(np.uint64)[:, 0], grey.flatten(1)
