"""What a model learnt and forgot, step by step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal


@dataclass(frozen=True)
class Improvement:
    """A thorough lesson that was tried beside the instant one, on the same images, and what it was worth."""

    kept: bool
    """Whether its result is the model's now; otherwise the instant one stayed."""
    measured_on: Literal["held out", "left one out"]
    """The lesson's classes: images that were held out, or those learnt, as if each had not been."""
    instant: float
    """Accuracy on them after the instant lesson, in per cent."""
    thorough: float
    """The same after the thorough one."""
    known_instant: float | None = None
    """Of the classes known before: the share of samples of their Gaussians that are named rightly, in per cent; None
    where there were none."""
    known_thorough: float | None = None
    margin: float | None = None
    """By how much chance alone lets these two differ: one standard error of the difference."""
    seconds: float | None = None


@dataclass(frozen=True)
class Change:
    """What a lesson changed for a class it was not about: shares of samples of its Gaussian that are named rightly."""

    before: float
    """In per cent."""
    after: float
    taken_for: str | None
    """What the other samples are called most often afterwards; None where all are named rightly."""


@dataclass(frozen=True)
class OldClasses:
    """What a lesson changed for the classes known before that it did not teach, estimated by their statistics: their
    photos are gone."""

    before: float
    """Mean over these classes of the share of samples that are named rightly, in per cent."""
    after: float
    samples: int
    """Of every class."""
    changed: dict[str, Change]
    """Classes for which the share changed by more than chance explains, for better or worse."""

    @property
    def hurt(self) -> dict[str, Change]:
        """Those for which it fell, the most hurt first."""
        worse = {name: each for name, each in self.changed.items() if each.after < each.before}
        return dict(sorted(worse.items(), key=lambda item: item[1].after - item[1].before))

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "OldClasses":
        """From what `dataclasses.asdict` made of it."""
        return cls(**{**entry, "changed": {name: Change(**each) for name, each in entry["changed"].items()}})


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
    effort: Literal["instant", "thorough"] | None = None
    """How it was taught: on the backbone as it was, or with training. None for `forget`, and before this was noted."""
    left_one_out: int = 0
    """Images learnt that can be answered as if each had not been, where the head has a formula for that."""
    left_one_out_right: int = 0
    improvement: Improvement | None = None
    """A thorough lesson that was tried after the instant one."""
    old_classes: OldClasses | None = None
    """None where there were none, or no statistics of them, and before this was noted."""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Lesson":
        """From what `dataclasses.asdict` made of it, also by earlier versions."""
        tried, old = entry.get("improvement"), entry.get("old_classes")
        made = {"improvement": tried and Improvement(**tried), "old_classes": old and OldClasses.read(old)}
        return cls(**{**entry, **made})

    @property
    def accuracy(self) -> float | None:
        """On the held-out images, in per cent."""
        return 100 * self.right / self.held_out if self.held_out else None

    @property
    def left_one_out_accuracy(self) -> float | None:
        """On the images learnt, as if each had not been, in per cent."""
        return 100 * self.left_one_out_right / self.left_one_out if self.left_one_out else None


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
