"""A run's log for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path

from lca.errors import LcaError, needs
from lca.report.boards import Board


class TensorBoardLog(Board):
    """Scalars in a folder of event files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        with needs("--tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        if any(folder.glob("events.out.tfevents.*")):  # TensorBoard would draw both into one curve
            raise LcaError(f"{folder} holds TensorBoard files already; remove it, or choose another folder")
        self._folder, self._writer = folder, SummaryWriter(str(folder))

    def add(self, values: Mapping[str, float], axis: str, place: int, when: float) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, place, when)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    @property
    def hint(self) -> str:
        return f"tensorboard --logdir {self._folder}"
