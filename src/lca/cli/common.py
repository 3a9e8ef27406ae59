"""What the verbs share: exit codes and options."""

from typing import Annotated

import typer

SOME_FAILED, BUDGET_SPENT, INTERRUPTED = 1, 75, 130

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the recipe; may be repeated.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
