"""Contracts 1, 2 and 6 over everything registered: batches, saving and loading, and what storage says.

They also hold after a class was forgotten, where a method can forget.
"""

from functools import cache

import pytest
import torch
from safetensors.torch import load_file

import tiny
from lca.classifier import ContinualClassifier
from lca.errors import LcaError
from lca.files import read_json
from lca.methods import Method

VARIANTS = tiny.variants()
TASKS = ({"3": 6, "7": 6, "1": 6}, {"9": 6}, {"4": 6, "8": 6})
TEST = dict.fromkeys("371948", 12)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    """All tests of one variant come one after another, so that a process teaches it once."""
    return request.param


@cache
def taught(variant):
    """Three tasks; tests must not teach it further."""
    model = tiny.classifier(tiny.recipe(VARIANTS[variant]))
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
    return model


@cache
def forgetful(variant):
    """The same, after it forgot a class of the first and the only class of the second task; None if it cannot."""
    state, model = taught(variant).state(), tiny.classifier(tiny.recipe(VARIANTS[variant]))
    model.load_state(state)
    if type(model.method).forget is Method.forget:
        with pytest.raises(LcaError, match="no way to forget"):
            model.forget("7")
        assert model.classes == taught(variant).classes
        return None
    model.forget("7")
    model.forget("9")
    return model


def forgetful_or_skip(variant):
    model = forgetful(variant)
    if model is None:
        pytest.skip("this method has no way to forget")
    return model


def percentiles(model, pixels):
    features = model.features(pixels)
    found = {branch: model.method.percentiles(features, branch) for branch in model.method.branches()}
    return {branch: each for branch, each in found.items() if each is not None}


def logits(model, pixels):
    features = model.features(pixels)
    return {branch: model.logits(features, branch) for branch in model.method.branches()}


def test_a_prediction_does_not_depend_on_the_batch(variant):
    model, pixels = taught(variant), tiny.images(TEST, skip=20).pixels
    together = logits(model, pixels)
    assert len(pixels) > 64, "the extraction should need more than one batch"
    everything = torch.arange(len(pixels))
    groups = [torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    groups += [*everything.split(7), *everything[::9].split(1), torch.tensor([5, 5, 60, 5])]
    for rows in groups:
        for branch, found in logits(model, pixels.batch(rows)).items():
            expected = together[branch][rows]
            scale = max(1.0, float(expected.abs().max()))  # logits of closed-form heads reach the hundreds
            torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=1e-5)
            torch.testing.assert_close(found.softmax(1), expected.softmax(1), rtol=0, atol=1e-5)


def test_saved_and_loaded_it_gives_equal_logits(variant, tmp_path):
    model, pixels = taught(variant), tiny.images(TEST, skip=20).pixels
    model.save(tmp_path / "model")
    with tiny.tiny_backbone():
        loaded = ContinualClassifier.load(tmp_path / "model")
    before, after = logits(model, pixels), logits(loaded, pixels)
    assert loaded.classes == model.classes == list(TEST)
    assert list(before) == list(after)
    for branch, expected in before.items():
        assert expected.std() > 0
        assert torch.equal(after[branch], expected), branch


def test_a_model_is_safetensors_and_json_and_storage_says_its_bytes(variant, tmp_path):
    storage_is_on_disk(taught(variant), tmp_path)


def storage_is_on_disk(model, tmp_path):
    model.save(tmp_path)
    files = {path.name for path in tmp_path.rglob("*")}
    parts = read_json(tmp_path / "state.json")["parts"]
    assert files == {"state.json", "README.md", *parts.values()}
    assert all(name.endswith(".safetensors") for name in parts.values())
    sizes = {part: sum(t.nbytes for t in load_file(tmp_path / name).values()) for part, name in parts.items()}
    assert model.memory() == {part: size for part, size in sizes.items() if size}
    assert sum(model.memory().values()) > 0
    of_branches = [model.method.storage(branch) for branch in model.method.branches()]
    assert all(part.items() <= model.memory().items() for part in of_branches)
    assert {name for part in of_branches for name in part} == set(model.memory())
    headers = sum((tmp_path / name).stat().st_size for name in parts.values()) - sum(sizes.values())
    assert 0 < headers < 0.5 * sum(sizes.values()) + 4096 * len(parts), "there is more in the files than tensors"


