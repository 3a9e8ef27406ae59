"""The verb for robustness: a model on damaged images."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lca.cli.common import Quiet
from lca.cli.models import AsJson, Device, Model, Weights
from lca.errors import LcaError


def robustness_command(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder with one folder per class, or a source as in `lca datasets`."),
    ],
    kind: Annotated[str, typer.Option("--kind", help="c: corruptions, p: sequences, cp: both.")] = "cp",
    only: Annotated[
        list[str], typer.Option("--only", metavar="NAME", help="Only this kind of damage; may be repeated.")
    ] = [],  # noqa: B006  # typer copies it
    severity: Annotated[
        list[int], typer.Option("--severity", min=1, max=5, help="Only this severity; may be repeated.")
    ] = [],  # noqa: B006
    files: Annotated[
        list[Path],
        typer.Option("--files", metavar="FOLDER", help="Published arrays (CIFAR-100-C, -P); may be repeated."),
    ] = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only this many images, drawn by seed.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the generated damage.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write all numbers as JSON; of several branches to FILE-BRANCH.json."
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Compare with the JSON of another model.")
    ] = None,
    radar: Annotated[
        Path | None, typer.Option("--radar", metavar="FILE", help="Draw accuracies by kind: a .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
    branch: Annotated[
        list[str],
        typer.Option(
            "--branch",
            help="Which of the model's classifiers answers, the last by default; several, or all, share the work.",
        ),
    ] = [],  # noqa: B006
    weights: Weights = None,
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

    import torch

    from lca.cli.models import load_model
    from lca.damage.corruptions import SEVERITIES
    from lca.files import read_json, write_json
    from lca.instruments.robustness import robustness
    from lca.progress import choose_progress
    from lca.randomness import generator
    from lca.results.robustness import RobustnessScores

    if not kind or set(kind) - set("cp"):
        raise LcaError(f"--kind takes c, p or cp; came {kind!r}")
    theirs = None if against is None else read_json(against)
    other = None if theirs is None else RobustnessScores.from_json(theirs)
    progress = choose_progress(quiet)
    _check_outputs(out, radar)
    if (len(branch) > 1 or branch == ["all"]) and (against or radar or as_json):
        raise LcaError("--against, --radar and --json take one --branch; with several, use --out and `lca report`")

    def planned(kinds: Sequence[str]) -> None:
        if radar is not None:
            _check_radar(kinds, kinds if other is None else [*other.by_kind()], progress)

    learner = load_model(model, device, weights, choose_progress(quiet=True))  # one bar for all, none for each batch
    images = _images(data, learner, progress)
    if limit is not None and limit < len(images):
        if files:
            raise LcaError("--limit and --files do not go together: the published arrays are of all images")
        order = torch.randperm(len(images), generator=generator(seed, "robustness limit"))
        images = images.subset(order[:limit].sort().values)
    found = robustness(
        learner,
        images,
        kinds=tuple(kind),
        names=only,
        severities=sorted(set(severity)) or SEVERITIES,
        seed=seed,
        branches=learner.method.branches() if branch == ["all"] else branch,
        files=files,
        progress=progress,
        planned=planned,
    )
    every = {
        name: {**scores.as_json(), "model": str(model), "data": data, "seed": seed, "branch": name}
        for name, scores in found.items()
    }
    scores, facts = next(iter(found.values())), next(iter(every.values()))  # the only one, where two are compared
    if theirs is not None and other is not None:
        unlike = [key for key in ("data", "images", "seed", "generated") if facts[key] != theirs.get(key)]
        unlike += ["kinds of damage or severities"] * (scores.asked() != other.asked())
        if unlike:
            progress.warning(f"the two were not measured alike: {', '.join(unlike)} differ")
        facts |= {"against": str(against), "mean_flip_ratio": scores.mean_flip_ratio(other)}
        facts["flip_ratios"] = scores.flip_ratios(other)
    try:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            for name, each in every.items():
                write_json(out if len(every) == 1 else out.with_stem(f"{out.stem}-{name}"), each)
    finally:  # a full disk does not lose what was measured
        for name, own in found.items():
            if len(found) > 1:
                print(f"branch {name}")
            print(json.dumps(facts, indent=1)) if as_json else _print(own, other)
    if radar is not None:
        _draw(scores, other, radar, model, against)


def _check_outputs(out: Path | None, radar: Path | None) -> None:
    """Refuse now what could not be written after the measurement."""
    if radar is not None and radar.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise LcaError(f"--radar takes a name that ends with .png, .svg or .pdf; came {radar}")
    for path in (out, radar):
        if path is not None:
            folder = next(each for each in path.absolute().parents if each.exists())
            if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
                raise LcaError(f"{path} cannot be written: name a file in a folder that takes one")


def _check_radar(ours: Sequence[str], theirs: Sequence[str], progress: Any) -> None:
    """Refuse a radar with too few axes, and tell which kinds of damage have none."""
    from lca.report.radars import FEWEST_KINDS

    shown = [kind for kind in ours if kind in theirs]
    if len(shown) < FEWEST_KINDS:
        raise LcaError(f"a radar needs three kinds of damage or more; here {', '.join(shown) or 'none'} can be drawn")
    if left := [kind for kind in (*ours, *theirs) if kind not in shown]:
        progress.warning(f"the radar leaves out what only one of the two was asked: {', '.join(left)}")


def _images(data: str, learner: Any, progress: Any) -> Any:
    """The labelled images of a folder, or the test images of a source."""
    from lca.data.folders import read_class_folders
    from lca.data.options import DataOptions
    from lca.data.sources import load_source, sources

    if data.partition(":")[0] in sources and not Path(data).exists():
        same = learner.recipe.data.source == data  # then what was held out for testing is held out here
        options = learner.recipe.data if same else DataOptions(source=data)
        return load_source(options, learner.recipe.seed, learner.extractor.preprocessing.size, progress).test
    images, report = read_class_folders(Path(data), learner.working_size, progress)
    for line in report.lines():
        progress.warning(line)
    return images


def _print(scores: Any, other: Any) -> None:
    """A table: every kind of damage, then the means; beside another model's numbers if there are any."""
    from lca.damage.perturbations import NOISE
    from lca.results.robustness import along

    def line(what: str, value: float | None, beside: float | None, more: str = "") -> None:
        if value is not None:
            against = "" if other is None or beside is None else f"   other {beside:5.1f}   {value - beside:+5.1f}"
            print(f"{what:<24}{value:5.1f} %{against}{more}")

    print(f"{scores.images} images, {scores.where}; accuracies")
    line("clean", scores.clean, other and other.clean)
    theirs = {} if other is None else other.by_corruption()
    for name, mean in scores.by_corruption().items():
        each = " ".join(f"{value:5.1f}" for value in scores.corrupted[name].values())
        line(name, mean, theirs.get(name), f"   by severity {each}")
    ratios = {} if other is None else scores.flip_ratios(other)
    for name, own in scores.perturbed.items():
        beside = {} if other is None else other.perturbed.get(name, {})
        more = f"   flips {own['flips']:.1f} %"
        if name in NOISE:
            more += f" (from frame to frame {own['flips_previous']:.1f} %)"
        if (ratio := ratios.get(name)) is not None:
            more += f", {ratio:.0f} % of the other's"
        line(along(name), own["accuracy"], beside.get("accuracy"), more)
    for what in ("accuracy_c", "at_severity_5", "accuracy_p", "flip_rate", "flip_rate_previous", "score"):
        line(what.replace("_", " "), getattr(scores, what), other and getattr(other, what))
    if ratios:
        mean, still = scores.mean_flip_ratio(other), [name for name, ratio in ratios.items() if ratio is None]
        value = f"{mean:5.1f} %" if mean is not None else f"    - (the other never flips: {', '.join(still)})"
        print(f"{'mFR':<24}{value}")


def _draw(scores: Any, other: Any, path: Path, model: Path, against: Path | None) -> None:
    from lca.report.radars import robustness_radar

    name = model.absolute().name
    models, where = {name: scores.by_kind()}, [scores.where]
    if other is not None and against is not None:
        models[against.name if against.stem == name else against.stem] = other.by_kind()
        where += [other.where] * (other.where != scores.where)
    title = f"accuracy on damaged images (%), {' against '.join(where)}"
    robustness_radar(models, path, title, relative=len(models) == 2)
