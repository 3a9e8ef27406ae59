"""The classifier as scikit-learn knows classifiers: for `cross_val_score`, `Pipeline` and `GridSearchCV`.

estimator = ContinualEstimator()
estimator.fit(images, labels)                            # anew
estimator.partial_fit(more_images, more_labels)          # another lesson; its classes may be new
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lca.classifier import HELD_OUT, ContinualClassifier
from lca.data.decoding import ImageLike, read_together, unreadable_images
from lca.data.images import Images, ImageSet
from lca.errors import LcaError, needs
from lca.lessons import Effort
from lca.progress import Progress
from lca.recipe import Recipe, recipe_for_photos, validate_recipe

with needs("lca.models.sklearn", "scikit-learn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d
    from sklearn.utils.validation import validate_data as validated

EXPECTED_FAILURES = {
    "check_methods_subset_invariance": "a transformer computes in float32, and with several threads a batch of another "
    "size is added up in another order: probabilities differ by up to 1e-5, where the check allows 1e-7",
}
"""Checks of `sklearn.utils.estimator_checks` that may fail here, and why: for its `expected_failed_checks`."""
KINDS = {"i": "integers", "u": "integers", "b": "truths", "f": "floats", "U": "names", "S": "names", "O": "names"}
"""What labels are, by the kinds of NumPy: in a lesson after the first they must be the same."""


class ContinualEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A `ContinualClassifier` that is made of a recipe by `fit`, and goes on learning by `partial_fit`.

    X holds images: an array (n, h, w) or (n, h, w, 3) of uint8 or floats in [0, 1], or a sequence of paths, Pillow
    images or arrays of any sizes. scikit-learn's tables (n, features) are images as well: with `image_shape` every row
    is one that was flattened; without, its values are the grey cells of the smallest square that holds them, from black
    for the smallest value that the first lesson has to white for the largest.

    `classes_` and the columns of `predict_proba` are the classes learnt so far, sorted: they grow. What scikit-learn
    has no word for, such as unknown images, forgetting and saving, the fitted `model_` does.
    """

    model_: ContinualClassifier
    classes_: np.ndarray[Any, Any]
    range_: tuple[float, float]
    """The smallest and the largest value of the first table."""

    def __init__(
        self,
        recipe: str | Path | Recipe = "best",
        overrides: Sequence[str] = (),
        *,
        effort: Effort = "auto",
        held_out: float = HELD_OUT,
        image_shape: tuple[int, ...] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
    ) -> None:
        """`recipe` and `overrides` are as of `lca learn --recipe NAME --set KEY=VALUE`; without a `random_state`
        or a `device` the recipe's own counts."""
        self.recipe = recipe
        self.overrides = overrides
        self.effort = effort
        self.held_out = held_out
        self.image_shape = image_shape
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - the names of scikit-learn
        """Learn from nothing: what was learnt before is gone."""
        return self._learn(X, y, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Learn one more lesson. Classes may be new, known, or both: `classes`, which scikit-learn's own estimators
        need in the first call, is not needed, and other labels than these are an error."""
        if classes is not None and (others := np.setdiff1d(y, classes)).size:
            raise ValueError(f"y has labels that are not among `classes`: {others[:5].tolist()}; leave `classes` out")
        return self._learn(X, y, first=not hasattr(self, "model_"))

    def predict(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """The most probable class of every image: (n,)."""
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:  # noqa: N803
        """(n, classes), calibrated, in the order of `classes_`."""
        check_is_fitted(self, "model_")
        with _as_value_errors():
            pixels = _read(self._images(X, first=False), self.model_)
            whole = ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.long), ("",))
            probabilities = self.model_.probabilities(self.model_.features(whole))
        learnt = [self.model_.classes.index(str(label)) for label in self.classes_]
        return probabilities.double().cpu().numpy()[:, learnt]

    def _learn(self, X: Any, y: Any, first: bool) -> Self:  # noqa: N803
        labels = _labels(self, y)
        images = self._images(X, first)
        check_consistent_length(images, labels)
        known = labels[:0] if first else self.classes_
        if KINDS[known.dtype.kind] != KINDS[labels.dtype.kind]:
            raise ValueError(f"labels are {labels.dtype} now, those learnt are {known.dtype}; give all of one type")
        classes = np.unique(np.concatenate([known, labels]))
        place = {label: number for number, label in enumerate(np.unique(labels).tolist())}
        with _as_value_errors():
            model = ContinualClassifier(self._recipe()) if first else self.model_
            numbers = torch.tensor([place[label] for label in labels.tolist()])
            model.learn(ImageSet(_read(images, model), numbers, tuple(map(str, place))), self.held_out, self.effort)
        self.model_, self.classes_ = model, classes
        return self

    def _recipe(self) -> Recipe:
        changes: dict[str, Any] = {} if self.device is None else {"device": self.device}
        if self.random_state is not None:
            changes["seed"] = int(check_random_state(self.random_state).randint(2**31))
        if isinstance(self.recipe, Recipe):
            return self.recipe.model_copy(update=changes)
        return recipe_for_photos(str(self.recipe), self.overrides, changes)

    def _images(self, X: Any, first: bool) -> Sequence[ImageLike]:  # noqa: N803
        """The images that X holds, whatever its form."""
        if isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4):
            return [*X]
        if getattr(X, "ndim", 1) == 1 and hasattr(X, "__iter__") and _is_image(next(iter(X), None)):
            return [*X]
        return [*self._drawn(validated(self, X, reset=first, dtype="numeric"), first)]

    def _drawn(self, table: np.ndarray[Any, Any], first: bool) -> np.ndarray[Any, Any]:
        """A table (n, features) as images."""
        if self.image_shape is not None:
            if np.issubdtype(table.dtype, np.integer) and table.min() >= 0 and table.max() <= 255:
                table = table.astype(np.uint8)
            return table.reshape(len(table), *self.image_shape)
        if first:
            self.range_ = float(table.min()), float(table.max())
        (low, high), side = self.range_, ceil(sqrt(table.shape[1]))
        cells = np.zeros((len(table), side * side))
        cells[:, : table.shape[1]] = ((table - low) / (high - low or 1.0)).clip(0, 1)
        return cells.reshape(-1, side, side)

    def __getstate__(self) -> dict[str, Any]:
        """A model goes as its state, without the backbone's own weights."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = state["model_"].state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self.model_ = ContinualClassifier(validate_recipe(state["model_"].meta["recipe"]))
            self.model_.load_state(state["model_"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _labels(estimator: ContinualEstimator, y: Any) -> np.ndarray[Any, Any]:
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    labels = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
    check_classification_targets(labels)
    return labels


def _is_image(thing: Any) -> bool:
    return isinstance(thing, str | Path | Image.Image) or (isinstance(thing, np.ndarray | Tensor) and thing.ndim > 1)


def _read(images: Sequence[ImageLike], model: ContinualClassifier) -> Images:
    reading = read_together(images, model.working_size, Progress())
    if reading.left_out:
        raise unreadable_images([*reading.left_out.values()], len(images))
    return reading.pixels


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """scikit-learn and its users expect a `ValueError` where the input is wrong."""
    try:
        yield
    except LcaError as error:
        raise ValueError(str(error)) from error
