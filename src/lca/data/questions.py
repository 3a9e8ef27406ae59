"""What a classifier is asked about, in all the forms in which images may be given."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from lca.arguments import shown
from lca.data.decoding import WEB_ADDRESS, ImageLike, UnreadableImage, is_web_address, name_of
from lca.data.folders import ReadingReport, image_files
from lca.errors import LcaError
from lca.progress import Progress

EXPECTED = "a file, a folder of images, bytes, an open file, a Pillow image, an array or a tensor, or a list of these"

Question = ImageLike | Iterable[ImageLike]
"""One image in any form, a folder with images anywhere below it, or several images."""


def images_asked(images: Question, progress: Progress) -> list[ImageLike]:
    """The images of a question in their order. Only a folder that is given alone stands for the images in it: of a list
    every entry gets one answer."""
    if isinstance(images, str | Path):
        if not str(images).strip():
            raise LcaError(f"expected {EXPECTED}; got an empty path")
        return _of_path(Path(images), progress)
    single: tuple[type, ...] = (bytes, bytearray, memoryview, Image.Image)
    alone = isinstance(images, np.ndarray | Tensor) and images.ndim in (2, 3)
    if alone or isinstance(images, single) or hasattr(images, "read"):
        return [images]  # type: ignore[list-item]
    if isinstance(images, dict) or not isinstance(images, Iterable):
        raise LcaError(f"expected {EXPECTED}; got {shown(images)}")
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 0:
        raise LcaError(f"expected {EXPECTED}; got a single number")
    asked: list[Any] = list(images)
    return asked


def _of_path(path: Path, progress: Progress) -> list[ImageLike]:
    if is_web_address(path):
        raise UnreadableImage(name_of(path), WEB_ADDRESS)
    if not path.is_dir():
        return [path]
    report = ReadingReport()
    files = image_files(path, report)
    for line in report.lines():
        progress.warning(line)
    if not files:
        raise LcaError(f"no images found in {name_of(path)}")
    return [*files]
