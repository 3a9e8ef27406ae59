"""Labelled images in all the forms in which they may be given."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lca.data.decoding import ImageLike, unreadable_images
from lca.data.folders import ReadingReport, labelled_pairs, read_class_folders, read_labelled
from lca.data.images import ImageSet
from lca.data.rows import Rows, is_rows, read_rows
from lca.errors import LcaError
from lca.progress import Progress


class LabelledImages(NamedTuple):
    """Labelled images that were read, and what came of the reading: what was left out, copies, similar names."""

    images: ImageSet
    report: ReadingReport


Labelled = str | Path | ImageSet | LabelledImages | Sequence[tuple[ImageLike, str | int]] | Rows
"""A folder with one folder per class, a set of images, images that were read before, or (image, label) pairs; also any
data set that gives such pairs and names its labels in `classes`, as torchvision's do, and a split of a data set of the
Hugging Face library, streamed or not."""


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
    if is_rows(data):
        pairs, left_out = read_rows(data, working_size, progress)
        if left_out and not pairs:
            raise unreadable_images(left_out)
        read = LabelledImages(*read_labelled(pairs, working_size, Progress()))
        read.report.left_out[:0] = left_out
    elif isinstance(data, str | Path):
        read = LabelledImages(*read_class_folders(Path(data), working_size, progress))
    else:
        read = LabelledImages(*read_labelled(labelled_pairs(data), working_size, progress))
    for line in read.report.lines():
        progress.warning(line)
    return read
