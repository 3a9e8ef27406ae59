"""The `lca` command. Exit codes: 0 done, 1 some of it failed, 2 your input needs a change, 75 stopped by the budget
(call again to go on), 130 interrupted."""

import logging
import sys

import typer

from lca.cli import lists, models, runs, ship
from lca.errors import LcaError

app = typer.Typer(
    help="A classifier that keeps learning: Incremental Merging and Local Classifier Alignment.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # it would swallow what stands in square brackets in the examples
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models.add_to(app)
runs.add_to(app)
ship.add_to(app)
lists.add_to(app)


def main() -> None:
    """Entry point: user errors become one message and exit code 2."""
    logging.getLogger("lca").addHandler(logging.NullHandler())  # what matters comes with the progress
    try:
        app()
    except LcaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
