"""A folder held against the card of a benchmark: is it whole, and does it give the published tasks?"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lca.data.benchmarks import PARTS, Listing, benchmark_card, find, task_sizes_of
from lca.data.decoding import SUFFIXES, read_together
from lca.data.folders import class_name, some
from lca.data.options import DataOptions
from lca.data.sources import check_split
from lca.data.streams import classes_of_tasks
from lca.errors import LcaError
from lca.files import hash_file
from lca.progress import Progress

MOST = 10
"""Images left out of a listing that are findings of their own; further ones are not named."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: as it should be, or what was expected and what was found."""

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
    missing = {part: [file for file in _files(listing, part) if not file.exists()] for part in PARTS}
    if listing.files:
        yield from _check_places(listing, [file for files in missing.values() for file in files])
        yield from _check_copies(listing, expected.get("copies", 0), progress)
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


def _check_places(listing: Listing, missing: list[Path]) -> Iterator[Finding]:
    """Files that are not where they belong: by the labels, where these name files, or by what the others of their
    folder are called."""
    root, listed = listing.root, {file for part in PARTS for file in _files(listing, part)}
    present = {file for folder in {each.parent for each in listed} if folder.is_dir() for file in folder.iterdir()}
    unlisted = sorted(file for file in present - listed if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
    by_name = {file.name: file for file in unlisted}
    moved = {file: by_name[file.name] for file in missing if file.name in by_name}
    if gone := [str(file) for file in missing if file not in moved]:
        yield Finding(False, f"files: {len(gone)} that the labels name are missing: {some(gone)}")
    pairs = [f"{_below(root, old)} lies in {_below(root, new.parent)}" for old, new in moved.items()]
    pairs += [f"{_below(root, file)} is called like those of {name}" for file, name in _misplaced(listing)]
    if pairs:
        yield Finding(False, f"places: {len(pairs)} moved: {some(pairs)}")
    if more := [_below(root, file) for file in unlisted if file not in moved.values()]:
        yield Finding(False, f"files: {len(more)} that no label names: {some(more)}")


def _misplaced(listing: Listing) -> Iterator[tuple[Path, str]]:
    """Files in the folder of one class that are called like those of another: `Bobolink_0012.jpg` among cardinals.

    What most files of a class are called, up to the number, is its own if no other class's are called so."""
    files = {name: [file for part in PARTS for file in listing.files[part][name]] for name in listing.classes}
    names = {name: Counter(map(_stem, own)) for name, own in files.items()}
    most = {name: counts.most_common(1)[0] for name, counts in names.items() if counts}
    usual = {name: stem for name, (stem, count) in most.items() if stem and 2 * count > names[name].total()}
    owners = {stem: name for name, stem in usual.items() if [*usual.values()].count(stem) == 1}
    for name in owners.values():
        yield from ((file, owners[_stem(file)]) for file in files[name] if owners.get(_stem(file), name) != name)


def _stem(file: Path) -> str:
    """What a file is called up to its numbers, in lower case."""
    return re.split(r"[\W_]*\d", file.stem, maxsplit=1)[0].casefold()


def _check_copies(listing: Listing, expected: int, progress: Progress) -> Iterator[Finding]:
    """Files of equal content: a copy may have taken the place of an image that is gone, and all counts still fit."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for file in (file for part in PARTS for file in _files(listing, part) if file.is_file()):
        by_size[file.stat().st_size].append(file)
    alike = [file for size, files in by_size.items() if size and len(files) > 1 for file in files]
    first: dict[str, Path] = {}
    copies = []
    for file in progress.track(alike, "looking for copies", len(alike)):
        other = first.setdefault(hash_file(file), file)
        if other is not file:
            copies.append(f"{_below(listing.root, file)} is {_below(listing.root, other)}")
    if len(copies) != expected:
        known = f", where the original has {expected}" if expected else ""
        yield Finding(False, f"copies: {len(copies)} files have the content of others{known}: {some(copies)}")


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _compared(what: str, expected: int, got: int) -> Finding:
    fine = got == expected
    return Finding(fine, f"{what}: {got}" if fine else f"{what}: expected {expected}, got {got}")


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
        wrong = [f"{name} (expected {one}, got {two})" for name, (one, two) in pairs.items() if one != two]
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
    got = [sum(tested[name] for name in classes) for classes in tasks]
    possible = [known if isinstance(known, list) else [known] for known in counts]  # [None] where nobody knows
    wrong = [
        f"task {number}: expected {' or '.join(map(str, known))}, got {count}"
        for number, (known, count) in enumerate(zip(possible, got, strict=True), 1)
        if known != [None] and count not in known
    ]
    of_all = f" ({len(counts) - counts.count(None)} of {len(counts)} known)" if None in counts else ""
    yield Finding(not wrong, f"{what}: {'; '.join(wrong) or 'as published' + of_all}")
