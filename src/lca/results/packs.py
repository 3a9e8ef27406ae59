"""Packs: the results of a sweep in one file, a line for every cell, without what follows from the rest.

Metrics that follow from the counts of right answers are computed when a pack is read, so are the counts' shares in
tables of reliability. Packs of format 1 have all of it written out; they are read as well.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lca.errors import LcaError
from lca.evaluation.accuracy import AccuracyRecord
from lca.files import read_json, write_atomic
from lca.results.folder import FAILED, FINISHED, OPEN, CellName, RunFiles, SweepFiles
from lca.results.metrics import METRICS, metrics_of_counts
from lca.results.seeds import key_of_today

FORMAT, READABLE = 2, (1, 2)
"""Of packs: the one that is written, and those that are read."""
RANKS = (FINISHED, FAILED, OPEN)
"""Of two entries of one cell the earlier one is kept."""


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep, and how far it is."""

    key: str
    """Of its recipe, in whichever part of a sweep it is."""
    label: str
    seed: int
    source: str = ""
    state: str = OPEN
    stored: Mapping[str, Any] | None = None
    """Its results as a pack has them."""
    robustness: list[dict[str, Any]] = field(default_factory=list)
    """What was measured on damaged images, a branch each."""
    error: str = ""
    """Why it failed, if it did."""
    folder: Path | None = field(default=None, compare=False)
    """None where it has not begun, or where only the pack is at hand."""

    @cached_property
    def results(self) -> dict[str, Any]:
        """Of a cell that is finished."""
        if self.stored is None and self.folder is not None:
            return whole(read_json(RunFiles(self.folder).results))
        return whole(self.stored or {})

    @property
    def recipe(self) -> dict[str, Any]:
        return dict((self.stored or self.results)["recipe"])

    def __str__(self) -> str:
        data, error = f", {self.source}" if self.source else "", self.error
        return f"{self.label or 'a cell'}{data}, seed {self.seed}, is {self.state}{f': {error}' if error else ''}"

    def short(self) -> str:
        """Which one, and the beginning of why it failed."""
        kind, _, text = self.error.partition(": ")
        why = re.split(r"[,;\n]|\. ", text or kind)[0]
        return f"{self.label or 'a cell'}, seed {self.seed}{f' ({why})' if why else ''}"

    def in_folder(self, folder: Path) -> "SweepCell":
        """As it is now in its folder."""
        if self.state == FINISHED:
            return replace(self, folder=folder)
        files, state = RunFiles(folder), RunFiles(folder).state()
        return replace(self, folder=folder, state=state, error=files.error() if state == FAILED else "")

    def as_json(self) -> dict[str, Any]:
        entry = {"key": self.key, "label": self.label, "seed": self.seed, "source": self.source, "status": self.state}
        more = {"results": self.stored, "robustness": self.robustness, "error": self.error}
        return entry | {key: value for key, value in more.items() if value}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "SweepCell":
        place = (entry["key"], entry["label"], entry["seed"], entry.get("source", ""), entry["status"])
        results = without_what_follows(entry["results"]) if "results" in entry else None
        return cls(*place, results, entry.get("robustness", []), entry.get("error", ""))

    @classmethod
    def packed(cls, name: CellName, source: str, folder: Path) -> "SweepCell":
        """What a pack holds of a cell: of a finished one its results and its robustness, of a failed one its error, the
        rest as open."""
        files = RunFiles(folder)
        cell = cls(name.key, name.label, name.seed, source)
        if (results := files.finished()) is not None:
            stored, robustness = without_what_follows(results), files.robustness()
            return replace(cell, state=FINISHED, stored=stored, robustness=robustness, folder=folder)
        error = files.error()
        return replace(cell, state=FAILED, error=error) if error else cell


@dataclass(frozen=True)
class Pack:
    """The cells of a sweep."""

    cells: Sequence[SweepCell]

    @property
    def finished(self) -> list[SweepCell]:
        return [cell for cell in self.cells if cell.state == FINISHED]

    @classmethod
    def read(cls, path: Path) -> "Pack":
        content = read_json(path)
        if not isinstance(content, dict) or "cells" not in content:
            measured = "; `lca theory` and `lca diagnose` show what they wrote" if path.is_file() else ""
            raise LcaError(f"{path} is neither a run folder nor a pack that `lca sweep` wrote{measured}")
        if content.get("format") not in READABLE:
            raise LcaError(f"{path} has format {content.get('format')}, this version reads packs of 1 and 2")
        return cls([SweepCell.from_json(entry) for entry in content["cells"]])

    def write(self, path: Path) -> None:
        write_lines(path, FORMAT, "cells", [cell.as_json() for cell in self.cells])

    @classmethod
    def merged(cls, packs: Iterable["Pack"]) -> "Pack":
        """One of several, cell by cell: finished wins over failed, failed over open, of finished cells one whose
        robustness was measured, and the first of equals."""

        def rank(cell: SweepCell) -> tuple[int, bool]:
            return RANKS.index(cell.state), not cell.robustness

        merged: dict[str, SweepCell] = {}
        for pack in packs:
            for cell in pack.cells:
                recipe = cell.stored.get("recipe", {}) if cell.stored else {}
                key = key_of_today(recipe) or cell.key  # earlier versions had others
                if key not in merged or rank(cell) < rank(merged[key]):
                    merged[key] = replace(cell, key=key)
        return cls([*merged.values()])


