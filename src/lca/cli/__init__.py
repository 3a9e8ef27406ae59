"""The `lca` command. Exit codes: 0 done, 1 some of it failed, 2 your input needs a change, 74 something could not be
read or written (also the output: a full disk), 75 stopped by the budget (call again to go on), 130 interrupted, 141
whoever read the output has gone (`lca ... | head -1`)."""

import contextlib
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import lca
from lca.cli import changes, datasets, lists, models, paper, report, results, robustness, runs, ship
from lca.cli.common import INPUT_OUTPUT, READER_GONE, first_paragraph, with_examples
from lca.errors import LcaError
from lca.text import terminal_lines, terminal_text

VERBS: dict[str, dict[str, Any]] = {
    "Teach and use": {
        "learn": models.learn_command,
        "predict": models.predict_command,
        "evaluate": models.evaluate_command,
        "info": models.info_command,
        "undo": changes.undo_command,
        "rename": changes.rename_command,
        "merge-classes": changes.merge_classes_command,
        "forget": changes.forget_command,
    },
    "Ship": {"export": ship.export_command, "push": ship.push_command, "pull": ship.pull_command},
    "Experiments": {
        "run": runs.run_command,
        "sweep": runs.sweep_command,
        "watch": report.watch_command,
        "merge": results.merge_command,
    },
    "Results": {
        "show": results.show_command,
        "metrics": results.metrics_command,
        "report": report.report_command,
        "robustness": robustness.robustness_command,
    },
    "Data and lists": {
        "datasets": datasets.datasets,
        "cache": datasets.cache_command,
        "recipes": lists.recipes_command,
        "methods": lists.methods_command,
        "tuners": lists.tuners_command,
        "operators": lists.operators_command,
        "backbones": lists.backbones_command,
    },
    "Paper": {"theory": paper.theory_command, "diagnose": paper.diagnose_command},
}
"""The groups of the help and the verbs in each: functions, or apps with verbs of their own."""


class Grouped(TyperGroup):
    """Help with a section for every group. typer's own needs rich, which would read what stands in square brackets in
    the examples as markup."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, verbs in VERBS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, first_paragraph(self.commands[name].help)) for name in verbs])


app = typer.Typer(
    cls=Grouped,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, verbs in VERBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(with_examples(verb))


def _show_version(asked: bool) -> None:
    if asked:
        print(f"lca {lca.__version__}")
        raise typer.Exit


@app.callback()
def lca_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """A classifier that keeps learning: Incremental Merging and Local Classifier Alignment.

    `lca VERB --help` has examples of every verb.
    """


def main() -> None:
    """Entry point: user errors and those of files and output become one message and an exit code."""
    logging.getLogger("lca").addHandler(logging.NullHandler())  # what matters comes with the progress
    try:
        try:
            app()
        except LcaError as error:
            print(f"error: {terminal_lines(str(error))}", file=sys.stderr)
            sys.exit(2)
        finally:
            if sys.stdout is not None:  # it is closed with >&-
                sys.stdout.flush()  # what cannot be written must fail here, not when the interpreter ends
    except BrokenPipeError:
        _let_go_of_output()
        sys.exit(READER_GONE)
    except OSError as error:
        what = f" {terminal_text(str(error.filename))}" if error.filename else ""
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
