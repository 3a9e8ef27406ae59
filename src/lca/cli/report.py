"""Verbs that turn runs into answers: report, watch."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lca.cli.common import INTERRUPTED, Quiet
from lca.errors import LcaError

if TYPE_CHECKING:
    from lca.report.boards import Board


def report_command(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, sweep folders or pack files.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where it goes.", show_default="report.html; a table is printed"),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables in Markdown instead of the page.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Tables in LaTeX (booktabs) instead.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A line per classifier and seed instead.")] = False,
    overall: Annotated[
        bool, typer.Option("--overall", help="Of --markdown or --latex only the table of all data sets together.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="FOLDER", help="Save the page's figures as PNG and SVG too.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Show confused images: reads the data source of the recipe.")
    ] = False,
    only: Annotated[
        list[str],
        typer.Option("--only", metavar="NAME", help="Only this classifier or label; may be repeated."),
    ] = [],
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="NAME", help="Compare with this classifier.", show_default="the best"),
    ] = None,
    detail: Annotated[int, typer.Option("--detail", min=0, help="Classifiers of a data set shown in detail.")] = 6,
    title: Annotated[
        str | None, typer.Option("--title", help="Of the page.", show_default="the names of the runs")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=10, help="Draws of the bootstrap.")] = 1000,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs that needs no network and no other file: tables with intervals, curves, confusions.

    Runs of one name, recipe and data set are seeds of one classifier; other recipes of that name are told apart by
    their paths. Several classifiers are compared seed by seed. Where the folder of a run is at hand, its predictions
    give intervals, confusions and drift; a pack has only what is counted in it. Robustness is shown if
    `lca robustness --out RUN/robustness.json` wrote it. docs/reports.md explains the page.

    Examples:

      lca report runs/demo --images

      lca report runs/best runs/paper --reference paper --out best-or-paper.html

      lca report results/compare-mini.json --latex > table.tex

      lca report results/compare-mini.json --only IM --only SLCA --only MOS --markdown --overall

      lca report results/compare-mini.json --only IM --detail 0 --figures figures
    """
    given = [name for name, wanted in (("markdown", markdown), ("latex", latex), ("csv", csv)) if wanted]
    if len(given) > 1:
        raise LcaError("--markdown, --latex and --csv are one format each: give one of them")
    form = given[0] if given else None
    if form and (images or figures):
        raise LcaError("--images and --figures belong to the page, not to a table")
    if overall and form not in ("markdown", "latex"):
        raise LcaError("--overall is a part of --markdown or --latex: give one of them too")
    _check_paths(paths, out)

    from lca.files import write_atomic
    from lca.progress import choose_progress
    from lca.report.drawing import save
    from lca.report.formats import table
    from lca.report.page import Report
    from lca.results.reading import collect

    progress, found = choose_progress(quiet), collect(paths)
    if form:
        text = table(found, form, draws, only, reference, overall=overall, progress=progress)
        if out is None:
            print(text, end="")
        else:
            write_atomic(out, text.encode())
        return
    title = title or ", ".join(path.resolve().name for path in paths)
    report = Report(title, draws, reference, detail, only=only, images=images, progress=progress)
    out = out or Path("report.html")
    write_atomic(out, report.page(found).encode())
    print(f"the report is {out}")
    if figures is not None:
        for name, figure in progress.track(report.figures.items(), "saving figures", len(report.figures)):
            save(figure, figures / f"{name}.png")
            save(figure, figures / f"{name}.svg")
        print(f"its {len(report.figures)} figures are in {figures}")


def _check_paths(paths: list[Path], out: Path | None) -> None:
    if out is not None and out.is_dir():
        raise LcaError(f"--out {out} is a folder; give the name of a file in it")
    if out is not None and not out.parent.is_dir():
        raise LcaError(f"--out: there is no folder {out.parent}")
    if missing := [str(path) for path in paths if not path.exists()]:
        raise LcaError(f"there is no file or folder {', '.join(missing)}; `lca run` and `lca sweep` make them")


def watch_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a sweep's; it may be going on.")],
    once: Annotated[bool, typer.Option("--once", help="Show where it is and end.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="FOLDER", help="Write losses and accuracies for TensorBoard too."),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option("--mlflow", metavar="URI", help="Send them to MLflow: sqlite:///mlflow.db, or a server."),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="Send them to a project of Weights & Biases.")
    ] = None,
) -> None:
    """Show a run in the terminal: tasks, losses, accuracies so far, time. Ends with the run, or with Ctrl-C.

    Watching never disturbs a run. A run that is finished, or that nothing is running, is shown once. Of a sweep every
    cell is shown with how far it is.

    Examples:

      lca watch runs/best

      lca watch runs/best --once

      lca watch runs/demo

      lca watch runs/best --tensorboard boards/best

      lca watch runs/best --mlflow sqlite:///mlflow.db --wandb my-project
    """
    import sys
    from contextlib import ExitStack, closing

    from rich.console import Console

    from lca.report.watch import watch, watch_sweep
    from lca.results.folder import SweepFiles

    sweep = SweepFiles(run).exists()
    asked = [name for name, given in {"TensorBoard": tensorboard, "MLflow": mlflow, "W&B": wandb}.items() if given]
    if sweep and asked:
        raise LcaError(f"{run} is a sweep; {' and '.join(asked)} takes one run, such as {run / 'cells' / '*'}")
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)
    hints = []
    with ExitStack() as opened:
        boards = [opened.enter_context(closing(board)) for board in _boards(run, tensorboard, mlflow, wandb)]
        try:
            if sweep:
                watch_sweep(run, console, once=once)
            else:
                watch(run, console, once=once, listeners=[board.take for board in boards])
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        hints = [board.hint for board in boards]
    for hint in hints:
        print(f"look at it with: {hint}")


def _boards(run: Path, tensorboard: Path | None, mlflow: str | None, wandb: str | None) -> "Iterator[Board]":
    """Those that were asked for, each opened when its turn is there."""
    if tensorboard is not None:
        from lca.report.boards.tensorboard import TensorBoardLog

        yield TensorBoardLog(tensorboard)
    if mlflow is not None:
        from lca.report.boards.mlflow import MlflowLog

        yield MlflowLog(mlflow, run)
    if wandb is not None:
        from lca.report.boards.wandb import WandbLog

        yield WandbLog(wandb, run)
