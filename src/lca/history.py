"""What a model learnt and forgot, and how its classes were renamed and made one, step by step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from lca import html


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


@dataclass(frozen=True, repr=False)
class Lesson:
    """One step of a model's history."""

    kind: str
    """`learn`, `forget`, `rename` or `merge`."""
    when: str | None
    """None for a task of a benchmark: its outcome must not depend on the clock."""
    images: dict[str, int]
    """Images learnt from, by class; empty for what is no `learn`."""
    new: list[str]
    """Classes that were not known before; for `forget`, those that went, for `rename` the one that had this name, and
    for `merge` the two that became one."""
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
    name: str | None = None
    """What the class is called since it was renamed or merged."""
    tested: int = 0
    """Images of known classes in a test part that came with the lesson: no decision was made on them."""
    tested_right: int = 0
    old_classes: OldClasses | None = None
    """None where there were none, or no statistics of them, and before this was noted."""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Lesson":
        """From what `dataclasses.asdict` made of it, also by earlier versions."""
        tried, old = entry.get("improvement"), entry.get("old_classes")
        made = {"improvement": tried and Improvement(**tried), "old_classes": old and OldClasses.read(old)}
        return cls(**{**entry, **made})

    def __repr__(self) -> str:
        return f"Lesson({self.summary()})"

    def _repr_html_(self) -> str:
        rows = [[html.safe(name), "new" * (name in self.new), str(count)] for name, count in self.images.items()]
        share = html.bar(self.right / self.held_out, f"{self.accuracy:.1f} % right") if self.held_out else ""
        return html.titled(self.summary(), share, html.table(["class", "", "images"], rows) if rows else "")

    def summary(self) -> str:
        """What came of it, in one line."""
        if self.kind != "learn":
            return f"{self.kind} {_named(self.new)}"
        known = [name for name in self.images if name not in self.new]
        told = [f"{len(self.new)} new: {_named(self.new)}"] * bool(self.new) + [f"known: {_named(known)}"] * bool(known)
        told.append(f"{sum(self.images.values())} images")
        if self.accuracy is None:
            told.append("nothing held out")
        else:
            told.append(f"{self.accuracy:.1f} % of {self.held_out} held-out images right")
        return "; ".join([*told, *[f"{self.seconds} s"] * (self.seconds is not None)])

    @property
    def accuracy(self) -> float | None:
        """On the held-out images, in per cent."""
        return 100 * self.right / self.held_out if self.held_out else None

    @property
    def test_accuracy(self) -> float | None:
        """On the test part that came with the lesson, in per cent."""
        return 100 * self.tested_right / self.tested if self.tested else None

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
        gone = [images.pop(name, 0) for name in lesson.new] if lesson.kind != "learn" else []
        if lesson.name is not None:
            images[lesson.name] = sum(gone)
    return images


def described(lesson: Lesson) -> str:
    """What a step did, in a few words."""
    names = ", ".join(lesson.new[:5]) + ", ..." * (len(lesson.new) > 5)
    if lesson.kind == "forget":
        return f"forgot {names}"
    if lesson.kind == "rename":
        return f"renamed {names} to {lesson.name}"
    if lesson.kind == "merge":
        return f"made {' and '.join(lesson.new)} one class, {lesson.name}"
    again = len(lesson.images) - len(lesson.new)
    return "; ".join([f"{len(lesson.new)} new: {names}"] * bool(lesson.new) + [f"{again} known"] * bool(again))


def _named(names: list[str], named: int = 5) -> str:
    return ", ".join(names[:named]) + f" and {len(names) - named} more" * (len(names) > named)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
