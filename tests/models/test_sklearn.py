"""The classifier as scikit-learn knows classifiers."""

import pickle
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import lca.models.sklearn
import tiny
from lca.errors import MissingPackageError
from lca.models.sklearn import EXPECTED_FAILURES, ContinualEstimator
from parts import build_images

RECIPE = tiny.recipe(method={"align": ["best"]}, training={"epochs": 1})


@pytest.fixture(autouse=True)
def small():
    with tiny.tiny_backbone():
        yield


def estimator(**changes):
    return ContinualEstimator(**{"recipe": RECIPE, "effort": "instant", "device": "cpu", **changes})


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(n_class=4, return_X_y=True)
    return images[:160], labels[:160]


@pytest.fixture(scope="module")
def photos():
    """(n, 32, 32, 3) in uint8, and names."""
    images = build_images(("apple", "pear", "plum"), 12)
    whole = images.pixels.canvas.permute(0, 2, 3, 1).numpy()
    return whole, np.array(images.classes)[images.labels.numpy()]


def test_it_keeps_the_contract_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are meant to provoke some
        found = check_estimator(estimator(), expected_failed_checks=EXPECTED_FAILURES, on_skip=None)
    statuses = {each["check_name"]: each["status"] for each in found}
    assert len(statuses) > 40
    assert {name for name, status in statuses.items() if status == "skipped"} <= {"check_array_api_input"}
    assert statuses["check_fit_idempotent"] == statuses["check_estimators_pickle"] == "passed"
    assert set(EXPECTED_FAILURES) <= set(statuses)


def test_the_document_names_the_checks_that_may_fail():
    text = (Path(__file__).parents[2] / "docs" / "your-own-images.md").read_text(encoding="utf-8")
    for check, reason in EXPECTED_FAILURES.items():
        assert check in text
        assert reason in " ".join(text.split())


def test_cross_validation_and_pipelines(digits):
    assert cross_val_score(estimator(), *digits, cv=3).mean() > 0.6
    whole = make_pipeline(FunctionTransformer(lambda table: 16 - table), estimator()).fit(*digits)
    assert whole.score(*digits) > 0.7
    search = GridSearchCV(estimator(), {"held_out": [0.1, 0.7]}, cv=2).fit(*digits)
    assert search.best_params_ == {"held_out": 0.1}


def test_lessons_add_classes(photos):
    images, names = photos
    first = names != "apple"
    taught = estimator().partial_fit(images[first], names[first], classes=["pear", "plum"])
    assert taught.classes_.tolist() == ["pear", "plum"]
    taught.partial_fit(images[~first], names[~first])
    assert taught.classes_.tolist() == ["apple", "pear", "plum"]
    assert taught.model_.classes == ["pear", "plum", "apple"], "in the order they were learnt"
    probabilities = taught.predict_proba(images)
    assert probabilities.shape == (36, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert taught.score(images, names) > 0.8
    assert (taught.predict(images) == taught.classes_[probabilities.argmax(1)]).all()
    assert len(taught.model_.history) == 2
    assert taught.fit(images[first], names[first]).classes_.tolist() == ["pear", "plum"], "fit begins anew"
    with pytest.raises(ValueError, match="not among `classes`: \\['apple'\\]"):
        taught.partial_fit(images, names, classes=["pear", "plum"])


def test_every_form_of_an_image_gives_the_same_answer(photos, tmp_path):
    images, names = photos
    taught = estimator().fit(images, names)
    expected = taught.predict_proba(images)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number:02}.png")
    paths = sorted(tmp_path.iterdir())
    flat = images.reshape(len(images), -1)
    forms = [[*images], [Image.fromarray(image) for image in images], paths, np.array([str(path) for path in paths])]
    for form in forms:
        np.testing.assert_array_equal(taught.predict_proba(form), expected)
    for table in (flat, flat.astype(np.int64), flat / 255):
        by_rows = estimator(image_shape=(32, 32, 3)).fit(table, names)
        np.testing.assert_allclose(by_rows.predict_proba(table), expected, atol=1e-6)
    with pytest.raises(ValueError, match="could not be read"):
        taught.predict([*paths[:2], tmp_path / "none.jpg"])


def test_a_table_is_a_square_of_grey_cells(digits):
    table, labels = digits
    drawn = np.round(table * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    expected = estimator().fit(drawn, labels).predict_proba(drawn)
    np.testing.assert_allclose(estimator().fit(table, labels).predict_proba(table), expected, atol=1e-5)
    taught = estimator().fit(table[:, :50], labels)
    assert taught.n_features_in_ == 50
    assert taught._drawn(table[:2, :50], first=False).shape == (2, 8, 8), "the rest is black"
    with pytest.raises(ValueError, match="features"):
        taught.predict(table)


def test_what_is_chosen_counts(digits):
    plain = estimator().fit(*digits)
    probabilities = plain.predict_proba(digits[0])
    assert plain.model_.recipe.seed == RECIPE.seed
    for changes in (
        {"effort": "thorough"},
        {"held_out": 0.5},
        {"random_state": 3},
        {"recipe": tiny.recipe(method={"align": ["lda"]})},
    ):
        other = estimator(**changes).fit(*digits)
        assert np.abs(other.predict_proba(digits[0]) - probabilities).max() > 1e-4, changes
    named = ContinualEstimator("im", ("method.align=lda", "seed=7"), effort="instant", device="cpu").fit(*digits)
    assert (named.model_.recipe.seed, named.model_.branch) == (7, "lda")


def test_a_copy_knows_nothing_and_a_pickle_everything(photos):
    images, names = photos
    taught = estimator().fit(images[:24], names[:24])
    with pytest.raises(NotFittedError):
        clone(taught).predict(images)
    again = pickle.loads(pickle.dumps(taught))
    np.testing.assert_array_equal(again.predict_proba(images), taught.predict_proba(images))
    again.partial_fit(images[24:], names[24:])
    assert taught.partial_fit(images[24:], names[24:]).predict(images).tolist() == again.predict(images).tolist()


def test_labels_of_another_type_are_refused(digits):
    taught = estimator().fit(*digits)
    with pytest.raises(ValueError, match="labels are float64 now, those learnt are int64"):
        taught.partial_fit(digits[0], digits[1].astype(float))
    assert taught.classes_.dtype == int


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingPackageError, match="pip install scikit-learn"):
        runpy.run_path(lca.models.sklearn.__file__)
