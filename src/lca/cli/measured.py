"""What the verbs share that measure runs whose models were kept."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lca.cli.common import Quiet
from lca.cli.models import AsJson, Device, Weights
from lca.errors import LcaError

if TYPE_CHECKING:
    from lca.results.measured import Measurement


@dataclass(frozen=True)
class Shared:
    """The runs and the options of such a verb."""

    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run folders, which are measured; or what is only shown again: JSON files of earlier measurements, "
            "and sweep folders whose cells have them.",
        ),
    ]
    context: typer.Context
    pack: Annotated[
        Path | None,
        typer.Option("--pack", metavar="FILE", help="Also write all runs into one small file, to be shown again."),
    ] = None
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False
    as_json: AsJson = False
    weights: Weights = None
    device: Device = None
    quiet: Quiet = False

    def runs(
        self, kind: "Measurement", measuring: Sequence[str], measure: Callable[[Path], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What was measured of the runs before, or is now; `measuring` names the options that only the latter has."""
        from lca.progress import choose_progress

        shown = [path for path in self.paths if path.is_file() or (path / "cells").is_dir()]
        sources = {name: self.context.get_parameter_source(name) for name in (*measuring, "weights", "device")}
        given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
        if shown and given:
            option = f"--{given[0].replace('_', '-')}"
            raise LcaError(f"{shown[0]} is only shown; {option} measures anew: give the run folder")
        read = {path: kind.read(path, choose_progress(self.quiet)) for path in shown}
        return [run for path in self.paths for run in (read[path] if path in read else [measure(path)])]

    def show(self, runs: Sequence[Mapping[str, Any]], tables: Callable[[], str]) -> None:
        """Print the runs as they were asked for."""
        import json

        from lca.results.measured import as_one

        print(
            json.dumps(as_one(runs), ensure_ascii=False, indent=1) if self.as_json else tables(),
            end="\n" * self.as_json,
        )


def takes_runs(command: Callable[..., None]) -> Callable[..., None]:
    """A command with all that is shared, which it gets as its first argument, beside options of its own."""
    runs, *shared = inspect.signature(Shared).parameters.values()
    own = list(inspect.signature(command).parameters.values())[1:]

    @wraps(command)
    def verb(**given: Any) -> None:
        command(Shared(**{each.name: given.pop(each.name) for each in (runs, *shared)}), **given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (runs, *own, *shared)]
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    verb.__annotations__ = {each.name: each.annotation for each in parameters}
    return verb
