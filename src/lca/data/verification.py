"""A folder held against the card of a benchmark: is it whole, and does it give the published tasks?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lca.data.benchmarks import PARTS, Listing, benchmark_card, find, task_sizes_of
from lca.data.decoding import read_together
from lca.data.folders import class_name, some
from lca.data.options import DataOptions
from lca.data.sources import check_split
from lca.data.streams import classes_of_tasks
from lca.errors import LcaError
from lca.progress import Progress

MOST = 10
"""Images left out of a listing that are findings of their own; further ones are not named."""


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
    missing = {part: [str(file) for file in _files(listing, part) if not file.exists()] for part in PARTS}
    if gone := [file for files in missing.values() for file in files]:
        yield Finding(False, f"files: {len(gone)} that the labels name are missing: {some(gone)}")
    for part in PARTS:
        there = sum(listing.counts(part).values()) - len(missing[part])
        yield _compared(f"{part} images", expected[part], there)
    yield from _check_class_counts(listing, card)
    for seed, counts in expected.get("per_task", {}).items():
        yield from _check_tasks(listing, card, seed, counts)
    if open_images and listing.files:
        files = [file for part in PARTS for file in _files(listing, part)]
        broken = [str(each) for each in read_together(files, 8, progress).left_out.values()]
        wrong = f": {len(broken)} cannot be read: {some(broken)}" if broken else ""
        yield Finding(not broken, f"content of {len(files)} images{wrong}")
    for left_out in listing.report.left_out[:MOST]:
        yield Finding(False, str(left_out))


def _files(listing: Listing, part: str) -> list[Path]:
    return [file for each in listing.files.get(part, {}).values() for file in each]


def _compared(what: str, expected: int, came: int) -> Finding:
    fine = came == expected
    return Finding(fine, f"{what}: {came}" if fine else f"{what}: expected {expected}, came {came}")


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
    counts = {part: listing.counts(part) for part in PARTS}
    per_class = card["splits"][listing.split].get("per_class", {})
    tables = [(part, counts[part], dict.fromkeys(listing.classes, count)) for part, count in per_class.items()]
    if total := card.get("images_per_class"):
        both = {name: sum(counts[part][name] for part in PARTS) for name in listing.classes}
        tables += [("train and test", both, {class_name(name): count for name, count in total.items()})]
    for what, counted, expected in tables:
        pairs = {name: (expected.get(name, count), count) for name, count in counted.items()}
        wrong = [f"{name} (expected {one}, came {two})" for name, (one, two) in pairs.items() if one != two]
        if wrong:
            yield Finding(False, f"{what} images of {len(wrong)} classes: {some(wrong)}")


def _check_tasks(listing: Listing, card: dict[str, Any], seed: int, counts: list[Any]) -> Iterator[Finding]:
    """Test images of every task, as published: they tell whether classes, their order and the split are right."""
    what = f"test images of the tasks, seed {seed}"
    if len(listing.classes) != card["classes"]:
        yield Finding(False, f"{what}: not looked at, as the order needs all {card['classes']} classes")
        return
    tasks = classes_of_tasks(listing.classes, DataOptions(), seed, card["tasks"], task_sizes_of(card))
    tested = listing.counts("test")
    came = [sum(tested[name] for name in classes) for classes in tasks]
    possible = [known if isinstance(known, list) else [known] for known in counts]  # [None] where nobody knows
    wrong = [
        f"task {number}: expected {' or '.join(map(str, known))}, came {count}"
        for number, (known, count) in enumerate(zip(possible, came, strict=True), 1)
        if known != [None] and count not in known
    ]
    of_all = f" ({len(counts) - counts.count(None)} of {len(counts)} known)" if None in counts else ""
    yield Finding(not wrong, f"{what}: {'; '.join(wrong) or 'as published' + of_all}")
