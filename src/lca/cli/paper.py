"""Verbs for the paper: theory and diagnose measure runs whose models were kept, or show what was measured of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lca.cli.common import Quiet
from lca.cli.models import AsJson, Device, Weights
from lca.errors import LcaError, nearest
from lca.progress import choose_progress

if TYPE_CHECKING:
    from lca.results.measured import Measurement

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Run folders, which are measured; or what is only shown again: JSON files of earlier measurements, "
        "and sweep folders whose cells have them.",
    ),
]
PackFile = Annotated[
    Path | None,
    typer.Option("--pack", metavar="FILE", help="Also write all runs into one small file, to be shown again."),
]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")]


def theory_command(
    paths: Runs,
    context: typer.Context,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this classifier.", show_default="all with Gaussians")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Fresh samples of every class.")] = 4096,
    seed: Annotated[int, typer.Option(min=0, help="Of the fresh samples.")] = 0,
    loss: Annotated[
        Literal["clipped", "zero-one"] | None,
        typer.Option(help="Show only this loss; both are measured.", show_default="both"),
    ] = None,
    clip: Annotated[float, typer.Option(min=0.01, help="Maximum of the clipped cross-entropy.")] = 5.0,
    delta: Annotated[float, typer.Option(min=1e-9, max=1, help="The theorems hold with probability 1 - delta.")] = 0.05,
    old_data: Annotated[
        bool, typer.Option("--old-data", help="Read old training images, for diagnosis only: drift and Theorem 2.")
    ] = False,
    add: Annotated[
        list[float],
        typer.Option(
            metavar="VARIANCE",
            min=0,
            help="Also the distance with this variance added in every direction; may be repeated.",
            show_default="0.001 to 10",
        ),
    ] = [],
    pack: PackFile = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure the paper's theorems on a run: every term, the bounds, and the losses they are about.

    For every task: the alignment loss, the robustness and the uncertainty term, the right sides of Theorem 1 and
    Corollary 1, as printed and corrected, and what is measured under the Gaussians and on test images. Bounds that say
    nothing are marked. With --old-data also the distance between the stored Gaussians and the true ones, and Theorem 2.

    It needs the models after the tasks and the data set; the numbers go into theory.json in the run folder. Several
    runs of one recipe are seeds: their mean is shown. docs/theory.md has all formulas, and where the printed proofs
    need a correction.

    Examples:
      lca run best --set keep_models=all
      lca theory runs/best
      lca theory runs/best --old-data --loss zero-one
      lca theory runs/best --branch best --samples 20000 --seed 1
      lca theory runs/best/theory.json --markdown
      lca theory runs/diagnosis-mini --pack results/theory-mini.json
    """
    from lca.instruments.theory.measure import ADDED, Settings
    from lca.instruments.theory.runs import theory_of_run
    from lca.report.theory import show, shown_only
    from lca.results.measured import THEORY, write_pack

    def measure(run: Path) -> dict[str, Any]:
        return theory_of_run(
            run,
            Settings(samples, seed, delta, clip, tuple(add) or ADDED),
            branch=branch,
            old_data=old_data,
            device=device,
            weights=weights,
            progress=choose_progress(quiet),
        )

    measuring = ("samples", "seed", "clip", "delta", "old_data", "add")
    runs = _measured(THEORY, context, measuring, measure)
    branches = list(dict.fromkeys(name for run in runs for name in run["branches"]))
    if branch is not None and branch not in branches:
        raise LcaError(f"there is no branch {branch!r}; {nearest(branch, branches)}")
    losses = [loss] if loss else ["clipped", "zero-one"]
    _show(runs, as_json, lambda: show(THEORY.by_recipe(runs), branch, losses, markdown))
    if pack is not None:
        write_pack(pack, [shown_only(run) for run in runs])


def diagnose_command(
    paths: Runs,
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where diagnosis.json, .png and .svg go; of several data sets a figure each.",
            show_default="the folder of a run that is measured",
        ),
    ] = None,
    pack: PackFile = None,
    markdown: AsMarkdown = False,
    as_json: AsJson = False,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
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
    from lca.report.diagnosis import figures, show
    from lca.results.measured import DIAGNOSIS, as_one, write_pack

    def write(runs: list[dict[str, Any]], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / DIAGNOSIS.file, as_one(runs))
        figures(DIAGNOSIS.by_recipe(runs), folder)

    def measure(run: Path) -> dict[str, Any]:
        facts = diagnose_run(run, device=device, weights=weights, progress=choose_progress(quiet))
        if out is None or len(paths) > 1:
            write([facts], run)
        return facts

    runs = _measured(DIAGNOSIS, context, (), measure)
    _show(runs, as_json, lambda: show(DIAGNOSIS.by_recipe(runs), markdown))
    if out is not None:
        write(runs, out)
    if pack is not None:
        write_pack(pack, runs)


def _measured(
    kind: "Measurement", context: typer.Context, measuring: Sequence[str], measure: Callable[[Path], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What was measured of the runs before, or is now; `measuring` names the options that only the latter has."""
    paths, progress = [Path(each) for each in context.params["paths"]], choose_progress(context.params["quiet"])
    shown = [path for path in paths if path.is_file() or (path / "cells").is_dir()]
    sources = {name: context.get_parameter_source(name) for name in (*measuring, "weights", "device")}
    given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    if shown and given:
        option = f"--{given[0].replace('_', '-')}"
        raise LcaError(f"{shown[0]} is only shown; {option} measures anew: give the run folder")
    read = {path: kind.read(path, progress) for path in shown}
    return [run for path in paths for run in (read[path] if path in read else [measure(path)])]


def _show(runs: Sequence[Mapping[str, Any]], as_json: bool, tables: Callable[[], str]) -> None:
    from lca.results.measured import as_one

    print(json.dumps(as_one(runs), ensure_ascii=False, indent=1) if as_json else tables(), end="\n" * as_json)
