"""Labelled images in all the forms in which they may be given."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from lca.arguments import shown
from lca.data.decoding import WEB_ADDRESS, ImageLike, UnreadableImage, is_web_address, name_of
from lca.data.folders import LAYOUT, ReadingReport, labelled_pairs, read_class_folders, read_labelled
from lca.data.images import ImageSet
from lca.errors import LcaError
from lca.progress import Progress


class LabelledImages(NamedTuple):
    """Labelled images that were read, and what came of the reading: what was left out, copies, similar names."""

    images: ImageSet
    report: ReadingReport


FORMS = "a folder with one folder per class, (image, label) pairs, or a data set that gives such pairs"

Labelled = str | Path | ImageSet | LabelledImages | Sequence[tuple[ImageLike, str | int]]
"""A folder with one folder per class, a set of images, images that were read before, or (image, label) pairs; also any
data set that gives such pairs and names its labels in `classes`, as torchvision's do."""


def read_images(data: Labelled, working_size: int, progress: Progress) -> LabelledImages:
    """Read labelled images; what a user should know of it is shown. Classes without an image are left out."""
    if isinstance(data, LabelledImages):
        return data
    if isinstance(data, ImageSet):
        present = [name for label, name in enumerate(data.classes) if (data.labels == label).any()]
        if not present:
            raise LcaError("the set of images is empty")
        whole = len(present) == len(data.classes)
        return LabelledImages(data if whole else data.of_classes(present), ReadingReport(read=len(data)))
    _expect_labelled(data)
    if isinstance(data, str | Path):
        read = LabelledImages(*read_class_folders(Path(data), working_size, progress))
    else:
        read = LabelledImages(*read_labelled(labelled_pairs(data), working_size, progress))
    for line in read.report.lines():
        progress.warning(line)
    return read


def _expect_labelled(data: object) -> None:
    if isinstance(data, str | Path):
        if is_web_address(data):
            raise UnreadableImage(name_of(data), WEB_ADDRESS)
        if Path(data).is_file():
            raise LcaError(f"{name_of(data)} is a file; {LAYOUT}")
        return
    pairs = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not pairs or isinstance(data, dict | bytes | bytearray | Image.Image):
        hint = "; make a list of it first" if hasattr(data, "__next__") else ""
        raise LcaError(f"expected {FORMS}; got {shown(data)}{hint}")
    if isinstance(data, np.ndarray | Tensor):
        raise LcaError(f"expected {FORMS}; images alone do not tell their classes: list(zip(images, labels)) does")
