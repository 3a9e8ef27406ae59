"""Lists of labelled images in a file: CSV, TSV or JSON lines of path and label. Paths are relative to the file."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lca.data.decoding import name_of, printable
from lca.data.folders import ReadingReport, class_name
from lca.data.parts import Album
from lca.errors import LcaError

SEPARATED = (".csv", ".tsv")
LINES = (".jsonl", ".ndjson")
PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_NAMES = ("label", "class", "class_name", "category", "target")
"""What the columns may be called, in upper or lower case."""
Row = tuple[int, str, str]
"""The number of a line, the path and the label."""


def album_of_table(path: Path) -> Album:
    """The images that a file of paths and labels names."""

    def images(part: str, report: ReadingReport) -> dict[str, list[Path]]:
        read = _separated if path.suffix.lower() in SEPARATED else _json_lines
        classes: dict[str, list[Path]] = defaultdict(list)
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for number, image, label in read(path, file):
                    if not image or not label:
                        raise _wrong(path, number, f"the {'label' if image else 'path'} is empty")
                    classes[class_name(label)].append(path.parent / Path(image).expanduser())
        except FileNotFoundError:
            raise LcaError(f"there is no file {name_of(path)}") from None
        except OSError as error:
            raise LcaError(f"{name_of(path)} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise LcaError(f"{name_of(path)} is no text in UTF-8 ({error.reason}); save it as UTF-8") from error
        if not classes:
            raise LcaError(f"{name_of(path)} names no image; expected lines such as photos/1.jpg,cat")
        return dict(sorted(classes.items()))

    return Album(name_of(path), {}, images)


def _separated(path: Path, file: IO[str]) -> Iterator[Row]:
    """Rows of a CSV file, separated by what its first line has most of; a first row of known names is a header."""
    first = file.readline()
    file.seek(0)
    rows = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
    columns: tuple[int, int] | None = None
    width = 0
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if columns is None:
                width, columns = len(cells), _header(cells)
                if columns:
                    continue
                columns = (0, 1)
                if width != 2:
                    raise _wrong(path, rows.line_num, f"{width} columns and no header that names them")
            if len(cells) != width:
                raise _wrong(path, rows.line_num, f"{len(cells)} columns where the first line has {width}")
            yield rows.line_num, cells[columns[0]], cells[columns[1]]
    except csv.Error as error:
        raise _wrong(path, rows.line_num, str(error)) from error


def _header(cells: list[str]) -> tuple[int, int] | None:
    """Where path and label stand, if this row names its columns."""
    names = [cell.casefold() for cell in cells]
    places = [next((names.index(each) for each in known if each in names), None) for known in (PATH_NAMES, LABEL_NAMES)]
    if places[0] is None or places[1] is None:
        return None
    return places[0], places[1]


def _json_lines(path: Path, file: IO[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise _wrong(path, number, f"this is no JSON ({error})") from error
        if not isinstance(row, dict):
            raise _wrong(path, number, f"got {line.strip()[:80]!r}")
        by_name = {str(key).casefold(): value for key, value in row.items()}
        image, label = (
            next((by_name[each] for each in known if each in by_name), None) for known in (PATH_NAMES, LABEL_NAMES)
        )
        if not isinstance(image, str) or not isinstance(label, str | int) or isinstance(label, bool):
            raise _wrong(path, number, f"got {line.strip()[:80]!r}")
        yield number, image, str(label)


def _wrong(path: Path, number: int, reason: str) -> LcaError:
    table = path.suffix.lower() in SEPARATED
    expected = "photos/1.jpg,cat" if table else '{"path": "photos/1.jpg", "label": "cat"}'
    names = f"; a header may name the columns ({', '.join(PATH_NAMES[:3])}; {', '.join(LABEL_NAMES[:3])})" * table
    return LcaError(f"{name_of(path)}, line {number}: {printable(reason)}; expected {expected}{names}")
