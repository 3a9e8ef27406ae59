"""A folder held against the card of a benchmark: is it whole, and does it give the published tasks?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lca.data.benchmarks import NAMED, PARTS, Listing, benchmark_card, find, some, task_sizes_of
from lca.data.decoding import ImageLike, LeftOut, decode_all
from lca.data.folders import class_name
from lca.data.images import ImageSet, Pixels
from lca.data.options import DataOptions
from lca.data.sources import Source, check_split
from lca.data.streams import Stream
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.progress import Progress


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: as it should be, or what was expected and what came."""

    fine: bool
    text: str


def verify(
    name: str, path: Path, split: str | None, progress: Progress, open_images: bool = False
) -> Iterator[Finding]:
    """Hold a folder against the card of a benchmark: layout, classes, counts, published test counts of the tasks."""
    card = benchmark_card(name)
    if not path.is_dir():
        raise LcaError(f"there is no folder {path}")
    check_split(name, split)
    try:
        listing = find(name, path, split)
    except LcaError as error:
        yield Finding(False, f"layout: {error}")
        return
    expected = card["splits"][listing.split]
    yield Finding(True, f"layout: {listing.root}, split {listing.split}")
    yield from _check_classes(listing, card)
    missing = [file for part in PARTS for file in _files(listing, part) if not file.exists()]
    if missing:
        yield Finding(False, f"files: {len(missing)} that the labels name are missing: {some([*map(str, missing)])}")
    for part in PARTS:
        gone = sum(not file.exists() for file in _files(listing, part)) if missing else 0
        yield _compared(f"{part} images", expected[part], sum(listing.counts(part).values()) - gone)
    yield from _check_class_counts(listing, card)
    for seed, counts in expected.get("per_task", {}).items():
        yield from _check_tasks(listing, card, seed, counts)
    if open_images and listing.files:
        files: list[ImageLike] = [file for part in PARTS for file in _files(listing, part)]
        broken = [each for each in decode_all(files, 8, progress) if isinstance(each, LeftOut)]
        wrong = f": {len(broken)} cannot be read: {some([str(each) for each in broken])}"
        yield Finding(not broken, f"content of {len(files)} images{wrong if broken else ''}")
    for left_out in listing.report.left_out[:NAMED]:
        yield Finding(False, str(left_out))


def _files(listing: Listing, part: str) -> list[Path]:
    return [file for each in listing.files.get(part, {}).values() for file in each]


def _compared(what: str, expected: int, came: int) -> Finding:
    return Finding(
        came == expected, f"{what}: {came}" if came == expected else f"{what}: expected {expected}, came {came}"
    )


def _check_classes(listing: Listing, card: dict[str, Any]) -> Iterator[Finding]:
    yield _compared("classes", card["classes"], len(listing.classes))
    names = [class_name(each) for each in card.get("names", card.get("images_per_class", ()))]
    if set(names) & set(listing.classes):  # folders may have names of their own
        if missing := [each for each in names if each not in listing.classes]:
            yield Finding(False, f"classes: missing: {some(missing)}")
        if unknown := [each for each in listing.classes if each not in names]:
            yield Finding(False, f"classes: not in the data set: {some(unknown)}")
    for part in PARTS:
        if empty := listing.empty(part):
            yield Finding(False, f"{part}: no images of {len(empty)} classes: {some(empty)}")


def _check_class_counts(listing: Listing, card: dict[str, Any]) -> Iterator[Finding]:
    """Counts of single classes, where the card knows them."""
    train, test = (listing.counts(part) for part in PARTS)
    wanted = card["splits"][listing.split].get("per_class")
    tables = []
    if wanted:
        tables += [("train", train, dict.fromkeys(train, wanted["train"]))]
        tables += [("test", test, dict.fromkeys(test, wanted["test"]))]
    if total := card.get("images_per_class"):
        both = {each: train[each] + test[each] for each in listing.classes}
        tables += [("train and test", both, {class_name(each): count for each, count in total.items()})]
    for what, came, expected in tables:
        wrong = [
            f"{each} (expected {expected[each]}, came {came[each]})"
            for each in came
            if each in expected and came[each] != expected[each]
        ]
        if wrong:
            yield Finding(False, f"{what} images of {len(wrong)} classes: {some(wrong)}")


def _check_tasks(listing: Listing, card: dict[str, Any], seed: int, counts: list[Any]) -> Iterator[Finding]:
    """Test images of every task, as published: they tell whether classes, their order and the split are right."""
    what = f"test images of the tasks, seed {seed}"
    if len(listing.classes) != card["classes"]:
        yield Finding(False, f"{what}: not looked at, as the order needs all {card['classes']} classes")
        return
    sizes = task_sizes_of(card)
    train, test = (_without_pixels(listing, part) for part in PARTS)
    source = Source(listing.name, train, test, card["tasks"], ViewOptions(), sizes)
    stream = Stream(source, DataOptions(tasks=[*sizes] if sizes else card["tasks"]), seed)
    came = [stream.evaluation_count(classes) for classes in stream.task_classes]
    wrong = [
        f"task {number + 1}: expected {' or '.join(map(str, _choices(known)))}, came {count}"
        for number, (known, count) in enumerate(zip(counts, came, strict=True))
        if known is not None and count not in _choices(known)
    ]
    known = sum(each is not None for each in counts)
    if wrong:
        yield Finding(False, f"{what}: {'; '.join(wrong)}")
    else:
        yield Finding(True, f"{what}: as published" + (f" ({known} of {len(counts)} known)" * (known < len(counts))))


def _choices(known: Any) -> list[int]:
    return known if isinstance(known, list) else [known]


def _without_pixels(listing: Listing, part: str) -> ImageSet:
    labels = np.repeat(np.arange(len(listing.classes)), [*listing.counts(part).values()])
    pixels = Pixels.whole(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8))
    return ImageSet(pixels, torch.from_numpy(labels), listing.classes)
