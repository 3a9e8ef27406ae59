"""The contracts of a method, on a tiny transformer and a few images."""

import copy
import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from timm.layers import PatchEmbed
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.data.images import ImageSet, Pixels
from lca.data.streams import Stream
from lca.errors import LcaError
from lca.files import State, read_json
from lca.methods import Method, methods
from lca.testing.contracts import Contracts, contract, expect, expect_equal, expect_near, run_contracts
from lca.testing.parts import build_backbone, classifier, digits, images, recipe, task

TASKS = ({"3": 6, "7": 6, "1": 6}, {"9": 6}, {"4": 6, "8": 6})
MORE = {"0": 4, "5": 4, "3": 4}
TEST = dict.fromkeys("371948", 12)
PAIRS = ({"3": 5, "7": 5}, {"4": 5, "8": 5}, {"0": 5, "1": 5})
PASSES = {"1": 1, "2": 2, "one per task": len(PAIRS), "one per task and one more": len(PAIRS) + 1}
STREAMS = {
    "one class first": (
        {"3": 5},
        {"1": 5, "7": 4, "4": 6},
        {"9": 1},
        {"0": 5, "2": 1},
        {"1": 4, "5": 5},
        {"0": 4, "3": 4},
        {"7": 3},
        {"6": 4, "8": 4},
    ),
    "one class between": ({"3": 5, "1": 1, "2": 5}, {"8": 4}, {"2": 1, "7": 5, "3": 4}, {"8": 1}, {"1": 1, "5": 1}),
}
"""Images of each class in every task."""
SHAPES: dict[str, dict[str, Any]] = {
    "one block": {"depth": 1, "embed_dim": 16},
    "deeper and wider, average pooling": {"depth": 5, "embed_dim": 36, "num_heads": 3, "global_pool": "avg"},
    "registers, LayerScale, normalised queries": {"reg_tokens": 2, "init_values": 0.1, "qk_norm": True, "depth": 3},
}

METHOD_CONTRACTS: Contracts["MethodSubject"] = {}
"""What every method promises, by name."""


def check_method(method: type[Method] | str, *, contracts: Iterable[str] | None = None, **sections: Any) -> None:
    """Check that a method, by its class or name, keeps all contracts or those named.

    `sections` are changes to the recipe: `method={"alpha": 2}`, `tuning={"name": "ssf"}`, `training={"lr": 0.1}`.
    """
    run_contracts(METHOD_CONTRACTS, methods, method, partial(MethodSubject, sections=sections), contracts)


class MethodSubject:
    """A method with the recipe it is checked in, and what it was taught for several checks, which do not change it."""

    def __init__(self, name: str, sections: Mapping[str, Any]) -> None:
        self.name = f"method {name!r}"
        self.sections = {**sections, "method": {"name": name, **sections.get("method", {})}}
        self.joint = methods[name].info.needs_all_data

    def model(self, shape: Mapping[str, Any] | None = None, **changes: Any) -> ContinualClassifier:
        """One that has learnt nothing yet."""
        return classifier(recipe(self.sections, changes), **shape or {})

    @cached_property
    def taught(self) -> ContinualClassifier:
        return _taught(self.model(), TASKS)

    @cached_property
    def forgetful(self) -> ContinualClassifier | None:
        """The same, after it forgot a class of the first and the only class of the second task; None if it cannot."""
        state, model = self.taught.state(), self.model()
        model.load_state(state)
        try:
            model.forget("7")
        except LcaError as error:
            expect("no way to forget" in str(error), f"forget: expected an error that says so, got: {error}")
            expect_equal(model.classes, self.taught.classes, "classes after a class could not be forgotten")
            return None
        model.forget("9")
        return model

    @cached_property
    def in_pairs(self) -> ContinualClassifier:
        """Tasks of equal size; a method that needs all data gets them as one."""
        everything = {name: count for counts in PAIRS for name, count in counts.items()}
        return _taught(self.model(training={"epochs": 1}), [everything] if self.joint else PAIRS)

    def that_forgot(self) -> ContinualClassifier:
        if self.forgetful is None:
            raise SkipTest(f"{self.name} has no way to forget")
        return self.forgetful


