"""Sweeps: a grid of recipes, run cell by cell in time slices, and packed into one file that can be merged."""

import itertools
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lca.errors import BusyError, LcaError
from lca.files import FORMAT, hash_json, hold, read_json, write_json
from lca.progress import Progress, QuietProgress
from lca.recipe import Recipe, differences, merge_mappings, of_all_seeds, read_recipe, validate_recipe
from lca.recipe_files import nest, parse_override
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run
from lca.runs.folder import RunFolder
from lca.runs.workers import beside


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. `label` says what it is beside the other cells; seeds of one label are averaged."""

    label: str
    recipe: Recipe

    @property
    def key(self) -> str:
        """The same on every machine: a hash of all that the numbers depend on."""
        content = self.recipe.dump()
        del content["name"]
        return hash_json(content)[:12]

    @cached_property
    def trunk(self) -> str:
        """The same for cells that can share one training."""
        return hash_json(self.recipe.trunk())

    @property
    def folder(self) -> str:
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.label)
        return f"{readable[:48]}-{self.recipe.seed}-{self.key}"  # file systems end at 255 bytes


def read_sweep(
    recipe: str, overrides: Iterable[str] = (), grid: Iterable[str] = (), scale: str | None = None
) -> tuple[str, list[Cell]]:
    """The name and the cells of a recipe, with more axes of its grid as `key=[a, b]`; other arguments as of
    `lca.recipe.read_recipe`."""
    content = read_recipe(recipe, overrides, scale)
    name = content["name"] = str(content.get("name", Path(recipe).stem)) + (f"-{scale}" if scale else "")
    for text in grid:
        key, _, values = text.partition("=")
        value = parse_override(f"value={values}")["value"]
        content = merge_mappings(content, {"grid": {key: value if isinstance(value, list) else [value]}})
    return name, expand(content, recipe)


def expand(content: Mapping[str, Any], origin: str = "sweep") -> list[Cell]:
    """The cells of a recipe with `cells` and `grid`: every change with every combination of values.

    `cells` is a list of changes, each with an optional `label`; `grid` has values by dotted key, as a list or as a
    mapping that names each. Seeds and data sets are not part of a label: tables average over the one and are apart for
    the other. Cells that share a trunk come one after another.
    """
    base = {key: value for key, value in content.items() if key not in {"cells", "grid"}}
    changes = content.get("cells") or [{}]
    grid = content.get("grid") or {}
    if not isinstance(changes, list) or not all(isinstance(change, Mapping) for change in changes):
        raise LcaError(f"{origin}: cells must be a list of mappings")
    if not isinstance(grid, Mapping) or not all(isinstance(each, list | Mapping) and each for each in grid.values()):
        raise LcaError(f"{origin}: grid must map dotted keys to lists of values, for example seed: [1993, 1994]")
    axes = {
        key: list(values.items()) if isinstance(values, Mapping) else [(f"{key}={value}", value) for value in values]
        for key, values in grid.items()
    }
    cells: dict[str, Cell] = {}
    for change in changes:
        own = {key: value for key, value in change.items() if key != "label"}
        for choice in itertools.product(*axes.values()):
            merged = merge_mappings(base, own)
            for key, (_, value) in zip(grid, choice, strict=True):
                merged = merge_mappings(merged, nest(key, value))
            recipe = validate_recipe(merged, origin)
            varied = [str(name) for key, (name, _) in zip(grid, choice, strict=True) if key not in {"seed", "data"}]
            label = " ".join([str(change.get("label", recipe.method.name)), *varied])
            cell = Cell(label, recipe)
            cells.setdefault(cell.key, cell)
    named: set[tuple[str, int, str]] = set()
    firsts: dict[tuple[str, str, str], Cell] = {}
    for cell in cells.values():
        name = (cell.label, cell.recipe.seed, cell.recipe.data.source)
        if name in named:  # a table would average them as if they were seeds
            raise LcaError(
                f"{origin}: two different cells are called {cell.label!r}, seed {cell.recipe.seed}; give each a label"
            )
        named.add(name)
        first = firsts.setdefault((cell.label, cell.recipe.data.source, cell.recipe.data.evaluate), cell)
        if changed := differences(of_all_seeds(first.recipe.dump()), of_all_seeds(cell.recipe.dump())):
            raise LcaError(
                f"{origin}: the cells called {cell.label!r} differ in more than the seed ({'; '.join(changed)}); give "
                "each a label"
            )
    trunks = list(dict.fromkeys(cell.trunk for cell in cells.values()))
    return sorted(cells.values(), key=lambda cell: trunks.index(cell.trunk))


def shard(cells: list[Cell], number: int, count: int) -> list[Cell]:
    """Part `number` (from 1) of `count`: cells with the same trunk stay together."""
    if not 1 <= number <= count:
        raise LcaError(f"--shard takes NUMBER/COUNT with 1 <= NUMBER <= COUNT, got {number}/{count}")
    mine = sorted({cell.trunk for cell in cells})[number - 1 :: count]
    return [cell for cell in cells if cell.trunk in mine]


def sweep(
    cells: list[Cell],
    out: Path,
    *,
    only: list[Cell] | None = None,
    reuse: Iterable[Mapping[str, Any]] = (),
    trunks: Path | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Run all cells, or `only` some of them, that are not finished; a failed cell is recorded and the others go on.

    What is finished in a pack of `reuse` is taken from there. Trained backbones are kept in `trunks`, by default in the
    sweep's folder. Several processes may work in one folder, here or on other machines: each takes cells that no other
    is running, and so do `workers`, of which this process is one. Returns the pack of all cells, whoever ran them.

    A spent budget raises `BudgetSpent`; the pack on disk then holds what is finished.
    """
    budget, progress = budget or Budget(), progress or Progress()
    chosen, trunks = cells if only is None else only, trunks or out / "trunks"
    out.mkdir(parents=True, exist_ok=True)
    _take_over(cells, out, reuse)
    with beside(workers - 1, progress, _run_cells, cells, chosen, out, trunks, budget, QuietProgress()):
        _run_cells(cells, chosen, out, trunks, budget, progress)
    packed = pack(cells, out)
    write_json(out / "pack.json", packed)
    _warn_of_other_images(packed)
    return packed


