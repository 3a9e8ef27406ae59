"""The verb theory: the terms of the paper's theorems, measured on a run."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lca.cli.measured import Shared, takes_runs
from lca.errors import LcaError, nearest

MEASURING = ("samples", "seed", "clip", "delta", "old_data", "add")
"""Options that what is only shown cannot follow."""


@takes_runs
def theory_command(
    shared: Shared,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="Only this classifier.", show_default="all with Gaussians"),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=2, help="Fresh samples of every class.")] = 4096,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the fresh samples.")] = 0,
    loss: Annotated[
        Literal["clipped", "zero-one"] | None,
        typer.Option("--loss", help="Show only this loss; both are measured.", show_default="both"),
    ] = None,
    clip: Annotated[float, typer.Option("--clip", min=0.01, help="Maximum of the clipped cross-entropy.")] = 5.0,
    delta: Annotated[
        float, typer.Option("--delta", min=1e-9, max=1, help="The theorems hold with probability 1 - delta.")
    ] = 0.05,
    old_data: Annotated[
        bool,
        typer.Option("--old-data", help="Read old training images, for diagnosis only: drift and Theorem 2."),
    ] = False,
    add: Annotated[
        list[float],
        typer.Option(
            "--add",
            metavar="VARIANCE",
            min=0,
            help="Also the distance with this variance added in every direction; may be repeated.",
            show_default="0.001 to 10",
        ),
    ] = [],  # noqa: B006  # typer copies it
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
    from lca.progress import choose_progress
    from lca.report.theory import show, shown_only
    from lca.results.measured import THEORY, write_pack

    def measure(run: Path) -> dict[str, Any]:
        return theory_of_run(
            run,
            Settings(samples, seed, delta, clip, tuple(add) or ADDED),
            branch=branch,
            old_data=old_data,
            device=shared.device,
            weights=shared.weights,
            progress=choose_progress(shared.quiet),
        )

    runs = shared.runs(THEORY, MEASURING, measure)
    branches = list(dict.fromkeys(name for run in runs for name in run["branches"]))
    if branch is not None and branch not in branches:
        raise LcaError(f"there is no branch {branch!r}; {nearest(branch, branches)}")
    losses = [loss] if loss else ["clipped", "zero-one"]
    shared.show(runs, lambda: show(THEORY.by_recipe(runs), branch, losses, shared.markdown))
    if shared.pack is not None:
        write_pack(shared.pack, [shown_only(run) for run in runs])
