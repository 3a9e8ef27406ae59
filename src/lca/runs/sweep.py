"""Sweeps: a grid of recipes, run cell by cell in time slices, and packed into one file that can be merged."""

import itertools
import math
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lca.errors import BusyError, LcaError
from lca.files import hash_json, hold, write_json
from lca.progress import Progress, QuietProgress
from lca.recipe import Recipe, merge_mappings, read_recipe, validate_recipe
from lca.recipe_files import nest, parse_override
from lca.results.folder import CellName, RunFiles, SweepFiles
from lca.results.packs import Pack, SweepCell
from lca.results.seeds import key_of_today, recipe_differences
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run
from lca.runs.workers import beside

MOST_CELLS = 10_000
"""Of one sweep: more would take minutes to write down."""
WAIT = 0.5
"""Seconds between two looks at cells that other processes run."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. `label` says what it is beside the other cells; seeds of one label are averaged."""

    label: str
    recipe: Recipe

    @property
    def key(self) -> str:
        return self.recipe.key

    @cached_property
    def trunk(self) -> str:
        """The same for cells that can share one training."""
        return hash_json(self.recipe.trunk())

    @property
    def folder(self) -> CellName:
        """The name of its folder."""
        return CellName(self.label, self.recipe.seed, self.key)


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
    if (count := len(changes) * math.prod(map(len, axes.values()))) > MOST_CELLS:
        raise LcaError(f"{origin}: the grid has {count:,} cells; a sweep has at most {MOST_CELLS:,}")
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
        if changed := recipe_differences(first.recipe.dump(), cell.recipe.dump()):
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
    reuse: Iterable[Pack] = (),
    trunks: Path | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> Pack:
    """Run all cells, or `only` some of them, that are not finished; a failed cell is recorded and the others go on.

    What is finished in a pack of `reuse` is taken from there. Trained backbones are kept in `trunks`, by default in the
    sweep's folder. Several processes may work in one folder, here or on other machines: each takes cells that no other
    is running, and so do `workers`, of which this process is one. In the end it waits for those that others run, and
    takes over what they leave. Returns the pack of all cells, whoever ran them.

    A spent budget raises `BudgetSpent`; the pack on disk then holds what is finished.
    """
    budget, progress = budget or Budget(), progress or Progress()
    chosen, trunks = cells if only is None else only, trunks or SweepFiles(out).trunks
    out.mkdir(parents=True, exist_ok=True)
    _rename_of_earlier_versions(SweepFiles(out))
    _take_over(cells, out, reuse)
    work = _Work(cells, chosen, out, trunks, budget, {cell.key: _failure(cell, out) for cell in chosen})
    try:
        with beside(workers - 1, progress, work.pass_over, QuietProgress()):
            work.finish(progress)
    finally:
        packed = pack(cells, out)
        packed.write(SweepFiles(out).pack)
    _warn_of_other_images(packed)
    return packed


