"""The verb diagnose: what a run did to its backbone and its classes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lca.cli.measured import Shared, takes_runs


@takes_runs
def diagnose_command(
    shared: Shared,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where diagnosis.json, .png and .svg go; of several data sets a figure each.",
            show_default="the folder of a run that is measured",
        ),
    ] = None,
) -> None:
    """Measure how far the backbone of a run moved, and how far its classes overlap before and after alignment.

    After every task: linear CKA and mean cosine between the features of all test images under the backbone then and
    after the first task; and for all pairs of classes, how far the logits of their test images leave them overlapping,
    with the heads as trained and with those of every alignment. It needs the models after the tasks and the data set.
    Several runs of one recipe are seeds: their mean is shown. docs/theory.md has the formulas, and what the paper says
    about both.

    Examples:

      lca run best --set keep_models=all

      lca diagnose runs/best

      lca diagnose runs/best/diagnosis.json --markdown

      lca diagnose runs/diagnosis-mini --out figures --pack results/diagnosis-mini.json
    """
    from lca.files import write_json
    from lca.instruments.diagnosis import diagnose_run
    from lca.progress import choose_progress
    from lca.report.diagnosis import figures, show
    from lca.results.measured import DIAGNOSIS, as_one, write_pack

    def write(runs: list[dict[str, Any]], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / DIAGNOSIS.file, as_one(runs))
        figures(DIAGNOSIS.by_recipe(runs), folder)

    def measure(run: Path) -> dict[str, Any]:
        progress = choose_progress(shared.quiet)
        facts = diagnose_run(run, device=shared.device, weights=shared.weights, progress=progress)
        if out is None or len(shared.paths) > 1:
            write([facts], run)
        return facts

    runs = shared.runs(DIAGNOSIS, (), measure)
    shared.show(runs, lambda: show(DIAGNOSIS.by_recipe(runs), shared.markdown))
    if out is not None:
        write(runs, out)
    if shared.pack is not None:
        write_pack(shared.pack, runs)
