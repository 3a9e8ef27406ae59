"""The `lca` command. Exit codes: 0 done, 1 some of it failed, 2 your input needs a change, 74 something could not be
read or written (also the output: a full disk), 75 stopped by the budget (call again to go on), 130 interrupted, 141
whoever read the output has gone (`lca ... | head -1`)."""

import contextlib
import logging
import os
import sys

import typer

from lca.cli import cache, datasets, diagnosis, lists, metrics, models, report, results, robustness, runs, ship, theory
from lca.cli.common import INPUT_OUTPUT, READER_GONE
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
results.add_to(app)
metrics.add_to(app)
report.add_to(app)
ship.add_to(app)
datasets.add_to(app)
lists.add_to(app)
robustness.add_to(app)
theory.add_to(app)
diagnosis.add_to(app)
cache.add_to(app)


def main() -> None:
    """Entry point: user errors and those of files and output become one message and an exit code."""
    logging.getLogger("lca").addHandler(logging.NullHandler())  # what matters comes with the progress
    # Threads that spin for long while they wait take half of a busy machine; it must be said before torch is imported
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        try:
            app()
        except LcaError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        finally:
            if sys.stdout is not None:  # it is closed with >&-
                sys.stdout.flush()  # what cannot be written must fail here, not when the interpreter ends
    except BrokenPipeError:
        _let_go_of_output()
        sys.exit(READER_GONE)
    except OSError as error:
        what = f" {error.filename}" if error.filename else ""
        with contextlib.suppress(OSError):
            print(f"error: could not read or write{what}: {error.strerror or error}", file=sys.stderr)
        _let_go_of_output()
        sys.exit(INPUT_OUTPUT)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's answer to it is 1
            _let_go_of_output()
            sys.exit(READER_GONE)
        raise


def _let_go_of_output() -> None:
    """The interpreter would try once more, when it ends, to write what could not be written, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):  # closed, or no file
            os.dup2(nowhere, stream.fileno())
