"""Models of every format that was written load and answer the same. `old/` holds small ones beside their answers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lca import ContinualClassifier
from lca.data.background import FAMILIES

OLD = Path(__file__).parent / "old"


def picture(kind, number):
    """What the models were taught with, and asked."""
    y, x = np.mgrid[:24, :24]
    base = {
        "stripes": x * (8 + number),
        "checks": (x // 4 + y // 4 + number) % 2 * 200,
        "rings": ((x - 12) ** 2 + (y - 12) ** 2) * (1 + number / 8),
        "slope": (x + y) * (5 + number / 3),
    }[kind]
    return np.stack([base % 256, (base * 0.7 + number * 5) % 256, (base * 0.4) % 256], -1).astype(np.uint8)


@pytest.mark.parametrize("path", [OLD / "im.json", OLD / "mos.json"], ids=lambda path: path.stem)
def test_an_old_model_answers_as_it_did(path, tmp_path):
    answers = json.loads(path.read_text())
    model = ContinualClassifier.load(path.with_suffix(""), device="cpu")
    asked = [picture(kind, 9) for kind in ("stripes", "rings", "slope", "checks")]

    def check(model):
        assert model.method.branches() == list(answers)
        for branch, expected in answers.items():
            for answer, old in zip(model.predict(asked, branch=branch), expected, strict=True):
                assert answer.probabilities == pytest.approx(old["probabilities"], abs=1e-4), branch
                assert (answer.distance is None) == (old["distance"] is None), branch
                assert answer.distance is None or 0 <= answer.distance < 100, "scores are made of the old distances"

    check(model)
    if path.stem == "im":  # its background is seen when it is loaded
        assert model.predict(np.full((24, 24, 3), 90, np.uint8), branch="lda")[0].unknown
        kept = model.method.statistics("lda")[1]
        assert len(kept.families) == len(FAMILIES)
        assert not kept.photos
    shutil.copytree(path.with_suffix(""), tmp_path / "copy")
    model.save(tmp_path / "copy")  # over the old format
    check(ContinualClassifier.load(tmp_path / "copy", device="cpu"))
    assert model.learn([(picture("checks", number), "checks") for number in range(3)]).new == ["checks"]
