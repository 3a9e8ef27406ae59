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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lca.errors import LcaError

MEANS = ("accuracy_c", "at_severity_5", "accuracy_p", "flip_rate", "flip_rate_previous", "score")
"""Over kinds of damage."""


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
            **{name: getattr(self, name) for name in MEANS},
            "corrupted": {name: {str(k): v for k, v in each.items()} for name, each in self.corrupted.items()},
            "perturbed": self.perturbed,
        }

    @classmethod
    def from_json(cls, content: object) -> "RobustnessScores":
        try:
            scores = TypeAdapter(cls).validate_python(content)
            scores.as_json()  # every mean can be taken
        except (ValidationError, ArithmeticError, LookupError):
            raise LcaError("expected the numbers that `lca robustness --out` writes; this is another file") from None
        return scores


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """In what two measurements, as JSON, differ besides the model."""
    one, other = (RobustnessScores.from_json(each).asked() for each in (ours, theirs))
    facts = [key for key in ("data", "images", "seed", "generated") if ours[key] != theirs.get(key)]
    return facts + ["kinds of damage or severities"] * (one != other)


def along(sequence: str) -> str:
    """The name of a sequence beside those of corruptions, some of which are called the same."""
    return f"{sequence}, frames"


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
