"""lca: a classifier that keeps learning, on a pre-trained vision transformer.

Importing the package imports neither torch nor anything slow; the names below load on first use. It lets torch's
threads sleep while they wait, which has to be said before torch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lca.errors import nearest
from lca.threads import let_waiting_threads_sleep

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier
    from lca.errors import LcaError
    from lca.evaluation.predictions import Prediction
    from lca.recipe import Recipe, load_recipe

__version__ = "0.1.0"

_HOMES = {
    "ContinualClassifier": "lca.classifier",
    "LcaError": "lca.errors",
    "Prediction": "lca.evaluation.predictions",
    "Recipe": "lca.recipe",
    "load_recipe": "lca.recipe",
}

__all__ = ["ContinualClassifier", "LcaError", "Prediction", "Recipe", "load_recipe"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lca' has no attribute {name!r}; {nearest(name, __all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


let_waiting_threads_sleep()
