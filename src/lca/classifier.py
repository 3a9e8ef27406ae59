"""ContinualClassifier: a classifier that keeps learning. This is what a user holds, and what every benchmark drives.

model = ContinualClassifier()                            # the recipe `best` on the embedded backbone for photos
model.learn("photos/first-classes")                      # a folder with one folder per class
model.learn("photos/more-classes")                       # new classes, known ones, or both
answer = model.predict(["cat.jpg"])[0]                   # answer.label, answer.probability, answer.unknown
model.save("model")
model = ContinualClassifier.load("model")
model.undo()                                             # takes back the last change, exactly
"""

import copy
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lca import notebook
from lca.arguments import expect, expect_number, expect_one_of, folder_path, model_folder
from lca.backbones import Backbone, load_backbone
from lca.card import facts_of, model_card
from lca.data.class_names import expect_known, expect_new
from lca.data.decoding import ImageLike, LeftOut, name_of, read_together, unreadable_images
from lca.data.folders import ReadingReport, case_variants
from lca.data.images import ImageSet, Pixels
from lca.data.labelled import Labelled, LabelledImages, read_images
from lca.data.parts import Layout
from lca.data.parts import Part as DataPart
from lca.data.questions import Question, images_asked
from lca.data.sources import working_size
from lca.data.streams import Task, share_mask
from lca.data.thumbnails import jpeg, small
from lca.data.views import Preprocessing, ViewOptions
from lca.device import Compute, versions
from lca.earlier import KEEP, ROOM, Earlier, bounded, earlier_in, leading_back, save_with
from lca.errors import LcaError, nearest
from lca.evaluation.answers import Answer, Evaluation
from lca.evaluation.calibration import calibration_error, fit_temperature
from lca.evaluation.predictions import Prediction, Predictions, predictions
from lca.features import FeatureExtractor, extract
from lca.files import State, load_state, write_atomic
from lca.history import Lesson, images_learnt, now
from lca.lessons import (
    EFFORTS,
    MEASURING,
    PARTS,
    Effort,
    Part,
    Worth,
    answers_of_samples,
    changes,
    compared,
    parts_of,
    samples_of_each,
    stages_of,
)
from lca.methods import Step, methods
from lca.options import validate
from lca.progress import Progress, progress_or_default
from lca.randomness import generator
from lca.received import check_tensors, checked_recipe, fits
from lca.recipe import Recipe, named_recipe
from lca.stored_facts import check_facts
from lca.text import count
from lca.training.setting import Given, Setting
from lca.turns import Turns, whole

HELD_OUT, SMALLEST = 0.1, 6
"""Share of every class that is kept back to measure on, and the smallest class from which any image is."""
UNKNOWN_AT = 98.0
_READ_AT_ONCE = 256
"""Images that are read and answered at a time: a folder of any size fits."""
_ANSWERED_AT_ONCE = 2048
"""Features: a quadratic head needs a number for each of them and every row of every class."""


