"""Runs from run folders, sweep folders and packs, each with the label under which its seeds are put together."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from lca.errors import LcaError
from lca.evaluation.accuracy import AccuracyRecord
from lca.results.folder import FAILED, FINISHED, RunFiles
from lca.results.metrics import METRICS, follow, numbers
from lca.results.packs import SweepCell, record_of, sweep_cells
from lca.results.robustness import RobustnessScores
from lca.results.seeds import recipe_differences
from lca.results.stored import StoredAnswers, read_run


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
    predictions: dict[str, StoredAnswers] | None = None
    """Those of the folder, where they were read already."""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """A finished run with its predictions, named as its recipe."""
        results, answers = read_run(folder)
        return cls(results["recipe"]["name"], results, folder, predictions=answers)

    @property
    def recipe(self) -> dict[str, Any]:
        return dict(self.results["recipe"])

    @property
    def seed(self) -> int:
        return int(self.recipe["seed"])

    @property
    def source(self) -> str:
        return str(self.results["data"]["source"])

    @property
    def images(self) -> str:
        """What it was measured on: test or validation images."""
        return str(self.recipe["data"]["evaluate"])

    @property
    def data_set(self) -> str:
        """Where the images are from, and which of them were asked about unless it was those for the test: results on
        others are never put beside these."""
        return self.source + ("" if self.images == "test" else f", {self.images} images")

    @property
    def name(self) -> str:
        """The label, or that of the recipe where only the branches are labelled."""
        return self.label or str(self.recipe["name"])

    @property
    def branches(self) -> list[str]:
        return list(self.results["branches"])

    def of_path(self, name: str) -> "Run":
        """The same with the name of a path in its label."""
        return replace(self, label=f"{self.label} ({name})" if self.label else name, given=self.label)

    @cached_property
    def records(self) -> dict[str, AccuracyRecord]:
        """The counts by branch."""
        return {branch: record_of(self.results, branch) for branch in self.branches}

    def metric(self, branch: str, key: str) -> Any:
        """A metric of the table: what follows from the counts, what is stored, or what follows from the predictions at
        hand."""
        metric, stored = METRICS[key], self.results["branches"][branch]["metrics"]
        if metric.counts:
            return metric.of(self.records[branch])
        if key in stored:
            return stored[key]
        return metric.of(self.answers[branch]) if branch in self.answers else None

    def number(self, branch: str, name: str) -> float | None:
        """A number of the table of metrics; None where it is not defined."""
        key, number = numbers()[name]
        return follow(self.metric(branch, key), number.path)

    def seconds(self, branch: str) -> dict[str, float]:
        """Time of the trunk and of this branch's alignment; other branches on the same trunk do not count."""
        others = {f"align {name}" for name in self.branches if name != branch}
        return {phase: seconds for phase, seconds in self.results["seconds"].items() if phase not in others}

    def bytes(self, branch: str) -> dict[str, int]:
        """Stored bytes by part, of this branch where that is known."""
        return dict(self.results["branches"][branch].get("storage_bytes", self.results["storage_bytes"]))

    @cached_property
    def answers(self) -> dict[str, StoredAnswers]:
        """Predictions by branch; none where they are not at hand."""
        if self.predictions is not None:
            return self.predictions
        if self.folder is None or not RunFiles(self.folder).predictions.exists():
            return {}
        return read_run(self.folder)[1]

    @cached_property
    def robustness(self) -> dict[str, RobustnessScores]:
        """By branch, what `lca robustness` measured."""
        contents = self.damaged if self.folder is None else RunFiles(self.folder).robustness()
        return {content["branch"]: RobustnessScores.from_json(content) for content in contents}


NAMED = 8
"""Cells that are named where they are left out."""


@dataclass
class Collection:
    """All that the given paths hold."""

    runs: list[Run] = field(default_factory=list)
    unfinished: list[SweepCell] = field(default_factory=list)
    """What failed in a sweep, or was not run yet."""

    def left_out(self) -> list[str]:
        """A line about every state of what is not finished, with some of the cells."""
        by_state: dict[str, list[SweepCell]] = defaultdict(list)
        for cell in self.unfinished:
            by_state[cell.state].append(cell)
        lines = []
        for state, cells in by_state.items():
            verb = state if state == FAILED else f"{'is' if len(cells) == 1 else 'are'} {state}"
            names = [cell.short() for cell in cells[:NAMED]]
            more = [f"and {len(cells) - NAMED} more"] * (len(cells) > NAMED)
            lines.append(f"{len(cells)} cell{'s' * (len(cells) > 1)} {verb}: {'; '.join([*names, *more])}")
        return lines


def collect(paths: Sequence[Path]) -> Collection:
    """Read run folders, sweep folders and packs. Runs of one label and data set are seeds of one classifier. What one
    part of a sweep lacks and another has is not missing."""
    files = [RunFiles.of(path) for path in paths]
    if unfinished := [str(each.path) for each in files if each.recipe.exists() and not each.results.exists()]:
        raise LcaError(f"not finished yet: {', '.join(unfinished)}")
    runs: list[tuple[Path, Run]] = []
    missing: dict[str, SweepCell] = {}
    finished: set[str] = set()
    for each in files:
        if (results := each.finished()) is not None:
            runs.append((each.path, Run(results["recipe"]["name"], results, each.path)))
            continue
        for cell in sweep_cells(each.path):
            if cell.state == FINISHED:
                runs.append((each.path, Run(cell.label, cell.results, cell.folder, cell.robustness)))
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
    nothing tells them apart, and a run that was given twice would count as two seeds: both are refused."""
    groups: dict[tuple[str, str], dict[Path, Run]] = defaultdict(dict)
    for path, run in runs:
        first = groups[run.label, run.data_set].setdefault(path, run)
        if changed := recipe_differences(first.recipe, run.recipe):
            seeds = f"seeds {first.seed} and {run.seed}"
            raise LcaError(f"{path}: {run.name!r} on {run.data_set} is of two recipes, {seeds}: {'; '.join(changed)}")
    alike = not any(
        recipe_differences(one.recipe, two.recipe)
        for firsts in groups.values()
        for one, two in pairwise(firsts.values())
    )
    names = _names(dict.fromkeys(path for path, _ in runs))
    named = [run if alike else run.of_path(names[path]) for path, run in runs]
    seen: set[tuple[str, str, int]] = set()
    for run in named:
        if (run.label, run.data_set, run.seed) in seen:
            raise LcaError(f"{run.name!r} on {run.data_set} with seed {run.seed} was given twice; give every run once")
        seen.add((run.label, run.data_set, run.seed))
    return named


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """Of folders and packs, without where they are unless that tells them apart."""
    places = {path: path.resolve().parent if path.name == "pack.json" else path.resolve() for path in paths}
    short = {path: place.name.removesuffix(".json") for path, place in places.items()}
    return {path: name if [*short.values()].count(name) == 1 else str(path) for path, name in short.items()}


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """Data sets without where they were read from, unless that tells them apart."""
    short = {source: short_name(source) for source in sources}
    return {source: name if [*short.values()].count(name) == 1 else source for source, name in short.items()}


def short_name(source: str) -> str:
    """A data set without where it was read from."""
    return re.split("[:/]", source.rstrip("/"))[-1]
