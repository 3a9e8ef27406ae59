"""Verbs that show results again: show, merge."""

from pathlib import Path
from typing import Annotated

import typer


def show_command(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, sweep folders or pack files.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table instead.")] = False,
    pivot: Annotated[bool, typer.Option("--pivot", help="Markdown: a line per branch, a column per cell.")] = False,
) -> None:
    """Show the results of runs again.

    Examples:

      lca show runs/demo

      lca show runs/best runs/paper --markdown

      lca show results/tune-best.json --pivot
    """
    from lca.report import terminal
    from lca.report.tables import pivot_table
    from lca.results.classifiers import classifiers
    from lca.results.reading import collect
    from lca.text import markdown_text

    collection = collect(paths)
    if pivot:
        print(pivot_table(collection.runs).markdown(), end="")
    elif markdown:
        print(terminal.markdown(classifiers(collection.runs)), end="")
    else:
        terminal.show(classifiers(collection.runs), ", ".join(str(path) for path in paths))
    for line in collection.left_out():
        print(f"\n{markdown_text(line)}" if pivot or markdown else line)


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
