"""ContinualClassifier: a classifier that keeps learning. This is what a user holds, and what every benchmark drives.

model = ContinualClassifier(Recipe())                    # embedded backbone, method `im`, what measured best
model.learn("photos/first-classes")                      # a folder with one folder per class
model.learn("photos/more-classes")                       # new classes, known ones, or both
answer = model.predict(["cat.jpg"])[0]                   # answer.label, answer.probability, answer.unknown
model.save("model")
model = ContinualClassifier.load("model")
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lca.backbones import Backbone, load_backbone
from lca.card import facts_of, model_card
from lca.data.decoding import ImageLike, LeftOut, decode_all, unreadable_images
from lca.data.folders import ReadingReport, case_variants, labelled_pairs, read_class_folders, read_labelled
from lca.data.images import ImageSet, Pixels
from lca.data.sources import working_size
from lca.data.streams import Task, share_mask
from lca.data.views import Preprocessing, ViewOptions
from lca.device import Compute, versions
from lca.errors import LcaError, nearest
from lca.evaluation.answers import Answer, Evaluation
from lca.evaluation.calibration import calibration_error, fit_temperature
from lca.features import FeatureExtractor
from lca.files import State, load_state, save_state, write_atomic
from lca.history import Lesson, images_learnt, now
from lca.methods import Phase, methods
from lca.options import validate
from lca.progress import Progress
from lca.recipe import Recipe, validate_recipe
from lca.training.setting import Given, Setting

Labelled = str | Path | ImageSet | Sequence[tuple[ImageLike, str | int]]
"""A folder with one folder per class, a set of images, or (image, label) pairs; also any data set that gives such pairs
and names its labels in `classes`, as torchvision's do."""
HELD_OUT, SMALLEST = 0.1, 6
"""Share of every class that is kept back to measure on, and the smallest class from which any image is."""
UNKNOWN_AT = 99.0


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


class Journal(Protocol):
    """Is told of every finished step, and knows which steps need not be done again."""

    def begin(self, phases: Sequence[Phase]) -> None: ...

    def steps_done(self, phase: Phase) -> int: ...

    def step_done(self, phase: Phase, step: int, seconds: float, measured: dict[str, float]) -> None: ...


