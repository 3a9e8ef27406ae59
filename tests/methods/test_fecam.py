"""FeCAM against plain NumPy: covariances, explicit inverses and distances one by one."""

import numpy as np
import pytest
import torch

import tiny
from lca.data.streams import Task
from lca.errors import LcaError
from lca.methods import fecam
from lca.methods.fecam import FLOOR
from lca.recipe import validate_recipe

FIRST, SECOND = {"3": 12, "7": 11, "1": 12}, {"0": 10, "4": 3}
TEST = dict.fromkeys("37104", 5)


def learnt(*tasks, **options):
    model = tiny.classifier(tiny.recipe(method={"name": "fecam", **options}))
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts))
    return model


def of_test(model):
    return model.features(tiny.images(TEST, skip=20))


def by_class(model, counts, power=1.0):
    """The features of every class, Tukey-transformed."""
    images = tiny.images(counts)
    features = model.features(images).double().numpy()
    features = np.sign(features) * np.abs(features) ** power
    return [features[images.labels.numpy() == label] for label in range(len(counts))]


def shrunk_inverse(covariance, own=1.0, others=1.0):
    width = len(covariance)
    off = ~np.eye(width, dtype=bool)
    shrunk = covariance + own * np.diag(covariance).mean() * np.eye(width) + others * covariance[off].mean() * off
    scale = np.sqrt(np.diag(shrunk))
    return np.linalg.inv(shrunk / np.outer(scale, scale) + FLOOR * np.eye(width))


def distances(features, means, inverses):
    """One image and one class after the other."""

    def unit(vector):
        return vector / np.linalg.norm(vector)

    return [
        [(unit(x) - unit(m)) @ inverse @ (unit(x) - unit(m)) for m, inverse in zip(means, inverses, strict=True)]
        for x in features
    ]


@pytest.mark.parametrize(
    ("own", "others", "power"), [(1.0, 1.0, 1.0), (100.0, 100.0, 1.0), (2.0, 0.0, 1.0), (1.0, 1.0, 0.5)]
)
def test_it_is_the_distance_with_the_shrunk_normalised_covariance_of_every_class(own, others, power):
    model = learnt(FIRST, SECOND, shrink_variances=own, shrink_covariances=others, tukey=power)
    classes = by_class(model, FIRST | SECOND, power)
    inverses = [shrunk_inverse(np.cov(each.T), own, others) for each in classes]
    features = of_test(model)
    asked = np.sign(features.double().numpy()) * np.abs(features.double().numpy()) ** power
    expected = -np.array(distances(asked, [each.mean(0) for each in classes], inverses))
    np.testing.assert_allclose(model.logits(features).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_reference_is_what_the_published_code_measures():
    model = learnt(FIRST, SECOND, reference=True)
    classes = by_class(model, FIRST | SECOND)
    inverses = [np.linalg.pinv(np.corrcoef(np.cov(each.T) + 100 * np.eye(24)), rcond=1e-12) for each in classes]
    features = of_test(model)
    expected = -np.array(distances(features.double().numpy(), [each.mean(0) for each in classes], inverses))
    np.testing.assert_allclose(model.logits(features).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_every_option_changes_the_distances():
    changes = [{}, {"shrink_variances": 2.0}, {"shrink_covariances": 0.5}, {"tukey": 0.5}, {"reference": True}]
    models = [learnt(FIRST, **change) for change in changes]
    found = [model.logits(of_test(model)) for model in models]
    for number, one in enumerate(found):
        assert not any(torch.allclose(one, other, atol=1e-3) for other in found[:number])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": True, "shrink_variances": 2.0}, "would do nothing"),
        ({"shrink_covariances": 1.5}, "must not exceed"),
        ({"tukey": 0.0}, "tukey"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises((LcaError, ValueError), match=message):
        validate_recipe({**tiny.RECIPE, "method": {"name": "fecam", **options}})


def test_two_batches_of_a_class_are_one():
    whole, parts = learnt(FIRST, SECOND), learnt(FIRST)
    images = tiny.images(SECOND)
    for number, rows in enumerate((torch.arange(4), torch.arange(4, 13)), start=1):
        subset = images.subset(rows)
        names = [("0", "4")[label] for label in subset.labels.unique().tolist()]
        parts.learn(Task(number, tuple(names), subset.of_classes(names)))
        features = of_test(whole)
        parts.logits(features)  # what it measures with is made now, and has to be made again
    torch.testing.assert_close(parts.logits(features), whole.logits(features), rtol=0, atol=1e-5)


def test_a_class_with_one_image_measures_with_the_pooled_covariance():
    counts = {**FIRST, "0": 1, "4": 5}
    model = learnt(FIRST, {"0": 1})
    model.logits(of_test(model))
    model.learn(tiny.task(2, {"4": 5}))
    classes = by_class(model, counts)
    centred = np.concatenate([each - each.mean(0) for each in classes])
    inverse = shrunk_inverse(centred.T @ centred / (len(centred) - len(classes)))
    features = of_test(model)
    expected = -np.array(distances(features.double().numpy(), [classes[3][0]], [inverse]))
    np.testing.assert_allclose(model.logits(features)[:, 3:4].numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reference", [False, True])
def test_classes_of_one_image_alone_are_told_apart(reference):
    model = learnt({"3": 1}, {"7": 1}, {"1": 1, "0": 1}, reference=reference)
    images = tiny.images({"3": 1, "7": 1, "1": 1, "0": 1})
    logits = model.logits(model.features(images))
    assert logits.argmax(1).tolist() == [0, 1, 2, 3]
    assert logits.isfinite().all()
    if not reference:  # the distance of unit vectors, but for the floor
        torch.testing.assert_close(logits[0, 1] * (1 + FLOOR), -_unit_distance(model, images), rtol=0, atol=1e-5)


def _unit_distance(model, images):
    one, other = torch.nn.functional.normalize(model.features(images))[:2]
    return (one - other).square().sum()


def test_what_is_measured_with_is_made_once_for_a_class(monkeypatch):
    made, whitening = [], fecam.whitening
    monkeypatch.setattr(fecam, "whitening", lambda matrix: made.append(1) or whitening(matrix))
    model = learnt(FIRST)
    features = of_test(model)
    for _ in range(3):
        model.logits(features)
    assert len(made) == 3
    model.learn(tiny.task(1, {"0": 4, "7": 4}))
    model.logits(features)
    assert len(made) == 5


def test_a_forgotten_class_leaves_the_others_as_they_were():
    model = learnt(FIRST, SECOND)
    features = of_test(model)
    before = model.logits(features)
    model.forget("7")
    assert torch.equal(model.logits(features), before[:, [0, 2, 3, 4]])
    for name in "3104":
        model.forget(name)
    assert model.logits(features).shape == (25, 0)
    model.learn(tiny.task(2, {"7": 4}))
    assert model.logits(features).shape == (25, 1)
