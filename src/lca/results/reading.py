"""Runs from run folders, sweep folders and packs, each with the label under which its seeds are put together."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from lca.errors import LcaError
from lca.evaluation.accuracy import AccuracyRecord
from lca.files import is_held, read_json
from lca.recipe import differences, of_all_seeds, validate_recipe
from lca.results.robustness import RobustnessScores
from lca.results.stored import StoredAnswers, read_run
from lca.results.tables import data_set_of
from lca.runs.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run, and its folder where it is at hand: a pack alone has no predictions."""

    label: str
    """All seeds of a classifier have the same."""
    results: dict[str, Any]
    folder: Path | None = None
    damaged: Sequence[dict[str, Any]] = ()
    """The robustness of its branches, from a pack; a folder has its own."""
    given: str | None = None
    """The label without the name of a path, if it has one."""

    @property
    def seed(self) -> int:
        return int(self.results["recipe"]["seed"])

    @property
    def source(self) -> str:
        return str(self.results["data"]["source"])

    @property
    def data_set(self) -> str:
        return data_set_of(self.results)

    @property
    def name(self) -> str:
        """The label, or that of the recipe where only the branches are labelled."""
        return self.label or str(self.results["recipe"]["name"])

    def of_path(self, name: str) -> "Run":
        """The same with the name of a path in its label."""
        return replace(self, label=f"{self.label} ({name})" if self.label else name, given=self.label)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What its numbers depend on besides the seed: as it is written, where that is no recipe any more, or else with
        options that were added since."""
        try:
            return of_all_seeds(validate_recipe(self.results["recipe"]).dump())
        except LcaError:
            return of_all_seeds(self.results["recipe"])

    def differences(self, other: "Run") -> list[str]:
        """The keys that keep two runs from being seeds of one classifier."""
        one, two = ({**each.results["recipe"], "seed": None} for each in (self, other))
        return [] if one == two else differences(self.recipe, other.recipe)

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
    unfinished: list["SweepCell"] = field(default_factory=list)
    """What failed in a sweep, or was not run yet."""

    def left_out(self) -> list[str]:
        """A line about every state of what is not finished, with some of the cells."""
        found: dict[str, list[SweepCell]] = {}
        for cell in self.unfinished:
            found.setdefault(cell.state, []).append(cell)
        lines = []
        for state, cells in found.items():
            verb = state if state == FAILED else f"{'is' if len(cells) == 1 else 'are'} {state}"
            names = [cell.short() for cell in cells[:NAMED]]
            more = [f"and {len(cells) - NAMED} more"] * (len(cells) > NAMED)
            lines.append(f"{len(cells)} cell{'s' * (len(cells) > 1)} {verb}: {'; '.join([*names, *more])}")
        return lines


def collect(paths: Sequence[Path]) -> Collection:
    """Read run folders, sweep folders and packs. Runs of one label and data set are seeds of one classifier. What one
    part of a sweep lacks and another has is not missing."""
    paths = [path.parent if path.name == "results.json" else path for path in paths]
    if unfinished := [str(path) for path in paths if (path / "recipe.yaml").exists() and not _finished(path)]:
        raise LcaError(f"not finished yet: {', '.join(unfinished)}")
    runs: list[tuple[Path, Run]] = []
    missing: dict[str, SweepCell] = {}
    finished: set[str] = set()
    for path in paths:
        if _finished(path):
            results = read_json(path / "results.json")
            runs.append((path, Run(results["recipe"]["name"], results, path)))
            continue
        for cell in sweep_cells(path):
            if cell.state == FINISHED:
                runs.append((path, Run(cell.label, cell.results(), cell.folder, cell.entry.get("robustness", ()))))
                finished.add(cell.key)
            else:
                missing[cell.key] = cell
    if not runs:
        states = Counter(cell.state for cell in missing.values())
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        raise LcaError(f"there are no finished runs to show{f': {counts}' if counts else ''}")
    return Collection(_told_apart(runs), [cell for key, cell in missing.items() if key not in finished])


def _told_apart(runs: Sequence[tuple[Path, Run]]) -> list[Run]:
    """Where the recipes of a label differ from path to path, all labels with the names of their paths. Within a path
    nothing tells them apart, and a run that came twice would count as two seeds: both are refused."""
    groups: dict[tuple[str, str], dict[Path, Run]] = defaultdict(dict)
    for path, run in runs:
        first = groups[run.label, run.data_set].setdefault(path, run)
        if changed := first.differences(run):
            seeds = f"seeds {first.seed} and {run.seed}"
            raise LcaError(f"{path}: {run.name!r} on {run.data_set} is of two recipes, {seeds}: {'; '.join(changed)}")
    alike = not any(one.differences(two) for firsts in groups.values() for one, two in pairwise(firsts.values()))
    names = _names(dict.fromkeys(path for path, _ in runs))
    found = [run if alike else run.of_path(names[path]) for path, run in runs]
    seen: set[tuple[str, str, int]] = set()
    for run in found:
        if (run.label, run.data_set, run.seed) in seen:
            raise LcaError(f"{run.name!r} on {run.data_set} with seed {run.seed} came twice; give every run once")
        seen.add((run.label, run.data_set, run.seed))
    return found


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """Of folders and packs, without where they are unless that tells them apart."""
    places = {path: path.resolve().parent if path.name == "pack.json" else path.resolve() for path in paths}
    short = {path: place.name.removesuffix(".json") for path, place in places.items()}
    return {path: name if [*short.values()].count(name) == 1 else str(path) for path, name in short.items()}


def _finished(path: Path) -> bool:
    return (path / "results.json").exists()


NAMED = 8
"""Cells that are named where they are left out."""
RUNNING, FINISHED, STOPPED, FAILED, OPEN = "running", "finished", "stopped", "failed", "open"


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep's folder, and how far it is."""

    label: str
    seed: int
    source: str
    state: str
    folder: Path | None
    """None where it has not begun, or where only the pack is at hand."""
    entry: Mapping[str, Any] = field(default_factory=dict)
    """What the pack has of it."""

    @property
    def key(self) -> str:
        """Of its recipe, in whichever part of a sweep it is."""
        return str(self.entry["key"]) if self.folder is None else _key(self.folder)

    def __str__(self) -> str:
        data, error = f", {self.source}" if self.source else "", self.error()
        return f"{self.label or 'a cell'}{data}, seed {self.seed}, is {self.state}{f': {error}' if error else ''}"

    def short(self) -> str:
        """Which one, and the beginning of why it failed."""
        kind, _, text = self.error().partition(": ")
        why = re.split(r"[,;\n]|\. ", text or kind)[0]
        return f"{self.label or 'a cell'}, seed {self.seed}{f' ({why})' if why else ''}"

    def error(self) -> str:
        """Why it failed, if it did."""
        if self.state == FAILED and self.folder is not None:
            return str(read_json(self.folder / "failed.json")["error"])
        return str(self.entry.get("error", ""))

    def results(self) -> dict[str, Any]:
        """Of a cell that is finished."""
        if self.folder is None or "results" in self.entry:
            return dict(self.entry["results"])
        return read_json(self.folder / "results.json")


