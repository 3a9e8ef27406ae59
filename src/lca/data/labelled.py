"""Labelled images in all the forms in which they may be given."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from lca.arguments import shown
from lca.data.archives import album_of_zip
from lca.data.decoding import WEB_ADDRESS, ImageLike, UnreadableImage, is_web_address, name_of, unreadable_images
from lca.data.folders import ReadingReport, class_files, content_of, labelled_pairs, read_classes, read_labelled, some
from lca.data.images import ImageSet
from lca.data.parts import Album, Layout, Part, recognised, unused
from lca.data.rows import Rows, is_rows, read_rows
from lca.data.tables import LINES, SEPARATED, album_of_table
from lca.errors import LcaError, nearest
from lca.progress import Progress

FORMS = (
    "expected a folder with one folder of images per class, a zip file of one, a CSV or JSONL file of path,label, or "
    "hf:NAME"
)


class LabelledImages(NamedTuple):
    """Labelled images that were read, and what came of the reading: what was left out, copies, similar names."""

    images: ImageSet
    report: ReadingReport


Labelled = str | Path | Album | ImageSet | LabelledImages | Sequence[tuple[ImageLike, str | int]] | Rows
"""A folder with one folder per class, a zip file of one, a CSV, TSV or JSONL file of paths and labels, `hf:NAME` for a
data set of the Hugging Face hub, an album that `album_of` made of one of these, a set of images, images that were read
before, or (image, label) pairs; also any data set that gives such pairs and names its labels in `classes`, as
torchvision's do, and a split of a data set of the Hugging Face library, streamed or not."""


def read_images(
    data: Labelled, working_size: int, progress: Progress, part: Part = "train", layout: Layout = "auto"
) -> LabelledImages:
    """Read labelled images; what a user should know of it is shown. Classes without an image are left out.

    Of data with a training and a test part (see `parts`) the asked one is read; with the training part the report has
    the other one, to measure on.
    """
    if isinstance(data, LabelledImages):
        return data
    if isinstance(data, ImageSet):
        present = [name for label, name in enumerate(data.classes) if (data.labels == label).any()]
        if not present:
            raise LcaError("the set of images is empty")
        whole = len(present) == len(data.classes)
        return LabelledImages(data if whole else data.of_classes(present), ReadingReport(read=len(data)))
    _expect_labelled(data)
    if is_rows(data):
        pairs, left_out = read_rows(data, working_size, progress)
        if left_out and not pairs:
            raise unreadable_images(left_out)
        read = LabelledImages(*read_labelled(pairs, working_size, Progress()))
        read.report.left_out[:0] = left_out
    elif isinstance(data, str | Path | Album):
        album = data if isinstance(data, Album) else album_of(data, layout)
        read = _read_album(album, working_size, progress, part)
    else:
        read = LabelledImages(*read_labelled(labelled_pairs(data), working_size, progress))
    for line in read.report.lines():
        progress.warning(line)
    return read


def album_of(data: str | Path, layout: Layout = "auto") -> Album:
    """What a path or a name leads to. Nothing is decoded yet."""
    if isinstance(data, str) and data.startswith("hf:"):
        from lca.data.hugging_face import album_of_hub  # the sources know more than a lesson needs

        return album_of_hub(data.removeprefix("hf:"))
    path = Path(data)
    suffix = path.suffix.lower()
    if not path.is_dir():
        if not path.exists():
            beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = nearest(path.name, beside)
            raise LcaError(f"there is no folder or file {name_of(path)}; {hint if hint.endswith('?') else FORMS}")
        if suffix == ".zip":
            return album_of_zip(path, layout)
        if suffix in (*SEPARATED, *LINES):
            return album_of_table(path)
        raise LcaError(f"{name_of(path)} is a file; {FORMS}")
    return _album_of_folder(path, layout)


def _album_of_folder(root: Path, layout: Layout) -> Album:
    try:
        folders = [path.name for path in content_of(root, ReadingReport())[0]]
        parts = recognised(name_of(root), folders, lambda name: bool(_folders_in(root / name)), layout)
    except OSError as error:
        raise LcaError(f"the folder {name_of(root)} cannot be opened: {error.strerror}") from None
    return Album(
        name_of(root),
        parts,
        lambda part, report: class_files(root / part if part else root, report),
        f"give {name_of(root / next(iter(parts.values()), ''))} itself if that is what you mean",
        unused(folders, parts),
    )


def _folders_in(folder: Path) -> list[Path]:
    return content_of(folder, ReadingReport())[0] if os.access(folder, os.R_OK) else []


def _read_album(album: Album, working_size: int, progress: Progress, part: Part) -> LabelledImages:
    report = ReadingReport(copies_once=True)

    def read(name: str, report: ReadingReport) -> ImageSet:
        files = album.images(name, report)
        return read_classes(f"{album.where}/{name}" if name else album.where, files, working_size, progress, report)

    if not album.parts:
        return LabelledImages(read("", report), report)
    if part not in album.parts:
        (alone,) = album.parts.values()
        verb = "teach" if part == "train" else "measure on"
        raise LcaError(f"{album.where} has the part {alone} alone, so there is nothing to {verb}; {album.instead}")
    chosen = album.parts[part]
    images = read(chosen, report)
    other = album.parts.get("test") if part == "train" else None
    report.notes.insert(0, _told(album, chosen, part, other))
    if other is not None:
        told = ReadingReport(copies_once=True)
        report.test = read(other, told), told
    return LabelledImages(images, report)


def _told(album: Album, chosen: str, part: Part, other: str | None) -> str:
    what = "taught" if part == "train" else "measured on"
    then = f", {other} is measured on afterwards" if other else ""
    besides = f", {some(album.unused)} is not used" if album.unused else ""
    return f"{album.where} has parts: {chosen} is {what}{then}{besides}"


def _expect_labelled(data: object) -> None:
    if isinstance(data, str | Path):
        if is_web_address(data):
            raise UnreadableImage(name_of(data), WEB_ADDRESS)
        return
    if isinstance(data, Album) or is_rows(data):
        return
    pairs = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not pairs or isinstance(data, dict | bytes | bytearray | Image.Image):
        hint = "; make a list of it first" if hasattr(data, "__next__") else ""
        raise LcaError(f"{FORMS}, or (image, label) pairs; got {shown(data)}{hint}")
    if isinstance(data, np.ndarray | Tensor):
        raise LcaError(
            f"{FORMS}, or (image, label) pairs; images alone do not tell their classes: list(zip(images, labels)) does"
        )