@contract(METHOD_CONTRACTS, "a prediction does not depend on the batch")
def _batches(subject: MethodSubject) -> None:
    _expect_alone(subject.taught)


@contract(METHOD_CONTRACTS, "a percentile does not depend on the batch")
def _percentile_batches(subject: MethodSubject) -> None:
    pixels = images({**TEST, "0": 6}, skip=20).pixels
    for model in filter(None, (subject.taught, subject.forgetful)):
        together = _percentiles(model, pixels)
        for branch, found in together.items():
            _expect_rows(found, (len(pixels), len(model.classes)), f"percentiles of branch {branch!r}")
            expect(found.min() >= 0 and found.max() <= 100, f"percentiles of branch {branch!r}: expected 0 to 100")
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(1))
        groups = [*torch.arange(len(pixels)).split(7), order, *(order[row : row + 1] for row in range(5))]
        for rows in groups:
            for branch, found in _percentiles(model, pixels.batch(rows)).items():
                expect_near(found, together[branch][rows], f"branch {branch!r}, {len(rows)} images", atol=0.02)


@contract(METHOD_CONTRACTS, "saved and loaded it gives equal logits")
def _saved(subject: MethodSubject) -> None:
    _expect_saved(subject.taught, list(TEST))


@contract(METHOD_CONTRACTS, "a model is safetensors and JSON, and storage says its bytes")
def _storage(subject: MethodSubject) -> None:
    _expect_storage(subject.taught)


@contract(METHOD_CONTRACTS, "a loaded model learns on as the one that was never saved")
def _learns_on(subject: MethodSubject) -> None:
    """The saved state is all there is to know."""
    _expect_learns_on(subject.taught, MORE, ["0", "5"])


@contract(METHOD_CONTRACTS, "it forgets and keeps the other contracts")
def _forgets(subject: MethodSubject) -> None:
    model = subject.that_forgot()
    _expect_alone(model)
    _expect_saved(model, list("3148"))
    _expect_storage(model)


@contract(METHOD_CONTRACTS, "it learns on after it forgot")
def _learns_after_forgetting(subject: MethodSubject) -> None:
    """New classes, a known one and the forgotten one, as from a state that was loaded."""
    _expect_learns_on(subject.that_forgot(), {"7": 4, "5": 4, "3": 4}, ["7", "5"])


@contract(METHOD_CONTRACTS, "what is renamed, forgotten or made one is taken back to the last bit")
def _taken_back(subject: MethodSubject) -> None:
    """Forgetting several classes at once is forgetting them one by one, where heads follow from statistics."""
    model = subject.model()
    model.load_state(before := subject.taught.state())
    answers, classes = _logits(model, _unseen()), list(model.classes)
    model.rename("7", "seven")
    expect_equal(model.classes, ["seven" if name == "7" else name for name in classes], "classes after a renaming")
    _expect_undone(model, before)
    if subject.forgetful is not None:
        model.forget("9", "7")
        one_by_one = _logits(subject.forgetful, _unseen())
        expect_equal(model.classes, subject.forgetful.classes, "classes after two were forgotten at once")
        for branch, found in _logits(model, _unseen()).items():
            _expect_rows(found, (len(_unseen()), len(classes) - 2), f"logits of branch {branch!r} after forgetting")
            if not _aligned(model, branch):
                scale = max(1.0, float(found.abs().max()))
                expect_near(found / scale, one_by_one[branch] / scale, f"{branch!r}, two forgotten at once", atol=1e-4)
        _expect_undone(model, before)
    for other in ("7", "9"):  # of the same lesson, and of another one
        if _merged(model, "3", other):
            expect_equal(model.classes, [name for name in classes if name != other], "classes after two were made one")
            for branch, found in _logits(model, _unseen()).items():
                _expect_rows(found, (len(_unseen()), len(classes) - 1), f"logits of branch {branch!r} after merging")
            _expect_undone(model, before)
    expect_equal(_logits(model, _unseen()), answers, "logits after everything was taken back")