def sweep_cells(path: Path) -> list[SweepCell]:
    """The cells of a pack, or of a sweep's folder with the states they have now.

    A folder without a pack has those that have begun, labelled by the names of their folders, in which all but letters
    and digits are dashes.
    """
    pack = path / "pack.json" if path.is_dir() else path
    folders = sorted(each for each in pack.parent.glob("cells/*") if re.fullmatch(r".*-\d+-\w+", each.name))
    if not pack.exists() and folders:
        return [_begun(folder) for folder in folders]
    packed = read_json(pack)
    if not isinstance(packed, dict) or "cells" not in packed:
        raise LcaError(f"{path} is neither a run folder nor a pack that `lca sweep` wrote")
    places = {_key(folder): folder for folder in folders} if pack.name == "pack.json" else {}
    found = []
    for entry in packed["cells"]:
        folder = places.get(entry["key"])
        state = entry["status"] if entry["status"] == FINISHED or folder is None else condition(folder)
        found.append(SweepCell(entry["label"], entry["seed"], entry.get("source", ""), state, folder, entry))
    return found


def _key(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def _begun(folder: Path) -> SweepCell:
    label, seed, _ = folder.name.rsplit("-", 2)
    source = recipe_of(folder).get("data", {}).get("source", "")
    return SweepCell(label, int(seed), source, condition(folder), folder)


def recipe_of(folder: Path) -> dict[str, Any]:
    """The recipe of a run folder, from its own file or from the results; empty where neither is at hand."""
    try:
        if (folder / "recipe.yaml").exists():
            recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
        else:
            recipe = read_json(folder / "results.json")["recipe"]
    except (OSError, yaml.YAMLError, LcaError):
        return {}
    return recipe if isinstance(recipe, dict) else {}


def condition(folder: Path) -> str:
    """How far the run of a folder is."""
    if _finished(folder):
        return FINISHED
    if is_held(folder):
        return RUNNING
    return FAILED if (folder / "failed.json").exists() else STOPPED
