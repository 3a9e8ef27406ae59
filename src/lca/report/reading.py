"""Runs from run folders, sweep folders and packs, each with the label under which its seeds are put together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lca.errors import LcaError
from lca.evaluation.accuracy import AccuracyRecord
from lca.evaluation.stored import StoredAnswers, read_run
from lca.files import read_json
from lca.robustness.scores import RobustnessScores
from lca.runs.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run, and its folder where it is at hand: a pack alone has no predictions."""

    label: str
    results: dict[str, Any]
    folder: Path | None = None
    damaged: Sequence[dict[str, Any]] = ()
    """The robustness of its branches, from a pack; a folder has its own."""

    @property
    def seed(self) -> int:
        return int(self.results["recipe"]["seed"])

    @property
    def source(self) -> str:
        return str(self.results["data"]["source"])

    def record(self, branch: str) -> AccuracyRecord:
        """The counts of a branch."""
        data = self.results["data"]
        return AccuracyRecord(self.results["branches"][branch]["correct"], data["test_images"], data["task_sizes"])

    @cached_property
    def answers(self) -> dict[str, StoredAnswers]:
        """Predictions by branch; none where they are not at hand."""
        if self.folder is None or not (self.folder / "predictions.safetensors").exists():
            return {}
        return read_run(self.folder)[1]

    @cached_property
    def robustness(self) -> dict[str, RobustnessScores]:
        """By branch, what `lca robustness` measured."""
        contents = self.damaged if self.folder is None else RunFolder(self.folder).robustness()
        return {content["branch"]: RobustnessScores.from_json(content) for content in contents}


@dataclass
class Collection:
    """All that the given paths hold."""

    runs: list[Run] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """What failed in a sweep, or was not run yet."""


def collect(paths: Sequence[Path]) -> Collection:
    """Read run folders, sweep folders and packs. Runs of one name are seeds of one row, unless their recipes differ."""
    paths = [path.parent if path.name == "results.json" else path for path in paths]
    if unfinished := [str(path) for path in paths if (path / "recipe.yaml").exists() and not _finished(path)]:
        raise LcaError(f"not finished yet: {', '.join(unfinished)}")
    alone = {path: read_json(path / "results.json") for path in paths if _finished(path)}
    recipes = [{**results["recipe"], "seed": None} for results in alone.values()]
    alike = all(one == two for one in recipes for two in recipes if one["name"] == two["name"])
    found = Collection()
    for path in paths:
        if path in alone:
            found.runs.append(Run(alone[path]["recipe"]["name"] if alike else str(path), alone[path], path))
        else:
            _take_pack(path, found)
    if not found.runs:
        raise LcaError("there are no finished runs to show")
    return found


def check_seeds(runs: Sequence[Run]) -> None:
    """A run that came twice would count as two seeds."""
    seen: set[tuple[str, str, int]] = set()
    for run in runs:
        which = (run.label, run.source, run.seed)
        if which in seen:
            raise LcaError(f"{run.label!r} on {run.source} with seed {run.seed} came twice; give every run once")
        seen.add(which)


def _finished(path: Path) -> bool:
    return (path / "results.json").exists()


def _take_pack(path: Path, found: Collection) -> None:
    pack = path / "pack.json" if path.is_dir() else path
    packed = read_json(pack)
    if not isinstance(packed, dict) or "cells" not in packed:
        raise LcaError(f"{path} is neither a run folder nor a pack that `lca sweep` wrote")
    for cell in packed["cells"]:
        if cell["status"] == "finished":
            folder = next(iter(pack.parent.glob(f"cells/*-{cell['key']}")), None) if pack.name == "pack.json" else None
            found.runs.append(Run(cell["label"], cell["results"], folder, cell.get("robustness", ())))
        else:
            why = f": {cell['error']}" if "error" in cell else ""
            found.unfinished.append(f"{cell['label'] or 'a cell'}, seed {cell['seed']}, is {cell['status']}{why}")
