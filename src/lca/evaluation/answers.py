"""What a model's answers are worth on labelled images: accuracy, calibration, and what it does with OOD images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lca.evaluation.calibration import calibration_error
from lca.evaluation.detection import detection
from lca.evaluation.intervals import wilson_interval


@dataclass(frozen=True)
class Answer:
    """One answer beside the truth."""

    truth: str
    label: str
    probability: float
    unknown: bool
    distance: float | None = None
    """How unlike known images it is; None where nothing tells."""


@dataclass(frozen=True)
class Evaluation:
    """Answers about labelled images. Images of classes the model never learnt are *OOD* (out of distribution): it
    cannot name them, it can only call them unknown, so they do not count in the accuracy."""

    answers: Sequence[Answer]
    classes: Sequence[str]
    """The classes the model knows."""

    @property
    def known(self) -> list[Answer]:
        """Answers about images of classes the model knows."""
        classes = set(self.classes)
        return [each for each in self.answers if each.truth in classes]

    @property
    def ood(self) -> list[Answer]:
        classes = set(self.classes)
        return [each for each in self.answers if each.truth not in classes]

    @property
    def accuracy(self) -> float | None:
        """Per cent of the images of known classes that are named rightly; None without any."""
        return _percent([each.truth == each.label for each in self.known])

    def by_class(self) -> dict[str, tuple[int, int]]:
        """Right answers and images of every known class that was asked for."""
        known = self.known
        total, right = Counter(each.truth for each in known), Counter(e.truth for e in known if e.truth == e.label)
        return {name: (right[name], total[name]) for name in self.classes if total[name]}

    def confusions(self) -> list[tuple[str, str, int]]:
        """(truth, answer, times), the most frequent first."""
        counts = Counter((each.truth, each.label) for each in self.known if each.truth != each.label)
        return [(*pair, times) for pair, times in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]

    def unknown_detection(self) -> dict[str, float] | None:
        """How well the distances tell OOD images from known ones (`detection`), in per cent; None without images of
        both kinds, or without distances."""
        known, ood = ([each.distance for each in answers] for answers in (self.known, self.ood))
        if not known or not ood or None in (*known, *ood):
            return None
        return detection(torch.tensor(known), torch.tensor(ood))

    def as_json(self) -> dict[str, Any]:
        """All of it, in per cent where it is a share."""
        known, ood = self.known, self.ood
        right = [each.truth == each.label for each in known]
        probabilities = torch.tensor([each.probability for each in known])
        return {
            "images": len(known),
            "right": sum(right),
            "accuracy": self.accuracy,
            "accuracy_interval_95": list(wilson_interval(sum(right), len(known))) if known else None,
            "mean_probability": float(100 * probabilities.mean()) if known else None,
            "calibration_error": calibration_error(probabilities, torch.tensor(right)) if known else None,
            "called_unknown": _percent([each.unknown for each in known]),
            "ood": len(ood),
            "ood_called_unknown": _percent([each.unknown for each in ood]),
            "unknown_detection": self.unknown_detection(),
            "by_class": {name: list(counts) for name, counts in self.by_class().items()},
            "confusions": [list(each) for each in self.confusions()],
        }


def _percent(flags: Sequence[bool]) -> float | None:
    return 100 * sum(flags) / len(flags) if flags else None
