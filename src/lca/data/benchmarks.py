"""The benchmarks of the literature as their cards describe them, and two more sources: `hf:NAME` and `synthetic`.

A benchmark is a card with `splits`. A split names a layout, one of `LAYOUTS`, which finds and lists the images of a
folder without reading them; classes stand in the data set's own order of labels. `find` is used to read a benchmark and
to verify it.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lca.config import DataOptions, ViewOptions
from lca.data.decoding import FORMATS, ImageLike, LeftOut, decode_all, unreadable_images
from lca.data.folders import ReadingReport, class_files, class_name, decode_labelled, image_set
from lca.data.images import ImageSet, Pixels
from lca.data.sources import Source, check_split, read_card, read_files, seeded_split, sources
from lca.data.streams import Stream
from lca.errors import LcaError, nearest
from lca.progress import Progress
from lca.randomness import generator

BENCHMARKS = ("cars196", "cifar10", "cifar100", "cub200", "imagenet_a", "imagenet_r", "omnibenchmark", "vtab")
PARTS = ("train", "test")
NAMED = 10
"""Classes, files or tasks that a finding names before it only counts."""


@dataclass(frozen=True)
class Listing:
    """A benchmark as it lies on the disk."""

    name: str
    split: str
    root: Path
    classes: tuple[str, ...]
    files: Mapping[str, dict[str, list[Path]]] = field(default_factory=dict)
    """By part and class."""
    arrays: Mapping[str, ImageSet] = field(default_factory=dict)
    """By part, where the images are no files."""
    report: ReadingReport = field(default_factory=ReadingReport)

    def counts(self, part: str) -> list[int]:
        """Images of every class."""
        if self.arrays:
            return torch.bincount(self.arrays[part].labels, minlength=len(self.classes)).tolist()
        return [len(self.files[part][name]) for name in self.classes]

    def read(self, working_size: int, progress: Progress) -> tuple[ImageSet, ImageSet]:
        """The training and the test images."""
        if self.arrays:
            return self.arrays["train"], self.arrays["test"]
        train, test = (read_files(self.files[part], working_size, progress, self.report, True) for part in PARTS)
        if self.report.read:  # else all of it was told before
            for line in self.report.lines():
                progress.line(line)
        return train, test


def place(name: str, argument: str) -> Path:
    """The folder of a benchmark: the one given, else `$LCA_DATA/NAME`."""
    if argument:
        return Path(os.path.expandvars(argument)).expanduser()
    if not os.environ.get("LCA_DATA"):
        raise LcaError(
            f"where is {name}? Give its folder as {name}:PATH, or set LCA_DATA to the folder that holds {name}/"
        )
    return Path(os.environ["LCA_DATA"]).expanduser() / name


def find(name: str, path: Path, split: str | None = None) -> Listing:
    """List the images of a benchmark; the layout of the folder tells which split it is, where none is given."""
    card = benchmark_card(name)
    if split is not None:
        check_split(name, split)
    if not path.is_dir():
        raise LcaError(f"there is no folder {path}; `lca datasets get {name} --to {path}` fills it or says how to")
    roots = {each: LAYOUTS[entry["layout"]][0](path, card) for each, entry in card["splits"].items()}
    there = [each for each, root in roots.items() if root is not None]
    chosen = [each for each in there if split in (None, each)]
    if len(chosen) > 1:
        raise LcaError(f"{path} holds several splits of {name}; choose with data.split={chosen[0]} or {chosen[1]}")
    if not chosen:
        trees = "or\n".join(_tree(card, each, path) for each in card["splits"] if split in (None, each))
        came = f"the split {there[0]!r}" if there else _content(path)
        of_split = f" in the split {split!r}" if split else ""
        raise LcaError(f"{path} does not hold {name}{of_split}: it holds {came}; expected\n{trees.rstrip()}")
    root = roots[chosen[0]]
    assert root is not None
    return LAYOUTS[card["splits"][chosen[0]]["layout"]][1](name, chosen[0], root)


def benchmark_card(name: str) -> dict[str, Any]:
    """The card of a data set that is a benchmark."""
    if name not in BENCHMARKS:
        raise LcaError(f"{name!r} is none of the benchmarks; {nearest(name, BENCHMARKS)}")
    return read_card(name)


def _tree(card: dict[str, Any], split: str, path: Path) -> str:
    lines = str(card["splits"][split]["tree"]).replace("PATH", str(path)).splitlines()
    return "".join(f"  {line}\n" for line in lines)


def _content(path: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir() if not entry.name.startswith("."))
    return _some(names) if names else "nothing"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# layouts: where the data set lies in a folder, and what it holds


def _within(path: Path, card: dict[str, Any], *marks: str) -> Path | None:
    """The folder itself, or one of the usual names in it, that holds all marks."""
    places = [path, *(path / each for each in card.get("folders", ()))]
    return next((each for each in places if all((each / mark).exists() for mark in marks)), None)


def _find_class_folders(path: Path, card: dict[str, Any]) -> Path | None:
    return _within(path, card, "train", "test")


def _list_class_folders(name: str, split: str, root: Path) -> Listing:
    report = ReadingReport()
    files = {part: class_files(root / part, report) for part in PARTS}
    classes = tuple(sorted({*files["train"], *files["test"]}))
    full = {part: {each: files[part].get(each, []) for each in classes} for part in PARTS}
    return Listing(name, split, root, classes, full, report=report)


def _find_cub(path: Path, card: dict[str, Any]) -> Path | None:
    return _within(path, card, "images.txt")


def _list_cub(name: str, split: str, root: Path) -> Listing:
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
    return Listing(name, split, root, names, files)


def _numbered(path: Path) -> dict[int, str]:
    """The lines `NUMBER TEXT` of a label file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}; unpack the archive again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LcaError(f"{path} cannot be read as text: {error}") from error
    found: dict[int, str] = {}
    for line_number, line in enumerate(lines, 1):
        number, _, text = line.strip().partition(" ")
        if not number.isdecimal() or not text or int(number) in found:
            raise LcaError(f"{path}, line {line_number}: expected a new number and a text, came {line[:80]!r}")
        found[int(number)] = text
    if not found:
        raise LcaError(f"{path} is empty; unpack the archive again")
    return found


