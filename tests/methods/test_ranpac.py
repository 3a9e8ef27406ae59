"""RanPAC against scikit-learn's ridge regression and plain NumPy."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import tiny
from lca.classifier import ContinualClassifier
from lca.data.streams import Task
from lca.errors import LcaError
from lca.methods.ranpac import RanPac, held_out_errors, solve_ridge
from lca.training.setting import Given

RIDGES = tuple(10.0**n for n in range(-8, 9))
FIRST, SECOND = {"3": 12, "7": 11, "1": 12}, {"0": 10, "4": 9}
TEST = dict.fromkeys("37104", 5)


def learnt(*tasks, **options):
    model = tiny.classifier(tiny.recipe(method={"name": "ranpac", "projection": 64, **options}))
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts))
    return model


def of_test(model, skip=20):
    return model.features(tiny.images(TEST, skip=skip))


def by_numpy(model, features):
    """h in float64, with W drawn again."""
    shape, generator = (model.extractor.width, model.method.size), model.method.setting.generator("projection")
    return np.maximum(features.double().numpy() @ torch.randn(shape, generator=generator).double().numpy(), 0)


def projected(model, counts):
    """h of all images of classes, and their one-hot labels."""
    images = tiny.images(counts)
    return by_numpy(model, model.features(images)), np.eye(len(counts))[images.labels.numpy()]


def sklearn_errors(train, held):
    fitted = (Ridge(alpha=ridge, fit_intercept=False).fit(*train) for ridge in RIDGES)
    return np.array([np.mean((each.predict(held[0]) - held[1]) ** 2) for each in fitted])


@pytest.mark.parametrize("images", [20, 200])
def test_one_decomposition_gives_the_errors_of_all_ridges(images):
    """Also where there are more images than projected features."""
    random = np.random.default_rng(images)
    inputs, targets = np.maximum(random.normal(size=(images, 60)), 0), np.eye(4)[random.integers(4, size=images)]
    cut = images * 4 // 5
    train, held = (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])
    found = held_out_errors(tuple(map(torch.tensor, train)), tuple(map(torch.tensor, held)), RIDGES)
    np.testing.assert_allclose(found.numpy(), sklearn_errors(train, held), rtol=1e-5)


def test_the_ridge_is_the_one_that_brute_force_finds_on_the_current_task():
    model, chosen = tiny.classifier(tiny.recipe(method={"name": "ranpac", "projection": 64})), []
    for number, counts in enumerate((FIRST, SECOND)):
        model.learn(tiny.task(number, counts))
        inputs, targets = projected(model, counts)
        order = torch.randperm(len(inputs), generator=model.method.setting.generator("ridge", number)).numpy()
        cut = int(0.8 * len(order))
        train, held = ((inputs[rows], targets[rows]) for rows in (order[:cut], order[cut:]))
        chosen.append(RIDGES[np.argmin(sklearn_errors(train, held))])
        assert model.method.ridge == chosen[-1]
    assert set(chosen) != {1e-8}, "nothing was to choose"
    assert max(chosen) < max(RIDGES)


@pytest.mark.parametrize("ridge", [1.0, 10.0, 1e3, 1e6])
def test_it_is_ridge_regression_on_the_images_of_all_tasks(ridge):
    model = learnt(FIRST, SECOND, ridges=[ridge])
    fitted = Ridge(alpha=ridge, fit_intercept=False).fit(*projected(model, FIRST | SECOND))
    features = of_test(model)
    np.testing.assert_allclose(
        model.logits(features).numpy(), fitted.predict(by_numpy(model, features)), rtol=0, atol=1e-4
    )


def test_the_rounding_of_the_sums_is_not_fitted():
    """Fewer images than projected features, and a ridge far below the rounding of G in float32."""
    random = np.random.default_rng(0)
    inputs, targets = np.maximum(100 * random.normal(size=(20, 300)), 0), np.eye(2)[random.integers(2, size=20)]
    gram, sums = torch.tensor(inputs.T @ inputs).float(), torch.tensor(targets.T @ inputs).float()
    expected = np.linalg.pinv(inputs) @ targets

    def error(found):
        return np.linalg.norm(found - expected) / np.linalg.norm(expected)

    assert error(solve_ridge(gram, sums, 1e-8).numpy().T) < 0.5
    assert error(np.linalg.solve(gram.double().numpy() + 1e-8 * np.eye(300), sums.double().numpy().T)) > 2


def test_a_matrix_that_is_worse_than_rounding_is_solved_all_the_same():
    found = solve_ridge(torch.diag(torch.tensor([4.0, 1.0, -0.5])), torch.eye(3), 1e-3)
    assert found.isfinite().all()


def test_cosine_is_the_published_oddity():
    model = learnt(FIRST, SECOND, cosine=True)
    plain = learnt(FIRST, SECOND)
    features = of_test(model)
    asked, weights = by_numpy(model, features), plain.method.weights.numpy()
    asked, weights = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (asked, weights))
    np.testing.assert_allclose(model.logits(features).numpy(), asked @ weights.T, rtol=0, atol=1e-5)
    assert not torch.allclose(model.logits(features), plain.logits(features), atol=1e-2)


def test_the_projection_has_its_width_and_is_drawn_from_the_seed():
    plain = tiny.classifier(tiny.recipe(method="ranpac"))
    assert plain.method.projection.shape == (24, round(10_000 * 24 / 768))
    model = learnt(FIRST, projection=32)
    assert model.method.weights.shape == (3, 32)
    assert model.memory()["statistics"] == 4 * (32 * 32 + 3 * 32)
    other = tiny.classifier(tiny.recipe(method={"name": "ranpac", "projection": 32}, seed=6))
    assert not torch.equal(model.method.projection, other.method.projection)


def test_tasks_and_batches_of_one_class_do_not_matter():
    """But for the choice of the ridge: G, Q and W_o are those of all images at once."""
    whole = learnt(FIRST, {"0": 8, "4": 6}, ridges=[10.0])
    parts = learnt(FIRST, ridges=[10.0])
    images = tiny.images({"0": 8, "4": 6})
    for number, rows in enumerate((torch.arange(5), torch.arange(5, 14)), start=1):
        subset = images.subset(rows)
        names = [("0", "4")[label] for label in subset.labels.unique().tolist()]
        parts.learn(Task(number, tuple(names), subset.of_classes(names)))
    assert parts.classes == whole.classes
    for name in ("gram", "sums"):
        torch.testing.assert_close(getattr(parts.method, name), getattr(whole.method, name), rtol=1e-6, atol=0)
    features = of_test(whole)
    torch.testing.assert_close(parts.logits(features), whole.logits(features), rtol=0, atol=1e-4)


def test_a_task_that_cannot_choose_keeps_the_last_ridge():
    model = learnt({"3": 6})
    assert model.method.ridge == 1.0
    model.learn(tiny.task(1, SECOND))
    chosen = model.method.ridge
    model.learn(tiny.task(2, {"1": 2, "7": 2}))
    model.learn(tiny.task(3, {"8": 1}))
    assert model.method.ridge == chosen != 1.0
    logits = model.logits(of_test(model))
    assert logits.shape == (25, 6)
    assert logits.isfinite().all()


def test_a_forgotten_class_stays_in_the_gram_matrix():
    model = learnt(FIRST, SECOND, ridges=[10.0])
    features, gram = of_test(model), model.method.gram
    before = model.logits(features)
    model.forget("7")
    torch.testing.assert_close(model.logits(features), before[:, [0, 2, 3, 4]], rtol=0, atol=1e-5)
    assert torch.equal(model.method.gram, gram)
    for name in "3104":
        model.forget(name)
    assert model.logits(features).shape == (25, 0)
    model.learn(tiny.task(2, {"7": 4}))
    assert model.logits(features).shape == (25, 1)


def test_features_that_are_not_finite_are_refused(monkeypatch):
    model = learnt()
    monkeypatch.setattr(RanPac, "features", lambda *_: torch.full((35, 24), torch.nan))
    with pytest.raises(LcaError, match="training diverged"):
        model.learn(tiny.task(0, FIRST))


def test_the_projection_can_be_given():
    width, size = 24, 64
    given = Given({"projection": torch.linspace(-1, 1, width * size).reshape(width, size)})
    chosen = tiny.recipe(method=tiny.method_section("ranpac"))
    model = ContinualClassifier(chosen, backbone=tiny.load_tiny_backbone(), given=given)
    assert torch.equal(model.method.projection, given.tensors["projection"])
