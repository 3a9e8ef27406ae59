"""Reading image files: each is decoded once, to uint8 RGB at a working size."""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from lca.errors import LcaError
from lca.progress import Progress

log = logging.getLogger(__name__)

UNREADABLE = (OSError, SyntaxError, UnidentifiedImageError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are missing, no image, damaged (a SyntaxError for some PNG files) or too large."""
SUFFIXES = frozenset(Image.registered_extensions())
LONGEST = 2
"""Images longer than this many times their shorter side are cut to the middle: one panorama must not blow up the
canvas that all images share."""


def decode(image: Path | Image.Image, working_size: int) -> Tensor:
    """RGB uint8 (3, h, w), upright, the shorter side at most `working_size`."""
    if isinstance(image, Path):
        try:
            with Image.open(image) as opened:
                return decode(opened, working_size)
        except UNREADABLE as error:
            raise LcaError(f"{image} cannot be read as an image: {error}") from error
    upright = ImageOps.exif_transpose(image).convert("RGB")
    width, height = upright.size
    cut_width, cut_height = min(width, LONGEST * height), min(height, LONGEST * width)
    left, top = (width - cut_width) // 2, (height - cut_height) // 2
    upright = upright.crop((left, top, left + cut_width, top + cut_height))
    shrink = working_size / min(upright.size)
    if shrink < 1:
        size = (max(round(upright.width * shrink), 1), max(round(upright.height * shrink), 1))
        upright = upright.resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous()


def decode_all(paths: Sequence[Path], working_size: int, progress: Progress) -> list[Tensor | None]:
    """Decode many files in threads (Pillow releases the interpreter lock); a broken one becomes None and a log line."""

    def attempt(path: Path) -> Tensor | None:
        try:
            return decode(path, working_size)
        except LcaError as error:
            log.warning("left out: %s", error)
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        decoded = list(progress.track(pool.map(attempt, paths), "reading images", len(paths)))
    if paths and all(image is None for image in decoded):
        raise LcaError(f"none of the {len(paths)} image files could be read, for example {paths[0]}")
    return decoded


def image_files(folder: Path) -> list[Path]:
    """The image files below a folder, sorted, hidden ones left out."""
    found: Iterable[Path] = sorted(folder.rglob("*"))
    return [
        path for path in found if path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")
    ]
