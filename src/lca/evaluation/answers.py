"""What a model's answers are worth on labelled images: accuracy, calibration, and what it does with OOD images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from lca import html
from lca.errors import needs
from lca.evaluation.calibration import calibration_error
from lca.evaluation.detection import detection
from lca.evaluation.intervals import wilson_interval

COLUMNS = ("path", "truth", "answer", "probability", "unknown")
"""What files say of an answer."""

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Answer:
    """One answer beside the truth."""

    truth: str
    label: str
    probability: float
    unknown: bool
    path: str | None = None
    """Where the image lies; None if it has no file."""
    nearest: str | None = None
    """The class it lies nearest to by the class statistics; None where there are none."""
    distance: float | None = None
    """How unlike known images it is; None where nothing tells."""

    def as_json(self) -> dict[str, Any]:
        """In the order of `COLUMNS`."""
        probability = round(self.probability, 6)
        return dict(zip(COLUMNS, (self.path, self.truth, self.label, probability, self.unknown), strict=True))


@dataclass(frozen=True, repr=False)
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
    def wrong(self) -> list[Answer]:
        """Answers about images of known classes that name another class, the surest first."""
        return sorted((each for each in self.known if each.truth != each.label), key=lambda each: -each.probability)

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

    def to_frame(self) -> "DataFrame":
        """A row for every answer, with whether its class is known and whether it is right."""
        with needs("a table of answers", "pandas"):
            from pandas import DataFrame

        classes = set(self.classes)
        more = [{"known": each.truth in classes, "right": each.truth == each.label} for each in self.answers]
        return DataFrame([asdict(each) | facts for each, facts in zip(self.answers, more, strict=True)])

    def __repr__(self) -> str:
        return f"Evaluation({self._summary()})"

    def _repr_html_(self) -> str:
        by_class = [
            [html.safe(name), html.bar(right / total, f"{right} of {total}")]
            for name, (right, total) in self.by_class().items()
        ]
        confused = [[html.safe(truth), html.safe(label), str(times)] for truth, label, times in self.confusions()[:10]]
        tables = [html.table(["class", "right"], by_class)] * bool(by_class)
        tables += [html.table(["most frequent: photo of", "taken for", "times"], confused)] * bool(confused)
        return html.titled(self._summary(), *tables)

    def _summary(self) -> str:
        facts, told = self.as_json(), []
        if facts["images"]:
            low, high = facts["accuracy_interval_95"]
            told.append(
                f"{facts['accuracy']:.1f} % right, {facts['right']} of {facts['images']} (95 % interval {low:.0f} to "
                f"{high:.0f} %), {facts['called_unknown']:.1f} % called unknown"
            )
        if facts["ood"]:
            told.append(f"{facts['ood']} of other classes, {facts['ood_called_unknown']:.1f} % called unknown")
        return "; ".join(told) or "no images"

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
            "wrong": [each.as_json() for each in self.wrong],
        }


def _percent(flags: Sequence[bool]) -> float | None:
    return 100 * sum(flags) / len(flags) if flags else None
