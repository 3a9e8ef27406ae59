"""Labelled images from class folders or lists of pairs, and a report of what was found on the way.

One bad image never ends the reading; only when none can be read there is an error, with the list.
"""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lca.arguments import shown
from lca.data.decoding import (
    SUFFIXES,
    ImageLike,
    LeftOut,
    Reading,
    is_image,
    name_of,
    printable,
    read_together,
    unreadable_images,
)
from lca.data.images import Images, ImageSet
from lca.data.store import IN_MEMORY
from lca.errors import LcaError, nearest
from lca.progress import Progress

CLUTTER = frozenset({"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "#recycle", "$recycle.bin"})
"""What systems leave in folders of photos, in lower case; like all names with a dot in front it is passed over."""
NAMED = 5
"""Files that a line names before it only counts."""
NAMED_LEFT_OUT = 20
"""Images left out that are named: a user will want to mend these."""
LONGEST_NAME = 160
"""Characters of a name or a reason that a line shows."""
LAYOUT = "expected one folder of images per class, such as cat/1.jpg, cat/2.jpg and dog/1.jpg"


@dataclass
class ReadingReport:
    """What came of reading labelled images."""

    copies_once: bool = False
    """Whether exact copies within a class are taken once, as for a lesson, or stay, as in a data set to compare on."""
    read: int = 0
    notes: list[str] = field(default_factory=list)
    """How it was read, where there was something to decide."""
    test: "tuple[ImageSet, ReadingReport] | None" = None
    """Images to measure on after a lesson, where they lie beside those to learn; they are not among `read`."""
    paths: list[str | None] = field(default_factory=list, repr=False)
    """Where each image that was read lies, in their order; None for one that was given without a file."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Images and folders that could not be read."""
    other_files: list[str] = field(default_factory=list)
    """Files that are no images."""
    empty_classes: list[str] = field(default_factory=list)
    """Classes without any readable image; they are left out."""
    joined: list[list[str]] = field(default_factory=list)
    """Names that look the same and were read as one class: they differ in how Unicode writes an accented letter."""
    case_only: list[list[str]] = field(default_factory=list)
    """Classes whose names differ only in upper and lower case; they stay different classes."""
    domains: list[str] = field(default_factory=list)
    """Folders that were read as classes, though they hold folders of the same names: they look like domains."""
    inside_domains: list[str] = field(default_factory=list)
    """Those names."""
    untested: list[str] = field(default_factory=list)
    """Classes without any test image."""
    near_copies: list[str] = field(default_factory=list)
    """Which test image looks like which training image, in words."""
    several_frames: int = 0
    """Animated images and files of several pages, of which the first was taken."""
    copies: dict[bytes, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list), repr=False)
    """(what, label) of the images of equal content."""

    @property
    def duplicates(self) -> list[list[tuple[str, str]]]:
        """The same image under several labels: groups of (what, label)."""
        return [group for group in self.copies.values() if len({label for _, label in group}) > 1]

    @property
    def repeated(self) -> int:
        """How many images have a copy of themselves before them in the same class."""
        return len(self.repetitions)

    @property
    def repetitions(self) -> list[tuple[str, str]]:
        """(copy, the image before it) of the same class and content."""
        pairs: list[tuple[str, str]] = []
        for group in self.copies.values():
            first: dict[str, str] = {}
            for what, label in group:
                if label in first:
                    pairs.append((what, first[label]))
                first.setdefault(label, what)
        return pairs

    def lines(self) -> list[str]:
        """What a user should know, for a terminal; nothing when all is well."""
        lines = [*self.notes]

        def block(title: str, items: list[str], named: int = NAMED) -> None:
            if items:
                more = [f"  and {len(items) - named} more"] if len(items) > named else []
                lines.extend([title, *(f"  {each}" for each in items[:named]), *more])

        def line(text: str, names: Sequence[str]) -> None:
            if names:
                lines.append(f"{text}: {_some(names)}")

        block(
            f"{_count(self.left_out, 'file or image', 'files or images')} left out:",
            [f"{_short(each.what)} {_short(each.reason)}" for each in self.left_out],
            NAMED_LEFT_OUT,
        )
        line("classes without a readable image, left out", self.empty_classes)
        line("classes without a test image, which no accuracy is about", self.untested)
        block(
            "CHECK: names that differ only in case are different classes; if one is meant, give it one name:",
            [_some([repr(name) for name in group]) for group in self.case_only],
        )
        if self.domains:
            lines.append(
                f"CHECK: {_some(self.domains)} were read as classes, but all hold folders "
                f"{_some(self.inside_domains)}; if those are the classes, give one of the outer folders at a time"
            )
        block(
            f"CHECK: {_count(self.duplicates, 'image')} under several labels; keep the right one:",
            [_some([f"{_short(what)} ({_short(label)})" for what, label in group]) for group in self.duplicates],
        )
        block("read as one class, as their names look the same:", [_some(group) for group in self.joined])
        if self.repeated and not self.copies_once:
            lines.append(f"exact copies within a class, which count like any other image: {self.repeated}")
        elif self.repeated:
            block(
                f"exact copies within a class, taken once: {self.repeated}",
                [f"{_short(copy)} is a copy of {_short(first)}" for copy, first in self.repetitions],
                NAMED_LEFT_OUT,
            )
        if self.several_frames:
            lines.append(f"{self.several_frames} animated or of several pages; the first of each counts")
        line(f"{_count(self.other_files, 'other file')} passed over", self.other_files)
        block(
            f"{_count(self.near_copies, 'test image')} nearly the same as training images, which flatters accuracies:",
            self.near_copies,
            NAMED_LEFT_OUT,
        )
        return lines + [f"to measure on: {each}" for each in (self.test[1].lines() if self.test else [])]

    def tell(self, progress: Progress) -> None:
        """Say the lines, unless nothing was read: then this process has read and told all of it before."""
        for line in self.lines() if self.read else ():
            progress.line(line)

    def as_json(self) -> dict[str, Any]:
        """Counts and names, for files."""
        return {
            "read": self.read,
            "notes": self.notes,
            "left_out": [{"what": each.what, "reason": each.reason} for each in self.left_out],
            "other_files": self.other_files,
            "empty_classes": self.empty_classes,
            "joined": self.joined,
            "case_only": self.case_only,
            "duplicates": [[list(each) for each in group] for group in self.duplicates],
            "repeated": self.repeated,
            "copies": [list(pair) for pair in self.repetitions],
            "several_frames": self.several_frames,
            **({} if self.test is None else {"test": self.test[1].as_json()}),
        }


def read_classes(
    where: str,
    files: Mapping[str, Sequence[ImageLike]],
    working_size: int,
    progress: Progress,
    report: ReadingReport,
) -> ImageSet:
    """The images of every class, copies within a class once. Classes without a readable image are left out."""
    pairs = [(image, name) for name, own in files.items() for image in own]
    if not pairs and not report.left_out:
        raise LcaError(f"{where}: none of its folders holds an image; {LAYOUT}")
    return _read(pairs, tuple(files), working_size, progress, report)


def labelled_pairs(data: Any) -> list[tuple[ImageLike, str]]:
    """(image, label) pairs with the labels' names, from a list of them or any data set.

    A data set such as torchvision's gives numbers and names them in `classes`; torch's `Subset` has it in `dataset`.
    """
    whole = data
    while not hasattr(whole, "classes") and hasattr(whole, "dataset"):
        whole = whole.dataset
    names = getattr(whole, "classes", None)

    def name(label: Any) -> str:
        if isinstance(label, np.generic) or (isinstance(label, np.ndarray | Tensor) and label.ndim == 0):
            label = label.item()
        if isinstance(label, int):
            if names is not None and len(names) and not 0 <= label < len(names):
                raise LcaError(
                    f"a label is {label}, but the data set names {len(names)} classes: 0 to {len(names) - 1}"
                )
            label = str(names[label] if names is not None and len(names) else label)
        return label  # what is neither a name nor a number is left for `read_labelled` to refuse

    def pair(number: int) -> tuple[ImageLike, str]:
        entry = data[number]
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise LcaError(f"entry {number + 1} is {shown(entry)}; expected an (image, label) pair")
        return entry[0], name(entry[1])

    return [pair(number) for number in range(len(data))]


def read_labelled(
    pairs: Sequence[tuple[ImageLike, str]], working_size: int, progress: Progress
) -> tuple[ImageSet, ReadingReport]:
    """The images of (image, label) pairs, copies within a class once. Classes without a readable image are left out."""
    if not len(pairs):
        raise LcaError("there is nothing to learn: the list of (image, label) pairs is empty")
    spellings: dict[str, set[str]] = defaultdict(set)
    for _, label in pairs:
        if not isinstance(label, str) or not label:
            raise LcaError(f"a label is {label!r}; expected the name of a class, such as 'cat'")
        spellings[class_name(label)].add(printable(label))
    joined = [sorted(group) for group in spellings.values() if len(group) > 1]
    report = ReadingReport(copies_once=True, joined=joined)
    named = [(image, class_name(label)) for image, label in pairs]
    return _read(named, tuple(sorted(spellings)), working_size, progress, report), report


def labelled(pairs: Sequence[tuple[ImageLike, str]], reading: Reading, report: ReadingReport) -> list[tuple[int, str]]:
    """(number among those read, label) of the images to take; the report is told of them and of all others."""
    report.left_out += reading.left_out.values()
    readable = [(place, *pair) for place, pair in enumerate(pairs) if place not in reading.left_out]
    kept: list[tuple[int, str]] = []
    for number, (place, image, label) in enumerate(readable):
        copies = report.copies[reading.digests[number].tobytes()]
        repeated = any(label == other for _, other in copies)
        copies.append((name_of(image, place + 1), label))
        if not (repeated and report.copies_once):
            kept.append((number, label))
            report.paths.append(name_of(image) if isinstance(image, str | Path) else None)
            report.several_frames += int(reading.several_frames[number])
    report.read += len(kept)
    return kept


def image_set(pixels: Images, kept: Sequence[tuple[int, str]], classes: Sequence[str]) -> ImageSet:
    """A set of some labelled images, given by their numbers."""
    position = {name: number for number, name in enumerate(classes)}
    labels = torch.tensor([position[label] for _, label in kept], dtype=torch.long)
    rows = None if len(kept) == len(pixels) else torch.tensor([number for number, _ in kept], dtype=torch.long)
    return ImageSet(pixels, labels, tuple(classes), rows)


def class_files(root: Path, report: ReadingReport) -> dict[str, list[Path]]:
    """The image files of every class folder, by sorted class names; the report is told of others."""
    if not os.path.isdir(root):
        beside = [each.name for each in root.parent.iterdir() if each.is_dir()] if root.parent.is_dir() else []
        hint = nearest(root.name, beside)
        raise LcaError(f"there is no folder {name_of(root)}; {hint if hint.endswith('?') else LAYOUT}")
    try:
        inner, loose = content_of(root, report)
    except OSError as error:
        raise LcaError(f"the folder {name_of(root)} cannot be opened: {error.strerror}") from None
    if not inner:
        raise LcaError(f"{name_of(root)} holds {_count(loose, 'image')} and no class folders; {LAYOUT}")
    folders: dict[str, list[Path]] = defaultdict(list)
    for path in inner:
        folders[class_name(path.name)].append(path)
    for path in loose:
        reason = "lies beside the class folders; put it into one" if os.path.exists(path) else "is a link to nothing"
        report.left_out.append(LeftOut(name_of(path), reason))
    report.joined += [[name_of(path) for path in group] for group in folders.values() if len(group) > 1]
    files = {name: [path for each in folders[name] for path in image_files(each, report)] for name in sorted(folders)}
    depth = len(root.parts) + 1
    inside = [{path.parts[depth] for path in paths if len(path.parts) > depth + 1} for paths in files.values()]
    if len(files) > 1 and len(shared := set.intersection(*inside)) > 1:
        report.domains, report.inside_domains = [*files], sorted(shared)
    return files


def image_files(folder: Path, report: ReadingReport) -> list[Path]:
    """The image files below a folder, sorted; the report is told of others. Links are followed, but not in circles."""
    images: list[Path] = []
    seen = {_identity(each) for path in (folder.absolute(), folder.resolve()) for each in path.parents}
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        if _identity(current) in seen:
            report.left_out.append(LeftOut(name_of(current), "is a link to a folder that is read already"))
            continue
        seen.add(_identity(current))
        try:
            inner, directly = content_of(current, report)
        except OSError as error:
            report.left_out.append(LeftOut(name_of(current), f"cannot be opened: {error.strerror}"))
            continue
        waiting += inner
        images += directly
    return sorted(images)


def class_name(name: str) -> str:
    """The name of a class as it is kept: one way of writing accented letters (NFC), no bytes that are no text."""
    return unicodedata.normalize("NFC", name.encode(errors="backslashreplace").decode())


def some(names: Sequence[str], named: int = 10) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - named} more" if len(names) > named else ""
    return ", ".join(names[:named]) + more


