"""How much an image may ask for: pixels and memory, known from its header before anything is decoded.

A small file can hold a huge image: 5 kB of TIFF decode to more than a gigabyte. An image has at most 50 megapixels,
unless `LCA_MAX_MEGAPIXELS` (`--max-megapixels`) says otherwise; Pillow's own limit of about 179 stays. Of several
frames only the first is ever decoded. Large images are decoded a few at a time, so that all threads
together stay within `ROOM`.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from PIL import Image

from lca.errors import LcaError

VARIABLE = "LCA_MAX_MEGAPIXELS"
MEGAPIXELS = 50.0
BYTES = {"JPEG2000": 24, "WEBP": 20, "AVIF": 16}
"""Memory to decode a pixel, where it is more than `USUAL`: decoders that hold the whole image several times."""
USUAL = 12
"""What Pillow decodes to, what that is converted to, and one more for turning: four bytes each."""
Image.core.set_block_size(2**26)  # type: ignore[attr-defined]
"""Bytes that Pillow asks for at once, 64 MiB instead of 16: the C library keeps what is below 32 MiB when it is freed,
for the thread that had it, so that several threads would hold several large images."""
_TIFF_WIDTH, _TIFF_LENGTH = 322, 323


class TooLarge(Exception):  # noqa: N818  # it becomes the reason why an image is left out
    """An image asks for more than it may."""


def most_pixels() -> float:
    """The limit in force."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return MEGAPIXELS * 1e6
    try:
        megapixels = float(text)
    except ValueError:
        megapixels = math.nan
    if not 0 < megapixels < math.inf:
        raise LcaError(f"{VARIABLE} (--max-megapixels) must be a number of megapixels above 0, got {text[:80]!r}")
    return megapixels * 1e6


def too_large(pixels: int, cost: float = 1.0, of: str = "") -> str:
    """Why an image is not decoded, when Pillow's limit or ours is exceeded."""
    limit = min(most_pixels(), 2 * (Image.MAX_IMAGE_PIXELS or math.inf)) / cost
    more = f"; make it smaller, or raise the limit (--max-megapixels, {VARIABLE})"
    return f"has {pixels / 1e6:.0f} megapixels, the limit{of} is {limit / 1e6:.0f}{more}"


def expect_pixels(width: int, height: int, cost: float = 1.0, of: str = "") -> None:
    """Whether an image of this size may be decoded; `cost` is how many pixels' memory a pixel takes."""
    if width * height > most_pixels() / cost:
        raise TooLarge(too_large(width * height, cost, of))


def expect_bounded(image: Image.Image) -> None:
    """Whether an image that was opened, and not decoded yet, may be."""
    costly = BYTES.get(str(image.format))
    expect_pixels(*image.size, *((costly / USUAL, f" of {image.format}") if costly else ()))
    tags = getattr(image, "tag_v2", None) or {}
    tile = tags.get(_TIFF_WIDTH, 0), tags.get(_TIFF_LENGTH, 0)
    if all(isinstance(each, int) for each in tile):  # a tile takes its whole size, however little of it is seen
        expect_pixels(*tile, 1.0, " of a tile")


def memory_to_decode(image: Image.Image) -> int:
    """Bytes that decoding and converting it takes at most, by its header."""
    return image.width * image.height * BYTES.get(str(image.format), USUAL)


def webp_canvas(start: bytes) -> tuple[int, int] | None:
    """Width and height from the first bytes of a WebP file that may be animated; None for other files."""
    if start[:4] != b"RIFF" or start[8:16] != b"WEBPVP8X" or len(start) < 30:
        return None
    return 1 + int.from_bytes(start[24:27], "little"), 1 + int.from_bytes(start[27:30], "little")


class Room:
    """Memory that threads share. Who needs more than there is at all waits until nobody else holds any."""

    def __init__(self, size: int) -> None:
        self._size, self._held, self._changed = size, 0, Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + size <= self._size)
            self._held += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()


ROOM = Room(2**29)
"""Images of up to 12 megapixels are decoded by four threads at a time, one of 50 megapixels by one."""
