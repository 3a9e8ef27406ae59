"""Forward transfer to classes that were not learnt yet, by nearest class means.

A classifier has no row for a class it never learnt, so there is nothing to ask it. Its features can be asked: the
training images of the next task give class means, and its test images are named after the nearest one (by cosine),
among that task's classes. b_t is the accuracy with the features as they are after task t - 1, b°_t with those of the
pre-trained backbone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ForwardTransfer:
    """b_t and b°_t in per cent, from the second task on; None for a task of one class, which anything gets right."""

    reached: Sequence[float | None]
    pretrained: Sequence[float | None]

    def mean(self) -> float | None:
        """Mean over the tasks from the second on of b_t - b°_t; None where no such task has several classes."""
        pairs = zip(self.reached, self.pretrained, strict=True)
        gains = [one - two for one, two in pairs if one is not None and two is not None]
        return sum(gains) / len(gains) if gains else None

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean(), "reached": list(self.reached), "pretrained": list(self.pretrained)}
