"""The verb diagnose: what a run did to its backbone and its classes."""

from pathlib import Path
from typing import Annotated

import typer

from lca.cli.common import Quiet
from lca.cli.models import AsJson, Device, Weights
from lca.errors import LcaError


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("diagnose")(diagnose_command)


def diagnose_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; or a diagnosis.json, which is only shown again.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where diagnosis.json, .png and .svg go.",
            show_default="the run folder; nowhere for a diagnosis.json",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    as_json: AsJson = False,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure how far the backbone of a run moved, and how far its classes overlap before and after alignment.

    After every task: linear CKA and mean cosine between the features of all test images under the backbone then and
    after the first task; and for all pairs of classes, how far the logits of their test images leave them overlapping,
    with the heads as trained and with those of every alignment. It needs the models after the tasks and the data set.
    docs/theory.md has the formulas, and what the paper says about both.

    Examples:

      lca run best --set keep_models=all

      lca diagnose runs/best

      lca diagnose runs/best/diagnosis.json --markdown
    """
    import json

    from lca.diagnosis.runs import diagnose_run
    from lca.diagnosis.show import figure, show
    from lca.files import write_json
    from lca.progress import choose_progress
    from lca.runs.kept import read_measured

    if run.is_file():
        if weights is not None or device is not None:
            raise LcaError(f"{run} is only shown; --weights and --device measure anew: give the run folder")
        facts = read_measured(run, "diagnose", ("tasks", "pairs"))
    else:
        facts, out = diagnose_run(run, device=device, weights=weights, progress=choose_progress(quiet)), out or run
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "diagnosis.json", facts)
        for ending in ("png", "svg"):
            figure(facts, out / f"diagnosis.{ending}")
    print(json.dumps(facts, ensure_ascii=False, indent=1) if as_json else show(facts, markdown), end="\n" * as_json)
