"""A model's answer about one image."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    label: str
    probability: float
    """Calibrated on held-out images, where there were any."""
    probabilities: dict[str, float]
    distance: float | None
    """How unlike known images it is, between 0 and 100: of as many known images that number would have been as large as
    this or larger as are missing to 100. None where there are no class statistics to compare with."""
    distances: dict[str, float] | None
    """The same for every class, as if it were the nearest; none is below that of the class which is."""
    unknown: bool
    """Whether it is more unlike them than it should be."""

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])[:count]


def predictions(
    classes: Sequence[str], probabilities: Tensor, distances: Tensor | None, unknown_at: float
) -> list[Prediction]:
    """Answers by the probabilities (n, classes) and, if there are any, the distances (n, classes) of images."""
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