def case_only(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that differ only in upper and lower case."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        groups[name.casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]


def case_variants(new: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """(new, known) names of different classes that differ only in upper and lower case."""
    known = set(known)
    variants = [(name, other) for name in set(new) - known for other in known if name.casefold() == other.casefold()]
    return sorted(variants)


def _read(
    pairs: Sequence[tuple[ImageLike, str]],
    classes: Sequence[str],
    working_size: int,
    progress: Progress,
    report: ReadingReport,
) -> ImageSet:
    reading = read_together([image for image, _ in pairs], working_size, progress, in_memory=IN_MEMORY)
    kept = labelled(pairs, reading, report)
    if not kept:
        raise unreadable_images(report.left_out)
    present = {label for _, label in kept}
    report.empty_classes = [name for name in classes if name not in present]
    report.case_only = case_only(present)
    return image_set(reading.pixels, kept, sorted(present))


def content_of(folder: Path, report: ReadingReport) -> tuple[list[Path], list[Path]]:
    """The folders and the image files in a folder, sorted; the report is told of others but hidden ones."""
    folders, images = [], []
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if name.startswith(".") or name.lower() in CLUTTER:
            continue
        if os.path.isdir(path):
            folders.append(path)
        elif path.suffix.lower() in SUFFIXES or (not path.suffix and is_image(path)):
            images.append(path)
        else:
            report.other_files.append(name_of(path))
    return folders, images


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _short(text: str, limit: int = LONGEST_NAME) -> str:
    text = printable(text)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


def _count(things: Sequence[object], singular: str, plural: str = "") -> str:
    return f"{len(things)} {singular if len(things) == 1 else plural or singular + 's'}"


def _some(names: Sequence[str]) -> str:
    return some([*map(_short, names)], NAMED)
