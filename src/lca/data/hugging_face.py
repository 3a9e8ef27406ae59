"""Image data sets of the Hugging Face hub as a source."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lca.data.decoding import Embedded, ImageLike, UnreadableImage, read_together, unreadable_images
from lca.data.folders import ReadingReport, class_name, image_set, labelled, some
from lca.data.options import DataOptions
from lca.data.parts import TEST_NAMES, Album, Part
from lca.data.rows import LABELS, kinds_of, namer, pixels_of
from lca.data.sources import (
    Source,
    seeded_split,
    settings,
    sources,
    told_source,
    without_images,
)
from lca.errors import LcaError, needs
from lca.progress import Progress

BOTH: tuple[Part, Part] = ("train", "test")
HF_SETTINGS = ("config", "image", "label", "train", "test", "stream", "take")


class Row(Embedded):
    """The image in a row of a table, which is read when it is decoded."""

    def __init__(self, rows: Any, number: int, column: str) -> None:
        self._rows, self._number, self._column = rows, number, column
        self.name = f"row {number + 1}"

    def content(self) -> bytes:
        found = self._rows[self._number][self._column] or {}
        if found.get("bytes"):
            return bytes(found["bytes"])
        if not found.get("path"):
            return b""
        try:
            return Path(found["path"]).read_bytes()
        except OSError as error:
            raise UnreadableImage(self.name, f"cannot be read: {error.strerror} ({found['path']})") from error


@sources.register("hf")
def hugging_face(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`hf:NAME`: an image data set of the Hugging Face hub, or a folder that its library saved; needs `pip install
    datasets`. Where there is a choice: `hf:NAME,config=C,image=COLUMN,label=COLUMN,train=SPLIT,test=SPLIT`. With
    `stream=yes` it is not stored on disk; `take=N` are the first N rows of each split."""
    name, stream, parts, image, label = _opened(argument)
    report = ReadingReport()
    if stream:
        classes, pairs = _streamed(name, parts, image, label, working_size, report, progress)
    else:
        classes, pairs = _stored(name, parts, image, label)
    if "test" not in pairs:
        split = seeded_split(_by_class(classes, pairs["train"]), options.test_share, options.split_seed)
        for part in BOTH:
            pairs[part] = [(picture, each) for each in split[part] for picture in split[part][each]]
    readings = [read_together([picture for picture, _ in pairs[part]], working_size, progress) for part in BOTH]
    kept = [labelled(pairs[part], reading, report) for part, reading in zip(BOTH, readings, strict=True)]
    if not kept[0]:
        raise unreadable_images(report.left_out)
    train, test = (image_set(read.pixels, images, classes) for read, images in zip(readings, kept, strict=True))
    if empty := without_images(train):
        raise LcaError(f"{name}: no readable training images of {len(empty)} of {len(classes)} classes: {some(empty)}")

    def alike(one: int, two: int) -> str:
        return f"an image of {kept[1][two][1]} looks like one of {kept[0][one][1]}"

    return told_source("hf", Path(name).name, train, test, alike, report, progress)


def album_of_hub(argument: str) -> Album:
    """The same as a lesson: the training split is taught, another is measured on."""
    name, stream, parts, image, label = _opened(argument)
    where = f"hf:{name}"
    if stream:
        raise LcaError(f"{where}: a lesson takes no stream=yes; in Python, give learn the streamed split")
    classes, pairs = _stored(name, parts, image, label)

    def images(part: str, report: ReadingReport) -> dict[str, list[ImageLike]]:
        return _by_class(classes, pairs["test" if part == "test" else "train"])

    return Album(where, {part: part for part in pairs}, images, f"choose a split: {where.partition(',')[0]},test=SPLIT")


def _opened(argument: str) -> tuple[str, bool, dict[Part, Any], str, str]:
    """The name of a data set, whether it is streamed, its rows by part, and the columns of images and labels."""
    name, _, rest = argument.partition(",")
    if not name:
        raise LcaError("data.source hf:NAME needs a name, for example hf:uoft-cs/cifar10")
    given = settings(rest, dict.fromkeys(HF_SETTINGS), "hf:uoft-cs/cifar100,label=fine_label")
    stream = _yes(given.get("stream", "no"))
    splits = _load_hugging_face(name, given.get("config"), stream)
    parts = {part: _taken(rows, given.get("take")) for part, rows in _parts(name, splits, given).items()}
    return name, stream, parts, *_columns(name, kinds_of(parts["train"]), given)


Pairs = dict[Part, list[tuple[ImageLike, str]]]
"""(image, class) of every row by part."""


def _stored(name: str, parts: Mapping[Part, Any], image: str, label: str) -> tuple[tuple[str, ...], Pairs]:
    """The classes in the order of their labels, and the rows, whose images are read when they are decoded."""
    classes, name_of_label = _hugging_face_classes([*parts.values()], label, name)
    return classes, {part: _pairs(rows, image, label, name_of_label) for part, rows in parts.items()}


