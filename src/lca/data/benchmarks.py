"""The benchmarks of the literature as their cards describe them.

A benchmark is a card with `splits`. A split names a layout, one of `LAYOUTS`, which finds and lists the images of a
folder without reading them; classes stand in the data set's own order of labels. `find` serves to read a benchmark and,
in verification.py, to verify it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch

from lca.data.folders import ReadingReport, class_files, class_name, some
from lca.data.images import ImageSet, Pixels
from lca.data.options import DataOptions
from lca.data.sources import CARDS, Source, check_split, read_card, read_files, sources
from lca.data.streams import base_and_increments
from lca.errors import LcaError, nearest, needs
from lca.progress import Progress

BENCHMARKS = tuple(
    path.stem for path in sorted(CARDS.glob("*.yaml")) if "\nsplits:" in path.read_text(encoding="utf-8")
)
"""The data sets whose cards have splits: a card is all that a new one takes."""
PARTS = ("train", "test")
CLASS_FOLDERS = "".join(f"PATH/{part}/CLASS/*.jpg\n" for part in PARTS)
"""What a split looks like whose card shows no tree."""


@dataclass(frozen=True)
class Listing:
    """A benchmark as it lies on the disk."""

    split: str
    root: Path
    classes: tuple[str, ...]
    files: Mapping[str, dict[str, list[Path]]] = field(default_factory=dict)
    """By part and class."""
    arrays: Mapping[str, ImageSet] = field(default_factory=dict)
    """By part, where the images are no files."""
    report: ReadingReport = field(default_factory=ReadingReport)

    def counts(self, part: str) -> dict[str, int]:
        """Images of every class."""
        if self.arrays:
            return self.arrays[part].counts()
        return {name: len(self.files[part][name]) for name in self.classes}

    def empty(self, part: str) -> list[str]:
        """Classes without an image."""
        return [name for name, count in self.counts(part).items() if not count]

    def read(self, working_size: int, progress: Progress) -> tuple[ImageSet, ImageSet]:
        """The training and the test images."""
        if self.arrays:
            return self.arrays["train"], self.arrays["test"]
        train, test = (read_files(self.files[part], working_size, progress, self.report)[0] for part in PARTS)
        self.report.tell(progress)
        return train, test


Lister = Callable[[str, Path], Listing]
"""(split, root) -> listing."""


def place(name: str, argument: str, given_as: str = "NAME:PATH") -> Path:
    """The folder of a benchmark: the one given, else `$LCA_DATA/NAME`."""
    if argument:
        return Path(os.path.expandvars(argument)).expanduser()
    if not os.environ.get("LCA_DATA"):
        raise LcaError(
            f"where is {name}? Give its folder as {given_as.replace('NAME', name)}, or set LCA_DATA to the folder that "
            f"holds {name}/"
        )
    return Path(os.environ["LCA_DATA"]).expanduser() / name


def find(name: str, path: Path, split: str | None = None) -> Listing:
    """List the images of a benchmark; the layout of the folder tells which split it is, where none is given."""
    card = benchmark_card(name)
    check_split(name, split)
    if not path.is_dir():
        raise LcaError(f"there is no folder {path}; `lca datasets get {name} --to {path}` fills it or says how to")
    located = {each: _located(path, card, entry["layout"]) for each, entry in card["splits"].items()}
    there = {each: place for each, place in located.items() if place}
    chosen = [each for each in there if split in (None, each)]
    if len(chosen) > 1 and len({there[each] for each in chosen}) == 1:  # one tree that may be either
        chosen = [_nearest_split(card, chosen, *there[chosen[0]])]
    if len(chosen) > 1:
        raise LcaError(
            f"{path} holds several splits of {name}; choose with data.split={chosen[0]} or {chosen[1]} (--split of "
            "`lca datasets`)"
        )
    if not chosen:
        trees = "or\n".join(tree_of(card, each, path) for each in card["splits"] if split in (None, each))
        got = f"the split {next(iter(there))!r}" if there else _content(path)
        of_split = f" in the split {split!r}" if split else ""
        raise LcaError(
            f"{path} does not hold {name}{of_split}: it holds {got}; expected\n{trees.rstrip()}{_as_folder(path)}"
        )
    root, read = there[chosen[0]]
    return read(chosen[0], root)


def _nearest_split(card: dict[str, Any], splits: list[str], root: Path, read: "Lister") -> str:
    """Class folders of a data set with several splits: that whose share of training images is nearest."""
    listing = read(splits[0], root)
    train, test = (sum(listing.counts(part).values()) for part in PARTS)

    def distance(split: str) -> float:
        entry = card["splits"][split]
        return abs(train / max(train + test, 1) - entry["train"] / (entry["train"] + entry["test"]))

    return min(splits, key=distance)


def _as_folder(path: Path) -> str:
    """A hint for class folders, in which others pack data sets that their authors do not."""
    inside = [each for each in (path, path / "train") if each.is_dir()][-1]
    if not any(each.is_dir() and not each.name.startswith(".") for each in inside.iterdir()):
        return ""
    return (
        f"\nIf it holds images in class folders, give it as data.source=folder:{path}: a run reads these too, but its "
        "numbers cannot be compared with published ones"
    )


def benchmark_card(name: str) -> dict[str, Any]:
    """The card of a data set that is a benchmark."""
    if name not in BENCHMARKS:
        raise LcaError(f"{name!r} is none of the benchmarks; {nearest(name, BENCHMARKS)}")
    return read_card(name)


def tree_of(card: dict[str, Any], split: str, path: Path) -> str:
    """What a split looks like in a folder, as lines for a message."""
    return indent(card["splits"][split].get("tree", CLASS_FOLDERS), "  ").replace("PATH", str(path))


def _content(path: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir() if not entry.name.startswith("."))
    return some(names) if names else "nothing"


# layouts: where the data set lies in a folder, and what it holds


def _located(path: Path, card: dict[str, Any], layout: str) -> tuple[Path, Lister] | None:
    """Where a layout begins and what lists it: the folder itself, or one of the usual names in it, holds all marks; or
    the folder is the one mark."""
    for marks, lister in LAYOUTS[layout].items():
        if marks == (path.name,):
            return path.parent, lister
        for place in (path, *(path / each for each in card.get("folders", ()))):
            if all((place / mark).exists() for mark in marks):
                return place, lister
    return None


def _list_class_folders(split: str, root: Path) -> Listing:
    report = ReadingReport()
    files = {part: class_files(root / part, report) for part in PARTS}
    classes = tuple(sorted({*files["train"], *files["test"]}))
    full = {part: {each: files[part].get(each, []) for each in classes} for part in PARTS}
    return Listing(split, root, classes, full, report=report)


def _list_cub(split: str, root: Path) -> Listing:
    classes = {number: class_name(each) for number, each in _numbered(root / "classes.txt").items()}
    images = _numbered(root / "images.txt")
    labels, training = (_numbered(root / f"{each}.txt") for each in ("image_class_labels", "train_test_split"))
    names = tuple(classes[number] for number in sorted(classes))
    files: dict[str, dict[str, list[Path]]] = {part: {each: [] for each in names} for part in PARTS}
    for file, table in (("image_class_labels.txt", labels), ("train_test_split.txt", training)):
        if other := sorted(table.keys() ^ images.keys()):
            raise LcaError(
                f"{root / file} is about {len(table)} images, images.txt about {len(images)}: image {other[0]} is in "
                "one of them only; unpack the archive again"
            )
    for number, relative in images.items():
        label = classes.get(int(labels[number])) if labels[number].isdecimal() else None
        if label != class_name(relative.partition("/")[0]):
            raise LcaError(
                f"{root}: image {number} is {relative}, but image_class_labels.txt says class {labels[number]}, "
                f"{label or 'which is not in classes.txt'}; unpack the archive again"
            )
        if training[number] not in ("0", "1"):
            raise LcaError(f"{root / 'train_test_split.txt'}: image {number} has {training[number]!r}; expected 0 or 1")
        files["train" if training[number] == "1" else "test"][label].append(root / "images" / relative)
    return Listing(split, root, names, files)


def _numbered(path: Path) -> dict[int, str]:
    """The lines `NUMBER TEXT` of a label file."""
    found: dict[int, str] = {}
    for line_number, line in enumerate(_lines(path), 1):
        number, _, text = line.strip().partition(" ")
        if not number.isdecimal() or not text or int(number) in found:
            raise LcaError(f"{path}, line {line_number}: expected a new number and a text, got {line[:80]!r}")
        found[int(number)] = text
    if not found:
        raise LcaError(f"{path} is empty; unpack the archive again")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}; unpack the archive again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LcaError(f"{path} cannot be read as text: {error}") from error


def _list_cars_devkit(split: str, root: Path) -> Listing:
    """The authors' two folders, labelled by their devkit."""
    devkit, labelled = root / "devkit", "cars_test_annos_withlabels.mat"
    annotations = {
        "train": devkit / "cars_train_annos.mat",
        "test": devkit / labelled if (devkit / labelled).exists() else root / labelled,
    }
    rows = []
    for part, path in annotations.items():
        folder = root / f"cars_{part}"
        if (folder / folder.name).is_dir():  # as some archives unpack
            folder /= folder.name
        rows += [(part, folder / file, label) for file, label in _matlab_rows(path, "fname", "class")]
    return _list_labelled_cars(split, root, devkit / "cars_meta.mat", rows)


