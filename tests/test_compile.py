"""The compiled backbone: for which batches it is used, and that it trains as the plain one does."""

import copy
import json
import shutil
from functools import partial

import pytest
import torch

import lca.device
import tiny
from lca.device import CompiledForSizes, Compute
from lca.errors import LcaError
from lca.features import FeatureExtractor, extract
from lca.files import load_state
from lca.methods import methods
from lca.progress import Progress
from lca.runs.experiment import run


@pytest.fixture
def traced(monkeypatch):
    """Compile without a compiler: the traced graph is run operation by operation. Notes the sizes that were traced."""
    sizes, original = [], torch.compile

    def backend(graph, inputs):
        sizes.append({len(each) for each in inputs if isinstance(each, torch.Tensor) and each.ndim == 4}.pop())
        return graph.forward

    monkeypatch.setattr(lca.device.torch, "compile", partial(original, backend=backend))
    yield sizes
    torch.compiler.reset()


def test_only_the_sizes_it_was_told_of_are_compiled(traced):
    double = CompiledForSizes(lambda batch: 2 * batch)
    images = {size: torch.ones(size, 3, 2, 2) for size in (3, 4)}
    assert not double.active
    double(images[4])
    assert traced == []
    double.add(4)
    assert double.active
    for size in (4, 3, 4):
        assert torch.equal(double(images[size]), 2 * images[size])
    assert traced == [4]
    with double.paused():
        double(images[4])
    assert not copy.deepcopy(double).active, "a copy has other weights"


def test_many_models_in_one_process_are_all_compiled(traced):
    class Model:
        def __init__(self, factor):
            self.factor = factor

        def answer(self, batch):
            return self.factor * batch

    for factor in range(12):
        answer = CompiledForSizes(Model(factor).answer)
        answer.add(4)
        assert torch.equal(answer(torch.ones(4, 3, 2, 2)), torch.full((4, 3, 2, 2), float(factor)))
    assert len(traced) == 12


def test_what_cannot_be_compiled(monkeypatch):
    def backend(graph, inputs):
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(lca.device.torch, "compile", partial(torch.compile, backend=backend))
    batch = torch.ones(4, 3, 2, 2)
    asked, left_open = (CompiledForSizes(lambda rows: 2 * rows, required) for required in (True, False))
    asked.add(4)
    with pytest.raises(LcaError, match=r"could not be compiled: .*there is no compiler; set compile: false"):
        asked(batch)
    left_open.add(4)
    with pytest.warns(UserWarning, match="runs as it is: .*there is no compiler"):
        assert torch.equal(left_open(batch), 2 * batch)
    assert torch.equal(left_open(batch), 2 * batch), "without another try"
    assert not left_open.active


@pytest.mark.parametrize(("compiled", "pays"), [(None, False), (True, True), (False, False)])
def test_on_a_cpu_it_is_compiled_where_that_was_asked_for(compiled, pays):
    compute = Compute.choose("cpu", compiled=compiled)
    assert (compute.compiles(6_000_000, 8_000), compute.compiles(86_000_000, 50_000)) == (pays, pays)


def test_exact_is_not_compiled():
    assert Compute.choose("cpu", exact=True).compiled is False
    with pytest.raises(LcaError, match="exact: true computes without compiling"):
        Compute.choose("cpu", exact=True, compiled=True)


def test_left_open_the_size_of_a_task_decides():
    compute = Compute(torch.device("cuda"), compiled=None)
    assert not compute.compiles(6_000_000, 8_000)
    assert compute.compiles(86_000_000, 50_000)


@pytest.mark.parametrize(("count", "sizes"), [(4, []), (63, []), (64, [64]), (68, [64])])
def test_extraction_has_one_compiled_size(traced, make_extractor, make_images, count, sizes):
    """Compiled for training in batches of 4, a rest of 4 is not compiled for itself; few images run as they are."""
    extractor, images = make_extractor(), make_images(("a", "b"), 34).subset(torch.arange(count))
    plain = extract(extractor, images, Progress(), "x")
    extractor.compile_for(4)
    compiled = extract(extractor, images, Progress(), "x")
    assert sorted(set(traced)) == sizes
    assert torch.equal(compiled, plain)


def test_extraction_alone_is_compiled_where_that_was_asked_for(traced, make_backbone, make_tuning, make_images):
    extractor = FeatureExtractor(make_backbone(), make_tuning(), 3, Compute(torch.device("cpu"), compiled=True))
    extract(extractor, make_images(("a",), 64), Progress(), "x")
    assert set(traced) == {64}


@pytest.mark.parametrize("name", list(methods))
def test_every_method_learns_the_same_with_a_compiled_backbone(traced, tmp_path, name):
    correct = {}
    for compiled in (False, True):
        assert not traced
        with tiny.tiny_backbone():
            short = {"data": {"tasks": [5, 5]}, "training": {"epochs": 1}}
            recipe = tiny.recipe(short, method=tiny.method_section(name), compile=compiled)
            branches = run(recipe, tmp_path / str(compiled))["branches"]
        correct[compiled] = {branch: values["correct"] for branch, values in branches.items()}
    assert traced
    assert correct[True] == correct[False]


@pytest.mark.parametrize("backend", ["traced", "inductor"])
def test_compiled_training_is_the_plain_one(backend, tmp_path, request):
    """Tasks of 18 images in batches of 8: two full ones an epoch are compiled, the rest of 2 is not. Losses, tuned
    tensors and right answers are those of the plain backbone: a tensor that was not trained would be 1 apart."""
    if backend == "inductor" and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    sizes = request.getfixturevalue("traced") if backend == "traced" else []
    losses, tuned, correct = {}, {}, {}
    common = {"data": {"tasks": [3, 3, 4]}, "tuning": {"dropout": 0.0}, "method": "finetune"}
    runs = {"untrained": {"training": {"lr": 1e-12}}, "plain": {"compile": False}, "compiled": {"compile": True}}
    for name, changes in runs.items():
        assert not sizes
        with tiny.tiny_backbone():
            results = run(tiny.recipe(common, changes), tmp_path / name)
        steps = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        losses[name] = [step["loss"] for step in steps if step.get("phase") == "finetune"]
        tuned[name] = load_state(next((tmp_path / name / "models").iterdir())).parts["tuned"]
        correct[name] = results["branches"]["default"]["correct"]
    assert 2 not in sizes
    assert 8 in sizes or backend == "inductor"
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-4)
    for name, plain in tuned["plain"].items():
        apart, update = ((plain - tuned[other][name]).norm() for other in ("compiled", "untrained"))
        assert update > 0
        assert apart <= 1e-3 * update, name
    assert correct["compiled"] == correct["plain"]
