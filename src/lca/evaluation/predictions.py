"""A model's answer about one image, and about many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from lca import html
from lca.errors import LcaError, needs

if TYPE_CHECKING:
    from pandas import DataFrame

NAMED = 3
"""Classes that an answer names when it is printed."""
ROWS = 50
"""Answers that a notebook shows before it only counts."""


@dataclass(frozen=True, repr=False)
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
    image: str | None = field(default=None, compare=False)
    """What it is about: a path, or "image 3" of a list."""
    picture: Callable[[], bytes | None] | None = field(default=None, compare=False)
    """Makes a small JPEG of it, where the image is at hand."""

    @property
    def nearest(self) -> str | None:
        """The class that the image lies nearest to: the answer where no other is nearer. None without distances."""
        far = self.distances
        return None if far is None else min(far, key=lambda name: (far[name], name != self.label))

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])[:count]

    def __repr__(self) -> str:
        named = ", ".join(f"{name!r} {100 * value:.1f} %" for name, value in self.top(NAMED))
        far = "" if self.distance is None else f"; distance {self.distance:.1f} %"
        about = "" if self.image is None else f"; {self.image}"
        return f"Prediction({'unknown, nearest to ' * self.unknown}{named}{far}{about})"

    def _repr_html_(self) -> str:
        return _table([self])


class Predictions(list[Prediction]):
    """Answers about several images, in their order."""

    def to_frame(self) -> "DataFrame":
        """A row for every image: what it is, label, probability, distance, unknown, and a column for every class."""
        with needs("a table of predictions", "pandas"):
            from pandas import DataFrame

        rows = [
            {
                "image": each.image,
                "label": each.label,
                "probability": each.probability,
                "distance": each.distance,
                "unknown": each.unknown,
                **{f"probability of {name}": value for name, value in each.probabilities.items()},
            }
            for each in self
        ]
        return DataFrame(rows)

    def _repr_html_(self) -> str:
        return _table(self[:ROWS]) + (f"<p>and {len(self) - ROWS} more</p>" if len(self) > ROWS else "")


def _table(answers: Sequence[Prediction]) -> str:
    rows = []
    for each in answers:
        name = each.image or ""
        shown = html.picture(each.picture() if each.picture is not None else None, name)
        bars = "".join(html.bar(value, f"{label} {100 * value:.1f} %") for label, value in each.top(NAMED))
        far = "" if each.distance is None else f"{each.distance:.1f} %"
        label = html.safe(each.label)
        rows.append([shown, f"<b>unknown</b>, nearest to {label}" if each.unknown else f"<b>{label}</b>", bars, far])
    return html.table(["image", "answer", "probabilities", "distance"], rows)


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