class ContinualClassifier:
    """A pre-trained backbone, a method that teaches it new classes, and the classes learnt so far.

    Without a recipe it is what `lca learn` makes: the recipe `best`, on the embedded backbone for photos. A recipe may
    be named, as for `--recipe`, and so may a backbone, by its full tag. `progress` is shown on a terminal and in a
    notebook unless it is `False`, or a `Progress` of one's own.
    `view` says what of an image is seen: by default what is usual for photos, as changed by the recipe.
    `branch` names the classifier that answers when the method keeps several on one backbone; by default the last one.
    `bundle` says whether a saved model carries the backbone's weights; such a one is there to be given away and keeps
    no earlier states. `keep` is how many of these there are for `undo` otherwise, in memory and on disk.

    Threads may share one: they take turns to read, and what another thread reads during a change (`learn`, `forget`,
    `undo` and their like) is the classifier from before it, until the change is whole. `steps` is for one thread alone.
    """

    def __init__(
        self,
        recipe: Recipe | str | Path | None = None,
        view: ViewOptions | None = None,
        progress: Progress | bool | None = None,
        backbone: Backbone | str | None = None,
        given: Given | None = None,
    ) -> None:
        self.recipe = recipe = named_recipe(recipe, backbone)
        expect("view", view, (ViewOptions, type(None)), "a ViewOptions")
        expect("backbone", backbone, (Backbone, str, type(None)), "a Backbone or the name of one (see `lca backbones`)")
        expect("given", given, (Given, type(None)), "a Given")
        self.view = view or recipe.data.view.over(ViewOptions())
        self.progress = progress_or_default(progress)
        self.backbone = backbone if isinstance(backbone, Backbone) else load_backbone(recipe.backbone)
        self.compute = Compute.choose(recipe.device, recipe.precision, recipe.exact, recipe.compile)
        self._weights = dict(self.backbone.vit.state_dict())  # under the names they have before a tuner is attached
        self._untuned = _sharing(self.backbone.vit)
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
        self.keep, self._earlier = KEEP, list[Earlier]()
        self.turns = Turns[ContinualClassifier]()

    def learn(self, data: Task | Labelled, held_out: float = HELD_OUT, effort: Effort = "auto") -> Lesson:
        """Learn from labelled images, or from a task of a stream; returns the new entry of the history.

        Classes may be new, known, or both; nothing needs to be known about what comes later. A share of every class
        that has at least six images is held out: accuracy and calibration are measured on it. Where the data has a
        test part (`photos/test` beside `photos/train`), the model is also tested on that. `lessons` says what effort
        means. What fails or is interrupted leaves the classifier as it was before the lesson, or as the instant
        part of it left it.
        """
        *_, last = self.lessons(data, held_out, effort)
        return last

    def lessons(self, data: Task | Labelled, held_out: float = HELD_OUT, effort: Effort = "auto") -> Iterator[Lesson]:
        """What `learn` does, answer by answer: whenever a lesson is given, the classifier can be used and saved.

        `instant` trains nothing: statistics and closed-form heads on the backbone as it is. `thorough` trains at once.
        `improve` gives the instant lesson, then trains on the same images from where it began, and keeps that if
        neither the accuracy of the lesson's classes falls nor an estimate for those known before; the lesson it gives
        in the end takes the place of the instant one and says what came of it. `auto` improves where there are more
        than ten images a class; a task of a stream and a method that cannot do without training it teaches thoroughly.
        """
        began = time.perf_counter()
        expect_one_of("effort", effort, EFFORTS)
        task, report = self._as_task(data, held_out)
        first, *more = parts_of("thorough" if effort == "auto" and report is None else effort, self.method, task)
        standing = None if report is None else self._standing(len(self.classes))
        with self._change() as before:
            self._taught(task, report, first, began)
            lesson = self._told(standing)
        yield lesson
        if more and self._improved(task, report, before):
            yield self._told(standing)

    def steps(self, data: Task | Labelled, held_out: float = HELD_OUT, effort: Part = "thorough") -> Iterator[Step]:
        """What a lesson of one part does, step by step. Run each before asking for the next; when there are no more,
        the lesson is in the history.

        Between two steps a caller may save, show how far it is, or stop. To resume, load the `state` from after a step
        and pass over the steps that are done. Nothing is rolled back, nor can it be undone. A task of a stream belongs
        to a benchmark: its lesson has no date, and nothing is held out and measured.
        """
        began = time.perf_counter()
        expect_one_of("effort", effort, PARTS)
        self._earlier.clear()
        yield from self._steps(*self._as_task(data, held_out), effort, began)

    def _steps(self, task: Task, report: ReadingReport | None, effort: Part, began: float) -> Generator[Step]:
        known = images_learnt(self.history)  # `classes` also holds those of a lesson that is resumed
        new = [name for name in task.classes if name not in known]
        self.classes += [name for name in new if name not in self.classes]
        way = self.method.instant_steps if effort == "instant" else self.method.steps
        steps = list(way(task, [self.classes.index(name) for name in task.classes]))
        of_trunk = sum(step.trunk for step in steps)
        name = f"{'task' if report is None else 'lesson'} {task.index + 1}"
        self.progress.plan(stages_of(steps, task))
        for place, step in enumerate(steps, start=1):
            yield replace(step, run=partial(self._run, step, name), ends_trunk=place == of_trunk)
        taken: Part = "thorough" if effort == "thorough" and self.method.trains(task) else "instant"
        alone = (0, 0) if report is None or task.validation else self._calibrate_on_left_out(task.train)
        self.method.finish_task()
        self.tasks += 1
        counts = torch.bincount(task.train.labels, minlength=len(task.classes)).tolist()
        lesson = Lesson("learn", None, dict(zip(task.classes, counts, strict=True)), new, effort=taken)
        if report is not None:
            seconds = round(time.perf_counter() - began, 1)
            lesson = replace(lesson, when=now(), left_out=len(report.left_out), seconds=seconds)
            lesson = replace(lesson, left_one_out=alone[0], left_one_out_right=alone[1])
            if task.validation:
                with self.progress.stage(MEASURING):
                    lesson = self._measured(lesson, task.validation)
            if report.test:
                told = self.evaluate(LabelledImages(*report.test)).known
                lesson = replace(lesson, tested=len(told), tested_right=sum(a.truth == a.label for a in told))
        self.history.append(lesson)

    def forget(self, *names: str, purge: bool = False) -> None:
        """Remove classes: their head rows and statistics go, and the heads of the other classes are aligned again.

        `undo` brings them back, from an earlier state that still knows them; with `purge` no earlier state is left. The
        backbone is not unlearnt: what it picked up from the images of a class stays in its weights.
        """
        for name in names:
            expect("the name of a class", name, str, "a text")
        names = tuple(dict.fromkeys(names))
        expect_known(names, self.classes, "forget")
        if not names:
            raise LcaError("name the classes to forget")
        with self._change(), self.compute.determinism():
            for name in sorted(names, key=self.classes.index, reverse=True):
                self.method.forget(self.classes.index(name))
                self.classes.remove(name)
            self.method.refit()
            self.history.append(Lesson("forget", now(), {}, list(names)))
        if purge:
            self._earlier.clear()

    def rename(self, old: str, new: str) -> None:
        """Call a class by another name. No answer changes but for the name."""
        expect_known([old], self.classes, "rename")
        new = expect_new(new, self.classes)
        with self._change():
            self.classes[self.classes.index(old)] = new
            self.history.append(Lesson("rename", now(), {}, [old], name=new))

    def merge_classes(self, a: str, b: str, name: str | None = None) -> None:
        """Make two classes one, in the place of `a` and by its name unless another is given.

        Class statistics combine exactly, as if the images of both had been taught as one class, and heads are aligned
        again. A method that keeps no statistics refuses.
        """
        expect_known([a, b], self.classes, "merge")
        if a == b:
            raise LcaError(f"{a!r} cannot be merged with itself; give two classes")
        name = a if name is None else expect_new(name, [each for each in self.classes if each not in (a, b)])
        with self._change(), self.compute.determinism():
            label, other = self.classes.index(a), self.classes.index(b)
            self.method.merge_classes(label, other)
            self.method.refit()
            self.classes[label] = name
            del self.classes[other]
            self.history.append(Lesson("merge", now(), {}, [a, b], name=name))

    def undo(self) -> Lesson:
        """Take back the last change, to the last bit: a lesson, or what `forget`, `rename` and `merge_classes` did.
        Gives what was taken back; the history is again what it was before."""
        if not self.undoable:
            raise LcaError(
                "nothing can be taken back: no earlier state is kept. There is none of a model that was never changed, "
                "was taught step by step, carries its backbone (bundle), forgot a class with purge, or was changed and "
                "saved with keep=0 (--keep 0)"
            )
        earlier, where = self._earlier[-1], Path("the earlier state")
        with self._all_or_nothing(), fits(where):
            taken, state = self.history[-1], earlier.state()
            if earlier.parts is None:  # it was read from a folder, which may be a stranger's
                check_facts(state.meta, where)
                check_tensors(state.parts, where)
            self.load_state(state)
            self._earlier = self._earlier[:-1]
        return taken

    @property
    @whole
    def undoable(self) -> int:
        """How many changes can be taken back, one after the other."""
        return len(leading_back(self._earlier, len(self.history), self.keep))

    def read(self, data: Labelled, part: DataPart = "train", layout: Layout = "auto") -> LabelledImages:
        """Read labelled images ahead of `learn` (or of `evaluate`, with part="test"), for who wants to know what came
        of the reading. `layout` says how folders called train and test are read, where they could be classes too."""
        return read_images(data, self.working_size, self.progress, part, layout)

    def predict(self, images: Question, branch: str | None = None, unknown_at: float = UNKNOWN_AT) -> Predictions:
        """For every image the most probable class, all probabilities, and whether it is like anything known.

        Images are files, their bytes, open files, Pillow images, arrays or tensors: one, or several. A folder that is
        given alone stands for all images below it; `answer.image` says which one an answer is about.

        An image is called unknown when it is as unlike the known images as few of these themselves: about 100 less
        `unknown_at` per cent of them would be. `docs/trust.md` says what that means and what it does not. An image that
        cannot be read is an error.
        """
        answers = self.try_predict(images, branch, unknown_at)
        left_out = [each for each in answers if isinstance(each, LeftOut)]
        if left_out:
            raise unreadable_images(left_out, len(answers))
        return Predictions(each for each in answers if isinstance(each, Prediction))

    def try_predict(
        self, images: Question, branch: str | None = None, unknown_at: float = UNKNOWN_AT
    ) -> list[Prediction | LeftOut]:
        """As `predict`, but an image that cannot be read gets the reason in its place."""
        asked = images_asked(images, self.progress)
        answers: list[Prediction | LeftOut] = []
        with self.progress.task("answering", len(asked)) if len(asked) > _READ_AT_ONCE else nullcontext() as advance:
            for start in range(0, max(len(asked), 1), _READ_AT_ONCE):
                some = asked[start : start + _READ_AT_ONCE]
                answers += self._answers_about(some, start + 1, branch, unknown_at)
                if advance is not None:
                    advance(len(some))
        return answers

    def _answers_about(
        self, images: list[ImageLike], first: int, branch: str | None, unknown_at: float
    ) -> Iterator[Prediction | LeftOut]:
        reading = read_together(images, self.working_size, Progress(), first)
        readable = reading.pixels.batch(torch.arange(len(reading.pixels)))
        answers = enumerate(self._answers(readable, branch, unknown_at))
        for place, image in enumerate(images):
            if place in reading.left_out:
                yield reading.left_out[place]
                continue
            row, answer = next(answers)
            path = isinstance(image, str | Path)
            pictured = partial(jpeg, Path(image) if path else small(reading.pixels.image(row)))  # type: ignore[arg-type]
            yield replace(answer, image=name_of(image, first + place), picture=pictured)

    def evaluate(self, data: Labelled, branch: str | None = None, unknown_at: float = UNKNOWN_AT) -> Evaluation:
        """Answer for labelled images, of which those of a test part if there is one, and compare. Classes that were
        never learnt test what the model refuses."""
        self._check_question(branch, unknown_at)
        images, report = self.read(data, "test")
        return self._evaluated(images, report, branch, unknown_at)

    @whole
    def _evaluated(self, images: ImageSet, report: ReadingReport, branch: str | None, unknown_at: float) -> Evaluation:
        answers = self._answers(images, branch, unknown_at)
        paths = report.paths if len(report.paths) == len(images) else [None] * len(images)
        truths = [images.classes[label] for label in images.labels.tolist()]
        return Evaluation(
            [
                Answer(truth, a.label, a.probability, a.unknown, path, a.nearest, a.distance)
                for truth, a, path in zip(truths, answers, paths, strict=True)
            ],
            tuple(self.classes),
        )

    @property
    @whole
    def knows_distances(self) -> bool:
        """Whether there are statistics that say how far an image lies from every class."""
        statistics = self.method.statistics(self.branch)
        return statistics is not None and statistics[1].can_tell

    @property
    def working_size(self) -> int:
        """Shorter side to which larger images are decoded."""
        return working_size(self.extractor.preprocessing.size)

    @whole
    def features(self, images: ImageSet | Pixels, what: str = "features", centre_crop: float | None = None) -> Tensor:
        """(n, width), on the classifier's device; `centre_crop` is another than the view's."""
        expect("images", images, (ImageSet, Pixels), "an ImageSet or Pixels; `predict` takes files")
        with self.compute.determinism():
            return self.method.features(images, what, centre_crop=centre_crop)

    @whole
    @torch.no_grad()
    def logits(self, features: Tensor, branch: str | None = None) -> Tensor:
        """(n, classes learnt), in the order of `classes`."""
        branch = self._branch(branch)
        expect("features", features, Tensor, "a tensor (n, width), as `features` gives it")
        if features.ndim != 2 or features.shape[1] % self.extractor.width or not features.is_floating_point():
            raise LcaError(
                f"features must be floats of the shape (n, {self.extractor.width}), as `features` gives them; got "
                f"{tuple(features.shape)} of {features.dtype}"
            )
        if not self.history:  # one that has forgotten all of its classes gives no logit
            self._expect_classes()
        return torch.cat([self.method.logits(some, branch) for some in features.split(_ANSWERED_AT_ONCE)])

    @whole
    def probabilities(self, features: Tensor, branch: str | None = None) -> Tensor:
        """(n, classes learnt): softmax of the logits at the calibrated temperature."""
        return (self.logits(features, branch) / self.temperatures.get(branch or self.branch, 1.0)).softmax(1)

    @whole
    def memory(self) -> dict[str, int]:
        """Bytes the model takes beyond the backbone, by part: what lies on disk."""
        return self.method.storage()

    @whole
    def state(self) -> State:
        """Everything but the backbone's own weights, which the recipe and a hash name."""
        state = self.method.state()
        recipe = self.recipe.dump()
        if self.recipe.backbone.weights is not None:  # nobody needs to know where they lay
            recipe["backbone"]["weights"] = self.recipe.backbone.weights.name
        state.meta = {
            "recipe": recipe,
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
        self.history = [Lesson.read(entry) for entry in state.meta["history"]]
        self.temperatures = dict(state.meta["temperatures"])
        self.method.load_state(State(state.parts, state.meta["method"]))

    @whole
    def save(self, folder: str | Path, keep: int | None = None) -> None:
        """Write the model and its card to a folder. The model changes in one atomic step: an interrupted save leaves
        the old one. The states from before the last changes are kept beside it for `undo`, at most `keep` of them, by
        default as many as the classifier keeps."""
        folder, state = folder_path("a model", folder), self.state()
        state.meta["versions"] = versions()
        sizes = state.bytes_by_part()
        most = self.keep if keep is None else keep
        if most < 0:
            raise LcaError(f"keep must be 0 or more earlier states, got {most}")
        if self.bundle:
            state.parts["backbone"], most = self._weights, 0
            state.meta["recipe"]["backbone"]["weights"] = None
        save_with(folder, state, leading_back(self._earlier, len(self.history), most), ROOM)
        write_atomic(folder / "README.md", model_card(facts_of(state.meta, sizes, self.bundle)).encode(), private=True)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        weights: str | Path | None = None,
        progress: Progress | bool | None = None,
        allow_download: bool = False,
    ) -> "ContinualClassifier":
        """Read a model that `save` wrote; `device` and `weights` are for another machine than it was taught on.

        The model may be a stranger's: all of it is checked, and it names no path, no variable and no download, unless
        `allow_download` lets timm fetch the backbone it names. `docs/trust.md` says what holds.
        """
        folder = model_folder(folder)
        expect("device", device, (str, type(None)), "auto, cpu, cuda or cuda:1")
        expect("weights", weights, (str, Path, type(None)), "the path of a safetensors file")
        progress = progress_or_default(progress)
        earlier, state = earlier_in(folder), load_state(folder)
        recipe = checked_recipe(state, folder, device, weights, allow_download)
        carried = state.parts.pop("backbone", None)
        check_tensors(state.parts | ({} if carried is None else {"backbone": carried}), folder)
        backbone = load_backbone(recipe.backbone, carried if weights is None else None)
        scaling = {**state.meta["preprocessing"]}  # timm's cards may change, the model does not
        scaling |= {name: tuple(scaling[name]) for name in ("mean", "std")}
        view = validate(ViewOptions, state.meta["view"], str(folder))
        with fits(folder):
            classifier = cls(recipe, view, progress, replace(backbone, preprocessing=Preprocessing(**scaling)))
            classifier.bundle = carried is not None
            classifier.load_state(state)
            classifier._try_out()
        classifier.keep, classifier._earlier = max(KEEP, len(earlier)), earlier
        return classifier

    def twin(self, state: State | None = None, **changes: Any) -> "ContinualClassifier":
        """An independent classifier in a state that this one gave, by default its present one; `changes` are those of
        its recipe that are about where it computes."""
        state = self.state() if state is None else state
        vit = copy.deepcopy(self._untuned)
        vit.load_state_dict(self._weights)
        backbone = replace(self.backbone, vit=vit)
        twin = ContinualClassifier(self.recipe.model_copy(update=changes), self.view, Progress(), backbone)
        twin.load_state(state)
        twin.branch, twin.bundle, twin.keep, twin._earlier = self.branch, self.bundle, self.keep, [*self._earlier]
        return twin

    @torch.no_grad()
    def _try_out(self) -> None:
        """Answer for a grey image: what was loaded must fit together, whoever made it."""
        if not self.classes:
            return
        size = self.extractor.preprocessing.size
        grey = Pixels(torch.full((1, 3, size, size), 128, dtype=torch.uint8), torch.tensor([[size, size]]))
        method = self.method

        def embed(views: Tensor) -> Tensor:
            return torch.cat([method.embed(views, part) for part in method.feature_parts()], dim=1)

        with self.compute.determinism():
            features = extract(self.extractor, grey, Progress(), "", embed=embed)
            for branch in method.branches():
                if branch == self.branch or not method.derives(branch):
                    self._predictions(features, branch, UNKNOWN_AT)
        for memory, _ in filter(None, map(method.statistics, method.branches())):
            memory.expect(len(self.classes), self.extractor.width)

    def _run(self, step: Step, name: str) -> dict[str, float]:
        with self.progress.within(name), self.progress.stage(step.phase), self.compute.determinism():
            return step.run() or {}

    def _taught(self, task: Task, report: ReadingReport | None, effort: Part, began: float) -> Lesson:
        with ExitStack() as stack:
            if report is not None:
                counted = f"{count(len(task.train), 'image')} of {count(len(task.classes), 'class', 'classes')}"
                training = ", training" * (effort == "thorough" and self.method.trains(task))
                stack.enter_context(self.progress.lesson(f"lesson {task.index + 1}{training}", counted))
            for step in stack.enter_context(closing(self._steps(task, report, effort, began))):
                step.run()
        return self.history[-1]

    def _improved(self, task: Task, report: ReadingReport | None, before: State) -> Lesson | None:
        """The thorough lesson in place of the instant one, or the instant one that stays; None if they cannot be
        compared. `before` is the state from before both."""
        known = len(before.meta["classes"])
        instant, began = self._worth(known), time.perf_counter()
        if instant is None:
            return None
        self.progress.line("training on the same images; the instant lesson stands until that proves better")
        with self._all_or_nothing() as after:
            self.load_state(before)
            lesson = self._taught(task, report, "thorough", began)
            thorough = self._worth(known)
            assert thorough is not None  # it is measured on the same
            tried = compared(instant, thorough, round(time.perf_counter() - began, 1))
        if not tried.kept:
            self.load_state(after)
            lesson = self.history[-1]
        self.history[-1] = replace(lesson, improvement=tried)
        return self.history[-1]

    def _standing(self, known: int) -> Tensor | None:
        """What samples of the first so many classes are called, (known, samples); None where there are none."""
        statistics, device = self.method.statistics(self.branch), self.compute.device
        if statistics is None or not known:
            return None
        draws, count = generator(self.recipe.seed, "old classes"), samples_of_each(known)
        return answers_of_samples(known, count, statistics[0], lambda some: self.logits(some.to(device)), draws)

    def _told(self, standing: Tensor | None) -> Lesson:
        """The last lesson with what it changed for the classes known before, whose samples were called so."""
        after = None if standing is None else self._standing(len(standing))
        if standing is not None and after is not None:
            told = changes(self.classes, standing, after, self.history[-1].images)
            self.history[-1] = replace(self.history[-1], old_classes=told)
        return self.history[-1]

    def _worth(self, known: int) -> Worth | None:
        statistics, device = self.method.statistics(self.branch), self.compute.device
        draws = generator(self.recipe.seed, "improvement", self.tasks)
        memory = None if statistics is None else statistics[0]
        return Worth.of(self.history[-1], known, memory, lambda some: self.logits(some.to(device)), draws)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[State]:
        """What fails or is interrupted within leaves the classifier as it was before: in the state that is given."""
        with self.turns.alone():
            before = self.state()
            with self.turns.changing(lambda: self.twin(before)):
                try:
                    yield before
                except BaseException:
                    self.load_state(before)
                    raise

    @contextmanager
    def _change(self) -> Iterator[State]:
        """The same, and what does not fail can be taken back."""
        with self._all_or_nothing() as before:
            yield before
            earlier = leading_back([*self._earlier, Earlier.of(before)], len(self.history), self.keep)
            self._earlier = bounded(earlier, self.state(), ROOM)

    @whole
    def _answers(self, images: ImageSet | Pixels, branch: str | None, unknown_at: float) -> list[Prediction]:
        branch = self._check_question(branch, unknown_at)
        if not len(images):
            return []
        return self._predictions(self.features(images), branch, unknown_at)

    def _predictions(self, features: Tensor, branch: str, unknown_at: float) -> list[Prediction]:
        distances = self.method.percentiles(features, branch)
        return predictions(self.classes, self.probabilities(features, branch), distances, unknown_at)

    def _check_question(self, branch: str | None, unknown_at: float) -> str:
        """The branch that is asked; what cannot be asked is an error."""
        expect_number("unknown_at", unknown_at, 0, 100, " (per cent)")
        self._expect_classes()
        return self._branch(branch)

    def _expect_classes(self) -> None:
        if not self.classes:
            raise LcaError("this classifier has not learnt any class yet; call learn first")

    def _branch(self, branch: str | None) -> str:
        if branch is None:
            return self.branch
        names = self.method.branches()
        if branch not in names:
            hint = nearest(branch, names) if isinstance(branch, str) else ""
            raise LcaError(f"there is no branch {branch!r}; there are {names}{f'; {hint}' * hint.endswith('?')}")
        return branch

    def __repr__(self) -> str:
        return notebook.text_of(self.classes, self.history, self._parts())

    def _repr_html_(self) -> str:
        return notebook.html_of(self.classes, self.history, self._parts())

    def _parts(self) -> str:
        return f"method {self.recipe.method.name}, tuning {self.recipe.tuning.name}, backbone {self.backbone.name}"

    def _calibrate_on_left_out(self, images: ImageSet) -> tuple[int, int]:
        """The temperature of every branch whose heads can tell what they would say of an image they had not learnt, and
        of how many of these the answering branch names how many rightly."""
        alone = (0, 0)
        for branch in self.method.branches():
            told = self.method.left_out_logits(branch, images)
            if told is not None and len(told[1]):
                self.temperatures[branch] = fit_temperature(*told, self.temperatures.get(branch, 1.0))
                if branch == self.branch:
                    alone = (len(told[1]), int((told[0].argmax(1) == told[1]).sum()))
        return alone

    def _measured(self, lesson: Lesson, images: ImageSet) -> Lesson:
        """Measure on held-out images: the temperature of every branch, and what the answering branch is worth."""
        features = self.features(images, "held-out images")
        labels = torch.tensor([self.classes.index(name) for name in images.classes])[images.labels]
        for branch in self.method.branches():
            logits = self.logits(features, branch).cpu()
            self.temperatures[branch] = fit_temperature(logits, labels, self.temperatures.get(branch, 1.0))
        if lesson.effort == "thorough":  # else the backbone was not fitted on the images that were learnt
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

    def _as_task(self, data: Task | Labelled, held_out: float) -> tuple[Task, ReadingReport | None]:
        """A task, and the report where it was read from labelled images; some of these are held out."""
        if self.method.info.needs_all_data and images_learnt(self.history):
            name = self.recipe.method.name
            warnings.warn(f"method {name!r} needs all data at once: this lesson undoes the others", stacklevel=4)
        if isinstance(data, Task):
            return data, None
        if expect_number("the held-out share", held_out, 0, 1) == 1:
            raise LcaError("the held-out share must be less than 1: something has to be learnt")
        images, report = self.read(data)
        for name, known in case_variants(images.classes, self.classes):
            self.progress.warning(
                f"CHECK: {name!r} is learnt as a new class beside the known {known!r}; if they are the same, "
                "make them one afterwards (merge_classes, `lca merge-classes`)"
            )
        mask = share_mask(images, held_out, self.recipe.seed, SMALLEST)
        rows, kept_back = torch.nonzero(~mask)[:, 0], torch.nonzero(mask)[:, 0]
        return Task(self.tasks, images.classes, images.subset(rows), images.subset(kept_back)), report


def _sharing(vit: nn.Module) -> nn.Module:
    """A copy of a transformer as it is built now, whose tensors take no memory: they are those of the original."""
    tensors = [*vit.parameters(), *vit.buffers()]
    aliases = {
        id(each): nn.Parameter(each.detach(), False) if isinstance(each, nn.Parameter) else each for each in tensors
    }
    return copy.deepcopy(vit, aliases)
