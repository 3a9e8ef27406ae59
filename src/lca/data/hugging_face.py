"""Image data sets of the Hugging Face hub as a source."""

import os
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from lca.data.benchmarks import PARTS, some
from lca.data.decoding import FORMATS, ImageLike, LeftOut, read_together, unreadable_images
from lca.data.folders import ReadingReport, class_name, image_set, labelled
from lca.data.options import DataOptions
from lca.data.sources import (
    TEST_NAMES,
    Source,
    found_copies,
    read_card,
    seeded_split,
    settings,
    sources,
    without_images,
)
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.progress import Progress

HF_SETTINGS = ("config", "image", "label", "train", "test")


@sources.register("hf")
def hugging_face(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`hf:NAME`: an image data set of the Hugging Face hub, or a folder that its library saved; needs `pip install
    "lca[hf]"`. Where there is a choice: `hf:NAME,config=C,image=COLUMN,label=COLUMN,train=SPLIT,test=SPLIT`."""
    name, _, rest = argument.partition(",")
    if not name:
        raise LcaError("data.source hf:NAME needs a name, for example hf:uoft-cs/cifar10")
    given = settings(rest, dict.fromkeys(HF_SETTINGS), "hf:uoft-cs/cifar100,label=fine_label")
    splits = _load_hugging_face(name, given.get("config"))
    train = _chosen(splits, given.get("train"), ("train",), f"{name}: split", "train")
    test = given.get("test") or next((each for each in TEST_NAMES if each in splits), None)
    if test is not None and test not in splits:
        raise LcaError(f"{name}: there is no split {test!r}; it has {', '.join(splits)}")
    features = splits[train].features
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    image = _chosen(dict.fromkeys(images), given.get("image"), ("image", "img"), f"{name}: image column", "image")
    others = [column for column, kind in kinds.items() if kind in ("ClassLabel", "Value")]
    labels = [column for column in others if kinds[column] == "ClassLabel"] or others
    wanted = given.get("label")
    label = _chosen(
        dict.fromkeys(others if wanted else labels), wanted, ("label", "labels"), f"{name}: label column", "label"
    )
    classes, name_of_label = _hugging_face_classes([splits[each] for each in (train, test) if each], label, name)
    report = ReadingReport()
    pairs = {
        each: _pairs(splits[each], image, label, name_of_label, report, progress) for each in (train, test) if each
    }
    if test is None:
        by_class: dict[str, list[ImageLike]] = {each: [] for each in classes}
        for picture, own in pairs[train]:
            by_class[own].append(picture)
        parts = seeded_split(
            {each: own for each, own in by_class.items() if own}, options.test_share, options.split_seed
        )
        listed = [[(picture, each) for each, own in parts[part].items() for picture in own] for part in PARTS]
    else:
        listed = [pairs[train], pairs[test]]
    readings = [read_together([picture for picture, _ in part], working_size, progress) for part in listed]
    kept = [labelled(part, reading, report) for part, reading in zip(listed, readings, strict=True)]
    if not kept[0]:
        raise unreadable_images(report.left_out)
    present = {each for _, each in kept[0]}
    if empty := [each for each in classes if each not in present]:
        raise LcaError(f"{name}: no readable training images of {len(empty)} of {len(classes)} classes: {some(empty)}")
    card = read_card("hf")
    learnt, tested = (image_set(each.pixels, own, classes) for each, own in zip(readings, kept, strict=True))
    copies = found_copies(learnt, tested, progress)
    report.untested = without_images(tested)
    report.near_copies = [f"an image of {kept[1][two][1]} looks like one of {kept[0][one][1]}" for one, two in copies]
    for line in report.lines():
        progress.line(line)
    view = ViewOptions.model_validate(card["view"])
    return Source(
        f"hf:{Path(name).name}", learnt, tested, min(card["tasks"], len(classes)), view, near_copies=len(copies)
    )


def _load_hugging_face(name: str, config: str | None) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError:
        raise LcaError('hf:NAME needs the library `datasets`: pip install "lca[hf]"') from None
    path = Path(os.path.expandvars(name)).expanduser()
    try:
        if any((path / each).is_file() for each in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(path))
        else:
            found = datasets.load_dataset(name, config)
    except Exception as error:  # the library raises its own kinds of many others
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LcaError(
            f"the data set {name!r} could not be loaded: {reason}. Expected a name on the hub, such as "
            "hf:uoft-cs/cifar10, or a folder that save_to_disk wrote"
        ) from error
    return found if isinstance(found, dict) else {"train": found}


def _chosen(known: Mapping[str, Any], wanted: str | None, usual: tuple[str, ...], what: str, key: str) -> str:
    """The one that is wanted, the only one, or the one with the usual name."""
    if wanted is not None and wanted in known:
        return wanted
    likely = [*known] if len(known) == 1 else [each for each in usual if each in known]
    if wanted is None and likely:
        return likely[0]
    there = f"there are {', '.join(known)}" if known else "there is none"
    came = f"{wanted!r} is not there; " if wanted else ""
    raise LcaError(f"{what}: {came}{there}; choose with {key}=NAME")


def _hugging_face_classes(parts: list[Any], label: str, name: str) -> tuple[tuple[str, ...], Callable[[Any], str]]:
    """The classes in the order of their labels, and the class of a label."""
    feature = parts[0].features[label]
    labels = {each for part in parts for each in part.unique(label)}
    if None in labels or -1 in labels:
        raise LcaError(f"{name}: some images have no label (column {label!r}); choose another split or column")
    if type(feature).__name__ == "ClassLabel":
        names = tuple(class_name(str(each)) for each in feature.names)
    else:
        order = sorted(labels)
        names = tuple(class_name(str(each)) for each in order)
        place_of = {each: number for number, each in enumerate(order)}
    if len(set(names)) != len(names) or len(names) < 2:
        raise LcaError(f"{name}: expected two or more classes of different names, came {some([*names])}")
    if type(feature).__name__ == "ClassLabel":
        return names, lambda value: names[value]
    return names, lambda value: names[place_of[value]]


def _pairs(
    part: Any, image: str, label: str, name_of_label: Callable[[Any], str], report: ReadingReport, progress: Progress
) -> list[tuple[ImageLike, str]]:
    """(image, class) of every row. Files in memory are opened here and decoded later; the broken are left out."""
    import datasets

    found: list[tuple[ImageLike, str]] = []
    rows = part.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
    for number, row in enumerate(progress.track(rows, "opening images", len(rows)), 1):
        content = row[image] or {}
        picture: ImageLike
        if content.get("bytes"):
            try:
                picture = Image.open(BytesIO(content["bytes"]), formats=FORMATS)
            except Exception as error:  # Pillow raises what a damaged header leads it to
                report.left_out.append(LeftOut(f"row {number}", f"cannot be read: {str(error)[:80]}"))
                continue
        elif content.get("path"):
            picture = str(content["path"])
        else:
            report.left_out.append(LeftOut(f"row {number}", "is empty"))
            continue
        found.append((picture, name_of_label(row[label])))
    return found