def _find_cars(path: Path, card: dict[str, Any]) -> Path | None:
    return _within(path, card, "devkit")


def _list_cars(name: str, split: str, root: Path) -> Listing:
    devkit = root / "devkit"
    names = tuple(class_name(str(each)) for each in _matlab(devkit / "cars_meta.mat", "class_names"))
    if repeated := {each for each in names if names.count(each) > 1}:
        raise LcaError(f"{devkit / 'cars_meta.mat'} names these classes twice: {_some(sorted(repeated))}")
    labelled = "cars_test_annos_withlabels.mat"
    annotations = {
        "train": devkit / "cars_train_annos.mat",
        "test": devkit / labelled if (devkit / labelled).exists() else root / labelled,
    }
    files: dict[str, dict[str, list[Path]]] = {part: {each: [] for each in names} for part in PARTS}
    for part, path in annotations.items():
        folder = root / f"cars_{part}"
        if (folder / folder.name).is_dir():  # as some archives unpack
            folder /= folder.name
        table = _matlab(path, "annotations")
        if not {"fname", "class"} <= set(table.dtype.names or ()):
            raise LcaError(f"{path} has no labels: its columns are {table.dtype.names}, expected fname and class")
        for row in table:
            label, file = int(row["class"]), str(row["fname"])
            if not 1 <= label <= len(names):
                raise LcaError(f"{path}: {file} has class {label}; cars_meta.mat has the classes 1 to {len(names)}")
            files[part][names[label - 1]].append(folder / file)
    return Listing(name, split, root, names, files)


def _matlab(path: Path, key: str) -> np.ndarray[Any, Any]:
    """One variable of a .mat file."""
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


def _find_cifar(path: Path, card: dict[str, Any]) -> Path | None:
    folder = torchvision_set(card["name"]).base_folder
    if path.name == folder:
        return path.parent
    return path if (path / folder).is_dir() else None


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
        sizes = torch.tensor(canvas.shape[2:]).repeat(len(canvas), 1)
        arrays[part] = ImageSet(Pixels(canvas, sizes), torch.tensor(read.targets), classes)
    return Listing(name, split, root, classes, arrays=arrays)


LAYOUTS: dict[str, tuple[Callable[[Path, dict[str, Any]], Path | None], Callable[[str, str, Path], Listing]]] = {
    "class_folders": (_find_class_folders, _list_class_folders),
    "cub": (_find_cub, _list_cub),
    "cars": (_find_cars, _list_cars),
    "cifar": (_find_cifar, _list_cifar),
}


