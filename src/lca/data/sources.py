"""Sources: where images come from. A source has class names, training images and test images.

The classes stand in the data set's own order of labels (for folders: sorted), of which the literature's class orders
are permutations. The benchmarks of the literature are in `benchmarks.py`.
"""

import itertools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn.functional import one_hot

from lca.data import cache
from lca.data.decoding import LeftOut, Reading, name_of, read_together, unreadable_images
from lca.data.duplicates import near_copies
from lca.data.folders import LAYOUT, ReadingReport, case_only, class_files, image_set, labelled
from lca.data.images import ImageSet, Pixels
from lca.data.options import DataOptions
from lca.data.parts import TEST_NAMES, TRAIN_NAME
from lca.data.views import ViewOptions
from lca.errors import LcaError, needs
from lca.files import hash_json
from lca.progress import Progress
from lca.randomness import generator
from lca.registry import Registry

T = TypeVar("T")
Read = tuple[ImageSet, list[Path]]
"""Images and the file of each."""
CARDS = Path(__file__).parent / "cards"
"""One file a source of ours; other packages' sources have none."""


@dataclass(frozen=True)
class Domains:
    """The styles in which classes come back, such as photos, paintings and sketches, and the one of every image."""

    names: tuple[str, ...]
    train: Tensor
    """(n,) positions in `names`."""
    test: Tensor

    def in_words(self) -> list[Any]:
        """All of it as JSON."""
        return [list(self.names), self.train.tolist(), self.test.tolist()]


@dataclass(frozen=True)
class Source:
    """All images of a data set, and what its card says about them."""

    name: str
    train: ImageSet
    test: ImageSet
    tasks: int
    """Number of tasks in the literature."""
    view: ViewOptions
    """What of an image is seen."""
    sizes: tuple[int, ...] = ()
    """Classes of each of the literature's tasks, where they are not equal parts."""
    near_copies: int | None = None
    """Test images that look like training images, where that was looked for."""
    as_published: bool | None = None
    """Whether a benchmark has the classes and as many images as its card says."""
    domains: Domains | None = None
    """Where images have a domain besides their class."""

    @classmethod
    def of_card(cls, card: dict[str, Any], name: str, train: ImageSet, test: ImageSet, **facts: Any) -> "Source":
        """A source with the tasks and the view of its card."""
        tasks = min(card["tasks"], len(train.classes))
        return cls(name, train, test, tasks, ViewOptions.model_validate(card["view"]), **facts)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all classes, labels, pixels and domains."""
        domains = [] if self.domains is None else [self.domains.in_words()]
        return hash_json([self.train.fingerprint(), self.test.fingerprint(), *domains])


Reader = Callable[[str, DataOptions, int, int, Progress], Source]
"""(argument, options, seed, working size, progress) -> source."""

sources: Registry[Reader] = Registry("data source", package="lca.data", group="lca.sources")


def load_source(options: DataOptions, seed: int, view_size: int, progress: Progress) -> Source:
    """Read the source an option names; `view_size` is the side of the square the backbone sees. Its view is the card's
    with the options' changes."""
    name, _, argument = options.source.partition(":")
    reader = sources[name]
    check_split(name, options.split)
    source = reader(argument, options, seed, working_size(view_size), progress)
    return replace(source, view=options.view.over(source.view))


def settings(text: str, allowed: Mapping[str, Any], example: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping."""
    given = {}
    for item in filter(None, text.split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if not value or key not in allowed:
            raise LcaError(f"data.source: got {item!r}; expected some of {', '.join(allowed)}, for example {example}")
        given[key] = value
    return given


def working_size(view_size: int) -> int:
    """Shorter side to which larger images are decoded: the literature's 256 for views of 224."""
    return round(view_size * 8 / 7)


@sources.register("digits")
def digits(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """scikit-learn's scans of handwritten digits: 10 classes, 8 x 8 pixels."""
    with needs("data.source=digits", "scikit-learn"):
        from sklearn.datasets import load_digits

    if argument:
        raise LcaError(f"data.source=digits stands alone, got {argument!r} behind it")
    card = read_card("digits")
    bunch = load_digits()
    grey = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8))
    labels = torch.from_numpy(bunch.target).long()
    if len(labels) != card["images"]:
        raise LcaError(f"scikit-learn's digits have {len(labels)} images, the card says {card['images']}")
    place_in_class = one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0] - 1
    is_test = place_in_class % card["split"]["every"] == card["split"]["test"]
    everything = ImageSet(Pixels.whole(grey[:, None].repeat(1, 3, 1, 1)), labels, tuple(map(str, card["classes"])))
    return Source.of_card(card, "digits", everything.subset(~is_test), everything.subset(is_test))