def sweep_cells(path: Path) -> list[SweepCell]:
    """The cells of a pack, or of a sweep's folder with the states they have now.

    A folder without a pack has those that have begun, labelled by the names of their folders.
    """
    pack = SweepFiles(path).pack if path.is_dir() else path
    folders = SweepFiles(pack.parent).cells() if pack.name == "pack.json" else {}
    if not pack.exists() and folders:
        return [_begun(name, folder) for folder, name in folders.items()]
    places = {name.key: folder for folder, name in folders.items()}
    cells = Pack.read(pack).cells
    return [cell.in_folder(places[cell.key]) if cell.key in places else cell for cell in cells]


def _begun(name: CellName, folder: Path) -> SweepCell:
    source = RunFiles(folder).stored_recipe().get("data", {}).get("source", "")
    return SweepCell(name.key, name.label, name.seed, source).in_folder(folder)


def write_lines(path: Path, version: int, key: str, entries: Iterable[Any]) -> None:
    """Compact JSON with a line for every entry, so that a change of one is a change of a line."""
    lines = ",\n".join(
        json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for entry in entries
    )
    write_atomic(path, f'{{"format": {version}, "{key}": [\n{lines}\n]}}\n'.encode())


def record_of(results: Mapping[str, Any], branch: str) -> AccuracyRecord:
    """The counts of a branch."""
    data = results["data"]
    correct, domains = results["branches"][branch]["correct"], data.get("domains", ())
    return AccuracyRecord(correct, data["test_images"], data["task_sizes"], domains)


def without_what_follows(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results without the metrics that follow from counts; `whole` is the inverse."""
    return _with_metrics(results, _short)


def whole(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results with all metrics, however they were packed."""
    return _with_metrics(results, _full)


def _with_metrics(
    results: Mapping[str, Any], change: Callable[[dict[str, Any], AccuracyRecord], dict[str, Any]]
) -> dict[str, Any]:
    branches = {
        name: {**branch, "metrics": change(branch["metrics"], record_of(results, name))}
        for name, branch in results["branches"].items()
    }
    return {**results, "branches": branches}


def _short(stored: dict[str, Any], record: AccuracyRecord) -> dict[str, Any]:
    metrics = {key: value for key, value in stored.items() if key not in METRICS or not METRICS[key].counts}
    if "matrix" in (known := metrics.get("task_known") or {}):
        images = [count for _, count in record.by_task()]
        metrics["task_known"] = {"right": [_counts(row, images) for row in known["matrix"]]}
    if "reliability" in (calibration := metrics.get("calibration") or {}):
        bins = [
            [each["images"], *_counts([each["accuracy"] or 0], [each["images"]]), each["mean_probability"]]
            for each in calibration["reliability"]
        ]
        metrics["calibration"] = {"after_each_task": calibration["after_each_task"], "bins": bins}
    return metrics


def _full(stored: dict[str, Any], record: AccuracyRecord) -> dict[str, Any]:
    metrics = dict(stored) if "average_accuracy" in stored else metrics_of_counts(record) | stored
    if "right" in (known := metrics.get("task_known") or {}):
        images = [count for _, count in record.by_task()]
        metrics["task_known"] = metrics_of_counts(
            AccuracyRecord(known["right"], images, [1] * len(images), record.domains)
        )
    if "bins" in (calibration := metrics.get("calibration") or {}):
        metrics["calibration"] = _calibration(calibration)
    return metrics


def _counts(shares: Sequence[float], images: Sequence[int]) -> list[int]:
    return [round(share * count / 100) for share, count in zip(shares, images, strict=False)]


def _calibration(packed: Mapping[str, Any]) -> dict[str, Any]:
    count, reliability = len(packed["bins"]), []
    for number, (images, right, mean) in enumerate(packed["bins"]):
        ends = {"low": 100 * number / count, "high": 100 * (number + 1) / count}
        share = 100 * right / images if images else None
        reliability.append({**ends, "images": images, "mean_probability": mean, "accuracy": share})
    errors = packed["after_each_task"]
    return {"error": errors[-1], "after_each_task": errors, "reliability": reliability}