@contract(METHOD_CONTRACTS, "stopped after any step and resumed it ends bit-equal")
def _resumed(subject: MethodSubject) -> None:
    """As after a kill: each step is done by a new classifier, which knows only the state after the step before."""
    model = subject.model()
    for index, counts in enumerate(TASKS):
        done = 0
        while step := next(islice(model.steps(task(index, counts)), done, None), None):  # None: the lesson is over
            step.run()
            state, done = model.state(), done + 1
            model = subject.model()
            model.load_state(State(copy.deepcopy(state.parts), json.loads(json.dumps(state.meta))))
    _expect_state(model.method.state(), subject.taught.method.state(), "resumed")
    expect_equal(_logits(model, _unseen()), _logits(subject.taught, _unseen()), "logits")


@contract(METHOD_CONTRACTS, "it gets one task after another and keeps no image")
def _keeps_no_image(subject: MethodSubject) -> None:
    model = subject.model()
    stream = Stream(digits(), model.recipe.data, model.recipe.seed)
    with watched_batches() as held:
        for index in range(1 if subject.joint else len(stream)):
            expect_equal(held(), 0, f"batches of images of earlier tasks still held when task {index + 1} begins")
            with stream.everything() if subject.joint else stream.open(index) as opened:
                model.learn(opened)
        expect_equal(held(), 0, "batches of images still held after the last task")


@contract(METHOD_CONTRACTS, "tasks of any shape are learnt", STREAMS)
def _any_tasks(subject: MethodSubject, stream: str) -> None:
    model = subject.model(training={"epochs": 1})
    test = images(dict.fromkeys("0123456789", 2), skip=30)
    known: list[str] = []
    for number, counts in enumerate(STREAMS[stream]):
        model.learn(task(number, counts))
        known = list(dict.fromkeys([*known, *counts]))
        expect_equal(model.classes, known, f"classes after task {number + 1}")
        features = model.features(test)
        for branch in model.method.branches():
            logits = model.logits(features, branch)
            _expect_rows(logits, (20, len(known)), f"logits of branch {branch!r} after task {number + 1} ({counts})")
    expect_equal(model.tasks, len(STREAMS[stream]), "number of tasks")


@contract(METHOD_CONTRACTS, "a class that comes alone does not get all answers")
def _alone(subject: MethodSubject) -> None:
    model = _taught(subject.model(training={"epochs": 3}), ({"3": 8, "7": 8}, {"1": 8}, {"4": 8, "0": 8}))
    features = model.features(images(dict.fromkeys("37140", 6), skip=30))
    aligned = getattr(getattr(model.method, "branch_set", None), "heads", {})  # in few steps alignment may do worse
    for branch in set(model.method.branches()) - set(aligned):
        share = (model.logits(features, branch).argmax(1) == 2).float().mean()
        expect(share < 0.9, f"branch {branch!r}: expected less than 90 % of all answers, got {100 * share:.0f} %")


@contract(METHOD_CONTRACTS, "the bytes are foretold")
def _bytes(subject: MethodSubject) -> None:
    model = subject.in_pairs
    expected = model.method.expected_bytes(len(PAIRS), 6, 5)
    if expected is None:
        raise SkipTest(f"{subject.name} does not say how many bytes it will store")
    stored = model.memory()
    expect_equal(sum(stored.values()), expected, f"bytes stored ({stored}), beside what expected_bytes says")


@contract(METHOD_CONTRACTS, "the passes are as many as said")
def _passes(subject: MethodSubject) -> None:
    model = subject.in_pairs
    with patch.object(PatchEmbed, "forward", autospec=True, side_effect=PatchEmbed.forward) as begun:  # every pass
        model.features(images({"3": 4}, skip=20))
    said = model.method.passes
    expect_equal(begun.call_count, PASSES[said], f"passes after {len(PAIRS)} tasks, where info says {said!r}")


