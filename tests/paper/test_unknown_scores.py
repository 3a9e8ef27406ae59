"""The comparison of unknown scores."""

import pytest
import torch

import tiny
from lca.evaluation.detection import auroc
from lca.progress import Progress
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from paper import unknown


def test_the_study_of_unknown_scores_uses_what_models_use():
    """The first score is the one that runs store; far OOD images lie at right angles to all that is known."""
    random = torch.Generator().manual_seed(0)
    labels, places = torch.arange(5).repeat_interleave(30), 6 * torch.eye(8)
    train, asked = (places[labels] + torch.randn(150, 8, generator=random) for _ in range(2))
    far = 40 * torch.eye(8)[7] + torch.randn(50, 8, generator=random)
    found = {"train": train, "train_labels": labels, "asked": asked, "asked_labels": labels, "sizes": [2, 3]}
    rows = unknown.measure(found, far)
    memory = GaussianMemory(CovarianceOptions())
    for label in (0, 1):
        memory.observe(label, train[labels == label])
    distances = memory.mahalanobis(asked).amin(1)
    used = rows["Mahalanobis distance d² (used)"]
    assert used["auroc"] == pytest.approx(auroc(distances[labels < 2], distances[labels >= 2]), abs=0.01)
    assert used["far_auroc"] == 100
    assert used["far_fpr95_known_positive"] == 0
    assert all(row["auroc"] > 60 for row in rows.values())
    assert unknown.show({"sets": {"drawn": rows}}).count("\n|") == 2 + len(unknown.SCORES)


def test_no_test_image_is_read():
    """What is asked is held out of the images that are learnt."""
    source = "synthetic:classes=4,train=8,test=5"
    with tiny.tiny_backbone():
        found = unknown.features_of(source, 2, {"name": "tiny"}, Progress())
    assert found["sizes"] == [2, 2]
    assert found["train_labels"].bincount().tolist() == [6] * 4
    assert found["asked_labels"].bincount().tolist() == [2] * 4
    assert found["train"].shape == (24, 24)
    assert found["asked"].shape == (8, 24)
