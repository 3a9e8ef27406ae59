"""What the verbs share: exit codes, options, and the look whether a folder is a model."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

V = TypeVar("V", bound=Callable[..., Any])

SOME_FAILED, INPUT_OUTPUT, BUDGET_SPENT, INTERRUPTED, READER_GONE = 1, 74, 75, 130, 141

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the recipe; may be repeated.")
]


def _limit_pixels(megapixels: float | None) -> float | None:
    if megapixels is not None:
        os.environ["LCA_MAX_MEGAPIXELS"] = str(megapixels)  # where what reads images looks for it
    return megapixels


MaxMegapixels = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        callback=_limit_pixels,
        help="Leave out larger images; the environment variable LCA_MAX_MEGAPIXELS does the same.",
        show_default="50",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


def check_model(model: Path) -> None:
    """A verb that needs a model says so before it begins."""
    from lca.arguments import model_folder

    model_folder(model)


@contextmanager
def interruptible(outcome: str) -> Iterator[None]:
    """Ctrl-C ends a verb with its exit code, and with what became of the work."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted; {outcome}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def with_examples(verb: V) -> V:
    """Make every example of a docstring a paragraph of its own, or the help would join their lines."""
    verb.__doc__ = re.sub(r"(?<!\n)\n(?=  \S)", "\n\n", inspect.cleandoc(verb.__doc__ or ""))
    return verb


def first_paragraph(text: str | None) -> str:
    """What a docstring says first, on one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())
