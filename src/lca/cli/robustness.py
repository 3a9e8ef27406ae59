"""The verb for robustness: a model on damaged images."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lca.cli.common import Quiet
from lca.cli.models import AllowDownload, AsJson, Device, Model, Weights
from lca.errors import LcaError
from lca.progress import choose_progress


def robustness_command(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder with one folder per class, or a source as in `lca datasets`."),
    ],
    kind: Annotated[str, typer.Option(help="c: corruptions, p: sequences, cp: both.")] = "cp",
    only: Annotated[list[str], typer.Option(metavar="NAME", help="Only this kind of damage; may be repeated.")] = [],
    severity: Annotated[list[int], typer.Option(min=1, max=5, help="Only this severity; may be repeated.")] = [],
    files: Annotated[
        list[Path], typer.Option(metavar="FOLDER", help="Published arrays (CIFAR-100-C, -P); may be repeated.")
    ] = [],
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many images, drawn by seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated damage.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all numbers as JSON; of several branches to FILE-BRANCH.json."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with the JSON of another model.")
    ] = None,
    radar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw accuracies by kind: a .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
    branch: Annotated[
        list[str],
        typer.Option(
            help="Which of the model's classifiers answers, the last by default; several, or all, share the work."
        ),
    ] = [],
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure what damaged images cost a model: 19 corruptions in five severities, and 10 perturbation sequences.

    The damage is generated, by seed, with the definitions of Hendrycks and Dietterich (2019), or read from the
    published files with --files. Images of one size are damaged as they are, others as the model sees them. All 95
    cells and 10 sequences of n images are about 400 n answers: --limit 200 gives a first look. docs/robustness.md
    defines the numbers.

    Examples:
      lca robustness my-model photos/test
      lca robustness my-model photos/test --kind c --severity 5 --out robust.json
      lca robustness other-model photos/test --kind c --severity 5 --against robust.json --radar radar.png
      lca robustness my-model cifar100:data --files CIFAR-100-C --files CIFAR-100-P
      lca robustness runs/best/models/task-09 photos/test --branch all --out runs/best/robustness.json
    """
    import json

    from lca.cli.models import load_model
    from lca.damage.corruptions import SEVERITIES
    from lca.files import read_json
    from lca.instruments.robustness import Exam, labelled_images
    from lca.report.robustness import check_radar, draw_radar, text
    from lca.results.robustness import RobustnessScores, unlike

    if not kind or set(kind) - set("cp"):
        raise LcaError(f"--kind takes c, p or cp; got {kind!r}")
    if (len(branch) > 1 or branch == ["all"]) and (against or radar or as_json):
        raise LcaError("--against, --radar and --json take one --branch; with several, use --out and `lca report`")
    if limit is not None and files:
        raise LcaError("--limit and --files do not go together: the published arrays are of all images")
    _check_outputs(out, radar)
    theirs: Any = None if against is None else read_json(against)
    other = None if theirs is None else RobustnessScores.from_json(theirs)
    progress = choose_progress(quiet)
    # one bar for all, none for each batch
    learner = load_model(model, device, weights, choose_progress(quiet=True), allow_download)
    exam = Exam(learner, labelled_images(data, learner, limit, seed, progress))
    damage = exam.damage(kind, only, seed=seed, files=files, progress=progress)
    if radar is not None:
        check_radar(damage.kinds, other, progress.warning)
    branches = learner.method.branches() if branch == ["all"] else branch
    found = exam.measure(damage, severities=sorted(set(severity)) or SEVERITIES, branches=branches, progress=progress)
    common = {"model": str(model), "data": data, "seed": seed}
    every = {name: {**scores.as_json(), **common, "branch": name} for name, scores in found.items()}
    scores, facts = next(iter(found.values())), next(iter(every.values()))  # the only one, where two are compared
    if other is not None:
        if differ := unlike(facts, theirs):
            progress.warning(f"the two were not measured alike: {', '.join(differ)} differ")
        facts |= {"against": str(against), "mean_flip_ratio": scores.mean_flip_ratio(other)}
        facts["flip_ratios"] = scores.flip_ratios(other)
    try:
        _write(every, out)
    finally:  # a full disk does not lose what was measured
        for name, own in found.items():
            print(
                f"branch {name}\n" * (len(found) > 1) + (json.dumps(facts, indent=1) if as_json else text(own, other))
            )
    if radar is not None:
        names = (model.absolute().name, "" if against is None else against.stem)
        second = against.name if against is not None and names[0] == names[1] else names[1]
        draw_radar(radar, names[0], scores, second, other)


def _check_outputs(out: Path | None, radar: Path | None) -> None:
    """Refuse now what could not be written after the measurement."""
    if radar is not None and radar.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise LcaError(f"--radar takes a name that ends with .png, .svg or .pdf; got {radar}")
    for path in (out, radar):
        if path is not None:
            folder = next(each for each in path.absolute().parents if each.exists())
            if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
                raise LcaError(f"{path} cannot be written: name a file in a folder that takes one")


def _write(every: Mapping[str, Any], out: Path | None) -> None:
    from lca.files import write_json

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        for name, facts in every.items():
            write_json(out if len(every) == 1 else out.with_stem(f"{out.stem}-{name}"), facts)
