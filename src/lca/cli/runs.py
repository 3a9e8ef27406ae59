"""Verbs for runs: run, sweep."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lca.cli.common import BUDGET_SPENT, INTERRUPTED, SOME_FAILED, Overrides, Quiet
from lca.errors import LcaError
from lca.progress import choose_progress

if TYPE_CHECKING:
    from lca.results.packs import Pack
    from lca.runs.sweep import Cell

BudgetText = Annotated[str | None, typer.Option(metavar="TIME", help="Stop cleanly after this time (90s, 9m, 1h).")]


def run_command(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe or of a method, or a path ending in .yaml.")],
    overrides: Overrides = [],
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/NAME.")] = None,
    trunks: Annotated[
        str | None,
        typer.Option(
            help="Where trained backbones are kept for other runs (`none`: nowhere).",
            show_default="trunks/ beside the run folder",
        ),
    ] = None,
    budget: BudgetText = None,
    quiet: Quiet = False,
) -> None:
    """Run one recipe: learn its tasks one after another and measure after each.

    Killed or interrupted, it goes on when the same command is given again. Several processes share the work when
    torch's launcher starts them. `lca watch RUN` shows it in another terminal, and sends its losses and accuracies to
    TensorBoard, MLflow or Weights & Biases.

    Examples:
      lca run best
      torchrun --nproc_per_node 2 -m lca run best
      lca run ease --set data.source=folder:photos
      lca run best --set data.source=folder:photos --set data.tasks=4 --out runs/photos
      lca run best --set 'method.align=[none, ca, lca, best]' --budget 9m
    """
    from lca.device import Compute
    from lca.ranks import joined
    from lca.recipe import load_recipe
    from lca.report.terminal import present
    from lca.results.reading import Run
    from lca.runs.budget import Budget
    from lca.runs.experiment import run

    loaded = load_recipe(recipe, overrides)
    folder = out or Path("runs") / loaded.name
    with joined(Compute.choose(loaded.device).device) as ranks:
        results = _resumable(
            lambda: run(
                loaded,
                folder,
                trunks=None if trunks == "none" else Path(trunks or folder.parent / "trunks"),
                budget=Budget.parse(budget),
                progress=choose_progress(quiet),
            )
        )
    if ranks.leads:
        present([Run(loaded.name, results)], folder, loaded.name)


def sweep_command(
    recipe: Annotated[str, typer.Argument(help="A recipe with `grid` or `cells`, or any recipe with --grid.")],
    overrides: Overrides = [],
    grid: Annotated[
        list[str], typer.Option(metavar="KEY=[A,B]", help="Run with each of these values; may be repeated.")
    ] = [],
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep; by default runs/NAME.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Run only part I of N.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the cells.")] = 1,
    reuse: Annotated[list[Path], typer.Option(metavar="PACK", help="Take what a pack has; may be repeated.")] = [],
    scale: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the recipe as its section of this name says: mini.")
    ] = None,
    trunks: Annotated[
        Path | None,
        typer.Option(help="Where trained backbones are kept, also for other sweeps.", show_default="in the folder"),
    ] = None,
    budget: BudgetText = None,
    quiet: Quiet = False,
) -> None:
    """Run a grid of recipes, skip what is finished, and pack all results into one file.

    Failed cells are reported as failed and do not stop the others. Cells that differ only in their alignment share one
    training. Small models leave most of a GPU idle: several workers use it better, though each run takes longer. The
    recipes of the paper (docs/paper.md) can be run small: --scale mini.

    Examples:
      lca sweep demo
      lca sweep best --grid seed=[1993,1994,1995] --out runs/seeds
      lca sweep cifar100-mini --shard 1/4 --budget 9m
      lca sweep compare-mini --workers 8 --reuse results/compare-mini.json
      lca sweep paper/main-table --scale mini --reuse results/compare-mini.json
    """
    from lca.ranks import launched
    from lca.results.packs import Pack
    from lca.runs.budget import Budget
    from lca.runs.sweep import read_sweep, sweep

    if launched() > 1:
        raise LcaError("torchrun is for `lca run`; a sweep has --workers for more processes")
    name, cells = read_sweep(recipe, overrides, grid, scale)
    folder = out or Path("runs") / name
    packed = _resumable(
        lambda: sweep(
            cells,
            folder,
            only=None if shard is None else _part(cells, shard),
            reuse=[Pack.read(path) for path in reuse],
            trunks=trunks,
            budget=Budget.parse(budget),
            progress=choose_progress(quiet),
            workers=workers,
        )
    )
    if _show_pack(packed, folder, name):
        raise typer.Exit(SOME_FAILED)


def _part(cells: "list[Cell]", text: str) -> "list[Cell]":
    from lca.runs.sweep import shard

    number, _, count = text.partition("/")
    if not number.isdigit() or not count.isdigit():
        raise LcaError(f"--shard takes I/N, for example 1/4; got {text!r}")
    return shard(cells, int(number), int(count))


def _resumable(work: Callable[[], Any]) -> Any:
    """Run something that can be taken up again, and say how when it stops early."""
    from lca.ranks import current
    from lca.runs.budget import BudgetSpent

    again = shlex.join(["lca", *sys.argv[1:]])

    def say(text: str) -> None:
        if current().leads:
            print(f"{text} Go on with:\n  {again}", file=sys.stderr)

    try:
        return work()
    except BudgetSpent:
        say("the budget is spent; everything so far is saved.")
        raise typer.Exit(BUDGET_SPENT) from None
    except KeyboardInterrupt:
        say("\ninterrupted; at most the last few seconds will be done again.")
        raise typer.Exit(INTERRUPTED) from None


def _show_pack(pack: "Pack", folder: Path, title: str) -> int:
    """Show what finished; list and count what failed."""
    from lca.report.terminal import present
    from lca.results.folder import FAILED, OPEN
    from lca.results.reading import Run

    failed = [cell for cell in pack.cells if cell.state == FAILED]
    if remaining := sum(cell.state == OPEN for cell in pack.cells):
        print(f"{remaining} of {len(pack.cells)} cells are open: they belong to other shards", file=sys.stderr)
    if pack.finished:
        present([Run(cell.label, cell.results) for cell in pack.finished], folder, title)
    for cell in failed:
        print(f"failed: {cell.label}, {cell.source}, seed {cell.seed}: {cell.error}", file=sys.stderr)
    return len(failed)
