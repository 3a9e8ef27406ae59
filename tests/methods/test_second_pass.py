"""A second pass for every answer: against two models of one pass each, whatever is taught and asked."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from lca.data.images import Pixels
from lca.errors import LcaError
from lca.evaluation.calibration import fit_temperature
from lca.lessons import Worth
from lca.methods import methods
from lca.methods._observing import ObservingOptions
from lca.methods._second_pass import second_passes
from lca.runs.experiment import run

LESSONS = ({"3": 6, "7": 5, "1": 1}, {"4": 6, "0": 3}, {"9": 6}, {"3": 2, "8": 4})
"""With a class of one image, a lesson of one class (in no other look, which an instant lesson would spare), and a class
that returns."""
BRANCHES = ["none", {"preset": "balanced", **tiny.QUICK}, "lda", "quadratic"]
NAMES = ["none", "balanced", "lda", "quadratic"]
LOOKS = {"mirror_up_to": 5, "crops_up_to": 2, "crops": 3, "anchors": 1}
FROZEN = {"of": "frozen", "weight": 0.4}
WIDTH = 24


def model_of(method, *lessons, second="none", branches=BRANCHES, looks=LOOKS, **changes):
    section = {"name": method, "align": list(branches), "looks": looks, "second_pass": second}
    return tiny.taught(tiny.classifier(tiny.recipe({"training": {"epochs": 1}}, changes, method=section)), lessons)


def unseen(counts="37140928"):
    return tiny.images(dict.fromkeys(counts, 4), skip=20)


def mirrored(images):
    """The images themselves, turned over."""
    return Pixels.of([images.pixels.image(number).flip(-1) for number in range(len(images))])


def views_of(model, images):
    return model.extractor.evaluation_views(images.pixels)


@pytest.fixture(scope="module")
def taught():
    """Models by method and second pass, taught once; tests do not change them."""
    known = {}

    def get(method, second="none", forgot=()):
        key = repr((method, second, forgot))
        if key not in known:
            known[key] = model_of(method, *(LESSONS if method != "joint" else [everything()]), second=second)
            for name in forgot:
                known[key].forget(name)
        return known[key]

    return get


def everything():
    return {name: count for lesson in LESSONS for name, count in lesson.items()}


# The answers


@pytest.mark.parametrize("method", ["im", "frozen", "joint"])
def test_mirrored_answers_are_the_mean_over_both_views(taught, method):
    plain, both = taught(method), taught(method, "mirror")
    images = unseen()
    features, one = both.features(images), plain.features(images)
    with torch.no_grad():
        embed = plain.extractor.pretrained if method == "frozen" else plain.extractor.eval()
        other = embed(views_of(plain, images).flip(-1))
    torch.testing.assert_close(features, torch.cat([one, other], dim=1), rtol=0, atol=1e-5)
    assert not torch.allclose(one, other, atol=1e-3)
    for branch in NAMES:
        expected = (plain.logits(features[:, :WIDTH], branch) + plain.logits(features[:, WIDTH:], branch)) / 2
        assert torch.equal(both.logits(features, branch), expected)
        assert not torch.allclose(expected, plain.logits(one, branch), atol=1e-3)
    assert both.memory() == plain.memory()


@pytest.mark.parametrize("method", ["im", "joint"])
@pytest.mark.parametrize("forgot", [(), ("7", "9")], ids=["all", "forgot"])
def test_frozen_answers_are_those_of_two_models(taught, method, forgot):
    """One that is tuned, and one of method frozen that was taught the same."""
    tuned, both = taught(method, forgot=forgot), taught(method, FROZEN, forgot)
    frozen = model_of("frozen", *(LESSONS if method != "joint" else [everything()]))
    for name in forgot:
        frozen.forget(name)
    images = unseen()
    one, other, features = tuned.features(images), frozen.features(images), both.features(images)
    torch.testing.assert_close(features, torch.cat([one, other], dim=1), rtol=0, atol=1e-6)
    for branch in NAMES:
        expected = tuned.logits(features[:, :WIDTH], branch) + 0.4 * frozen.logits(features[:, WIDTH:], branch)
        torch.testing.assert_close(both.logits(features, branch), expected, rtol=1e-5, atol=1e-4)
        assert not torch.allclose(expected, tuned.logits(one, branch), atol=1e-3)
    stored = {name.removeprefix("second/"): part for name, part in both.state().parts.items() if "second/" in name}
    distances = {name for name in frozen.state().parts if name.startswith("distances/")}
    assert distances, "the partner keeps none"
    assert stored.keys() == frozen.state().parts.keys() - distances
    for name, part in stored.items():
        assert part.keys() == frozen.state().parts[name].keys()


def test_the_frozen_statistics_never_drift():
    """And the partner has no part in what training asks for."""
    model = model_of("im", second="frozen", training={"distillation": 0.1})
    model.learn(tiny.task(0, LESSONS[0]))
    own, partner = (each.branch_set.memory("quadratic") for each in (model.method, model.method.partner))
    before = [{label: each.mean for label, each in memory.classes.items()} for memory in (own, partner)]
    model.learn(tiny.task(1, LESSONS[1]))
    assert not any(torch.allclose(own.classes[label].mean, mean, atol=1e-3) for label, mean in before[0].items())
    assert all(torch.equal(partner.classes[label].mean, mean) for label, mean in before[1].items())


def test_a_backbone_that_never_moves_needs_no_anchors():
    model, seen = model_of("im", second="frozen"), tiny.task(0, LESSONS[0])
    model.method.observe(seen, [0, 1, 2])
    own, partner = (each.observed["labels"] for each in (model.method, model.method.partner))
    assert (own == -1).sum() == len(seen.train)
    assert torch.equal(partner, own[own >= 0])


def test_the_weight_changes_a_number(taught):
    images = unseen()
    one, two = (taught("im", second) for second in ("frozen", FROZEN))
    assert one.recipe.method.second_pass.weight == 0.25
    for branch in NAMES:
        logits = [model.logits(model.features(images), branch) for model in (one, two)]
        assert not torch.allclose(*logits, atol=1e-3)


def test_every_option_of_a_second_pass_is_tested_here():
    options = {key for name in second_passes for key in second_passes[name].model_fields}
    assert options == {"of", "weight"}
    assert set(second_passes) == {"none", "mirror", "frozen"}


@pytest.mark.parametrize("second", ["mirror", FROZEN], ids=str)
def test_samples_of_gaussians_are_answered_in_one_pass(taught, second):
    both, plain = taught("im", second), taught("im")
    samples = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    for branch in NAMES:
        torch.testing.assert_close(both.logits(samples, branch), plain.logits(samples, branch), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", ["im", "frozen"])
def test_how_far_things_lie_is_told_by_the_first_pass(taught, method):
    images, plain = unseen(), taught(method)
    for second in ("mirror", FROZEN) if method == "im" else ("mirror",):
        both = taught(method, second)
        features, one = both.features(images), plain.features(images)
        for branch in NAMES[1:]:
            found, wanted = both.method.percentiles(features, branch), plain.method.percentiles(one, branch)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)
        told, expected = both.method.unknown_scores(features), plain.method.unknown_scores(one)
        assert told.keys() == expected.keys() == set(NAMES[1:])
        assert all(torch.allclose(told[name], each, rtol=1e-3) for name, each in expected.items())


# Lessons of people: held-out images, left-out ones, instant ones


def pictures(counts, skip=0):
    images = tiny.images(counts, skip)
    arrays = images.pixels.canvas.permute(0, 2, 3, 1).numpy().astype(np.uint8)
    return [(Image.fromarray(each), images.classes[label]) for each, label in zip(arrays, images.labels, strict=True)]


def calibrating(model, lesson):
    """What the branches told of left-out images when a lesson was calibrated by it, and for a mirrored second pass what
    they are expected to tell."""
    told, inner, finish = {}, model.method, model.method.finish_task

    def watched():
        told.update({name: inner.left_out_logits(name, lesson) for name in inner.branches()})
        if inner.options.second_pass.of == "mirror":
            turned = inner.features(mirrored(lesson), "test", [inner.first_part])
            labels, views = inner.observed["labels"], inner.observed.get("images")
            for name in set(inner.branches()) - {"none"}:
                seen = inner.statistics_features(name), labels, views
                one, other = (inner.branch_set.left_out_logits(name, *seen, asked)[0] for asked in (None, turned))
                told[f"expected {name}"] = (one + other) / 2
        finish()

    with patch.object(inner, "finish_task", watched):
        assert model.learn(lesson, effort="thorough").held_out == 0
    return told


@pytest.mark.parametrize("method", ["im", "frozen"])
@pytest.mark.parametrize("looks", [{}, LOOKS], ids=["plain", "looks"])
def test_left_out_images_are_asked_in_the_mirror_too(method, looks):
    model = model_of(method, second="mirror", looks=looks, branches=["lda", "quadratic", "none"])
    expected = dict.fromkeys(("lda", "quadratic"), 1.0)
    for counts in ({"3": 4, "7": 4, "1": 1}, {"4": 4, "3": 2}):
        told = calibrating(model, model.read(pictures(counts))[0])
        for name in expected:
            logits, labels = told[name]
            assert len(labels) == sum(count for count in counts.values() if count > 1)
            torch.testing.assert_close(logits, told[f"expected {name}"], rtol=1e-4, atol=1e-3)
            expected[name] = fit_temperature(logits, labels, expected[name])
        assert model.temperatures == expected
        assert told["none"] is None


@pytest.mark.parametrize("looks", [{}, LOOKS], ids=["plain", "looks"])
def test_left_out_images_are_asked_of_both_backbones(looks):
    models = {
        "both": model_of("im", second=FROZEN, looks=looks, branches=["quadratic"]),
        "im": model_of("im", looks=looks, branches=["quadratic"]),
        "frozen": model_of("frozen", looks=looks, branches=["quadratic"]),
    }
    temperature = 1.0
    for counts in ({"3": 4, "7": 4, "1": 1}, {"4": 4, "3": 2}):
        lesson = models["both"].read(pictures(counts))[0]
        told = [calibrating(model, lesson)["quadratic"] for model in models.values()]
        (both, labels), (one, own), (other, others) = told
        assert labels.tolist() == own.tolist() == others.tolist()
        torch.testing.assert_close(both, one + 0.4 * other, rtol=1e-4, atol=1e-3)
        temperature = fit_temperature(both, labels, temperature)
        assert models["both"].temperatures == {"quadratic": temperature}


@pytest.mark.parametrize("second", ["mirror", FROZEN], ids=str)
def test_held_out_images_are_measured_with_both_passes(second):
    model = model_of("im", second=second, branches=["quadratic"])
    for lesson in ({"3": 12, "7": 12}, {"1": 12, "0": 12}):
        learnt = model.learn(pictures(lesson), held_out=0.3, effort="thorough")
        assert learnt.held_out > 4
    answers = model.predict([picture for picture, _ in pictures({"3": 3, "0": 3}, skip=20)])
    probabilities = model.probabilities(model.features(tiny.images({"3": 3, "0": 3}, skip=20)))
    assert [a.probability for a in answers] == pytest.approx(probabilities.amax(1).tolist(), abs=1e-5)


@pytest.mark.parametrize("second", ["mirror", "frozen"])
def test_instant_lessons_and_what_training_improves(monkeypatch, second):
    """An instant lesson is sparing with looks on both backbones, and the estimate for known classes is made."""
    worths = []
    measure = Worth.of
    monkeypatch.setattr(Worth, "of", lambda *arguments: worths.append(measure(*arguments)) or worths[-1])
    model = model_of("im", second=second, branches=["quadratic"], looks={"mirror_up_to": 90})
    model.learn(pictures({"3": 12, "7": 12}), effort="instant")
    sides = [model.method, *filter(None, [model.method.partner])]
    assert [len(each.branch_set.memory("quadratic").classes[0].factor) for each in sides] == [10] * len(sides)
    model.learn(pictures({"1": 12, "0": 12}), effort="improve")
    assert model.history[-1].improvement is not None
    assert [worth.samples for worth in worths] == [2000, 2000]
    features = model.features(unseen("3710"))
    assert features.shape == (16, 2 * WIDTH)
    assert (model.logits(features).argmax(1) == torch.arange(4).repeat_interleave(4)).float().mean() > 0.4


# What is stored, and what a run computes


@pytest.mark.parametrize("method", ["im", "joint", "frozen"])
@pytest.mark.parametrize("second", ["mirror", "frozen"])
def test_bytes_are_foretold(method, second):
    if method == second:
        return
    lessons = [{"3": 5, "7": 5}, {"4": 5, "8": 5}, {"0": 5, "1": 5}]
    if method == "joint":
        lessons = [{name: count for lesson in lessons for name, count in lesson.items()}]
    for looks in ({}, {"mirror_up_to": 9, "anchors": 1}):
        model = model_of(method, *lessons, second=second, looks=looks)
        assert sum(model.memory().values()) == model.method.expected_bytes(3, 6, 5)


def test_a_branch_needs_its_own_part_of_the_second_statistics(taught):
    method = taught("im", FROZEN).method
    parts = {name: {part for part in method.storage(name) if part.startswith("second/")} for name in NAMES}
    common = {"second/heads", "second/centre"}
    assert parts["none"] == common
    assert parts["quadratic"] == common | {"second/gaussians/lda"}, "the first with equal statistics names them"
    assert parts["lda"] == parts["quadratic"] | {"second/heads/lda"}
    assert parts["balanced"] == common | {"second/gaussians/balanced", "second/heads/balanced"}
    assert method.storage("lda").items() <= method.storage().items()


@pytest.mark.parametrize(
    ("method", "second", "lasting"), [("im", "mirror", 0), ("im", "frozen", 1), ("frozen", "mirror", 2)]
)
def test_of_test_images_a_run_computes_anew_only_what_changes(tmp_path, method, second, lasting):
    """After every task the images of earlier tasks are asked, and to see what is known those of later ones."""
    section = {"name": method, "align": ["best"], "second_pass": second}
    for ood in (False, True):
        recipe = tiny.recipe(method=section, keep_models="none", ood=ood)
        with tiny.tiny_backbone(), tiny.counted_passes() as passes:
            data = run(recipe, tmp_path / f"{ood}")["data"]
        train, test = data["train_images"], data["test_images"]
        asked = [sum(test[: sum(data["task_sizes"][: task + 1])]) for task in range(len(data["task_sizes"]))]
        asked = [sum(test)] * len(asked) if ood else asked
        answers = lasting * sum(test) + (2 - lasting) * sum(asked)
        assert passes["images"] - answers == statistics_passes(method, second, train, data["task_sizes"])


def statistics_passes(method, second, train, sizes):
    """Frozen features once; tuned ones before (but in the first task), after training and after the merge. A task of
    one class is not trained. Besides the background's 144 pictures where the backbone moved, and three spoilt photos of
    each class."""
    if method == "frozen":
        return sum(train) + 144 + 3 * sum(sizes)
    places, passes = 0, 0
    for number, size in enumerate(sizes):
        images = sum(train[places : places + size])
        passes += images * (1 if size == 1 else 2 + (number > 0)) + images * (second == "frozen")
        passes += 3 * size + 144 * (size > 1 or not number)
        places += size
    return passes


@pytest.mark.parametrize("second", ["mirror", "frozen"])
def test_a_trunk_serves_other_branches_on_both_backbones(tmp_path, second):
    def recipe(*align):
        return tiny.recipe(method={"name": "im", "align": align, "second_pass": second}, keep_models="all")

    with tiny.tiny_backbone():
        run(recipe("none", "lda"), tmp_path / "first", trunks=tmp_path / "trunks")
        run(recipe("best", "none"), tmp_path / "alone")
        with tiny.counted_passes(training=True) as passes:
            run(recipe("best", "none"), tmp_path / "second", trunks=tmp_path / "trunks")
    assert passes["images"] == 0
    assert tiny.outcome(tmp_path / "second") == tiny.outcome(tmp_path / "alone")


# What makes no sense


def test_the_frozen_backbone_cannot_be_its_own_second_pass():
    with pytest.raises(LcaError, match="the same answer once more; use of: mirror, or a method that tunes"):
        tiny.recipe(method={"name": "frozen", "second_pass": "frozen"})


def test_an_option_of_another_second_pass_says_whose_it_is():
    for second in ({"of": "mirror", "weight": 0.5}, {"weight": 0.5}):
        with pytest.raises(LcaError, match=r"weight is for frozen; with of: (mirror|none) it would do nothing"):
            tiny.recipe(method={"name": "im", "second_pass": second})
    with pytest.raises(LcaError, match="unknown second pass 'mirrored'; did you mean 'mirror'"):
        tiny.recipe(method={"name": "im", "second_pass": "mirrored"})


def test_every_method_with_observed_statistics_has_it():
    able = {name for name in methods if issubclass(methods[name].Options, ObservingOptions)}
    assert {"im", "frozen", "joint"} <= able
    for name in able:
        model = tiny.classifier(tiny.recipe(method={"name": name, "second_pass": "mirror"}))
        assert (model.method.passes, model.method.info.passes) == ("2", "1")
