"""Where a run and a sweep leave what: every name of a file or folder, in one place.

recipe.yaml              the resolved recipe; another one is refused
checkpoint/              the state after the last finished step (gone when the run is finished)
log.jsonl                every step with its time and losses, and every message
models/task-04/          models to load, as `keep_models` says
results.json             accuracies, counts, class order, versions, hashes, costs
predictions.safetensors  prediction, confidence and unknown score of every test image after every task
robustness*.json         what `lca robustness` measured, a branch each
failed.json              why the run of a sweep failed

A sweep has such a folder for each of its cells, in cells/LABEL-SEED-KEY, and all results in pack.json.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lca.errors import LcaError
from lca.files import is_held, read_json
from lca.recipe_files import parse_yaml

RUNNING, FINISHED, STOPPED, FAILED, OPEN = "running", "finished", "stopped", "failed", "open"
"""How far a run is."""


class RunFiles:
    """The files of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        self.models = path / "models"
        self.results = path / "results.json"
        self.predictions = path / "predictions.safetensors"
        self.recipe = path / "recipe.yaml"
        self.log_file = path / "log.jsonl"
        self.failure = path / "failed.json"

    @classmethod
    def of(cls, path: Path) -> "RunFiles":
        """Of a folder, or of the one that a results.json is in."""
        return cls(path.parent if path.name == "results.json" else path)

    def finished(self) -> dict[str, Any] | None:
        """The results, if the run is finished."""
        return read_json(self.results) if self.results.exists() else None

    def state(self) -> str:
        """How far the run is."""
        if self.results.exists():
            return FINISHED
        if is_held(self.path):
            return RUNNING
        return FAILED if self.failure.exists() else STOPPED

    def error(self) -> str:
        """Why it failed, if it did."""
        return str(read_json(self.failure)["error"]) if self.failure.exists() else ""

    def robustness(self) -> list[dict[str, Any]]:
        """What `lca robustness --out` wrote into the folder, a branch each."""
        contents = [read_json(path) for path in sorted(self.path.glob("robustness*.json"))]
        return [content for content in contents if "branch" in content]

    def robustness_of(self, branch: str) -> Path:
        return self.path / f"robustness-{branch}.json"

    def begun(self) -> bool:
        """Whether this is the folder of a run."""
        return any(path.exists() for path in (self.recipe, self.log_file, self.results))

    def stored_recipe(self) -> dict[str, Any]:
        """The recipe from its own file or from the results; empty where neither is at hand."""
        try:
            if self.recipe.exists():
                recipe = parse_yaml(self.recipe.read_text(encoding="utf-8"))
            else:
                recipe = read_json(self.results)["recipe"]
        except (OSError, yaml.YAMLError, LcaError):
            return {}
        return recipe if isinstance(recipe, dict) else {}


@dataclass(frozen=True)
class CellName:
    """The name of a cell's folder: LABEL-SEED-KEY, with dashes for all but the letters and digits of the label."""

    label: str
    seed: int
    key: str

    def __str__(self) -> str:
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.label)
        return f"{readable[:48]}-{self.seed}-{self.key}"  # file systems end at 255 bytes

    @classmethod
    def parse(cls, name: str) -> "CellName | None":
        """None for what is the name of no cell."""
        parts = re.fullmatch(r"(.*)-(\d+)-(\w+)", name, re.DOTALL)
        return cls(parts[1], int(parts[2]), parts[3]) if parts else None


class SweepFiles:
    """The files of a sweep's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pack = path / "pack.json"
        self.trunks = path / "trunks"

    def cell(self, name: CellName) -> Path:
        return self.path / "cells" / str(name)

    def running(self, trunk: str) -> Path:
        """Is held by the process that runs the cells of a trunk."""
        return self.path / "running" / trunk

    def cells(self) -> dict[Path, CellName]:
        """The folders of cells that have begun."""
        names = {path: CellName.parse(path.name) for path in sorted(self.path.glob("cells/*"))}
        return {path: name for path, name in names.items() if name is not None}

    def exists(self) -> bool:
        """Whether this is the folder of a sweep."""
        return not RunFiles(self.path).begun() and (self.pack.exists() or (self.path / "cells").is_dir())
