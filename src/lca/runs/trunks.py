"""The trunk cache: what all branches of a backbone share is trained and extracted once.

A trunk is named by the hash of everything that influences it: the recipe's trunk keys, the data, the weights, the
device's arithmetic, the versions of format and libraries, and the code that computes it. Branch keys (alignment,
lambda, drift) are not among them, so a sweep over those trains nothing.
"""

import sys
from pathlib import Path
from uuid import uuid4

from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.data.sources import Source
from lca.device import sources_hash, versions
from lca.files import STATE_FORMAT, State, has_state, hash_json, load_state, new_folder, save_state

ROOMS = (
    *("backbones", "data", "merging", "methods", "statistics", "training", "tuning"),
    *("device.py", "features.py", "optimisation.py", "randomness.py", "ranks.py"),
    *("heads/growing.py", "heads/loss.py"),
)
"""Our code that computes a trunk: an edit elsewhere, also of what aligns heads, discards none."""


def foreign_code(*parts: object) -> dict[str, str]:
    """Hashes of the other packages that some of these parts were written in, by name."""
    hashes = {}
    for name in {type(part).__module__.partition(".")[0] for part in parts} - {"lca", "builtins"}:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None:  # typed in, and nobody knows what it was
            hashes[name] = uuid4().hex
        else:
            hashes[name] = sources_hash(package=Path(file).parent if file.endswith("__init__.py") else Path(file))
    return hashes


class TrunkCache:
    """The stored trunks of one run's key, task by task. Entries are written once, beside and renamed."""

    def __init__(self, root: Path, classifier: ContinualClassifier, source: Source) -> None:
        trunk = classifier.recipe.trunk()
        trunk["backbone"].pop("weights")
        trunk["data"].pop("source")
        operator = getattr(classifier.recipe.method, "merge", None)
        key = hash_json(
            {
                "format": STATE_FORMAT,
                "trunk": trunk,
                "view": classifier.view.model_dump(mode="json"),
                "weights": classifier.backbone.fingerprint,
                "data": source.fingerprint,
                "compute": classifier.compute.describe(),
                "versions": versions(ROOMS),
                "foreign": foreign_code(classifier.method, classifier.extractor.tuner, operator),
            }
        )
        self._folder = root / key[:24]

    def load(self, task: int) -> State | None:
        """What the trunk of a task left behind, if some run has been there."""
        return self._read(f"task-{task:02d}")

    def save(self, task: int, state: State) -> bool:
        """Whether it was ours to write; if another run was first, go on with what it wrote."""
        return self._write(f"task-{task:02d}", state)

    def load_test_features(self, task: int) -> Tensor | None:
        state = self._read(f"test-{task:02d}")
        return None if state is None else state.parts["features"]["test"]

    def save_test_features(self, task: int, features: Tensor) -> None:
        self._write(f"test-{task:02d}", State({"features": {"test": features}}))

    def _read(self, name: str) -> State | None:
        return load_state(self._folder / name) if has_state(self._folder / name) else None

    def _write(self, name: str, state: State) -> bool:
        if has_state(self._folder / name):
            return False
        with new_folder(self._folder / name) as folder:
            save_state(folder, state)
            written = (folder / "state.json").stat().st_ino
        return (self._folder / name / "state.json").stat().st_ino == written