class ContinualClassifier:
    """A pre-trained backbone, a method that teaches it new classes, and the classes learnt so far.

    `branch` names the classifier that answers when the method keeps several on one backbone; by default the last one.
    `bundle` says whether a saved model carries the backbone's weights.
    """

    def __init__(
        self,
        recipe: Recipe,
        view: ViewOptions | None = None,
        progress: Progress | None = None,
        backbone: Backbone | None = None,
        given: Given | None = None,
    ) -> None:
        self.recipe = recipe
        self.view = view or ViewOptions()
        self.progress = progress or Progress()
        self.backbone = backbone or load_backbone(recipe.backbone)
        self.compute = Compute.choose(recipe.device, recipe.precision, recipe.exact, recipe.compile)
        self._weights = dict(self.backbone.vit.state_dict())  # under the names they have before a tuner is attached
        self.extractor = FeatureExtractor(
            self.backbone, recipe.tuning, recipe.seed, self.compute, self.view.centre_crop
        )
        tuned = {parameter.data_ptr() for parameter in self.extractor.tuned_parameters().values()}
        for name, tensor in self._weights.items():
            if tensor.data_ptr() in tuned:  # it will change
                self._weights[name] = tensor.clone()
        setting = Setting(
            self.extractor, recipe.training, self.view.augment, recipe.seed, self.progress, given or Given()
        )
        self.method = methods[recipe.method.name](setting, recipe.method)
        self.branch = self.method.branches()[-1]
        self.bundle = False
        self.classes: list[str] = []
        self.tasks = 0
        self.history: list[Lesson] = []
        self.temperatures: dict[str, float] = {}
        self.reading = ReadingReport()
        """What the last reading of labelled images came upon."""

    def learn(self, data: Task | Labelled, journal: Journal | None = None, held_out: float = HELD_OUT) -> Lesson:
        """Learn from labelled images, or from a task of a stream; returns the new entry of the history.

        Classes may be new, known, or both; nothing needs to be known about what comes later. A share of every class
        that has at least six images is held out: accuracy and calibration are measured on it. If a step fails or is
        interrupted, the classifier is as it was before. A journal makes the steps resumable; then the journal's owner
        rolls back.
        """
        if self.method.info.needs_all_data and images_learnt(self.history):
            name = self.recipe.method.name
            warnings.warn(f"method {name!r} needs all data at once: this lesson undoes the others", stacklevel=2)
        began = time.perf_counter()
        task, report = (data, ReadingReport()) if isinstance(data, Task) else self._as_task(data, held_out)
        before = self.state() if journal is None else None
        known = images_learnt(self.history)  # `classes` also holds those of a task that a journal resumes
        new = [name for name in task.classes if name not in known]
        self.classes += [name for name in new if name not in self.classes]
        labels = [self.classes.index(name) for name in task.classes]
        try:
            with self.compute.determinism():
                phases = list(self.method.phases(task, labels))
                if journal is not None:
                    journal.begin(phases)
                for phase in phases:
                    for step in range(journal.steps_done(phase) if journal else 0, phase.steps):
                        step_began = time.perf_counter()
                        measured = phase.run(step) or {}
                        if journal is not None:
                            journal.step_done(phase, step, time.perf_counter() - step_began, measured)
            self.method.finish_task()
            self.tasks += 1
            counts = torch.bincount(task.train.labels, minlength=len(task.classes)).tolist()
            lesson = Lesson("learn", now(), dict(zip(task.classes, counts, strict=True)), new)
            lesson = replace(lesson, left_out=len(report.left_out), seconds=round(time.perf_counter() - began, 1))
            if journal is not None:
                lesson = replace(lesson, when=None, seconds=None)
            elif task.validation is not None and len(task.validation):
                lesson = self._measured(lesson, task.validation)
        except BaseException:
            if before is not None:
                self.load_state(before)
            raise
        self.history.append(lesson)
        return lesson

    def forget(self, name: str) -> None:
        """Remove a class: its head row and its statistics go, and the heads of the other classes are aligned again.

        The backbone is not unlearnt: what it picked up from the class's images stays in its weights.
        """
        if name not in self.classes:
            raise LcaError(f"there is no class {name!r} to forget; {nearest(name, self.classes)}")
        before = self.state()
        try:
            with self.compute.determinism():
                self.method.forget(self.classes.index(name))
            self.classes.remove(name)
        except BaseException:
            self.load_state(before)
            raise
        self.history.append(Lesson("forget", now(), {}, [name]))

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        branch: str | None = None,
        unknown_at: float = UNKNOWN_AT,
    ) -> list[Prediction]:
        """For every image the most probable class, all probabilities, and whether it is like anything known.

        An image is called unknown when it lies farther from every class than `unknown_at` per cent of the known images
        did. `docs/trust.md` says what that means and what it does not. An image that cannot be read is an error.
        """
        answers = self.try_predict(images, branch, unknown_at)
        left_out = [each for each in answers if isinstance(each, LeftOut)]
        if left_out:
            raise unreadable_images(left_out, len(answers))
        return [each for each in answers if isinstance(each, Prediction)]

    def try_predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        branch: str | None = None,
        unknown_at: float = UNKNOWN_AT,
    ) -> list[Prediction | LeftOut]:
        """As `predict`, but an image that cannot be read gets the reason in its place."""
        alone = isinstance(images, np.ndarray | Tensor) and images.ndim in (2, 3)
        if alone or isinstance(images, str | Path | Image.Image):
            images = [images]  # type: ignore[list-item]
        decoded = decode_all(images, self.working_size, Progress())  # type: ignore[arg-type]
        readable = Pixels.of([each for each in decoded if isinstance(each, Tensor)])
        answers = iter(self._answers(readable, branch, unknown_at))
        return [each if isinstance(each, LeftOut) else next(answers) for each in decoded]

    def evaluate(self, data: Labelled, branch: str | None = None, unknown_at: float = UNKNOWN_AT) -> Evaluation:
        """Answer for labelled images and compare. Classes that were never learnt test what the model refuses."""
        images, _ = self._read(data)
        answers = self._answers(images, branch, unknown_at)
        truths = [images.classes[label] for label in images.labels.tolist()]
        return Evaluation(
            [Answer(truth, a.label, a.probability, a.unknown) for truth, a in zip(truths, answers, strict=True)],
            tuple(self.classes),
        )

    @property
    def knows_distances(self) -> bool:
        """Whether there are statistics that say how far an image lies from every class."""
        statistics = self.method.statistics(self.branch)
        return statistics is not None and statistics[1].table() is not None

    @property
    def working_size(self) -> int:
        """Shorter side to which larger images are decoded."""
        return working_size(self.extractor.preprocessing.size)

    def features(self, images: ImageSet | Pixels, what: str = "features") -> Tensor:
        """(n, width), on the classifier's device."""
        with self.compute.determinism():
            return self.method.features(images, what)

    @torch.no_grad()
    def logits(self, features: Tensor, branch: str | None = None) -> Tensor:
        """(n, classes learnt), in the order of `classes`."""
        branch = branch or self.branch
        if branch not in self.method.branches():
            raise LcaError(f"there is no branch {branch!r}; there are {self.method.branches()}")
        return self.method.logits(features, branch)

    def probabilities(self, features: Tensor, branch: str | None = None) -> Tensor:
        """(n, classes learnt): softmax of the logits at the calibrated temperature."""
        return (self.logits(features, branch) / self.temperatures.get(branch or self.branch, 1.0)).softmax(1)

    def memory(self) -> dict[str, int]:
        """Bytes the model takes beyond the backbone, by part: what lies on disk."""
        return self.method.storage()

    def state(self) -> State:
        """Everything but the backbone's own weights, which the recipe and a hash name."""
        state = self.method.state()
        state.meta = {
            "recipe": self.recipe.dump(),
            "view": self.view.model_dump(mode="json"),
            "backbone": self.backbone.fingerprint,
            "preprocessing": asdict(self.backbone.preprocessing),
            "licence": self.backbone.licence,
            "classes": list(self.classes),
            "tasks": self.tasks,
            "history": [asdict(lesson) for lesson in self.history],
            "temperatures": dict(self.temperatures),
            "method": state.meta,
        }
        return state

    def load_state(self, state: State) -> None:
        """Take over what `state` gave, from a classifier with the same recipe."""
        if state.meta["backbone"] != self.backbone.fingerprint:
            raise LcaError(
                f"the model was taught on other weights of {self.backbone.name} "
                f"(hash {state.meta['backbone'][:12]}, these have {self.backbone.fingerprint[:12]})"
            )
        self.classes, self.tasks = list(state.meta["classes"]), state.meta["tasks"]
        self.history = [Lesson(**entry) for entry in state.meta["history"]]
        self.temperatures = dict(state.meta["temperatures"])
        self.method.load_state(State(state.parts, state.meta["method"]))

    def save(self, folder: str | Path) -> None:
        """Write the model and its card to a folder. The model changes in one atomic step: an interrupted save leaves
        the old one."""
        folder, state = Path(folder), self.state()
        state.meta["versions"] = versions()
        sizes = state.bytes_by_part()
        if self.bundle:
            state.parts["backbone"] = self._weights
            state.meta["recipe"]["backbone"]["weights"] = None  # nobody needs to know where they lay
        save_state(folder, state)
        write_atomic(folder / "README.md", model_card(facts_of(state.meta, sizes, self.bundle)).encode())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        weights: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "ContinualClassifier":
        """Read a model that `save` wrote; `device` and `weights` are for another machine than it was taught on."""
        state = load_state(Path(folder))
        if device is not None:
            state.meta["recipe"]["device"] = device
        if weights is not None:
            state.meta["recipe"]["backbone"]["weights"] = str(weights)
        recipe = validate_recipe(state.meta["recipe"], str(folder))
        carried = state.parts.pop("backbone", None)
        backbone = load_backbone(recipe.backbone, carried if weights is None else None)
        scaling = {**state.meta["preprocessing"]}  # timm's cards may change, the model does not
        scaling |= {name: tuple(scaling[name]) for name in ("mean", "std")}
        view = validate(ViewOptions, state.meta["view"], str(folder))
        classifier = cls(recipe, view, progress, replace(backbone, preprocessing=Preprocessing(**scaling)))
        classifier.bundle = carried is not None
        classifier.load_state(state)
        return classifier

    def _answers(self, images: ImageSet | Pixels, branch: str | None, unknown_at: float) -> list[Prediction]:
        if not self.classes:
            raise LcaError("this classifier has not learnt any class yet; call learn first")
        if not len(images):
            return []
        features = self.features(images)
        rows = self.probabilities(features, branch).cpu()
        distances = self.method.percentiles(features, branch or self.branch)
        answers = []
        for number, row in enumerate(rows):
            far = None if distances is None else dict(zip(self.classes, distances[number].tolist(), strict=True))
            nearest_class = None if far is None else min(far.values())
            answers.append(
                Prediction(
                    self.classes[int(row.argmax())],
                    float(row.max()),
                    dict(zip(self.classes, row.tolist(), strict=True)),
                    nearest_class,
                    far,
                    nearest_class is not None and nearest_class >= unknown_at,
                )
            )
        return answers

    def _measured(self, lesson: Lesson, images: ImageSet) -> Lesson:
        """Measure on held-out images: the temperature of every branch, and what the answering branch is worth."""
        features = self.features(images, "held-out images")
        labels = torch.tensor([self.classes.index(name) for name in images.classes])[images.labels]
        for branch in self.method.branches():
            logits = self.logits(features, branch).cpu()
            self.temperatures[branch] = fit_temperature(logits, labels, self.temperatures.get(branch, 1.0))
        self.method.correct_distances(features, labels)
        probability, answer = self.probabilities(features).cpu().max(1)
        distances = self.method.percentiles(features, self.branch)
        return replace(
            lesson,
            held_out=len(labels),
            right=int((answer == labels).sum()),
            called_unknown=0 if distances is None else int((distances.amin(1) >= UNKNOWN_AT).sum()),
            calibration_error=calibration_error(probability, answer == labels),
        )

    def _as_task(self, data: Labelled, held_out: float) -> tuple[Task, ReadingReport]:
        if not 0 <= held_out < 1:
            raise LcaError(f"the held-out share must be at least 0 and less than 1, came {held_out}")
        images, report = self._read(data)
        for name, known in case_variants(images.classes, self.classes):
            self.progress.warning(
                f"CHECK: {name!r} is learnt as a new class beside the known {known!r}; if they are the same, "
                f"forget {name!r}, rename it and teach it again"
            )
        mask = share_mask(images, held_out, self.recipe.seed, SMALLEST)
        rows, kept_back = torch.nonzero(~mask)[:, 0], torch.nonzero(mask)[:, 0]
        return Task(self.tasks, images.classes, images.subset(rows), images.subset(kept_back)), report

    def _read(self, data: Labelled) -> tuple[ImageSet, ReadingReport]:
        if isinstance(data, ImageSet):
            present = [name for label, name in enumerate(data.classes) if (data.labels == label).any()]
            if not present:
                raise LcaError("the set of images is empty")
            whole = len(present) == len(data.classes)
            return data if whole else data.of_classes(present), ReadingReport(read=len(data))
        if isinstance(data, str | Path):
            images, report = read_class_folders(Path(data), self.working_size, self.progress)
        else:
            images, report = read_labelled(labelled_pairs(data), self.working_size, self.progress)
        for line in report.lines():
            self.progress.warning(line)
        self.reading = report
        return images, report
