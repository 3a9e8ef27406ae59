"""Image data sets of the Hugging Face hub as a source."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lca.data.decoding import Embedded, ImageLike, UnreadableImage, read_together, unreadable_images
from lca.data.folders import ReadingReport, class_name, image_set, labelled, some
from lca.data.options import DataOptions
from lca.data.parts import TEST_NAMES, Album, Part
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
HF_SETTINGS = ("config", "image", "label", "train", "test")


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
    datasets`. Where there is a choice: `hf:NAME,config=C,image=COLUMN,label=COLUMN,train=SPLIT,test=SPLIT`."""
    name, classes, pairs = _opened(argument)
    report = ReadingReport()
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
    name, classes, pairs = _opened(argument)
    where = f"hf:{name}"

    def images(part: str, report: ReadingReport) -> dict[str, list[ImageLike]]:
        return _by_class(classes, pairs["test" if part == "test" else "train"])

    return Album(where, {part: part for part in pairs}, images, f"choose a split: {where.partition(',')[0]},test=SPLIT")


def _opened(argument: str) -> tuple[str, tuple[str, ...], dict[Part, list[tuple[ImageLike, str]]]]:
    """The name of a data set, its classes, and (image, class) of every row by part."""
    name, _, rest = argument.partition(",")
    if not name:
        raise LcaError("data.source hf:NAME needs a name, for example hf:uoft-cs/cifar10")
    given = settings(rest, dict.fromkeys(HF_SETTINGS), "hf:uoft-cs/cifar100,label=fine_label")
    splits = _load_hugging_face(name, given.get("config"))
    parts = _parts(name, splits, given)
    image, label = _columns(name, parts["train"].features, given)
    classes, name_of_label = _hugging_face_classes([*parts.values()], label, name)
    return name, classes, {part: _pairs(rows, image, label, name_of_label) for part, rows in parts.items()}


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


def _columns(name: str, features: Mapping[str, Any], given: Mapping[str, str]) -> tuple[str, str]:
    """The columns of the images and of the labels."""
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    others = [column for column, kind in kinds.items() if kind in ("ClassLabel", "Value")]
    labels = [column for column in others if kinds[column] == "ClassLabel" and "label" not in given] or others
    return (
        _chosen(images, given.get("image"), ("image", "img"), f"{name}: image column", "image"),
        _chosen(labels, given.get("label"), ("label", "labels"), f"{name}: label column", "label"),
    )


def _load_hugging_face(name: str, config: str | None) -> Mapping[str, Any]:
    with needs("hf:NAME", "datasets"):
        import datasets
    path = Path(os.path.expandvars(name)).expanduser()
    try:
        saved = any((path / file).is_file() for file in ("dataset_dict.json", "state.json"))
        data = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(name, config)
    except Exception as error:  # the library raises its own kinds of many others
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LcaError(
            f"the data set {name!r} could not be loaded: {reason}. Expected a name on the hub, such as "
            "hf:uoft-cs/cifar10, or a folder that save_to_disk wrote"
        ) from error
    return data if isinstance(data, dict) else {"train": data}


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
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise LcaError(f"{name}: expected two or more classes of different names, got {some([*classes])}")
    return classes, class_of.__getitem__


def _pairs(rows: Any, image: str, label: str, name_of_label: Callable[[Any], str]) -> list[tuple[ImageLike, str]]:
    """(image, class) of every row."""
    import datasets

    rows = rows.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
    pictures: list[ImageLike] = [Row(rows, number, image) for number in range(len(rows))]
    return [(picture, name_of_label(value)) for picture, value in zip(pictures, rows[label], strict=True)]
