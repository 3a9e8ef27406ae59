"""Folders that hold the parts of a data set, `train` beside `test`, instead of classes: told by names and depth."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lca.data.decoding import ImageLike
from lca.data.folders import ReadingReport
from lca.errors import LcaError

TRAIN_NAME = "train"
TEST_NAMES = ("test", "validation", "valid", "val")
"""What a part for testing is called; the first that is there is taken."""
Part = Literal["train", "test"]
Layout = Literal["auto", "parts", "classes"]
"""How a folder with names of parts in it is read: as what it looks like, as parts, or as classes of these names."""


@dataclass(frozen=True)
class Album:
    """Labelled images in some form that people have them in, before any is decoded."""

    where: str
    """What to call it in a message."""
    parts: Mapping[Part, str]
    """The names of its parts; none where all of it is one."""
    images: Callable[[str, ReadingReport], Mapping[str, Sequence[ImageLike]]]
    """The images of every class in the part of that name, or under "" in all of it; the report is told what else is
    there."""
    instead: str = ""
    """What to give where the part that is needed is not there."""
    unused: Sequence[str] = ()
    """Parts that are neither taught nor measured on."""


def recognised(
    where: str, folders: Collection[str], holds_folders: Callable[[str], bool], layout: Layout = "auto"
) -> dict[Part, str]:
    """Which of the folders within are parts of a data set; none where they are classes. An error where it could be
    either, if `layout` does not say.

    `train` and one of `TEST_NAMES` are parts if there are class folders inside. A folder of one such name alone is a
    part on the same condition, and a class beside others: photos of trains are a class too.
    """
    if layout not in get_args(Layout):
        raise LcaError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")
    by_name = {name.casefold(): name for name in folders}
    named = {name: by_name[name] for name in (TRAIN_NAME, *TEST_NAMES) if name in by_name}
    others = [name for name in folders if name not in named.values()]
    if layout == "parts" and not named:
        raise LcaError(f"{where} holds no folder called {TRAIN_NAME}, {' or '.join(TEST_NAMES)}: these are no parts")
    if layout == "classes" or not named:
        return {}
    with_classes = {key: name for key, name in named.items() if layout == "parts" or holds_folders(name)}
    if layout == "auto" and len(named) == 1 and (others or not with_classes):
        return {}
    if layout == "auto" and (others or not _are_parts(named, with_classes)):
        raise LcaError(_question(where, [*named.values()], others))
    tests = [with_classes[name] for name in TEST_NAMES if name in with_classes]
    parts: dict[Part, str] = {"train": with_classes[TRAIN_NAME]} if TRAIN_NAME in with_classes else {}
    return parts | ({"test": tests[0]} if tests else {})


def unused(folders: Collection[str], parts: Mapping[Part, str]) -> list[str]:
    """The folders beside the parts."""
    return [name for name in folders if parts and name not in parts.values()]


def _are_parts(named: Collection[str], with_classes: Collection[str]) -> bool:
    """Whether what must have class folders inside has them; test images without classes are no reason to doubt."""
    return bool(with_classes) and (TRAIN_NAME not in named or TRAIN_NAME in with_classes)


def _question(where: str, named: list[str], others: list[str]) -> str:
    beside = f" beside other folders ({', '.join(others[:3])}{', ...' * (len(others) > 3)})" if others else ""
    inside = "" if others else " without class folders inside"
    return (
        f"{where} holds {' and '.join(named)}{beside}{inside}: are these parts of a data set, or classes? Say it with "
        "--layout parts or --layout classes (in Python model.read(..., layout='parts')), or give one folder of class "
        "folders"
    )
