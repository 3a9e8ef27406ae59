"""Verbs that turn runs and models into answers: report, watch."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lca.cli.common import INTERRUPTED, Quiet, check_model
from lca.cli.models import AllowDownload, Device, Weights, load_model
from lca.errors import LcaError
from lca.progress import choose_progress

DETAIL, DRAWS = 6, 1000
ADVISED = 5
"""Pieces of advice that are printed beside the page."""

if TYPE_CHECKING:
    from lca.report.boards import Board


def report_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, sweep folders or pack files; or a model.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where it goes.",
            show_default="beside the first RUN, as RUN-report.html; a table is printed",
        ),
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
        typer.Option(
            "--only", metavar="NAME", help="Only this classifier or label, or those like it ('* lda'); may be repeated."
        ),
    ] = [],
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="NAME", help="Compare with this classifier.", show_default="the best"),
    ] = None,
    detail: Annotated[int, typer.Option("--detail", min=0, help="Classifiers of a data set shown in detail.")] = DETAIL,
    title: Annotated[
        str | None, typer.Option("--title", help="Of the page.", show_default="the names of the runs")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=10, help="Draws of the bootstrap.")] = DRAWS,
    photos: Annotated[
        Path | None,
        typer.Option("--photos", metavar="FOLDER", help="Of a model: one folder per class of photos to ask it about."),
    ] = None,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs, or about a taught model, that needs no network and no other file.

    Runs of one name, recipe and data set are seeds of one classifier; other recipes of that name are told apart by
    their paths. Several classifiers are compared seed by seed. Where the folder of a run is at hand, its predictions
    give intervals, confusions and drift; a pack has only what is counted in it. Robustness is shown if
    `lca robustness --out RUN/robustness.json` wrote it. docs/reports.md explains the page.

    Of a MODEL the page shows what it answers about the photos of a folder: classes with intervals, confusions side by
    side, what it got wrong, the least certain and the unknown, calibration, what each lesson changed for old classes,
    and what to do. The photos are in the page as small pictures: who gets it sees them.

    Examples:

      lca report my-model --photos photos/test

      lca report runs/demo --images

      lca report runs/best runs/paper --reference paper --out best-or-paper.html

      lca report results/compare-mini.json --latex > table.tex

      lca report results/compare-mini.json --only IM --only SLCA --only MOS --markdown --overall

      lca report results/compare-mini.json --only IM --detail 0 --figures figures
    """
    if len(paths) == 1 and (_is_model(paths[0]) or photos):
        asked: dict[str, object] = {
            "--markdown": markdown,
            "--latex": latex,
            "--csv": csv,
            "--overall": overall,
            "--figures": figures,
        }
        asked |= {"--images": images, "--only": only, "--reference": reference}
        asked |= {"--detail": detail != DETAIL, "--draws": draws != DRAWS}
        _report_model(
            paths[0],
            photos,
            [name for name, value in asked.items() if value],
            out,
            title,
            weights,
            allow_download,
            device,
            quiet,
        )
        return
    if photos or weights or allow_download or device:
        raise LcaError("--photos, --weights, --allow-download and --device belong to the report of one model")
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
    out = out or _beside(paths[0])
    write_atomic(out, report.page(found).encode())
    print(f"the report is {out}")
    if figures is not None:
        for name, figure in progress.track(report.figures.items(), "saving figures", len(report.figures)):
            save(figure, figures / f"{name}.png")
            save(figure, figures / f"{name}.svg")
        print(f"its {len(report.figures)} figures are in {figures}")


def _is_model(path: Path) -> bool:
    """As `lca.files.has_state`, without importing torch: cheap mistakes are told at once."""
    return (path / "state.json").is_file()


def _report_model(
    model: Path,
    photos: Path | None,
    asked: list[str],
    out: Path | None,
    title: str | None,
    weights: Path | None,
    allow_download: bool,
    device: str | None,
    quiet: bool,
) -> None:
    """The page of a model, asked about a folder of photos."""
    check_model(model)
    if asked:
        raise LcaError(f"{model} is a model, and {' and '.join(asked)} belong to the report of runs")
    if photos is None:
        raise LcaError(f"{model} is a model: give --photos FOLDER with one folder per class, photos to ask it about")
    _check_paths([model], out)

    from lca.files import write_atomic
    from lca.report.model_page import ModelPage

    learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
    page = ModelPage(learner, learner.read(photos), photos, title or model.resolve().name)
    out = out or _beside(model)
    write_atomic(out, page.page().encode())
    print(f"the report is {out}")
    for each in page.advice[:ADVISED]:
        print(f"  {each.text}")


def _beside(path: Path) -> Path:
    """Where the page about a run, a pack or a model goes: next to it, not into it, so that nothing that reads, packs or
    pushes the folder takes it along."""
    path = path if path.name and path.name != ".." else path.resolve()
    name = path.stem if path.is_file() else path.name
    return path.with_name(f"{name}-report.html")


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
