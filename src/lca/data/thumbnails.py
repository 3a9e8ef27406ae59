"""Small pictures of images that were asked about, for notebooks; made only when one is shown."""

import io
from pathlib import Path

from PIL import Image
from torch import Tensor

from lca.data.decoding import UnreadableImage, decode

SIDE = 96


def small(pixels: Tensor) -> Tensor:
    """Every so many-th pixel of an image (3, h, w), a copy that keeps nothing else in memory."""
    step = max(1, min(pixels.shape[1:]) // SIDE)
    return pixels[:, ::step, ::step].clone()


def jpeg(image: Path | Tensor) -> bytes | None:
    """A small JPEG of a file, or of pixels; None where the file can no longer be read."""
    try:
        pixels = decode(image, SIDE)
    except UnreadableImage:
        return None
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(content, "JPEG", quality=80)
    return content.getvalue()
