"""Verbs that show results again: show, metrics, merge."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lca.errors import LcaError


def show_command(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, sweep folders or pack files.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table instead.")] = False,
    pivot: Annotated[bool, typer.Option("--pivot", help="Markdown: a line per branch, a column per cell.")] = False,
    numbers: Annotated[
        list[str],
        typer.Option("--number", metavar="NAME", help="With --pivot, a number to show; may be repeated."),
    ] = ["average accuracy", "last accuracy"],
) -> None:
    """Show the results of runs again.

    Examples:

      lca show runs/demo

      lca show runs/best runs/paper --markdown

      lca show results/tune-best.json --pivot

      lca show results/lessons-mini.json --pivot --number oldest --number newest --number 'last accuracy'
    """
    from lca.report.formats import as_markdown
    from lca.report.tables import SHOWN, pivot_table
    from lca.report.terminal import show
    from lca.results.classifiers import classifiers
    from lca.results.reading import collect
    from lca.text import markdown_text

    collection = collect(paths)
    if pivot:
        print(pivot_table(collection.runs, numbers).markdown(), end="")
    elif markdown:
        print(as_markdown(classifiers(collection.runs), style=SHOWN), end="")
    else:
        show(classifiers(collection.runs), ", ".join(str(path) for path in paths))
    for line in collection.left_out():
        print(f"\n{markdown_text(line)}" if pivot or markdown else line)


def _list(wanted: bool) -> None:
    if wanted:
        from lca.results.metrics import listed

        print(listed(), end="")
        raise typer.Exit


def metrics_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="A run folder; several are taken as seeds of one run.")
    ],
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Only this classifier.", show_default="all")
    ] = None,
    joint: Annotated[
        Path | None, typer.Option("--joint", metavar="RUN", help="A run of method joint: gives the intransigence.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="RUN", help="A run to compare with, image by image.")
    ] = None,
    against_branch: Annotated[
        str | None,
        typer.Option(
            "--against-branch", metavar="NAME", help="Its classifier.", show_default="the same name, or the only one"
        ),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=10, help="Draws of the bootstrap.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the whole confusion matrix.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", is_eager=True, callback=_list, help="Only say what the metrics are.")
    ] = False,
) -> None:
    """Show every metric of a run: by task, by class, confusions, calibration, OOD images, transfer, with intervals.

    It reads results.json and predictions.safetensors of the run folder. docs/metrics.md has the definitions. OOD images
    and forward transfer are there when the run was told to measure them.

    Examples:

      lca run best --set ood=true --set forward_transfer=true

      lca metrics runs/best

      lca metrics runs/best --branch best --json > metrics.json

      lca metrics runs/seed-1993 runs/seed-1994 runs/seed-1995

      lca metrics runs/best --joint runs/joint

      lca metrics runs/best --against runs/paper --against-branch lca
    """
    from lca.report.details import text_of_run, text_of_seeds
    from lca.results.details import answers_of, details, over_seeds
    from lca.results.reading import Run

    read = [Run.read(path) for path in runs]
    names = [branch] if branch else read[0].branches
    for run in read:
        for name in names:
            answers_of(run, name)
    if len(read) > 1 and (joint or against):
        raise LcaError("--joint and --against take one run, not several")
    if len(read) > 1:
        found = {name: over_seeds(read, name, draws) for name in names}
    else:
        bound, other = (None if path is None else Run.read(path) for path in (joint, against))
        options: dict[str, Any] = {"joint": bound, "against": other, "against_branch": against_branch}
        found = {name: details(read[0], name, draws, **options) for name in names}
    if as_json:
        print(json.dumps({"runs": [str(path) for path in runs], "branches": found}, ensure_ascii=False, indent=2))
        return
    text = text_of_run if len(read) == 1 else text_of_seeds
    blocks = [f"{', '.join(str(path) for path in runs)}: {name}\n{text(facts)}" for name, facts in found.items()]
    print("\n".join(blocks), end="")


def merge_command(
    packs: Annotated[list[Path], typer.Argument(help="Pack files of sweeps, from any machines.")],
    out: Annotated[Path, typer.Option("--out", help="The merged pack file.")],
) -> None:
    """Merge the packs of several machines or shards into one.

    Example:

      lca merge machine-1/pack.json machine-2/pack.json --out pack.json
    """
    from lca.results.folder import FAILED, FINISHED, OPEN
    from lca.results.packs import Pack

    merged = Pack.merged(Pack.read(path) for path in packs)
    merged.write(out)
    states = [cell.state for cell in merged.cells]
    print(", ".join(f"{states.count(state)} {state}" for state in (FINISHED, FAILED, OPEN)))
