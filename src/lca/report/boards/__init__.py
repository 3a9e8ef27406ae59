"""Boards of others that show a run: TensorBoard, MLflow, Weights & Biases. All they get is what its log says."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lca.errors import LcaError
from lca.files import hash_json
from lca.report.watch import Event, LogReader, accuracies_of
from lca.results.folder import RunFiles


class Board(ABC):
    """Gets what the log measured: `PHASE/loss` and the like and `seconds/PHASE` by step of that phase over all tasks,
    and `accuracy/BRANCH` by task. Times are those of the log."""

    def __init__(self) -> None:
        self._places: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)

    def take(self, event: Event) -> None:
        when = datetime.fromisoformat(event["time"]).timestamp()
        if event["event"] == "step":
            phase, places = event["phase"], self._places[event["phase"]]
            place = places.setdefault((event["task"], event["step"]), len(places) + 1)  # done again it keeps its place
            values = {
                f"seconds/{phase}" if name == "seconds" else f"{phase}/{name}": value
                for name, value in event.items()
                if isinstance(value, float)
            }
            self.add(values, f"step/{phase}", place, when)
        elif event["event"] == "evaluated":
            values = {f"accuracy/{branch}": accuracy for branch, accuracy in accuracies_of(event).items()}
            self.add(values, "task", event["task"] + 1, when)
            self.flush()

    @abstractmethod
    def add(self, values: Mapping[str, float], axis: str, place: int, when: float) -> None:
        """Show values at a place of an axis; `when` is in seconds since 1970."""

    def flush(self) -> None:  # noqa: B027 - not every board keeps things back
        """Send what was kept back."""

    @abstractmethod
    def close(self) -> None:
        """There is nothing more to come for now."""

    @property
    @abstractmethod
    def hint(self) -> str:
        """How to look at it."""


def identity(run: Path) -> tuple[str, dict[str, Any]]:
    """What names a run for good, and its recipe by dotted keys. The same folder may later hold another run."""
    files = RunFiles(run)
    first = next(LogReader(files.log_file).new(), None)
    if first is None:
        raise LcaError(f"{run} has no log, and all that a board gets is in it; is it a run folder, and has it begun?")
    return hash_json([run.name, dict(first)])[:16], _dotted(files.stored_recipe())


def _dotted(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found
