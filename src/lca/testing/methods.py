"""The contracts of a method, on a tiny transformer and a few images."""

import copy
import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from timm.layers import PatchEmbed
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lca.classifier import ContinualClassifier
from lca.data.images import ImageSet, Pixels
from lca.data.streams import Stream, Task
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
        ({"3": 5}, "3"),
        ({"1": 5, "7": 4, "4": 6}, "3174"),
        ({"9": 1}, "31749"),
        ({"0": 5, "2": 1}, "3174902"),
        ({"1": 4, "5": 5}, "31749025"),
        ({"0": 4, "3": 4}, "31749025"),
        ({"7": 3}, "31749025"),
        ({"6": 4, "8": 4}, "3174902568"),
    ),
    "one class between": (
        ({"3": 5, "1": 1, "2": 5}, "312"),
        ({"8": 4}, "3128"),
        ({"2": 1, "7": 5, "3": 4}, "31287"),
        ({"8": 1}, "31287"),
        ({"1": 1, "5": 1}, "312875"),
    ),
}
"""Images of each class in every task, and the classes known after it."""
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
    name = method if isinstance(method, str) else str(method.Options.model_fields["name"].default)
    with nullcontext() if isinstance(method, str) else methods.standing_in(name, method):
        run_contracts(METHOD_CONTRACTS, MethodSubject(name, sections), contracts)


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
    model, pixels = subject.taught, images(TEST, skip=20).pixels
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
    model, pixels = subject.taught, images(TEST, skip=20).pixels
    with _saved_in_folder(model) as folder:
        loaded = _load(folder)
    expect_equal(model.classes, list(TEST), "classes")
    expect_equal(loaded.classes, model.classes, "classes after loading")
    before = _logits(model, pixels)
    expect_equal(_logits(loaded, pixels), before, "logits after loading, by branch")
    for branch, expected in before.items():
        expect(expected.std() > 0, f"branch {branch!r}: expected logits that differ, all are {expected.flatten()[0]}")


@contract(METHOD_CONTRACTS, "a model is safetensors and JSON, and storage says its bytes")
def _storage(subject: MethodSubject) -> None:
    _expect_storage(subject.taught)


@contract(METHOD_CONTRACTS, "a loaded model learns on as the one that was never saved")
def _learns_on(subject: MethodSubject) -> None:
    """The saved state is all there is to know."""
    pixels = images(TEST, skip=20).pixels
    with _saved_in_folder(subject.taught) as folder:
        first, second = _load(folder), _load(folder)
    first.learn(task(3, MORE))
    with _saved_in_folder(first) as folder:
        again = _load(folder)
    second.learn(task(3, MORE))
    expected = _logits(second, pixels)
    for model, which in ((first, "another loaded model"), (again, "the same, saved and loaded again")):
        found = _logits(model, pixels)
        expect_equal(found, expected, f"logits after one more task, {which}")
        for branch, logits in found.items():
            expect_equal(tuple(logits.shape), (len(pixels), 8), f"shape of the logits of branch {branch!r}")


@contract(METHOD_CONTRACTS, "it forgets and keeps the other contracts")
def _forgets(subject: MethodSubject) -> None:
    model, pixels = subject.that_forgot(), images(TEST, skip=20).pixels
    expect_equal(model.classes, list("3148"), "classes after 7 and 9 were forgotten")
    expected, far = _logits(model, pixels), _percentiles(model, pixels)
    for branch, found in expected.items():
        _expect_rows(found, (len(pixels), 4), f"logits of branch {branch!r}")
    _expect_storage(model)
    with _saved_in_folder(model) as folder:
        loaded = _load(folder)
    expect_equal((loaded.classes, loaded.history), (model.classes, model.history), "classes and history after loading")
    expect_equal(_logits(loaded, pixels), expected, "logits after loading")
    expect_equal(_percentiles(loaded, pixels), far, "percentiles after loading")
    alone = [_logits(model, pixels.batch(torch.tensor([row]))) for row in range(0, len(pixels), 9)]
    for branch, found in expected.items():
        rows = torch.cat([each[branch] for each in alone])
        expect_near(rows.softmax(1), found[::9].softmax(1), f"branch {branch!r}: probabilities of single images")


@contract(METHOD_CONTRACTS, "it learns on after it forgot")
def _learns_after_forgetting(subject: MethodSubject) -> None:
    """New classes, a known one and the forgotten one, as from a state that was loaded."""
    pixels = images(TEST, skip=20).pixels
    with _saved_in_folder(subject.that_forgot()) as folder:
        first, second = _load(folder), _load(folder)
    for model in (first, second):
        lesson = model.learn(task(3, {"7": 4, "5": 4, "3": 4}))
        expect_equal(lesson.new, ["7", "5"], "new classes")
        expect_equal(model.classes, list("314875"), "classes")
    expected = _logits(second, pixels)
    expect_equal(_logits(first, pixels), expected, "logits of two loaded models")
    for branch, found in expected.items():
        expect_equal(tuple(found.shape), (len(pixels), 6), f"shape of the logits of branch {branch!r}")


@contract(METHOD_CONTRACTS, "stopped after any step and resumed it ends bit-equal")
def _resumed(subject: MethodSubject) -> None:
    """As after a kill: each step is done by a new classifier, which knows only the state after the step before."""
    model, pixels = subject.model(), images(TEST, skip=20).pixels
    for index, counts in enumerate(TASKS):
        done = 0
        while _one_step(model, task(index, counts), done):
            state, done = _as_stored(model.state()), done + 1
            model = subject.model()
            model.load_state(state)
    found, expected = model.method.state(), subject.taught.method.state()
    expect_equal(json.dumps(found.meta), json.dumps(expected.meta), "what is no tensor of the state")
    expect_equal(list(found.parts), list(expected.parts), "parts of the state")
    for part, tensors in expected.parts.items():
        expect_equal(found.parts[part], tensors, f"part {part!r} of the state")
    expect_equal(_logits(model, pixels), _logits(subject.taught, pixels), "logits")


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
    for number, (counts, known) in enumerate(STREAMS[stream]):
        model.learn(task(number, counts))
        expect_equal(model.classes, list(known), f"classes after task {number + 1}")
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
    model, calls = subject.in_pairs, []

    def count(module: nn.Module, *_: Any) -> None:
        if isinstance(module, PatchEmbed):  # every pass begins there
            calls.append(module)

    handle = register_module_forward_hook(count)
    try:
        model.features(images({"3": 4}, skip=20))
    finally:
        handle.remove()
    said = model.method.info.passes
    expect_equal(len(calls), PASSES[said], f"passes after {len(PAIRS)} tasks, where info says {said!r}")


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


def _one_step(model: ContinualClassifier, of_task: Task, done: int) -> bool:
    """Do the step of a lesson that follows those that are done; whether there was one. If not, the lesson is over."""
    for step in islice(model.steps(of_task), done, None):
        step.run()
        return True
    return False


def _as_stored(state: State) -> State:
    """A state that shares nothing with the model it is of."""
    return State(copy.deepcopy(state.parts), json.loads(json.dumps(state.meta)))


@contextmanager
def _saved_in_folder(model: ContinualClassifier) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        model.save(folder)
        yield Path(folder)


def _load(folder: Path) -> ContinualClassifier:
    with patch("lca.classifier.load_backbone", lambda options, weights=None: build_backbone()):
        return ContinualClassifier.load(folder)


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


def _expect_storage(model: ContinualClassifier) -> None:
    said = model.memory()
    with _saved_in_folder(model) as folder:
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