@dataclass(frozen=True)
class _Work:
    """What is to be done of a sweep, by one process or several."""

    cells: list[Cell]
    chosen: list[Cell]
    out: Path
    trunks: Path
    budget: Budget
    failed_before: dict[str, tuple[int, int] | None]
    """What `_failure` said of each as the sweep began; clocks say less, since those of other machines differ."""

    def finish(self, progress: Progress) -> None:
        """Run what no other process runs, again and again, until all is done."""
        told = False
        while left := self.pass_over(progress):
            if self.budget.spent():
                raise BudgetSpent
            if not told:
                progress.line(f"waiting for {left} cell(s) that other processes run")
            told = True
            time.sleep(WAIT)

    def pass_over(self, progress: Progress) -> int:
        """Run what no other process runs; gives how many cells others run."""
        for trunk, sharing in itertools.groupby(filter(self._is_open, self.chosen), key=lambda cell: cell.trunk):
            try:
                with hold(SweepFiles(self.out).running(trunk), "another process runs these cells"):
                    for cell in sharing:
                        self._run(cell, progress)
            except BusyError:
                continue
        return sum(map(self._is_open, self.chosen))

    def _is_open(self, cell: Cell) -> bool:
        """Whether a cell is not finished, and did not fail since this sweep began."""
        if RunFiles(SweepFiles(self.out).cell(cell.folder)).results.exists():
            return False
        return _failure(cell, self.out) in (None, self.failed_before[cell.key])

    def _run(self, cell: Cell, progress: Progress) -> None:
        if not self._is_open(cell):
            return
        if self.budget.spent():
            raise BudgetSpent
        files = RunFiles(SweepFiles(self.out).cell(cell.folder))
        progress.line(
            f"cell {self.cells.index(cell) + 1} of {len(self.cells)}: {cell.label or cell.recipe.method.name}, "
            f"{cell.recipe.data.source}, seed {cell.recipe.seed}"
        )
        try:
            run(cell.recipe, files.path, trunks=self.trunks, budget=self.budget, progress=progress)
            files.failure.unlink(missing_ok=True)
        except (BudgetSpent, BusyError):
            raise
        except Exception as error:  # whatever it is, the other cells can still run and the pack says what failed
            progress.line(f"failed: {error}")
            files.path.mkdir(parents=True, exist_ok=True)
            write_json(
                files.failure, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            )
        finally:
            pack(self.cells, self.out).write(SweepFiles(self.out).pack)


def _failure(cell: Cell, out: Path) -> tuple[int, int] | None:
    """Another one for every failure of a cell; None for one that did not fail."""
    try:
        found = RunFiles(SweepFiles(out).cell(cell.folder)).failure.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _rename_of_earlier_versions(files: SweepFiles) -> None:
    """Cells that an earlier version began go on: their folders get the names that their recipes have now."""
    for path, name in files.cells().items():
        key = key_of_today(RunFiles(path).stored_recipe())
        target = files.cell(replace(name, key=key)) if key is not None else path
        if not target.exists():
            path.rename(target)


def _take_over(cells: list[Cell], out: Path, packs: Iterable[Pack]) -> None:
    """Put the results that packs already have where this sweep would put them."""
    known = known_cells(packs)
    for cell in cells:
        files = RunFiles(SweepFiles(out).cell(cell.folder))
        if cell.key in known and not files.results.exists():
            files.path.mkdir(parents=True, exist_ok=True)
            for scores in known[cell.key].robustness:
                write_json(files.robustness_of(scores["branch"]), scores)
            write_json(files.results, known[cell.key].results)


def known_cells(packs: Iterable[Pack]) -> dict[str, SweepCell]:
    """The finished cells of packs by the key of their recipes; options that were added since have their defaults."""
    finished = Pack.merged(packs).finished
    return {Cell("", validate_recipe(cell.recipe, "a reused pack")).key: cell for cell in finished}


def _warn_of_other_images(packed: Pack) -> None:
    """Cells of one data set are compared, so they must have seen the same images: a pack may be older than a file, or
    than the way images are read."""
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for cell in packed.finished:
        recipe = validate_recipe(cell.recipe)
        data = recipe.data
        chosen = (data.split, data.test_share, data.split_seed, recipe.seed, recipe.backbone.name)
        seen[data.source, *map(str, chosen)][cell.results["data"]["sha256"]] += 1
    for (source, *_), counts in seen.items():
        if others := counts.total() - max(counts.values()):
            warnings.warn(
                f"{source}: {others} of {counts.total()} cells of a seed saw other images than the rest (data.sha256 "
                "in their results): remove their folders and run them again, without the --reuse that gave them",
                stacklevel=3,
            )


def pack(cells: list[Cell], out: Path) -> Pack:
    """What is there of the cells."""
    files = SweepFiles(out)
    return Pack([SweepCell.packed(cell.folder, cell.recipe.data.source, files.cell(cell.folder)) for cell in cells])
