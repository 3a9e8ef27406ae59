"""The scalars of a run's log for TensorBoard."""

from collections import defaultdict
from datetime import datetime
from pathlib import Path

from lca.errors import LcaError, needs
from lca.report.watch import Event, accuracies_of


class TensorBoardLog:
    """Writes what the log measured: `PHASE/loss` and the like by step of that phase over all tasks, `seconds/PHASE`,
    and `accuracy/BRANCH` by task. Times are those of the log."""

    def __init__(self, folder: Path) -> None:
        with needs("--tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        if any(folder.glob("events.out.tfevents.*")):  # TensorBoard would draw both into one curve
            raise LcaError(f"{folder} holds TensorBoard files already; remove it, or choose another folder")
        self._writer = SummaryWriter(str(folder))
        self._places: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)

    def take(self, event: Event) -> None:
        when = datetime.fromisoformat(event["time"]).timestamp()
        if event["event"] == "step":
            phase, places = event["phase"], self._places[event["phase"]]
            place = places.setdefault((event["task"], event["step"]), len(places) + 1)  # done again it keeps its place
            for name, value in event.items():
                if isinstance(value, float):
                    tag = f"seconds/{phase}" if name == "seconds" else f"{phase}/{name}"
                    self._writer.add_scalar(tag, value, place, when)
        elif event["event"] == "evaluated":
            for branch, accuracy in accuracies_of(event).items():
                self._writer.add_scalar(f"accuracy/{branch}", accuracy, event["task"] + 1, when)
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()
