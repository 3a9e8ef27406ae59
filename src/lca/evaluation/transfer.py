"""Forward transfer to classes that were not learnt yet, by nearest class means.

A classifier has no row for a class it never learnt, so there is nothing to ask it. Its features can be asked: the
training images of the next task give class means, and its test images are named after the nearest one (by cosine),
among that task's classes. b_t is the accuracy with the features as they are after task t - 1, b°_t with those of the
pre-trained backbone.
"""

from collections.abc import Sequence
from typing import Any


def forward_transfer(reached: Sequence[float | None], pretrained: Sequence[float | None]) -> dict[str, Any]:
    """b_t and b°_t in per cent, from the second task on, None for a task of one class, which anything gets right; and
    the mean of b_t - b°_t, None where no such task has several classes."""
    pairs = zip(reached, pretrained, strict=True)
    gains = [one - two for one, two in pairs if one is not None and two is not None]
    mean = sum(gains) / len(gains) if gains else None
    return {"mean": mean, "reached": list(reached), "pretrained": list(pretrained)}
