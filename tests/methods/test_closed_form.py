"""Closed-form branches in methods: the frozen backbone, looks at images, joint training, and calibration."""

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from lca.evaluation.calibration import fit_temperature
from lca.files import load_state, save_state
from lca.heads.branch import choose_branch
from lca.heads.lda import lda_heads
from lca.methods import methods
from lca.methods._branched import branch
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

FIRST, SECOND, THIRD = {"3": 6, "7": 5, "1": 1}, {"4": 6, "0": 3}, {"3": 2, "8": 4}


def model_of(method, *lessons, branches=("best",), looks=None, **changes):
    section = {"name": method, "align": list(branches), "looks": looks or {}}
    return tiny.taught(tiny.classifier(tiny.recipe(method=section, training={"epochs": 1}, **changes)), lessons)


def unseen(counts):
    return tiny.images(dict.fromkeys(counts, 5), skip=20)


# The frozen backbone


def test_frozen_trains_nothing_and_its_statistics_are_those_of_the_pretrained_features():
    model = model_of("frozen", FIRST, SECOND, branches=["none", "lda", "best"])
    untouched = tiny.classifier(model.recipe).extractor.tensors()
    assert all(torch.equal(model.extractor.tensors()[name], each) for name, each in untouched.items())
    memory = GaussianMemory(CovarianceOptions())
    for lesson in (FIRST, SECOND):
        images = tiny.images(lesson)
        features = model.extractor.pretrained(model.extractor.evaluation_views(images.pixels)).detach()
        for label in images.labels.unique().tolist():
            memory.observe(len(memory.classes), features[images.labels == label])
    stored = model.method.branch_set.memories["lda"]
    torch.testing.assert_close(stored.means(), memory.means(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stored.pooled().scatter, memory.pooled().scatter, rtol=1e-4, atol=1e-5)
    test = model.features(unseen("37140"))
    for name in ("lda", "best"):
        chosen = choose_branch(branch(name))
        head = chosen.derive(memory) if chosen.derived else lda_heads(memory, model.method.heads, chosen)
        torch.testing.assert_close(model.logits(test, name), head(test), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tuner", ["lora", "full"])
def test_a_tuner_changes_nothing_of_a_frozen_backbone(tuner):
    plain, tuned = (model_of("frozen", FIRST, SECOND, tuning=name) for name in ("none", tuner))
    test = unseen("37140")
    torch.testing.assert_close(plain.features(test), tuned.features(test), rtol=0, atol=1e-6)
    assert plain.memory() == tuned.memory()


def test_instant_lessons_of_an_untouched_backbone_are_those_of_the_frozen_one():
    frozen, instant = model_of("frozen", FIRST, SECOND), model_of("im")
    for number, lesson in enumerate((FIRST, SECOND)):
        task = tiny.task(number, lesson)
        instant.classes += lesson
        for step in instant.method.instant_steps(task, [instant.classes.index(name) for name in lesson]):
            step.run()
        instant.method.finish_task()
    one, two = (model.method.branch_set.memories["best"] for model in (frozen, instant))
    assert {label: each.count for label, each in one.classes.items()} == {0: 6, 1: 5, 2: 1, 3: 6, 4: 3}
    torch.testing.assert_close(one.means(), two.means(), rtol=0, atol=1e-5)
    torch.testing.assert_close(one.pooled().scatter, two.pooled().scatter, rtol=1e-4, atol=1e-5)
    assert len(two.residual) == 0, "nothing has moved"
    test = unseen("37140")
    found, expected = (model.logits(model.features(test)) for model in (instant, frozen))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


# Joint training


def test_joint_training_is_fine_tuning_on_one_task():
    lesson = {**FIRST, **SECOND}
    joint = model_of("joint", lesson, branches=["none", "best"])
    alone = tiny.taught(tiny.classifier(tiny.recipe(method="finetune", training={"epochs": 1})), [lesson])
    test = unseen("37140")
    assert torch.equal(joint.features(test), alone.features(test))
    assert torch.equal(joint.logits(joint.features(test), "none"), alone.logits(alone.features(test)))
    assert not torch.allclose(joint.logits(joint.features(test), "none"), joint.logits(joint.features(test), "best"))


# Looks


LOOKS = {"mirror_up_to": 5, "crops_up_to": 2, "crops": 3, "anchors": 1}


@pytest.mark.parametrize("method", ["im", "frozen", "slca", "joint"])
def test_looks_count_images_and_show_spread(method):
    """`7` and `1` are seen mirrored, `1` in three crops as well; of one image a class has its views' spread."""
    plain, looked = (model_of(method, FIRST, looks=looks) for looks in ({}, LOOKS))
    one, two = (model.method.branch_set.memories["best"].classes for model in (plain, looked))
    assert [each.count for each in one.values()] == [each.count for each in two.values()] == [6, 5, 1]
    assert [len(each.factor) for each in one.values()] == [5, 4, 0]
    assert [len(each.factor) for each in two.values()] == [5, 2 * 5 - 1, 5 * 1 - 1]
    torch.testing.assert_close(one[0].mean, two[0].mean, rtol=0, atol=1e-6)
    assert not torch.allclose(one[1].mean, two[1].mean, atol=1e-4)


def test_anchors_show_how_the_backbone_moves_and_are_of_no_class():
    plain, anchored = (model_of("im", FIRST, SECOND, looks=looks) for looks in ({}, {"anchors": 2}))
    one, two = (model.method.branch_set.memories["best"].classes for model in (plain, anchored))
    for label in range(5):
        assert one[label].count == two[label].count
        is_new = label > 2
        assert torch.allclose(one[label].mean, two[label].mean, rtol=0, atol=1e-6) == is_new
        assert one[label].factor.shape == two[label].factor.shape
    assert plain.temperatures == anchored.temperatures == {}


def test_more_pairs_leave_more_rows_of_what_is_unexplained():
    """At most as many as images, views and anchors: with none, a lesson of nine images leaves nine."""
    sizes = [
        len(model_of("im", FIRST, SECOND, looks=looks).method.branch_set.memories["best"].residual)
        for looks in ({}, {"anchors": 1}, {"anchors": 4})
    ]
    assert sizes == [9, 18, 24]


@pytest.mark.parametrize("method", ["im", "frozen"])
def test_a_lesson_in_looks_can_be_taken_up_after_every_step(method, tmp_path):
    expected = model_of(method, FIRST, SECOND, THIRD, looks=LOOKS)
    made, classes, stored = expected.method, [], None
    for number, lesson in enumerate((FIRST, SECOND, THIRD)):
        task, done = tiny.task(number, lesson), 0
        classes += [name for name in lesson if name not in classes]
        labels = [classes.index(name) for name in lesson]
        while True:
            made = model_of(method, looks=LOOKS).method
            if stored is not None:
                made.load_state(stored)
            steps = list(made.steps(task, labels))
            if done == len(steps):
                break
            steps[done].run()
            done += 1
            save_state(tmp_path, made.state())
            stored = load_state(tmp_path)
        made.finish_task()
        stored = made.state()
    found, wanted = made.state(), expected.method.state()
    assert found.parts.keys() == wanted.parts.keys()
    for part, tensors in wanted.parts.items():
        assert all(torch.equal(found.parts[part][name], each) for name, each in tensors.items()), part
    features = expected.features(unseen("371408"))
    assert torch.equal(made.logits(features, "best"), expected.logits(features))


@pytest.mark.parametrize("method", ["im", "frozen", "joint"])
@pytest.mark.parametrize("looks", [{}, LOOKS, {"mirror_up_to": 9, "anchors": 3}], ids=str)
def test_bytes_are_foretold_with_looks_and_residuals(method, looks):
    lessons = [{"3": 5, "7": 5}, {"4": 5, "8": 5}, {"0": 5, "1": 5}]
    if method == "joint":
        lessons = [{name: count for lesson in lessons for name, count in lesson.items()}]
    diagonal = {"preset": "quadratic", "name": "diagonal", "covariance": {"kind": "diagonal"}}
    model = model_of(method, *lessons, branches=["best", diagonal], looks=looks)
    assert sum(model.memory().values()) == model.method.expected_bytes(3, 6, 5)
    assert ("residual" in model.state().parts["gaussians/best"]) == (method == "im")


# Calibration without held-out images

KINDS = ("quadratic", "lda")


def pictures(counts, skip=0):
    """Photos of digits with their names."""
    images = tiny.images(counts, skip)
    arrays = images.pixels.canvas.permute(0, 2, 3, 1).numpy().astype(np.uint8)
    return [(Image.fromarray(each), images.classes[label]) for each, label in zip(arrays, images.labels, strict=True)]


@pytest.mark.parametrize("method", ["frozen", "im"])
@pytest.mark.parametrize("looks", [{}, {"mirror_up_to": 9}], ids=["plain", "mirrored"])
def test_without_held_out_images_leaving_out_calibrates(method, looks):
    """From the temperature of the lesson before, as with held-out images; a branch of heads that learn has none."""
    model, told = model_of(method, branches=["none", "quadratic", "lda"], looks=looks), {}
    finish = model.method.finish_task
    model.method.finish_task = lambda: (
        told.update({n: model.method.left_out_logits(n, lesson) for n in (*KINDS, "none")}),
        finish(),
    )
    expected = dict.fromkeys(KINDS, 1.0)
    for names in ("012", "34"):
        lesson = model.read(pictures(dict.fromkeys(names, 4)))[0]
        assert model.learn(lesson).held_out == 0
        for name in KINDS:
            logits, labels = told[name]
            assert logits.shape == (4 * len(names), len(model.classes))
            expected[name] = fit_temperature(logits, labels, expected[name])
        assert model.temperatures == expected
    assert 1.0 not in expected.values()
    assert told["none"] is None


@pytest.mark.parametrize("name", [name for name in methods if name in {"im", "slca", "frozen"}])
def test_a_task_of_a_benchmark_is_not_calibrated(name):
    assert model_of(name, FIRST).temperatures == {}