@contract(METHOD_CONTRACTS, "it learns and answers on any transformer", SHAPES)
def _any_transformer(subject: MethodSubject, shape: str) -> None:
    model = subject.model(SHAPES[shape], training={"epochs": 1})
    _taught(model, ({"3": 6, "7": 6}, {"1": 4}, {"4": 6, "0": 6}))
    pixels = images(dict.fromkeys("37140", 3), skip=30).pixels
    together = model.features(pixels)
    halves = torch.cat([model.features(pixels.batch(rows)) for rows in torch.arange(len(pixels)).split(8)])
    expect_near(halves, together, "features in two batches", atol=1e-4)
    for branch in model.method.branches():
        logits = model.logits(together, branch)
        _expect_rows(logits, (15, 5), f"logits of branch {branch!r}")
        expect(logits.std() > 0, f"branch {branch!r}: expected logits that differ")


@contextmanager
def watched_batches() -> Iterator[Callable[[], int]]:
    """Tells how many batches of images that were read within are still held by anything."""
    read, batches = ImageSet.batch, []

    def remembered(self: ImageSet, *arguments: Any, **options: Any) -> Pixels:
        batch = read(self, *arguments, **options)
        batches.append(weakref.ref(batch.canvas))
        return batch

    def held() -> int:
        gc.collect()
        return sum(batch() is not None for batch in batches)

    with patch.object(ImageSet, "batch", remembered):
        yield held
    expect(len(batches) > 0, "expected that images are read")


def _taught(model: ContinualClassifier, tasks: Iterable[Mapping[str, int]]) -> ContinualClassifier:
    for number, counts in enumerate(tasks):
        model.learn(task(number, counts))
    return model


def _loaded(model: ContinualClassifier) -> ContinualClassifier:
    """The same, saved and loaded, without the states from before."""
    with TemporaryDirectory() as folder:
        model.save(folder, keep=0)
        with patch("lca.classifier.load_backbone", lambda options, weights=None: build_backbone()):
            return ContinualClassifier.load(folder)


def _unseen() -> Pixels:
    """Images that were not taught."""
    return images(TEST, skip=20).pixels


def _logits(model: ContinualClassifier, pixels: Pixels) -> dict[str, Tensor]:
    features = model.features(pixels)
    return {branch: model.logits(features, branch) for branch in model.method.branches()}


def _percentiles(model: ContinualClassifier, pixels: Pixels) -> dict[str, Tensor]:
    features = model.features(pixels)
    found = {branch: model.method.percentiles(features, branch) for branch in model.method.branches()}
    return {branch: each for branch, each in found.items() if each is not None}


def _expect_rows(found: Tensor, shape: tuple[int, ...], what: str) -> None:
    expect_equal(tuple(found.shape), shape, f"shape of {what}")
    expect(found.isfinite().all(), f"{what}: expected finite values")


