"""What is unknown, through whole methods: which features the background has, and when it is seen again."""

import pytest
import torch

import tiny
from lca.data.background import FAMILIES, PICTURES, SPOILT, background, one_of_each, spoilt

TASKS = ({"3": 8, "7": 6}, {"1": 5, "4": 7}, {"0": 5, "3": 3})


def taught(tasks=TASKS, instant=False, **method):
    model = tiny.classifier(tiny.recipe(method={"align": ["best"], **method}, training={"epochs": 1, "lr": 0.05}))
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts), effort="instant" if instant else "auto")
    return model


def known_of(model, branch="best"):
    return model.method.statistics(branch)[1]


def means_of(model, pixels, groups):
    parts = model.method.feature_parts()[:1]
    return model.method.features(pixels, "", parts, centre_crop=1.0).unflatten(0, (groups, -1)).mean(1)


@pytest.mark.parametrize("method", ["im", "frozen", "slca", "sldc", "macil"])
@pytest.mark.parametrize("second", ["none", "mirror"])
def test_the_background_is_that_of_the_backbone_as_it_is(method, second):
    name = {"name": method, "second_pass": second}
    if method == "slca":
        name["align"] = [{"preset": "slca", "name": "best", "samples": 16, "epochs": 2, "batch_size": 16}]
    model = taught(**name)
    expected = means_of(model, background(model.extractor.preprocessing.size), len(FAMILIES))
    torch.testing.assert_close(known_of(model).families, expected, rtol=1e-4, atol=1e-4)
    asked = model.features(background(model.extractor.preprocessing.size), centre_crop=1.0)
    far = model.method.percentiles(asked, "best")
    assert far.shape == (PICTURES * len(FAMILIES), 5)
    assert (far.amin(1) >= 98).float().mean() > 0.5


def test_the_families_are_seen_again_only_where_the_backbone_moved(monkeypatch):
    seen = []
    method = type(taught(()).method)
    see = method._background
    monkeypatch.setattr(method, "_background", lambda self, what: (seen.append(what), see(self, what))[1])
    taught(name="frozen")
    frozen = len(seen)
    taught(instant=True)
    instant = len(seen) - frozen
    taught()
    assert instant == 1
    assert len(seen) - frozen - instant == 3
    assert seen[-1] == "task 3, features of the background"


def test_a_photo_of_each_class_of_a_lesson_is_spoilt():
    """Two of the first lesson, then two, then two of which one class is known: a mean over six."""
    model = taught(name="frozen")
    means, scaling = [], model.extractor.preprocessing
    for number, counts in enumerate(TASKS):
        images = tiny.task(number, counts).train
        draws = model.method.setting.generator("spoilt photos", number)
        crop = model.extractor.centre_crop
        ruined = spoilt(images, one_of_each(images), scaling.size, scaling.interpolation, crop, draws)
        means.append(means_of(model, ruined, len(SPOILT)))
    known = known_of(model)
    assert known.photos == 6
    torch.testing.assert_close(known.spoilt, torch.stack(means).mean(0), rtol=1e-4, atol=1e-4)


def test_spoilt_photos_of_old_lessons_move_with_the_class_means():
    model = taught(TASKS[:1])
    before = known_of(model).spoilt.clone()
    moves = []
    drift = type(model.method.options.align[0].drift)
    fit = drift.fit

    def fitted(self, *arguments):
        moves.append(fit(self, *arguments))
        return moves[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "fit", fitted)
        model.learn(tiny.task(1, TASKS[1]))
    images, scaling = tiny.task(1, TASKS[1]).train, model.extractor.preprocessing
    draws = model.method.setting.generator("spoilt photos", 1)
    ruined = spoilt(
        images, one_of_each(images), scaling.size, scaling.interpolation, model.extractor.centre_crop, draws
    )
    assert len(moves) == 1
    expected = (moves[0].means(before) + means_of(model, ruined, len(SPOILT))) / 2
    torch.testing.assert_close(known_of(model).spoilt, expected, rtol=1e-3, atol=1e-3)
    assert (moves[0].means(before) - before).abs().max() > 1e-3, "it moved"


def test_a_model_that_forgot_everything_learns_again():
    model = taught(({"3": 5, "7": 5},), name="frozen")
    model.forget("3")
    model.forget("7")
    known = model.method.branch_set.distances["best"]
    assert not known.photos
    assert not len(known.families)
    model.learn(tiny.task(1, {"1": 5, "4": 5}))
    assert known_of(model).photos == 2
    assert model.predict(torch.zeros(3, 8, 8, dtype=torch.uint8))[0].distance is not None