def _by_class(classes: tuple[str, ...], pairs: list[tuple[ImageLike, str]]) -> dict[str, list[ImageLike]]:
    """The images of every class that has any."""
    of_class: dict[str, list[ImageLike]] = {name: [] for name in classes}
    for picture, name in pairs:
        of_class[name].append(picture)
    return {name: pictures for name, pictures in of_class.items() if pictures}


def _parts(name: str, splits: Mapping[str, Any], given: Mapping[str, str]) -> dict[Part, Any]:
    """The training images, and the test images if there are any."""
    train = _chosen(splits, given.get("train"), ("train",), f"{name}: split", "train")
    test = given.get("test") or next((each for each in TEST_NAMES if each in splits), None)
    if test is None:
        return {"train": splits[train]}
    if test not in splits:
        raise LcaError(f"{name}: there is no split {test!r}; it has {', '.join(splits)}")
    return {"train": splits[train], "test": splits[test]}


def _streamed(
    name: str,
    parts: Mapping[Part, Any],
    image: str,
    label: str,
    working_size: int,
    report: ReadingReport,
    progress: Progress,
) -> tuple[tuple[str, ...], Pairs]:
    """The classes that were seen, in the order of their labels, and (pixels, class) of every row."""
    found = {part: [*pixels_of(rows, image, label, working_size, report, progress)] for part, rows in parts.items()}
    class_of = namer(parts["train"], label)
    named = {value: class_name(class_of(value)) for rows in found.values() for _, value in rows}
    classes = tuple(named[value] for value in sorted(named))
    _check_classes(name, classes)
    return classes, {part: [(pixels, named[value]) for pixels, value in rows] for part, rows in found.items()}


def _taken(rows: Any, take: str | None) -> Any:
    """The first rows, where a number of them is given."""
    if take is None:
        return rows
    if not take.isdecimal() or not int(take):
        raise LcaError(f"data.source: take={take} must be a number of rows, such as take=5000")
    return rows.select(range(min(int(take), len(rows)))) if hasattr(rows, "select") else rows.take(int(take))


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise LcaError(f"data.source: stream={text} must be yes or no")
    return text == "yes"


def _columns(name: str, kinds: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, str]:
    """The columns of the images and of the labels, of columns of these kinds."""
    images = [column for column, kind in kinds.items() if kind == "Image"]
    others = [column for column, kind in kinds.items() if kind in LABELS]
    labels = [column for column in others if kinds[column] == "ClassLabel" and "label" not in given] or others
    return (
        _chosen(images, given.get("image"), ("image", "img"), f"{name}: image column", "image"),
        _chosen(labels, given.get("label"), ("label", "labels"), f"{name}: label column", "label"),
    )


def _load_hugging_face(name: str, config: str | None, stream: bool) -> Mapping[str, Any]:
    with needs("hf:NAME", "datasets"):
        import datasets
    path = Path(os.path.expandvars(name)).expanduser()
    try:
        saved = any((path / file).is_file() for file in ("dataset_dict.json", "state.json"))
        data = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(name, config, streaming=stream)
    except Exception as error:  # the library raises its own kinds of many others
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LcaError(
            f"the data set {name!r} could not be loaded: {reason}. Expected a name on the hub, such as "
            "hf:uoft-cs/cifar10, or a folder that save_to_disk wrote"
        ) from error
    splits = data if isinstance(data, dict) else {"train": data}
    return {split: rows.to_iterable_dataset() if stream and saved else rows for split, rows in splits.items()}


def _chosen(known: Collection[str], wanted: str | None, usual: tuple[str, ...], what: str, key: str) -> str:
    """The one that is wanted, the only one, or the one with the usual name."""
    if wanted is not None and wanted in known:
        return wanted
    likely = [*known] if len(known) == 1 else [each for each in usual if each in known]
    if wanted is None and likely:
        return likely[0]
    there = f"there are {', '.join(known)}" if known else "there is none"
    missing = f"{wanted!r} is not there; " if wanted else ""
    raise LcaError(f"{what}: {missing}{there}; choose with {key}=NAME")


def _hugging_face_classes(parts: list[Any], label: str, name: str) -> tuple[tuple[str, ...], Callable[[Any], str]]:
    """The classes in the order of their labels, and the class of a label."""
    labels = {each for part in parts for each in part.unique(label)}
    if None in labels or -1 in labels:
        raise LcaError(f"{name}: some images have no label (column {label!r}); choose another split or column")
    numbered = getattr(parts[0].features[label], "names", None)
    named = dict(enumerate(numbered)) if numbered else {each: each for each in sorted(labels)}
    class_of = {value: class_name(str(each)) for value, each in named.items()}
    classes = tuple(class_of.values())
    _check_classes(name, classes)
    return classes, class_of.__getitem__


def _check_classes(name: str, classes: tuple[str, ...]) -> None:
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise LcaError(f"{name}: expected two or more classes of different names, got {some([*classes])}")


def _pairs(rows: Any, image: str, label: str, name_of_label: Callable[[Any], str]) -> list[tuple[ImageLike, str]]:
    """(image, class) of every row."""
    import datasets

    rows = rows.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
    pictures: list[ImageLike] = [Row(rows, number, image) for number in range(len(rows))]
    return [(picture, name_of_label(value)) for picture, value in zip(pictures, rows[label], strict=True)]