def _expect_alone(model: ContinualClassifier) -> None:
    """Logits and probabilities are those of an image alone, whatever else is in the batch."""
    pixels = _unseen()
    together, everything = _logits(model, pixels), torch.arange(len(pixels))
    expect(len(pixels) > 64, "the extraction should need more than one batch")
    groups = [torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    groups += [*everything.split(7), *everything[::9].split(1), torch.tensor([5, 5, 60, 5])]
    for rows in groups:
        for branch, found in _logits(model, pixels.batch(rows)).items():
            expected = together[branch][rows]
            scale = max(1.0, float(expected.abs().max()))  # logits of closed-form heads reach the hundreds
            what = f"branch {branch!r}, {len(rows)} images instead of {len(pixels)}"
            expect_near(found / scale, expected / scale, f"{what}: logits")
            expect_near(found.softmax(1), expected.softmax(1), f"{what}: probabilities")


def _expect_saved(model: ContinualClassifier, classes: list[str]) -> None:
    """It knows these classes, and once more when it is loaded."""
    loaded, pixels = _loaded(model), _unseen()
    expect_equal(model.classes, classes, "classes")
    expect_equal((loaded.classes, loaded.history), (classes, model.history), "classes and history after loading")
    before = _logits(model, pixels)
    expect_equal(_logits(loaded, pixels), before, "logits after loading, by branch")
    expect_equal(_percentiles(loaded, pixels), _percentiles(model, pixels), "percentiles after loading, by branch")
    for branch, found in before.items():
        _expect_rows(found, (len(pixels), len(classes)), f"logits of branch {branch!r}")
        expect(found.std() > 0, f"branch {branch!r}: expected logits that differ, all are {found.flatten()[0]}")


def _expect_learns_on(model: ContinualClassifier, counts: Mapping[str, int], new: list[str]) -> None:
    """What is loaded learns a task as another one that is loaded, and as it does when it is saved once more. When that
    is taken back it is what it was."""
    first, second = _loaded(model), _loaded(model)
    before = first.state()
    for learner in (first, second):
        expect_equal(learner.learn(task(3, counts)).new, new, "new classes")
        expect_equal(learner.classes, [*model.classes, *new], "classes")
    expected = _logits(second, _unseen())
    for learner, which in ((first, "another loaded model"), (_loaded(first), "the same, saved and loaded again")):
        expect_equal(_logits(learner, _unseen()), expected, f"logits after one more task, {which}")
    for branch, found in expected.items():
        _expect_rows(found, (len(_unseen()), len(second.classes)), f"logits of branch {branch!r}")
    _expect_undone(first, before)


def _expect_state(found: State, expected: State, what: str) -> None:
    expect_equal(json.dumps(found.meta), json.dumps(expected.meta), f"what is no tensor of the state, {what}")
    expect_equal(list(found.parts), list(expected.parts), f"parts of the state, {what}")
    for part, tensors in expected.parts.items():
        expect_equal(found.parts[part], tensors, f"part {part!r} of the state, {what}")


def _expect_undone(model: ContinualClassifier, before: State) -> None:
    """Taking the last change back leaves nothing of it."""
    kind = model.history[-1].kind
    expect_equal(model.undo().kind, kind, "the change that undo says it took back")
    _expect_state(model.state(), before, f"after {kind} was taken back")


def _merged(model: ContinualClassifier, label: str, other: str) -> bool:
    """Make two classes one; whether the method can."""
    before = model.state()
    try:
        model.merge_classes(label, other)
    except LcaError as error:
        expect("as one class" in str(error), f"merging: expected an error that says what to do, got: {error}")
        _expect_state(model.state(), before, "after two classes could not be made one")
        return False
    return True


def _aligned(model: ContinualClassifier, branch: str) -> bool:
    """Whether a branch's heads are trained on samples, so that they depend on where that began."""
    branches = getattr(model.method, "branch_set", None)
    return branches is not None and branch in branches.heads and not branches.options[branch].closed_form


def _expect_storage(model: ContinualClassifier) -> None:
    said = model.memory()
    with TemporaryDirectory() as place:
        model.save(folder := Path(place), keep=0)
        parts = read_json(folder / "state.json")["parts"]
        files = {path.name: path.stat().st_size for path in folder.rglob("*")}
        sizes = {part: sum(t.nbytes for t in load_file(folder / name).values()) for part, name in parts.items()}
    expect_equal(set(files), {"state.json", "README.md", *parts.values()}, "files")
    expect(all(name.endswith(".safetensors") for name in parts.values()), f"expected safetensors, got {parts}")
    expect_equal(said, {part: size for part, size in sizes.items() if size}, "storage(), beside the bytes on disk")
    expect(sum(said.values()) > 0, "expected that something is stored")
    of_branches = [model.method.storage(branch) for branch in model.method.branches()]
    for part in of_branches:
        expect(part.items() <= said.items(), f"storage(branch): expected some of {said}, got {part}")
    expect_equal({name for part in of_branches for name in part}, set(said), "parts that some branch needs")
    headers = sum(files[name] for name in parts.values()) - sum(sizes.values())
    most = 0.5 * sum(sizes.values()) + 4096 * len(parts)
    expect(0 < headers < most, f"there is more in the files than tensors: {headers} bytes, expected fewer than {most}")
