"""Which images the arguments of `lca predict` name, and how answers are printed, also those of `lca evaluate`."""

import csv
import sys
from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lca.text import csv_text, json_text, terminal_text

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier
    from lca.data.decoding import LeftOut
    from lca.data.folders import ReadingReport
    from lca.evaluation.answers import Answer
    from lca.evaluation.predictions import Prediction


def image_paths(arguments: Iterable[str], report: "ReadingReport") -> Iterator[Path]:
    """The files that arguments name: files as they are, folders with all images below, patterns, - for a list."""
    for argument in arguments:
        if argument == "-":
            for line in sys.stdin:
                if line.strip():
                    yield from _files_of(Path(line.rstrip("\r\n")), report)
        elif has_magic(argument) and not Path(argument).exists():
            for match in sorted(glob(argument, recursive=True)) or [argument]:
                yield from _files_of(Path(match), report)
        else:
            yield from _files_of(Path(argument), report)


def _files_of(path: Path, report: "ReadingReport") -> list[Path]:
    from lca.data.folders import image_files

    return image_files(path, report) if path.is_dir() else [path]


class Printer:
    """Prints answers as they come, in the table's format."""

    def __init__(self, paths: list[Path], top: int, learner: "ContinualClassifier", branch: str | None) -> None:
        self._width = min(max(len(_shown(path)) for path in paths), 60)
        self._top = top
        self._calibrated = (branch or learner.branch) in learner.temperatures

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        facts = self.facts(path, answer)
        if "error" in facts:
            print(f"{facts['image']:<{self._width}}  could not be read: {facts['error']}")
            return
        far = "" if facts["distance"] is None else f"  distance {facts['distance']:5.1f} %"
        first, *others = (f"{terminal_text(each['label'])} {100 * each['probability']:.1f} %" for each in facts["top"])
        mark = "unknown, nearest to " if facts["unknown"] else ""
        print(f"{facts['image']:<{self._width}}  {mark}{first}{far}" + f"  ({', '.join(others)})" * bool(others))

    def end(self) -> None:
        sys.stdout.flush()

    def facts(self, path: Path, answer: "Prediction | LeftOut") -> dict[str, Any]:
        from lca.data.decoding import LeftOut

        if isinstance(answer, LeftOut):
            return {"image": _shown(path), "error": answer.reason}
        return {
            "image": _shown(path),
            "label": answer.label,
            "probability": round(answer.probability, 6),
            "calibrated": self._calibrated,
            "distance": None if answer.distance is None else round(answer.distance, 3),
            "unknown": answer.unknown,
            "top": [{"label": label, "probability": round(value, 6)} for label, value in answer.top(self._top)],
        }


class JsonPrinter(Printer):
    """One JSON array, an image a line."""

    _before = "["

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        print(self._before, json_text(self.facts(path, answer)), sep="\n", end="")
        self._before = ","

    def end(self) -> None:
        print("\n]", flush=True)


class CsvPrinter(Printer):
    """A line per image, with a header."""

    def __init__(self, paths: list[Path], top: int, learner: "ContinualClassifier", branch: str | None) -> None:
        super().__init__(paths, top, learner, branch)
        others = [f"{what}_{place}" for place in range(2, top + 1) for what in ("label", "probability")]
        self._columns = ["image", "label", "probability", "calibrated", "distance", "unknown", *others, "error"]
        self._writer = csv.DictWriter(sys.stdout, self._columns, restval="", lineterminator="\n")
        self._writer.writeheader()

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        row = self.facts(path, answer)
        for place, each in enumerate(row.pop("top", [])[1:], start=2):
            row |= {f"label_{place}": each["label"], f"probability_{place}": each["probability"]}
        for name in ("unknown", "calibrated"):
            row |= {name: str(row[name]).lower()} if name in row else {}
        cells = {name: terminal_text(value) if isinstance(value, str) else value for name, value in row.items()}
        self._writer.writerow(
            {name: csv_text(value) if isinstance(value, str) else value for name, value in cells.items()}
        )


def print_answers(answers: "Iterable[Answer]") -> None:
    """Answers beside the truth as CSV, with a header."""
    from lca.evaluation.answers import COLUMNS

    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**each.as_json(), "unknown": str(each.unknown).lower()} for each in answers)


PRINTERS: dict[str, type[Printer]] = {"table": Printer, "json": JsonPrinter, "csv": CsvPrinter}


def _shown(path: Path) -> str:
    """A path that can be printed, whatever its bytes."""
    return terminal_text(str(path))
