"""A model's answer about one image."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lca.errors import LcaError


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    label: str
    probability: float
    """Calibrated on held-out images, where there were any."""
    probabilities: dict[str, float]
    distance: float | None
    """How far the image lies from the nearest class: the share of known images, in per cent, that lay nearer to a class
    when they were left out. None where there are no class statistics to compare with."""
    distances: dict[str, float] | None
    """The same for every class."""
    unknown: bool
    """Whether the image lies farther from every class than it should."""

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])[:count]


def predictions(
    classes: Sequence[str], probabilities: Tensor, distances: Tensor | None, unknown_at: float
) -> list[Prediction]:
    """Answers by the probabilities (n, classes) and, if there are any, the distances (n, classes) of images.

    Numbers that are not finite are an error: they would look like an answer.
    """
    for what, values in (("probabilities", probabilities), ("distances", distances)):
        if values is not None and (values.shape[1:] != (len(classes),) or not values.isfinite().all()):
            raise LcaError(
                f"the {what} are no finite numbers for each of {len(classes)} classes: training diverged, or the "
                "model was damaged; go back to an earlier copy, or teach it anew"
            )
    answers = []
    for number, row in enumerate(probabilities.cpu()):
        far = None if distances is None else dict(zip(classes, distances[number].tolist(), strict=True))
        nearest = None if far is None else min(far.values())
        answers.append(
            Prediction(
                classes[int(row.argmax())],
                float(row.max()),
                dict(zip(classes, row.tolist(), strict=True)),
                nearest,
                far,
                nearest is not None and nearest >= unknown_at,
            )
        )
    return answers
