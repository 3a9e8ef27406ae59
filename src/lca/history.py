"""What a model learnt and forgot, step by step."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Lesson:
    """One step of a model's history."""

    kind: str
    """`learn` or `forget`."""
    when: str | None
    """None for a task of a benchmark: its outcome must not depend on the clock."""
    images: dict[str, int]
    """Images learnt from, by class; empty for `forget`."""
    new: list[str]
    """Classes that were not known before; for `forget`, the class that went."""
    held_out: int = 0
    """Images kept back to measure on."""
    right: int = 0
    """How many of them were named rightly afterwards, among all classes known by then."""
    called_unknown: int = 0
    """How many of them were called unknown at the usual limit."""
    calibration_error: float | None = None
    """On the held-out images, at the temperature that was fitted on them, in per cent."""
    left_out: int = 0
    """Files that could not be read."""
    seconds: float | None = None

    @property
    def accuracy(self) -> float | None:
        """On the held-out images, in per cent."""
        return 100 * self.right / self.held_out if self.held_out else None


def images_learnt(history: Iterable[Lesson]) -> dict[str, int]:
    """The classes known after these lessons, with the images each was learnt from."""
    images: dict[str, int] = {}
    for lesson in history:
        for name, count in lesson.images.items():
            images[name] = images.get(name, 0) + count
        if lesson.kind == "forget":
            for name in lesson.new:
                images.pop(name, None)
    return images


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