def _list_cars_merged(split: str, root: Path) -> Listing:
    """The authors' one folder of all images and its one file of labels."""
    path = root / "cars_annos.mat"
    rows = [
        ("test" if test else "train", root / file, label)
        for file, label, test in _matlab_rows(path, "relative_im_path", "class", "test")
    ]
    return _list_labelled_cars(split, root, path, rows)


def _list_labelled_cars(split: str, root: Path, meta: Path, rows: list[tuple[str, Path, int]]) -> Listing:
    names = tuple(class_name(str(each)) for each in _matlab(meta, "class_names"))
    if repeated := {each for each in names if names.count(each) > 1}:
        raise LcaError(f"{meta} names these classes twice: {some(sorted(repeated))}")
    files: dict[str, dict[str, list[Path]]] = {part: {each: [] for each in names} for part in PARTS}
    for part, file, label in rows:
        if not 1 <= label <= len(names):
            raise LcaError(f"{root}: {file.name} has class {label}; {meta.name} has the classes 1 to {len(names)}")
        files[part][names[label - 1]].append(file)
    return Listing(split, root, names, files)


def _list_cars_folders(split: str, root: Path) -> Listing:
    """A folder per class, as others pack them. The labels are not those of the sorted names: a list has them."""
    listing = _list_class_folders(split, root)
    places = [each / "names.csv" for each in (root, *root.absolute().parents[:2])]
    path = next((each for each in places if each.is_file()), None)
    if path is None:
        raise LcaError(
            f"{root} has class folders, but no names.csv lies there or in the two folders above: it lists the classes "
            f"in the order of their labels and comes with the same archive. (data.source=folder:{root} needs none, but "
            "has other tasks than the literature)"
        )
    names = [class_name(line.strip().strip('"').replace("/", "-")) for line in _lines(path) if line.strip()]
    if sorted(names) != [*listing.classes]:
        unlike = sorted({*names} ^ {*listing.classes}) or ["a name that comes twice"]
        raise LcaError(f"{path} does not name the classes that are in {root}: {some(unlike)}")
    files = {part: {each: own[each] for each in names} for part, own in listing.files.items()}
    return replace(listing, classes=tuple(names), files=files)