# reading


def task_sizes_of(card: dict[str, Any]) -> tuple[int, ...]:
    """Classes of each of the literature's tasks, where they are not equal parts."""
    if "base" not in card:
        return ()
    rest, step = card["classes"] - card["base"], card["increment"]
    return (card["base"], *[step] * (rest // step), *([rest % step] if rest % step else []))


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
        if empty := [each for each, count in zip(listing.classes, listing.counts(part), strict=True) if not count]:
            raise LcaError(
                f"{listing.root}: the {part} part has no images of {len(empty)} of {len(listing.classes)} classes: "
                f"{_some(empty)}; {again}"
            )
    split = card["splits"][listing.split]
    came = [len(listing.classes), *(sum(listing.counts(part)) for part in PARTS)]
    whole = came == [card["classes"], split["train"], split["test"]]
    if not whole:
        progress.warning(
            f"CHECK: {listing.root} is not the {name} of the literature (split {listing.split}): expected "
            f"{card['classes']} classes with {split['train']} training and {split['test']} test images, came {came[0]} "
            f"with {came[1]} and {came[2]}. Do not compare numbers with published ones; {again}"
        )
    train, test = listing.read(working_size, progress)
    return Source(
        f"{name}-{listing.split}" if len(card["splits"]) > 1 else name,
        train,
        test,
        min(card["tasks"], len(listing.classes)),
        ViewOptions.model_validate(card["view"]),
        task_sizes_of(card) if len(listing.classes) == card["classes"] else (),
    )


def _register(name: str) -> None:
    def read(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
        return read_benchmark(name, argument, options, working_size, progress)

    card = read_card(name)
    splits = "; ".join(f"{each}: {entry['train']:,} / {entry['test']:,}" for each, entry in card["splits"].items())
    read.__doc__ = f"`{name}:PATH`: {card['title']}. {card['classes']} classes, train / test images: {splits}."
    sources.register(name)(read)


for _name in BENCHMARKS:
    _register(_name)


# verifying


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
    if split is not None:
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
        yield Finding(False, f"files: {len(missing)} that the labels name are missing: {_some([*map(str, missing)])}")
    for part in PARTS:
        gone = sum(not file.exists() for file in _files(listing, part)) if missing else 0
        yield _compared(f"{part} images", expected[part], sum(listing.counts(part)) - gone)
    yield from _check_class_counts(listing, card)
    for seed, counts in expected.get("per_task", {}).items():
        yield from _check_tasks(listing, card, seed, counts)
    if open_images and listing.files:
        files: list[ImageLike] = [file for part in PARTS for file in _files(listing, part)]
        broken = [each for each in decode_all(files, 8, progress) if isinstance(each, LeftOut)]
        wrong = f": {len(broken)} cannot be read: {_some([str(each) for each in broken])}"
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
            yield Finding(False, f"classes: missing: {_some(missing)}")
        if unknown := [each for each in listing.classes if each not in names]:
            yield Finding(False, f"classes: not in the data set: {_some(unknown)}")
    for part in PARTS:
        counts = dict(zip(listing.classes, listing.counts(part), strict=True))
        if empty := [each for each, count in counts.items() if not count]:
            yield Finding(False, f"{part}: no images of {len(empty)} classes: {_some(empty)}")


def _check_class_counts(listing: Listing, card: dict[str, Any]) -> Iterator[Finding]:
    """Counts of single classes, where the card knows them."""
    train, test = (dict(zip(listing.classes, listing.counts(part), strict=True)) for part in PARTS)
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
            yield Finding(False, f"{what} images of {len(wrong)} classes: {_some(wrong)}")


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
    counts = torch.tensor(listing.counts(part))
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    pixels = Pixels(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), torch.ones(len(labels), 2, dtype=torch.long))
    return ImageSet(pixels, labels, listing.classes)


# sources of any size


def _settings(text: str, allowed: Mapping[str, Any], example: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping."""
    found = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (each.strip() for each in item.partition("="))
        if not equals or not value or key not in allowed:
            raise LcaError(f"data.source: came {item!r}; expected some of {', '.join(allowed)}, for example {example}")
        found[key] = value
    return found


SYNTHETIC = {"classes": 10, "train": 20, "test": 5, "size": 32, "seed": 0}


@sources.register("synthetic")
def synthetic(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`synthetic:classes=1000,train=20,test=5,size=32,seed=0`: painted patterns, any number of classes and of images
    per class; what is left out is as in `classes=10,train=20,test=5,size=32,seed=0`."""
    example = "synthetic:classes=1000,train=20,test=5,size=32,seed=0"
    given = dict(SYNTHETIC)
    for key, value in _settings(argument, SYNTHETIC, example).items():
        lowest = {"classes": 2, "seed": 0, "size": 4}.get(key, 1)
        if not value.isdecimal() or int(value) < lowest:
            raise LcaError(f"data.source: synthetic {key}={value}; expected a whole number from {lowest} on")
        given[key] = int(value)
    count, train, test, size = (given[key] for key in ("classes", "train", "test", "size"))
    names = tuple(f"pattern{number:0{len(str(count - 1))}}" for number in range(count))
    canvas = torch.empty(count, train + test, 3, size, size, dtype=torch.uint8)
    for number in progress.track(range(count), "painting patterns", count):
        canvas[number] = _painted(generator(given["seed"], "synthetic", number), train + test, size)
    card = read_card("synthetic")

    def part(pixels: Tensor) -> ImageSet:
        labels = torch.arange(count).repeat_interleave(pixels.shape[1])
        flat = pixels.flatten(0, 1)
        return ImageSet(Pixels(flat, torch.full((len(flat), 2), size)), labels, names)

    view = ViewOptions.model_validate(card["view"])
    parts = part(canvas[:, :train]), part(canvas[:, train:])
    return Source("synthetic", *parts, min(card["tasks"], count), view)


def _painted(random: torch.Generator, count: int, size: int) -> Tensor:
    """Images (count, 3, size, size) of one class: its soft pattern of colours, shifted, dimmed and with noise."""
    coarse = torch.rand(1, 3, 4, 4, generator=random)
    pattern = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)[0]
    shifts = torch.randint(-(size // 16), size // 16 + 1, (count, 2), generator=random).tolist()
    images = torch.stack([pattern.roll(shift, (1, 2)) for shift in shifts])
    images = images * (0.8 + 0.4 * torch.rand(count, 1, 1, 1, generator=random))
    images = images + 0.08 * torch.randn(images.shape, generator=random)
    return (255 * images).round().clamp(0, 255).to(torch.uint8)


HF_SETTINGS = ("config", "image", "label", "train", "test")


@sources.register("hf")
def hugging_face(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`hf:NAME`: an image data set of the Hugging Face hub, or a folder that its library saved; needs `pip install
    "lca[hf]"`. Where there is a choice: `hf:NAME,config=C,image=COLUMN,label=COLUMN,train=SPLIT,test=SPLIT`."""
    name, _, rest = argument.partition(",")
    if not name:
        raise LcaError("data.source hf:NAME needs a name, for example hf:uoft-cs/cifar10")
    given = _settings(rest, dict.fromkeys(HF_SETTINGS), "hf:uoft-cs/cifar100,label=fine_label")
    splits = _load_hugging_face(name, given.get("config"))
    train = _chosen(splits, given.get("train"), ("train",), f"{name}: split", "train")
    test = given.get("test") or next((each for each in ("test", "validation", "valid", "val") if each in splits), None)
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
        parts = seeded_split({each: own for each, own in by_class.items() if own}, options.test_share, seed)
        listed = [[(picture, each) for each, own in parts[part].items() for picture in own] for part in PARTS]
    else:
        listed = [pairs[train], pairs[test]]
    decoded = [decode_labelled(part, working_size, progress, report) for part in listed]
    if not decoded[0]:
        raise unreadable_images(report.left_out)
    present = {each for _, each in decoded[0]}
    if empty := [each for each in classes if each not in present]:
        raise LcaError(f"{name}: no readable training images of {len(empty)} of {len(classes)} classes: {_some(empty)}")
    for line in report.lines():
        progress.line(line)
    card = read_card("hf")
    learnt, tested = (image_set(part, classes) for part in decoded)
    view = ViewOptions.model_validate(card["view"])
    return Source(f"hf:{Path(name).name}", learnt, tested, min(card["tasks"], len(classes)), view)


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
        raise LcaError(f"{name}: expected two or more classes of different names, came {_some([*names])}")
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
