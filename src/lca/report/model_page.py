"""One HTML page about a taught model and what it answers about photos: it needs no network and no other file."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lca.data.decoding import printable
from lca.data.labelled import LabelledImages
from lca.errors import LcaError, needs
from lca.evaluation.answers import Answer, Evaluation
from lca.evaluation.calibration import reliability
from lca.evaluation.intervals import Ends, wilson_interval
from lca.history import images_learnt
from lca.report import drawing, figures
from lca.report.advice import Advice, advice
from lca.report.templates import render
from lca.report.thumbnails import data_uri

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier

SIDE = 144
"""Longer side of a photo in pixels."""
PAIRS, EXAMPLES, TYPICAL = 8, 6, 3
"""Confused pairs that are shown, photos of each, and photos of the class they were taken for."""
WRONG, UNCERTAIN, UNKNOWN, ADVISED = 60, 12, 24, 6
"""Photos that are shown: with a wrong answer, the least certain ones, the unknown ones, and with an advice."""
BINS = 10
"""Of the reliability diagram."""


@dataclass(frozen=True)
class Photo:
    """A photo with its answer, ready to be shown."""

    uri: str
    name: str
    answer: Answer

    @property
    def right(self) -> bool:
        return self.answer.truth == self.answer.label


@dataclass(frozen=True)
class ClassRow:
    """What is known of a class; without photos of it, no accuracy."""

    name: str
    learnt: int
    right: int
    asked: int
    taken_for: str | None

    @property
    def accuracy(self) -> float | None:
        return 100 * self.right / self.asked if self.asked else None

    @property
    def interval(self) -> Ends | None:
        return wilson_interval(self.right, self.asked) if self.asked else None


class ModelPage:
    """The page of a model that was asked about the labelled images of a folder."""

    def __init__(self, learner: "ContinualClassifier", read: LabelledImages, folder: Path, title: str) -> None:
        self.learner, self.read, self.folder, self.title = learner, read, folder, title
        self._uris: dict[int, str] = {}
        if not learner.classes:
            raise LcaError(f"{title} knows no class; teach it one before its report is written")

    def page(self) -> str:
        """The whole page."""
        with needs("a page", "jinja2", "matplotlib"):
            import matplotlib  # noqa: F401  # told before anything is measured

        evaluation, learner = self.evaluation, self.learner
        return render(
            "model.html",
            title=self.title,
            folder=self.folder.resolve().name,
            facts=evaluation.as_json(),
            model=learner,
            advice=[(each.text, self._photos(each.photos[:ADVISED])) for each in self.advice],
            rows=self._rows(),
            confusions=self._confusions(),
            confused=len(evaluation.confusions()),
            wrong=self._photos(self._numbers(evaluation.wrong)[:WRONG]),
            uncertain=self._photos(
                self._numbers(sorted(evaluation.known, key=lambda each: each.probability))[:UNCERTAIN]
            ),
            unknown=self._photos(self._numbers(each for each in evaluation.answers if each.unknown)[:UNKNOWN]),
            unknown_count=sum(each.unknown for each in evaluation.answers),
            reliability=self._reliability(),
            lessons=learner.history,
            reading=[line.replace(f"{printable(str(self.folder))}{os.sep}", "") for line in self.read.report.lines()],
        )

    @cached_property
    def evaluation(self) -> Evaluation:
        """What the model answers."""
        return self.learner.evaluate(self.read)

    @cached_property
    def _learnt(self) -> dict[str, int]:
        images = images_learnt(self.learner.history)
        return {name: images.get(name, 0) for name in self.learner.classes}

    @cached_property
    def advice(self) -> list[Advice]:
        """What to do, the most certain first."""
        return advice(self.evaluation, self._learnt, self.learner.history)

    def _rows(self) -> list[ClassRow]:
        """The classes, the worst first; those without a photo last."""
        asked, taken_for = self.evaluation.by_class(), dict[str, str]()
        for truth, label, _ in self.evaluation.confusions():
            taken_for.setdefault(truth, label)
        rows = [
            ClassRow(name, learnt, *asked.get(name, (0, 0)), taken_for.get(name))
            for name, learnt in self._learnt.items()
        ]
        return sorted(rows, key=lambda row: (row.accuracy is None, row.accuracy, row.name))

    def _confusions(self) -> list[dict[str, Any]]:
        """The most frequent ones, with photos side by side."""
        answers, asked = self.evaluation.answers, self.evaluation.by_class()
        found = []
        for truth, label, times in self.evaluation.confusions()[:PAIRS]:
            mistaken = [n for n, each in enumerate(answers) if (each.truth, each.label) == (truth, label)]
            typical = [n for n, each in enumerate(answers) if each.truth == each.label == label]
            typical.sort(key=lambda number: -answers[number].probability)
            found.append(
                {
                    "truth": truth,
                    "answer": label,
                    "times": times,
                    "asked": asked[truth][1],
                    "mistaken": self._photos(mistaken[:EXAMPLES]),
                    "typical": self._photos(typical[:TYPICAL]),
                }
            )
        return found

    def _reliability(self) -> Any:
        """The diagram as an element of the page; nothing without a photo of a known class."""
        from markupsafe import Markup

        known = self.evaluation.known
        if not known:
            return None
        right = torch.tensor([each.truth == each.label for each in known])
        bins = reliability(torch.tensor([each.probability for each in known]), right, BINS)
        drawn = figures.reliability_diagram([asdict(each) for each in bins])
        return Markup(drawing.inline_svg(drawn, "reliability"))  # matplotlib escapes the texts in it

    def _numbers(self, answers: Iterable[Answer]) -> list[int]:
        """Where answers of the evaluation stand in it."""
        places = {id(each): number for number, each in enumerate(self.evaluation.answers)}
        return [places[id(each)] for each in answers]

    def _photos(self, numbers: Sequence[int]) -> list[Photo]:
        return [self._photo(number) for number in numbers]

    def _photo(self, number: int) -> Photo:
        answer = self.evaluation.answers[number]
        if number not in self._uris:
            self._uris[number] = data_uri(self.read.images.image(number), SIDE)
        return Photo(self._uris[number], self._name(answer), answer)

    def _name(self, answer: Answer) -> str:
        """The path within the folder: where that lies is nobody's business who gets the page."""
        if answer.path is None:
            return "a photo without a file"
        path = Path(answer.path)
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else path.name