def _matlab_rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of a .mat file's annotations: texts, or whole numbers."""
    table = _matlab(path, "annotations")
    if not {*columns} <= set(table.dtype.names or ()):
        expected = ", ".join(columns)
        raise LcaError(f"{path} has no labels: its columns are {table.dtype.names}, expected {expected}")
    return [
        tuple(str(row[each]) if isinstance(row[each], str) else int(row[each]) for each in columns) for row in table
    ]


def _matlab(path: Path, key: str) -> np.ndarray[Any, Any]:
    """One variable of a .mat file."""
    with needs("reading a .mat file", "scipy"):
        from scipy.io import loadmat

    if not path.exists():
        without = path.with_name("cars_test_annos.mat") if "withlabels" in path.name else None
        hint = f"; {without.name} has no labels and does not do" if without and without.exists() else ""
        raise LcaError(f"there is no file {path}{hint}; `lca datasets get cars196` says where to find it")
    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[key])
    except KeyError:
        raise LcaError(f"{path} holds no {key!r}; it is another file than the devkit's") from None
    except Exception as error:  # scipy raises whatever a damaged file leads it to
        raise LcaError(f"{path} cannot be read as a .mat file ({error}); it is damaged or cut short") from error


def torchvision_set(name: str) -> Any:
    """torchvision's class for CIFAR, with its addresses and checksums."""
    from torchvision import datasets

    return getattr(datasets, read_card(name)["download"]["torchvision"])


