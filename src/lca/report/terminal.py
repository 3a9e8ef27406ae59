"""What `lca show`, `lca run` and `lca sweep` print of results, and write beside them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lca.errors import MissingPackageError
from lca.report import ranking
from lca.report.drawing import file_name
from lca.report.figures import accuracy_curves
from lca.report.formats import Found, as_markdown
from lca.report.looks import looks_of
from lca.report.tables import OVERALL, SHOWN, domain_tables, legend, overall_table, results_table
from lca.results.classifiers import classifiers
from lca.results.reading import Run, short_name

if TYPE_CHECKING:
    from rich.console import Console


def show(found: Found, title: str) -> None:
    """A table for every data set, with the accuracy of every classifier after each task, and one of all together."""
    console = _console()
    for source, rows in found.items():
        console.print(results_table(rows, SHOWN).rich(title if len(found) == 1 else f"{title}, {source}"))
        console.print(legend(rows), style="dim", highlight=False)
        console.print("accuracy on all classes seen so far, after each task (per cent)")
        width = max(len(row.label) for row in rows)
        for row in rows:
            numbers = " ".join(f"{value:5.1f}" for value in row.curve())
            console.print(f"  {row.label:<{width}}  {spark(row.curve())}  {numbers}", highlight=False)
        for words, by_domain in domain_tables(rows, SHOWN).items():
            console.print(by_domain.rich(f"{words} (per cent)"))
    if together := ranking.overall(found):
        console.print(overall_table(together, SHOWN).rich(f"{title}, all data sets"))
        console.print(OVERALL, style="dim", highlight=False)


def present(runs: Sequence[Run], folder: Path, title: str) -> None:
    """Show runs that were just finished, and write their table and figures into a folder."""
    found = classifiers(runs)
    show(found, title)
    (folder / "table.md").write_text(as_markdown(found, style=SHOWN), encoding="utf-8")
    figures, looks = [], looks_of(found).labels
    for source, rows in found.items():
        alone = len(found) == 1
        name = "accuracy.png" if alone else f"{file_name('accuracy', short_name(source))}.png"
        try:
            accuracy_curves(rows, looks, folder / name, title if alone else f"{title}, {source}")
        except MissingPackageError as error:  # the results are there without it
            print(f"there is no {name}: {error}", file=sys.stderr)
        else:
            figures.append(name)
    written = f"results, table.md and {', '.join(figures)}" if figures else "results and table.md"
    print(f"{written} are in {folder}")


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, markup=False)


def spark(values: Sequence[float]) -> str:
    """A curve from 0 to 100 in block letters."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(int(value / 100 * len(blocks)), len(blocks) - 1)] for value in values)
