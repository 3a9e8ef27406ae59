"""Verbs that give a model away or fetch one: export, push, pull."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lca.cli.common import INTERRUPTED, Quiet, check_model
from lca.cli.models import Model, Weights
from lca.errors import LcaError

Repo = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hugging Face hub: OWNER/NAME.")]


def export_command(
    model: Model,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="What to write; by default named after the model, beside it."),
    ] = None,
    as_onnx: Annotated[bool, typer.Option("--onnx", help="One ONNX file (MODEL.onnx).")] = False,
    as_torch: Annotated[bool, typer.Option("--torch", help="One file for torch.export.load (MODEL.pt2).")] = False,
    as_peft: Annotated[
        bool, typer.Option("--peft", help="A folder for the peft library (MODEL-peft); for lora and peft:NAME tuning.")
    ] = False,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Which of the model's classifiers answers; the last by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite also what is no earlier export.")] = False,
    weights: Weights = None,
    quiet: Quiet = False,
) -> None:
    """Export a model to a file that runs without lca.

    ONNX and torch files hold the whole answer: images in, calibrated probabilities and the distance from the nearest
    class out. The JSON beside them names the classes and says how to prepare an image. See docs/shipping.md.

    Examples:

      lca export my-model --onnx

      lca export my-model --onnx flowers.onnx

      lca export my-model --torch --peft
    """
    from lca.progress import choose_progress

    place = model.absolute()
    targets = {
        "onnx": (as_onnx, place.with_name(f"{place.name}.onnx")),
        "torch": (as_torch, place.with_name(f"{place.name}.pt2")),
        "peft": (as_peft, place.with_name(f"{place.name}-peft")),
    }
    chosen = {kind: usual for kind, (asked, usual) in targets.items() if asked}
    if not chosen:
        raise LcaError("say what to export: --onnx, --torch or --peft")
    if path is not None and len(chosen) > 1:
        raise LcaError(f"{path} can be one file only; give one of --{' or --'.join(chosen)}, or leave the path out")
    check_model(model)
    progress = choose_progress(quiet)
    with _interruptible("nothing was changed by what was not finished"):
        from lca.classifier import ContinualClassifier
        from lca.models.export import export_onnx, export_peft, export_torch

        progress.line(f"reading {model}")
        learner = ContinualClassifier.load(model, device="cpu", weights=weights, progress=progress)
        for kind, usual in chosen.items():
            target = path or _short(usual)
            progress.line(f"writing {target}; with a large backbone this takes a while")
            if kind == "onnx":
                about = export_onnx(learner, target, branch=branch, overwrite=force)
            elif kind == "torch":
                about = export_torch(learner, target, branch=branch, overwrite=force)
            else:
                about = export_peft(learner, target, overwrite=force)
            print(f"{target}: {len(learner.classes)} classes; {about} says how to use it")


def push_command(
    model: Model,
    repo: Repo,
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a new repository; it is private by default.")
    ] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Message of the commit.")] = "Update the model",
    quiet: Quiet = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    Log in first with `hf auth login`, or set HF_TOKEN. Only the model's own files go up, all in one commit; its card
    becomes the page of the repository.

    Examples:

      lca push my-model anna/flowers

      lca push my-model anna/flowers --public --message 'Three more species'
    """
    from lca.models.hub import push
    from lca.progress import choose_progress

    check_model(model)
    with _interruptible("the repository holds the earlier version, or none"):
        print(push(model, repo, private=not public, message=message, progress=choose_progress(quiet)))


def pull_command(
    repo: Repo,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; it is made.")],
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, a tag or a commit.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Download a model from the Hugging Face hub.

    The folder appears when everything is there and its hashes are right. Nothing that is downloaded is executed.

    Examples:

      lca pull anna/flowers flowers

      lca pull anna/flowers flowers --revision v2 --force
    """
    from lca.models.hub import pull
    from lca.progress import choose_progress

    with _interruptible(f"{model} is as it was"):
        pull(repo, model, revision=revision, overwrite=force, progress=choose_progress(quiet))
    print(f"{model}: ask it with `lca predict {model} IMAGE`, or see `lca info {model}`")


def _short(path: Path) -> Path:
    """Relative to here where that is shorter."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@contextmanager
def _interruptible(outcome: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted; {outcome}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
