"""ContinualClassifier: a classifier that keeps learning. This is what a user holds, and what every benchmark drives.

model = ContinualClassifier(Recipe())                    # embedded backbone, method `im`, what measured best
model.learn("photos/first-classes")                      # a folder with one folder per class
model.learn("photos/more-classes")                       # new classes, known ones, or both
answer = model.predict(["cat.jpg"])[0]                   # answer.label, answer.probability
model.save("model")
model = ContinualClassifier.load("model")
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from lca.backbones import Backbone, load_backbone
from lca.config import Recipe, ViewOptions, validate, validate_recipe
from lca.data.decoding import decode
from lca.data.images import ImageSet, Pixels
from lca.data.sources import read_class_folders, working_size
from lca.data.streams import Task
from lca.device import Compute
from lca.errors import LcaError
from lca.features import FeatureExtractor, extract
from lca.files import State, load_state, save_state
from lca.methods import Phase, methods
from lca.methods.base import Setting
from lca.progress import Progress

LabelledImages = Sequence[tuple[str | Path | Image.Image, str]]


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Journal(Protocol):
    """Is told of every finished step, and knows which steps need not be done again."""

    def begin(self, phases: Sequence[Phase]) -> None: ...

    def steps_done(self, phase: Phase) -> int: ...

    def step_done(self, phase: Phase, step: int, seconds: float, measured: dict[str, float]) -> None: ...


class ContinualClassifier:
    """A pre-trained backbone, a method that teaches it new classes, and the classes learnt so far.

    `branch` names the classifier that answers when the method keeps several on one backbone; by default the last one.
    """

    def __init__(
        self,
        recipe: Recipe,
        view: ViewOptions | None = None,
        progress: Progress | None = None,
        backbone: Backbone | None = None,
    ) -> None:
        self.recipe = recipe
        self.view = view or ViewOptions()
        self.progress = progress or Progress()
        self.backbone = backbone or load_backbone(recipe.backbone)
        self.compute = Compute.choose(recipe.device, recipe.precision, recipe.exact)
        self.extractor = FeatureExtractor(
            self.backbone, recipe.tuning, recipe.seed, self.compute, self.view.centre_crop
        )
        setting = Setting(self.extractor, recipe.training, self.view.augment, recipe.seed, self.progress)
        self.method = methods[recipe.method.name](setting, recipe.method)
        self.branch = self.method.branches()[-1]
        self.classes: list[str] = []
        self.tasks = 0

    def learn(self, data: Task | LabelledImages | str | Path, journal: Journal | None = None) -> None:
        """Learn from a folder with one folder per class, from (image, label) pairs, or from a task of a stream.

        Classes may be new, known, or both; nothing needs to be known about what comes later. If a step fails, the
        classifier is as it was before. A journal makes the steps resumable; then the journal's owner rolls back.
        """
        task = data if isinstance(data, Task) else self._as_task(data)
        before = self.state() if journal is None else None
        self.classes += [name for name in task.classes if name not in self.classes]
        labels = [self.classes.index(name) for name in task.classes]
        try:
            with self.compute.determinism():
                phases = list(self.method.phases(task, labels))
                if journal is not None:
                    journal.begin(phases)
                for phase in phases:
                    for step in range(journal.steps_done(phase) if journal else 0, phase.steps):
                        began = time.perf_counter()
                        measured = phase.run(step) or {}
                        if journal is not None:
                            journal.step_done(phase, step, time.perf_counter() - began, measured)
        except BaseException:
            if before is not None:
                self.load_state(before)
            raise
        self.method.finish_task()
        self.tasks += 1

    def predict(self, images: Sequence[str | Path | Image.Image], branch: str | None = None) -> list[Prediction]:
        """The most probable class of every image, with the probabilities of all classes."""
        if not self.classes:
            raise LcaError("this classifier has not learnt any class yet; call learn first")
        size = working_size(self.extractor.preprocessing.size)
        pixels = Pixels.of([decode(Path(each) if isinstance(each, str) else each, size) for each in images])
        rows = self.logits(self.features(pixels), branch).softmax(1).cpu()
        return [
            Prediction(
                self.classes[int(row.argmax())],
                float(row.max()),
                dict(zip(self.classes, row.tolist(), strict=True)),
            )
            for row in rows
        ]

    def features(self, images: ImageSet | Pixels, what: str = "features") -> Tensor:
        """(n, width), on the classifier's device."""
        with self.compute.determinism():
            return extract(self.extractor, images, self.progress, what)

    @torch.no_grad()
    def logits(self, features: Tensor, branch: str | None = None) -> Tensor:
        """(n, classes learnt), in the order of `classes`."""
        branch = branch or self.branch
        if branch not in self.method.branches():
            raise LcaError(f"there is no branch {branch!r}; there are {self.method.branches()}")
        return self.method.logits(features, branch)

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
            "classes": list(self.classes),
            "tasks": self.tasks,
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
        self.method.load_state(State(state.parts, state.meta["method"]))

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder, in one atomic step: an interrupted save leaves the old model."""
        save_state(Path(folder), self.state())

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
        view = validate(ViewOptions, state.meta["view"], str(folder))
        classifier = cls(validate_recipe(state.meta["recipe"], str(folder)), view, progress)
        classifier.load_state(state)
        return classifier

    def _as_task(self, data: LabelledImages | str | Path) -> Task:
        size = working_size(self.extractor.preprocessing.size)
        if isinstance(data, str | Path):
            images = read_class_folders(Path(data), size, self.progress)
        else:
            classes = tuple(sorted({label for _, label in data}))
            if not classes:
                raise LcaError("there is nothing to learn: the list of (image, label) pairs is empty")
            decoded = [decode(Path(image) if isinstance(image, str) else image, size) for image, _ in data]
            labels = torch.tensor([classes.index(label) for _, label in data])
            images = ImageSet(Pixels.of(decoded), labels, classes)
        return Task(self.tasks, images.classes, images)