def test_a_loaded_model_learns_on_as_the_one_that_was_never_saved(variant, tmp_path):
    """The saved state is all there is to know."""
    taught(variant).save(tmp_path)
    more, pixels = {"0": 4, "5": 4, "3": 4}, tiny.images(TEST, skip=20).pixels
    with tiny.tiny_backbone():
        first, second = (ContinualClassifier.load(tmp_path) for _ in range(2))
    first.learn(tiny.task(3, more))
    first.save(tmp_path / "again")
    with tiny.tiny_backbone():
        again = ContinualClassifier.load(tmp_path / "again")
    second.learn(tiny.task(3, more))
    expected = logits(second, pixels)
    for model in (first, again):
        for branch, found in logits(model, pixels).items():
            assert found.shape == (len(pixels), 8)
            assert torch.equal(found, expected[branch]), branch


def test_a_percentile_does_not_depend_on_the_batch(variant):
    pixels = tiny.images({**TEST, "0": 6}, skip=20).pixels
    for model in (taught(variant), forgetful(variant)):
        if model is None:
            continue
        together = percentiles(model, pixels)
        for branch, found in together.items():
            assert found.shape == (len(pixels), len(model.classes)), branch
            assert found.isfinite().all(), branch
            assert found.min() >= 0
            assert found.max() <= 100
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(1))
        groups = [*torch.arange(len(pixels)).split(7), order, *(order[row : row + 1] for row in range(5))]
        for rows in groups:
            for branch, found in percentiles(model, pixels.batch(rows)).items():
                torch.testing.assert_close(found, together[branch][rows], rtol=0, atol=0.02)


def test_it_forgets_and_keeps_the_other_contracts(variant, tmp_path):
    model, pixels = forgetful_or_skip(variant), tiny.images(TEST, skip=20).pixels
    assert model.classes == list("3148")
    expected, far = logits(model, pixels), percentiles(model, pixels)
    for branch, found in expected.items():
        assert found.shape == (len(pixels), 4), branch
        assert found.isfinite().all(), branch
    storage_is_on_disk(model, tmp_path / "model")
    with tiny.tiny_backbone():
        loaded = ContinualClassifier.load(tmp_path / "model")
    assert (loaded.classes, loaded.history) == (model.classes, model.history)
    for branch, found in logits(loaded, pixels).items():
        assert torch.equal(found, expected[branch]), branch
    for branch, found in percentiles(loaded, pixels).items():
        assert torch.equal(found, far[branch]), branch
    alone = [logits(model, pixels.batch(torch.tensor([row]))) for row in range(0, len(pixels), 9)]
    for branch, found in expected.items():
        rows = torch.cat([each[branch] for each in alone])
        torch.testing.assert_close(rows.softmax(1), found[::9].softmax(1), rtol=0, atol=1e-5)


def test_it_learns_on_after_it_forgot(variant, tmp_path):
    """New classes, a known one and the forgotten one, as from a state that was loaded."""
    forgetful_or_skip(variant).save(tmp_path)
    more, pixels = {"7": 4, "5": 4, "3": 4}, tiny.images(TEST, skip=20).pixels
    with tiny.tiny_backbone():
        first, second = (ContinualClassifier.load(tmp_path) for _ in range(2))
    for model in (first, second):
        lesson = model.learn(tiny.task(3, more))
        assert lesson.new == ["7", "5"]
        assert model.classes == list("314875")
    expected = logits(second, pixels)
    for branch, found in logits(first, pixels).items():
        assert found.shape == (len(pixels), 6)
        assert torch.equal(found, expected[branch]), branch
