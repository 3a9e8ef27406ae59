"""What damage costs a model: accuracies on corrupted images (-C) and along perturbation sequences (-P).

    Acc_C = mean over corruptions of (mean over severities of the accuracy)
    Acc_P = mean over perturbations of (mean over images of the share of frames that are recognised)
    score = (Acc_C + Acc_P) / 2

The flip rate of a sequence is the share of frames whose answer differs from the frame before; for noise, whose frames
are unrelated, from the first frame (Hendrycks and Dietterich 2019). The LCA paper's evaluation takes the frame before
in all of them (`previous`). Relative to another model's,

    mFR = mean over perturbations of (flip rate / the other model's)

where Hendrycks and Dietterich take AlexNet's. All in per cent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lca.damage.corruptions import SEVERITIES
from lca.damage.perturbations import FRAMES, NOISE
from lca.errors import LcaError

AT_ONCE = 2**28
"""Bytes of frames made together."""

Answers = Callable[[Tensor], Tensor]
"""Images (n, 3, h, w) in uint8 -> the numbers of the classes that k classifiers answer (n, k)."""


@dataclass
class RobustnessScores:
    """Accuracies by kind of damage; what was not measured is left out of every mean."""

    clean: float
    images: int
    generated: bool
    """Whether the damage was generated here, or read from the published files."""
    corrupted: dict[str, dict[int, float]] = field(default_factory=dict)
    """Accuracy by corruption and severity."""
    perturbed: dict[str, dict[str, float]] = field(default_factory=dict)
    """`accuracy`, `flips` and `flips_previous` by perturbation."""

    def asked(self) -> set[tuple[str, ...]]:
        """What was measured: every corruption with a severity, every perturbation."""
        cells = {(name, str(severity)) for name, each in self.corrupted.items() for severity in each}
        return {*cells, *((name,) for name in self.perturbed)}

    @property
    def damage(self) -> tuple[Any, ...]:
        """What damaged images a classifier was asked about."""
        return self.images, self.generated, frozenset(self.asked())

    def by_corruption(self) -> dict[str, float]:
        """Mean over severities."""
        return {name: sum(each.values()) / len(each) for name, each in self.corrupted.items()}

    def by_sequence(self) -> dict[str, float]:
        """Accuracy along each."""
        return {name: each["accuracy"] for name, each in self.perturbed.items()}

    def by_kind(self) -> dict[str, float]:
        """Accuracy by corruption and, as `NAME, frames`, by sequence."""
        return {**self.by_corruption(), **{along(name): value for name, value in self.by_sequence().items()}}

    @property
    def where(self) -> str:
        """Where the damage comes from, in words."""
        return "generated" if self.generated else "published files"

    @property
    def accuracy_c(self) -> float | None:
        return _mean(self.by_corruption().values())

    @property
    def at_severity_5(self) -> float | None:
        return _mean(each[5] for each in self.corrupted.values() if 5 in each)

    @property
    def accuracy_p(self) -> float | None:
        return _mean(self.by_sequence().values())

    @property
    def flip_rate(self) -> float | None:
        return _mean(each["flips"] for each in self.perturbed.values())

    @property
    def flip_rate_previous(self) -> float | None:
        return _mean(each.get("flips_previous") for each in self.perturbed.values())

    def flip_ratios(self, other: "RobustnessScores") -> dict[str, float | None]:
        """Flip rates relative to another model's, of what both were asked; None where the other never flips."""
        pairs = {
            name: (each["flips"], other.perturbed[name]["flips"])
            for name, each in self.perturbed.items()
            if name in other.perturbed
        }
        return {name: 100 * own / theirs if theirs else None for name, (own, theirs) in pairs.items()}

    def mean_flip_ratio(self, other: "RobustnessScores") -> float | None:
        """mFR; not defined where the other model never flips."""
        ratios = self.flip_ratios(other).values()
        return None if None in ratios else _mean(ratios)

    @property
    def score(self) -> float | None:
        both = (self.accuracy_c, self.accuracy_p)
        return None if None in both else _mean(both)

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "images": self.images,
            "generated": self.generated,
            "accuracy_c": self.accuracy_c,
            "at_severity_5": self.at_severity_5,
            "accuracy_p": self.accuracy_p,
            "flip_rate": self.flip_rate,
            "flip_rate_previous": self.flip_rate_previous,
            "score": self.score,
            "corrupted": {name: {str(k): v for k, v in each.items()} for name, each in self.corrupted.items()},
            "perturbed": self.perturbed,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RobustnessScores":
        try:
            corrupted = {
                name: {int(severity): float(value) for severity, value in each.items()}
                for name, each in content["corrupted"].items()
            }
            perturbed = {
                name: {what: float(value) for what, value in each.items()}
                for name, each in content["perturbed"].items()
            }
            scores = cls(float(content["clean"]), content["images"], content["generated"], corrupted, perturbed)
            scores.as_json()  # every mean can be taken
            return scores
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise LcaError("expected the numbers that `lca robustness --out` writes; this is another file") from None


def along(sequence: str) -> str:
    """The name of a sequence beside those of corruptions, some of which are called the same."""
    return f"{sequence}, frames"


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    return float(100 * (answers.cpu() == labels.cpu()).double().mean())


def sequence_scores(answers: Tensor, labels: Tensor, noise: bool) -> dict[str, float]:
    """Accuracy and flip rates of answers (n, frames)."""
    answers = answers.cpu()
    right = answers == labels.cpu()[:, None]
    previous = answers[:, 1:] != answers[:, :-1]
    flips = answers[:, 1:] != answers[:, :1] if noise else previous
    shares = {"accuracy": right, "flips": flips, "flips_previous": previous}
    return {name: float(100 * each.double().mean()) for name, each in shares.items()}


def measure(
    answer: Answers,
    images: Tensor,
    labels: Tensor,
    corrupted: Mapping[str, Callable[[int], Tensor]],
    perturbed: Mapping[str, Callable[[Tensor], Tensor]],
    *,
    generated: bool,
    severities: Sequence[int] = SEVERITIES,
    at_once: int = 512,
    advance: Callable[[int], None] = lambda steps: None,
) -> list[RobustnessScores]:
    """Ask classifiers about images (n, 3, h, w) in uint8, about every kind of damage of all of them, along sequences.

    `corrupted[name](severity)` gives all damaged images, `perturbed[name](numbers)` the sequences (k, frames, 3, h, w)
    of some of them: all at once would not fit into memory. `advance` is told how often all were asked.
    """

    def asked(every: Tensor) -> list[Tensor]:
        """The answers (n,) of each classifier."""
        return list(torch.cat([answer(part) for part in every.split(at_once)]).unbind(1))

    found = [RobustnessScores(accuracy(answers, labels), len(images), generated) for answers in asked(images)]
    advance(1)
    for name, make in corrupted.items():
        for severity in severities:
            for scores, answers in zip(found, asked(make(severity)), strict=True):
                scores.corrupted.setdefault(name, {})[severity] = accuracy(answers, labels)
            advance(1)
    together = max(AT_ONCE // (FRAMES * max(images[:1].numel(), 1)), 1)
    for name, sequences in perturbed.items():
        rows: list[list[Tensor]] = [[] for _ in found]
        for numbers in torch.arange(len(images)).split(together):
            frames = sequences(numbers)
            for row, answers in zip(rows, asked(frames.flatten(0, 1)), strict=True):
                row.append(answers.reshape(len(frames), -1).cpu())
        for scores, row in zip(found, rows, strict=True):
            scores.perturbed[name] = sequence_scores(torch.cat(row), labels, name in NOISE)
        advance(rows[0][0].shape[1])
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