@sources.register("folder")
def folder(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`folder:PATH` (`$NAME` and `~` are expanded): class folders, below `train` and `test` (or `val`) or split by
    seed."""
    root = folder_of(argument, "folder:PATH", "one folder per class")
    report = ReadingReport()
    parts = parts_of(root, report)
    listing = {part: class_files(path, report) for part, path in (parts or {"all": root}).items()}
    classes = sorted({name for part in listing.values() for name in part})
    for part, files in listing.items():
        if missing := [name for name in classes if name not in files]:
            raise LcaError(
                f"{parts[part]}: no folder for the classes {missing[:5]}, which the other part has; add it, or remove "
                "the other"
            )
        if empty := [name for name in classes if not files[name]]:
            raise LcaError(f"{root}: these class folders hold no images: {empty[:5]}; remove them or fill them")
    report.case_only = case_only(classes)
    if parts:
        read = [read_files(listing[part], working_size, progress, report) for part in parts]
    else:
        read = read_and_split(listing["all"], options, working_size, progress, report)
    (train, learnt_files), (test, tested_files) = read
    if len(classes) < 2:
        count = len(train) + len(test)
        raise LcaError(
            f"{root} holds {count} images of the class {classes[0]!r} only; a run needs two or more classes: {LAYOUT}"
        )
    check_test(root, train, test)

    def alike(one: int, two: int) -> str:
        return f"{short_path(tested_files[two])} looks like {short_path(learnt_files[one])}"

    return told_source("folder", root.name, train, test, alike, report, progress)


def folder_of(argument: str, name: str, content: str) -> Path:
    """The folder that the argument of a source names, such as `folder:PATH`."""
    root = Path(os.path.expandvars(argument)).expanduser()
    if not argument or not root.is_dir():
        raise LcaError(f"data.source {name} needs a folder with {content}; {str(root)!r} is none")
    return root


def check_test(root: Path, train: ImageSet, test: ImageSet) -> None:
    """There must be something to test on."""
    if not len(test):
        raise LcaError(
            f"{root} holds {len(train)} images of {len(train.classes)} classes, none of which has two: there would be "
            "nothing to test on; add images, or a folder of test images beside one of training images (train/, test/)"
        )


def told_source(
    kind: str,
    name: str,
    train: ImageSet,
    test: ImageSet,
    alike: Callable[[int, int], str],
    report: ReadingReport,
    progress: Progress,
) -> Source:
    """A source of images that somebody collected. What is to know about them is told; `alike` says in words that a
    training image and a test image, given by their numbers, are near copies."""
    copies = found_copies(train, test, progress)
    report.untested = without_images(test)
    report.near_copies = [alike(one, two) for one, two in copies]
    report.tell(progress)
    return Source.of_card(read_card(kind), f"{kind}:{name}", train, test, near_copies=len(copies))


def parts_of(root: Path, report: ReadingReport) -> dict[str, Path]:
    """The folders of the training and of the test images, if there are both; the report is told of others."""
    folders = {path.name.casefold(): path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."}
    test = next((folders[name] for name in TEST_NAMES if name in folders), None)
    if test is None or TRAIN_NAME not in folders:
        return {}
    parts = {"train": folders[TRAIN_NAME], "test": test}
    others = [path for path in folders.values() if path not in parts.values()]
    report.left_out += [LeftOut(name_of(path), "is neither the training part nor the test part") for path in others]
    return parts


def read_and_split(
    files: dict[str, list[Path]], options: DataOptions, working_size: int, progress: Progress, report: ReadingReport
) -> list[Read]:
    """A seeded split of images. Broken files do not move it, unless they leave a class nothing to learn or nothing at
    all to test on: then the readable images alone are split."""
    images, paths = read_files(files, working_size, progress, report)
    row_of = {path: row for row, path in enumerate(paths)}

    def split(names: Collection[str]) -> dict[str, list[list[int]]]:
        """The rows of every class in each part, where of these classes only readable files are split."""
        listed = {name: [each for each in own if each in row_of or name not in names] for name, own in files.items()}
        parts = seeded_split(listed, options.test_share, options.split_seed)
        return {
            part: [[row_of[each] for each in own if each in row_of] for own in of.values()]
            for part, of in parts.items()
        }

    rows = split(())
    untaught = [name for name, own in zip(files, rows["train"], strict=True) if not own]
    if untaught or not any(rows["test"]):
        rows = split(untaught if any(rows["test"]) else files)
    numbers = [[*itertools.chain(*of_classes)] for of_classes in rows.values()]
    return [(images.subset(torch.tensor(own, dtype=torch.long)), [paths[row] for row in own]) for own in numbers]


def without_images(images: ImageSet) -> list[str]:
    """The classes of which there is none."""
    return [name for name, count in images.counts().items() if not count]


def short_path(path: Path) -> Path:
    return Path(*path.parts[-3:])


def found_copies(train: ImageSet, test: ImageSet, progress: Progress) -> list[tuple[int, int]]:
    """Test images that look like training images: pairs of (training, test). Found once for large sets."""
    if len(train) < cache.FEWEST or not cache.limit():
        return near_copies(train, test, progress)

    def fits(found: Any) -> bool:
        try:
            return all(0 <= one < len(train) and 0 <= two < len(test) for one, two in found)
        except (TypeError, ValueError):
            return False

    what = f"near copies in colour {train.fingerprint()} {test.fingerprint()}"
    return [(one, two) for one, two in cache.remembered(what, lambda: near_copies(train, test, progress), fits)]


def check_split(name: str, split: str | None) -> None:
    """A split, where one is named, must be one of the card's; a source of another package has no card."""
    splits = read_card(name).get("splits", {}) if (CARDS / f"{name}.yaml").is_file() else {}
    if split is not None and split not in splits:
        known = f"its splits: {', '.join(splits)}" if splits else "it has no named splits; leave the name out"
        raise LcaError(f"{name} has no split {split!r}; {known}")


@lru_cache
def read_card(name: str) -> dict[str, Any]:
    """The YAML card of a source."""
    return yaml.safe_load((CARDS / f"{name}.yaml").read_text(encoding="utf-8"))


def seeded_split(files: dict[str, list[T]], test_share: float, seed: int) -> dict[str, dict[str, list[T]]]:
    """A share of every class becomes its test set, at least one image; a class with one image stays in training."""
    train: dict[str, list[T]] = {}
    test: dict[str, list[T]] = {}
    for number, (name, paths) in enumerate(files.items()):
        order = torch.randperm(len(paths), generator=generator(seed, "test split", number)).tolist()
        count = min(max(round(test_share * len(paths)), 1), len(paths) - 1)
        test[name] = [paths[index] for index in sorted(order[:count])]
        train[name] = [paths[index] for index in sorted(order[count:])]
    return {"train": train, "test": test}


_decoded: dict[str, Read] = {}
"""What was read last, so that the cells of a sweep do not decode the same files again."""


def read_files(files: dict[str, list[Path]], working_size: int, progress: Progress, report: ReadingReport) -> Read:
    """The decoded files of every class, from memory if they were read before and have not changed. A broken file is
    left out; a class without any readable file is an error."""
    stamp = cache.stamp_of(files, working_size)
    if stamp not in _decoded:
        while len(_decoded) >= 4:
            _decoded.pop(next(iter(_decoded)))
        pairs = [(path, name) for name, paths in files.items() for path in paths]
        reading = _kept_or_decoded(files, working_size, progress, stamp)
        images = labelled(pairs, reading, report)
        if not images:
            raise unreadable_images(report.left_out)
        present = {name for _, name in images}
        if unreadable := [name for name, own in files.items() if own and name not in present]:
            named = "; ".join(map(str, report.left_out[:5]))
            raise LcaError(f"no image of the classes {unreadable[:5]} could be read: {named}")
        paths = [path for place, (path, _) in enumerate(pairs) if place not in reading.left_out]
        _decoded[stamp] = image_set(reading.pixels, images, tuple(files)), paths
    return _decoded[stamp]


def _kept_or_decoded(files: dict[str, list[Path]], working_size: int, progress: Progress, stamp: str) -> Reading:
    """Large sets are kept on disk. What could not be read is tried again: a package may have been installed since."""
    paths = [path for own in files.values() for path in own]
    if len(paths) < cache.FEWEST or not cache.limit():
        return read_together(paths, working_size, progress)
    what = f"content of {stamp}"
    name = cache.remembered(what, lambda: cache.key(files, working_size, progress), cache.holds)
    kept = cache.load(name)
    if kept is not None:
        again = read_together([paths[place] for place in kept.left_out], working_size, Progress())
        if not len(again.pixels):
            return replace(kept, left_out=dict(zip(kept.left_out, again.left_out.values(), strict=True)))
        cache.remove(name)
    decoded = read_together(paths, working_size, progress)
    cache.save(name, decoded, progress)
    return cache.load(name) or decoded  # from now on the disk holds the pixels, not the memory
