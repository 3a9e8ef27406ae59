"""Folders of domains as a source: the same classes as photos, paintings, sketches and whatever they come as."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lca.data.decoding import LeftOut, name_of
from lca.data.folders import ReadingReport, case_only, class_files, class_name, content_of
from lca.data.images import ImageSet
from lca.data.options import DataOptions
from lca.data.sources import (
    Domains,
    Source,
    check_test,
    folder_of,
    parts_of,
    read_and_split,
    read_files,
    short_path,
    sources,
    told_source,
    without_images,
)
from lca.errors import LcaError
from lca.progress import Progress

LAYOUT = "expected the same class folders in several domains, such as photo/cat/1.jpg and sketch/cat/1.jpg"

Listing = Mapping[tuple[str, str], list[Path]]
"""The image files by domain and class."""


@sources.register("domains")
def domains(argument: str, options: DataOptions, seed: int, working_size: int, progress: Progress) -> Source:
    """`domains:PATH`: folders of domains with the same class folders inside, DOMAIN/CLASS/*.jpg, below `train` and
    `test` (or `val`) or split by seed. With `data.order=domains` a task is a domain, and classes come back."""
    root = folder_of(argument, "domains:PATH", "one folder per domain")
    report = ReadingReport()
    parts = parts_of(root, report)
    listing = {part: _listing(path, report) for part, path in (parts or {"all": root}).items()}
    names, classes = (tuple(sorted({each[place] for part in listing.values() for each in part})) for place in (0, 1))
    _check(root, listing, names, classes)
    report.case_only = case_only(classes)
    files = {
        part: {"/".join(place): of.get(place, []) for place in itertools.product(names, classes)}
        for part, of in listing.items()
    }
    if parts:
        read = [read_files(files[part], working_size, progress, report) for part in parts]
    else:
        read = read_and_split(files["all"], options, working_size, progress, report)
    (train, learnt_files), (test, tested_files) = ((_by_class(images, classes), paths) for images, paths in read)
    of_train, of_test = (images.labels // len(classes) for images, _ in read)
    if missing := without_images(train):
        raise LcaError(f"{root}: there are no training images of the classes {missing[:5]}; add some, or remove them")
    check_test(root, train, test)

    def alike(one: int, two: int) -> str:
        return f"{short_path(tested_files[two])} looks like {short_path(learnt_files[one])}"

    source = told_source("domains", root.name, train, test, alike, report, progress)
    return replace(source, domains=Domains(names, of_train, of_test))


def _listing(root: Path, report: ReadingReport) -> Listing:
    """What lies below a folder of domains; the report is told of others."""
    inner, loose = content_of(root, report)
    report.left_out += [LeftOut(name_of(path), "lies beside the domains; put it into a class of one") for path in loose]
    listing = defaultdict[tuple[str, str], list[Path]](list)
    for path in inner:
        for name, files in class_files(path, report).items():
            listing[class_name(path.name), name] += files
    return {place: files for place, files in listing.items() if files}


def _check(root: Path, listing: Mapping[str, Listing], names: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Some class must come in two domains; a run needs two classes."""
    if len({place for part in listing.values() for place in part}) == len(classes):
        raise LcaError(
            f"{root} holds {len(names)} domains and {len(classes)} classes, none of which comes in two domains; "
            f"{LAYOUT}. For domains with classes of their own name class folders DOMAIN-CLASS and use folder:PATH"
        )
    if len(classes) < 2:
        raise LcaError(f"{root} holds images of the class {classes[0]!r} only; a run needs two or more classes")


def _by_class(images: ImageSet, classes: tuple[str, ...]) -> ImageSet:
    """Images that were read class by class of every domain, labelled by their class alone."""
    return images.relabelled(images.labels % len(classes), classes)