def _run_cells(
    cells: list[Cell], chosen: list[Cell], out: Path, trunks: Path, budget: Budget, progress: Progress
) -> None:
    """What one process does of a sweep."""
    began = time.time()
    for trunk, sharing in itertools.groupby(chosen, key=lambda cell: cell.trunk):
        try:
            with hold(out / "running" / trunk, "another process runs these cells"):
                for cell in sharing:
                    _run_cell(cell, cells, out, trunks, began, budget, progress)
        except BusyError:
            continue


def _run_cell(
    cell: Cell, cells: list[Cell], out: Path, trunks: Path, began: float, budget: Budget, progress: Progress
) -> None:
    """Run a cell that is not finished, and that did not fail since this sweep began."""
    folder = out / "cells" / cell.folder
    failure = folder / "failed.json"
    failed_now = failure.exists() and failure.stat().st_mtime > began
    if RunFolder(folder).finished() is not None or failed_now:
        return
    if budget.spent():
        raise BudgetSpent
    progress.line(
        f"cell {cells.index(cell) + 1} of {len(cells)}: {cell.label or cell.recipe.method.name}, "
        f"{cell.recipe.data.source}, seed {cell.recipe.seed}"
    )
    try:
        run(cell.recipe, folder, trunks=trunks, budget=budget, progress=progress)
        failure.unlink(missing_ok=True)
    except (BudgetSpent, BusyError):
        raise
    except Exception as error:  # whatever it is, the other cells can still run and the pack says what failed
        progress.line(f"failed: {error}")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(failure, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
    finally:
        write_json(out / "pack.json", pack(cells, out))


def _take_over(cells: list[Cell], out: Path, packs: Iterable[Mapping[str, Any]]) -> None:
    """Put the results that packs already have where this sweep would put them."""
    known = known_cells(packs)
    for cell in cells:
        path = RunFolder(out / "cells" / cell.folder).results
        if cell.key in known and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            for scores in known[cell.key].get("robustness", []):
                write_json(path.parent / f"robustness-{scores['branch']}.json", scores)
            write_json(path, known[cell.key]["results"])


def known_cells(packs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The finished cells of packs by the key of their recipes; options that were added since have their defaults."""
    finished = [entry for entry in merge_packs(packs)["cells"] if entry["status"] == "finished"]
    return {Cell("", validate_recipe(each["results"]["recipe"], "a reused pack")).key: each for each in finished}


def _warn_of_other_images(packed: Mapping[str, Any]) -> None:
    """Cells of one data set are compared, so they must have seen the same images: a pack may be older than a file, or
    than the way images are read."""
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for results in (entry["results"] for entry in packed["cells"] if entry["status"] == "finished"):
        recipe = validate_recipe(results["recipe"])
        data = recipe.data
        chosen = (data.split, data.test_share, data.split_seed, recipe.seed, recipe.backbone.name)
        seen[data.source, *map(str, chosen)][results["data"]["sha256"]] += 1
    for (source, *_), counts in seen.items():
        if others := counts.total() - max(counts.values()):
            warnings.warn(
                f"{source}: {others} of {counts.total()} cells of a seed saw other images than the rest (data.sha256 "
                "in their results): remove their folders and run them again, without the --reuse that gave them",
                stacklevel=3,
            )


def pack(cells: list[Cell], out: Path) -> dict[str, Any]:
    """All results in one value: finished cells with their results, and their robustness where `lca robustness` wrote it
    into their folders; failed ones with their error, the rest as open."""
    packed = []
    for cell in cells:
        folder = out / "cells" / cell.folder
        entry: dict[str, Any] = {"key": cell.key, "label": cell.label, "seed": cell.recipe.seed}
        entry |= {"source": cell.recipe.data.source, "status": "open"}
        results = RunFolder(folder).finished()
        if results is not None:
            entry |= {"status": "finished", "results": results}
            if scores := RunFolder(folder).robustness():
                entry["robustness"] = scores
        elif (folder / "failed.json").exists():
            entry |= {"status": "failed", "error": read_json(folder / "failed.json")["error"]}
        packed.append(entry)
    return {"format": FORMAT, "cells": packed}


def merge_packs(packs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One pack of several, cell by cell: finished wins over failed, failed over open, of finished cells one whose
    robustness was measured, and the first of equals."""

    def rank(entry: Mapping[str, Any]) -> tuple[int, bool]:
        return ["finished", "failed", "open"].index(entry["status"]), "robustness" not in entry

    merged: dict[str, dict[str, Any]] = {}
    for content in packs:
        if content.get("format") != FORMAT or "cells" not in content:
            raise LcaError(f"expected a pack of format {FORMAT}, as `lca sweep` writes it to pack.json")
        for entry in content["cells"]:
            old = merged.get(entry["key"])
            if old is None or rank(entry) < rank(old):
                merged[entry["key"]] = entry
    return {"format": FORMAT, "cells": list(merged.values())}