def _list_cifar(name: str, split: str, root: Path) -> Listing:
    from torchvision.datasets.utils import check_integrity

    kind = torchvision_set(name)
    for file, md5 in [*kind.train_list, *kind.test_list, [kind.meta["filename"], kind.meta["md5"]]]:
        path = root / kind.base_folder / file
        if not check_integrity(path, md5):
            wrong = f"is not the original (its MD5 is not {md5})" if path.is_file() else "is missing"
            raise LcaError(f"{path} {wrong}; remove {path.parent} and use `lca datasets get {name} --to {root}`")
    arrays, classes = {}, ()
    for part in PARTS:
        read = kind(root, train=part == "train")  # the only code that opens the pickles, after the check
        classes = tuple(read.classes)
        canvas = torch.from_numpy(np.ascontiguousarray(read.data.transpose(0, 3, 1, 2)))
        arrays[part] = ImageSet(Pixels.whole(canvas), torch.tensor(read.targets), classes)
    return Listing(split, root, classes, arrays=arrays)


LAYOUTS: dict[str, dict[tuple[str, ...], Lister]] = {
    "class_folders": {PARTS: _list_class_folders},
    "cub": {("images.txt",): _list_cub, PARTS: _list_class_folders},
    "cars": {
        ("devkit", "cars_train"): _list_cars_devkit,
        ("cars_annos.mat", "car_ims"): _list_cars_merged,
        PARTS: _list_cars_folders,
        ("devkit",): _list_cars_devkit,  # says what is missing
    },
    "cifar10": {("cifar-10-batches-py",): partial(_list_cifar, "cifar10")},
    "cifar100": {("cifar-100-python",): partial(_list_cifar, "cifar100")},
}
"""What tells each form of a layout, and how it is listed."""


# reading


def task_sizes_of(card: dict[str, Any]) -> tuple[int, ...]:
    """Classes of each of the literature's tasks, where they are not equal parts."""
    if "base" not in card:
        return ()
    return tuple(base_and_increments(card["classes"], card["base"], card["increment"]))


def read_benchmark(name: str, argument: str, options: DataOptions, working_size: int, progress: Progress) -> Source:
    """A benchmark from its folder; one that is not whole is read with a warning."""
    path = place(name, argument)
    listing = find(name, path, options.split)
    card = read_card(name)
    again = f"`lca datasets verify {name} {path}` says more"
    if len(listing.classes) < 2:
        raise LcaError(
            f"{listing.root} holds the class {listing.classes[0]!r} only; {card['classes']} were expected: {again}"
        )
    for part in PARTS:
        if empty := listing.empty(part):
            raise LcaError(
                f"{listing.root}: the {part} part has no images of {len(empty)} of {len(listing.classes)} classes: "
                f"{some(empty)}; {again}"
            )
    train, test = listing.read(working_size, progress)
    split = card["splits"][listing.split]
    got = [len(listing.classes), len(train), len(test)]
    as_published = got == [card["classes"], split["train"], split["test"]]
    if not as_published:
        progress.warning(
            f"CHECK: {listing.root} is not the {name} of the literature (split {listing.split}): expected "
            f"{card['classes']} classes with {split['train']} training and {split['test']} test images, got {got[0]} "
            f"with {got[1]} and {got[2]}. Do not compare numbers with published ones; {again}"
        )
    sizes = task_sizes_of(card) if len(listing.classes) == card["classes"] else ()
    full_name = f"{name}-{listing.split}" if len(card["splits"]) > 1 else name
    return Source.of_card(card, full_name, train, test, sizes=sizes, as_published=as_published)


def _register(name: str) -> None:
    def read(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
        return read_benchmark(name, argument, options, working_size, progress)

    card = read_card(name)
    splits = "; ".join(f"{each}: {entry['train']:,} / {entry['test']:,}" for each, entry in card["splits"].items())
    read.__doc__ = f"`{name}:PATH`: {card['title']}. {card['classes']} classes, train / test images: {splits}."
    sources.register(name)(read)


for _name in BENCHMARKS:
    _register(_name)
