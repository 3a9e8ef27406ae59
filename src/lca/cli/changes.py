"""Verbs that change what a model knows without any photo: forget, rename, merge-classes, undo."""

from typing import TYPE_CHECKING, Annotated

import typer

from lca.cli.common import Quiet, check_model
from lca.cli.models import AllowDownload, Device, Keep, Model, Weights, changing, load_model
from lca.progress import choose_progress
from lca.text import count, terminal_text

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier

ClassName = Annotated[str, typer.Argument(metavar="CLASS", help="Name of a class.")]


def forget_command(
    model: Model,
    names: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Names of the classes.")],
    purge: Annotated[
        bool, typer.Option("--purge", help="Keep no earlier state either: `lca undo` cannot bring the classes back.")
    ] = False,
    keep: Keep = 5,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Remove classes from a model: their head rows and statistics, and align the other classes again.

    The backbone is NOT unlearnt: what it picked up from the images of a class stays in its weights, mixed with
    everything else. Where that matters, teach a new model without the class. `lca undo` brings the classes back, from
    an earlier state that still holds their statistics; --purge removes all earlier states.

    Examples:
      lca forget my-model cat
      lca forget my-model cat dog 'garden spider'
      lca forget my-model cat --purge
    """
    check_model(model)
    with changing(model):
        learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
        learner.keep = keep
        learner.forget(*names, purge=purge)
        learner.save(model)
    print(f"{model} has forgotten {', '.join(map(terminal_text, dict.fromkeys(names)))}; it knows {_classes(learner)}")
    if learner.undoable and not learner.bundle:
        print(
            f"an earlier state still holds what went: `lca undo {model}` brings it back, and with --purge none is kept"
        )


def rename_command(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Name of a class.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What it is to be called.")],
    keep: Keep = 5,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Call a class of a model by another name. Nothing else changes.

    Examples:
      lca rename my-model tiger 'tiger lily'
    """
    check_model(model)
    with changing(model):
        learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
        learner.keep = keep
        learner.rename(old, new)
        learner.save(model)
    print(f"{model}: {terminal_text(old)} is now called {terminal_text(learner.history[-1].name or '')}")


def merge_classes_command(
    model: Model,
    a: ClassName,
    b: ClassName,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="What they are called together; by default as the first.")
    ] = None,
    keep: Keep = 5,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Make two classes of a model one.

    Their statistics combine exactly, as if the photos of both had been taught as one class, and the classes are aligned
    again. A method that keeps no class statistics refuses.

    Examples:
      lca merge-classes my-model cat Cat
      lca merge-classes my-model cat kitten --as cats
    """
    check_model(model)
    with changing(model):
        learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
        learner.keep = keep
        learner.merge_classes(a, b, name)
        learner.save(model)
    both, one = f"{terminal_text(a)} and {terminal_text(b)}", terminal_text(learner.history[-1].name or a)
    print(f"{model}: {both} are one class now, {one}; it knows {_classes(learner)}")


def undo_command(
    model: Model,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Take back the last change of a model, exactly: a lesson, or what forget, rename and merge-classes did.

    Given again, it takes back the change before. `lca info` says how many can be taken back: five, unless --keep of
    what changed the model said otherwise, or their states need more than 1 GiB beside the model.

    Examples:
      lca undo my-model
    """
    check_model(model)
    with changing(model):
        learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
        taken = learner.undo()
        learner.save(model)
    from lca.history import described

    did = f"learnt ({described(taken)})" if taken.kind == "learn" else described(taken)
    print(f"{model} is as it was before it {terminal_text(did)}; it knows {_classes(learner)}")
    print(f"{count(learner.undoable, 'more change')} can be taken back")


def _classes(learner: "ContinualClassifier") -> str:
    return count(len(learner.classes), "class", "classes")
