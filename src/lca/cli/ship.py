"""Verbs that give a model away or fetch one: export, push, pull."""

from pathlib import Path
from typing import Annotated

import typer

from lca.cli.common import Quiet, check_model, interruptible
from lca.cli.models import AllowDownload, Branch, Model, Weights, load_model
from lca.errors import LcaError
from lca.progress import choose_progress

Repo = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hugging Face hub: OWNER/NAME.")]
ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "peft": "-peft", "timm": "-timm"}
"""What stands behind the model's name in that of an exported file or folder."""


def export_command(
    model: Model,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="What to write; by default named after the model, beside it.")
    ] = None,
    as_onnx: Annotated[bool, typer.Option("--onnx", help="One ONNX file (MODEL.onnx).")] = False,
    as_torch: Annotated[bool, typer.Option("--torch", help="One file for torch.export.load (MODEL.pt2).")] = False,
    as_peft: Annotated[
        bool, typer.Option("--peft", help="A folder for the peft library (MODEL-peft); for lora and peft:NAME tuning.")
    ] = False,
    as_timm: Annotated[
        bool, typer.Option("--timm", help="A folder for timm and transformers, with a linear head (MODEL-timm).")
    ] = False,
    branch: Branch = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite also what is no earlier export.")] = False,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    quiet: Quiet = False,
) -> None:
    """Export a model to a file that runs without lca.

    ONNX and torch files hold the whole answer: images in, calibrated probabilities and the distance from the nearest
    class out. The JSON beside them names the classes and says how to prepare an image. A checkpoint of timm's holds the
    merged transformer with a linear head, which `transformers.pipeline` loads, too. See docs/shipping.md.

    Examples:
      lca export my-model --onnx
      lca export my-model --onnx flowers.onnx
      lca export my-model --torch --peft
      lca export my-model --timm
    """
    asked = {"onnx": as_onnx, "torch": as_torch, "peft": as_peft, "timm": as_timm}
    chosen = {kind: ending for kind, ending in ENDINGS.items() if asked[kind]}
    if not chosen:
        raise LcaError("say what to export: --onnx, --torch, --peft or --timm")
    if path is not None and len(chosen) > 1:
        raise LcaError(f"{path} can be one file only; give one of --{' or --'.join(chosen)}, or leave the path out")
    check_model(model)
    progress = choose_progress(quiet)
    with interruptible("nothing was changed by what was not finished"):
        progress.line(f"reading {model}")
        learner = load_model(model, "cpu", weights, progress, allow_download)
        from lca.models.export import export_onnx, export_peft, export_torch
        from lca.models.timm_checkpoint import export_timm

        writers = {"onnx": export_onnx, "torch": export_torch, "timm": export_timm}
        for kind, ending in chosen.items():
            beside = model.absolute().with_name(f"{model.absolute().name}{ending}")
            target = path or (beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
            progress.line(f"writing {target}; with a large backbone this takes a while")
            if kind == "peft":
                about = export_peft(learner, target, overwrite=force)
            else:
                about = writers[kind](learner, target, branch=branch, overwrite=force)
            print(f"{target}: {len(learner.classes)} classes; {about} says how to use it")


def push_command(
    model: Model,
    repo: Repo,
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a new repository; it is private by default.")
    ] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Message of the commit.")] = "Update the model",
    example: Annotated[
        list[Path],
        typer.Option(
            metavar="PHOTO", help="Show a small copy of this photo and the answer on the page; again for more."
        ),
    ] = [],
    quiet: Quiet = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    Log in first with `hf auth login`, or set HF_TOKEN. Only the model's own files go up, all in one commit; its card
    becomes the page of the repository, with what was measured on held-out photos as the hub's own results. No photo
    goes up but those that --example names.

    Examples:
      lca push my-model anna/flowers
      lca push my-model anna/flowers --public --message 'Three more species'
      lca push my-model anna/flowers --example rose.jpg --example tulip.jpg
    """
    from lca.models.hub import push

    check_model(model)
    with interruptible("the repository holds the earlier version, or none"):
        progress = choose_progress(quiet)
        print(push(model, repo, private=not public, message=message, progress=progress, examples=example))


def pull_command(
    repo: Repo,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; it is made.")],
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit.")] = None,
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

    with interruptible(f"{model} is as it was"):
        pull(repo, model, revision=revision, overwrite=force, progress=choose_progress(quiet))
    print(f"{model}: ask it with `lca predict {model} IMAGE`, or see `lca info {model}`")
