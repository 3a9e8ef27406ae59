"""What verbs measured of finished runs: read again from files, packs and sweeps, and put together over seeds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lca.errors import LcaError
from lca.files import FORMAT, read_json
from lca.progress import Progress
from lca.recipe import differences
from lca.results.packs import write_lines
from lca.results.reading import short_name
from lca.results.seeds import recipe_differences

T = TypeVar("T")


@dataclass(frozen=True)
class Seeds:
    """The runs of one recipe, which differ in their seed only."""

    title: str
    """The data set; with the name of the recipe where another has the same data set."""
    runs: Sequence[Mapping[str, Any]]

    def values(self, key: str) -> Any:
        """What is under this key, with a tuple in place of every value: that of each seed."""
        return _together([run[key] for run in self.runs], key)

    @property
    def heading(self) -> str:
        seeds = [run["recipe"]["seed"] for run in self.runs]
        return f"{self.title}, " + (f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")


@dataclass(frozen=True)
class Measurement:
    """What a verb measures of a run whose models were kept."""

    verb: str
    file: str
    """Where it is written to, in the run folder."""
    keys: tuple[str, ...]
    """They tell such files from others."""
    alike: tuple[str, ...] = ()
    """What seeds must have in common besides their recipe."""

    def read(self, path: Path, progress: Progress) -> list[dict[str, Any]]:
        """The runs of such a file, of a pack of them, or of those cells of a sweep that have one."""
        if path.is_file():
            content = read_json(path)
            runs = content["runs"] if isinstance(content, dict) and "runs" in content else [content]
            for run in runs or [None]:
                self._check(run, path)
            return list(runs)
        cells = list(path.glob("cells/*"))
        files = [cell / self.file for cell in cells if (cell / self.file).exists()]
        if not files:
            raise LcaError(f"no cell of {path} has a {self.file}; `lca {self.verb} {path}/cells/*` measures them")
        if missing := len(cells) - len(files):
            progress.warning(f"{missing} of {len(cells)} cells of {path} have no {self.file}: they are left out")
        return sorted((run for file in files for run in self.read(file, progress)), key=_place)

    def by_recipe(self, runs: Sequence[Mapping[str, Any]]) -> list[Seeds]:
        """Put the seeds of every recipe together."""
        groups: list[list[Mapping[str, Any]]] = []
        for run in runs:
            alike = (group for group in groups if not self._differences(group[0], run))
            if (group := next(alike, None)) is None:
                groups.append(group := [])
            group.append(run)
        sets = [short_name(group[0]["recipe"]["data"]["source"]) for group in groups]
        found: dict[str, Seeds] = {}
        for title, group in zip(sets, groups, strict=True):
            title += f", {group[0]['recipe']['name']}" if sets.count(title) > 1 else ""
            if title in found:
                changed = self._differences(found[title].runs[0], group[0])
                raise LcaError(f"the runs of {title} are no seeds of one recipe:\n  " + "\n  ".join(changed))
            found[title] = Seeds(title, sorted(group, key=_place))
            (seed, times), *_ = Counter(run["recipe"]["seed"] for run in group).most_common(1)
            if times > 1:
                raise LcaError(f"{title} with seed {seed} is given {times} times; give every run once")
        return list(found.values())

    def _differences(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
        """What keeps two runs from being seeds of one recipe that were measured alike."""
        first, second = ({key: run[key] for key in self.alike} for run in (one, two))
        return recipe_differences(one["recipe"], two["recipe"], "recipe.") + differences(first, second)

    def _check(self, run: Any, path: Path) -> None:
        if not isinstance(run, dict) or any(key not in run for key in ("recipe", *self.keys)):
            raise LcaError(f"{path} is no file that `lca {self.verb} RUN` wrote")
        if run.get("format") != FORMAT:
            raise LcaError(f"{path} has format {run.get('format')}, this version reads {FORMAT}")


THEORY = Measurement("theory", "theory.json", ("branches", "settings", "old_data"), alike=("settings", "old_data"))
DIAGNOSIS = Measurement("diagnose", "diagnosis.json", ("tasks", "pairs"))
AS_TRAINED = "as trained"
"""In a diagnosis, the heads of all tasks before any alignment. No branch has this name, so the trunk answers."""


def error_of(name: str) -> str:
    """The key beside a number's that holds its standard error, where it is a mean over samples drawn at random."""
    return f"{name}_standard_error"


def as_one(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Several runs as one value; a run alone stays as it is."""
    return runs[0] if len(runs) == 1 else {"format": FORMAT, "runs": runs}


def write_pack(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write runs into one small file, a line each."""
    write_lines(path, FORMAT, "runs", runs)


def common(values: Sequence[T]) -> T:
    """The one value that all seeds have."""
    if any(value != values[0] for value in values):
        raise LcaError(
            f"the runs were not measured alike: {' and '.join(map(str, dict.fromkeys(values)))} at one place"
        )
    return values[0]


def _together(values: Sequence[Any], where: str) -> Any:
    """Mappings, and lists of them, of the same shape as one of this shape; all else is a value."""
    if len({_shape(each) for each in values}) > 1:
        raise LcaError(f"the runs were not measured alike: {where} of one has other parts than that of another")
    if isinstance(values[0], dict):
        return {key: _together([each[key] for each in values], f"{where}.{key}") for key in values[0]}
    if _shape(values[0]) is None:
        return tuple(values)
    return [_together(each, where) for each in zip(*values, strict=True)]


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset(value)
    return len(value) if isinstance(value, list) and any(isinstance(each, dict) for each in value) else None


def _place(run: Mapping[str, Any]) -> tuple[str, int]:
    return run["recipe"]["data"]["source"], run["recipe"]["seed"]
