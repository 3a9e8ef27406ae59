"""Forward transfer by hand, and nearest means against scikit-learn."""

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from lca.evaluation.transfer import forward_transfer
from lca.statistics.prototypes import nearest_mean


def test_the_mean_by_hand():
    measured = forward_transfer([80.0, None, 50.0], [70.0, None, 65.0])
    assert measured["mean"] == pytest.approx((10 - 15) / 2)
    assert measured == {"mean": -2.5, "reached": [80.0, None, 50.0], "pretrained": [70.0, None, 65.0]}
    assert forward_transfer([None], [None])["mean"] is None


def test_the_nearest_mean_is_the_one_of_the_smallest_angle():
    train, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    found = nearest_mean(labels, train, torch.tensor([[0.2, 0.1], [0.5, 0.6], [9.0, 8.0]]))
    assert found.tolist() == [0, 1, 0]
    assert found.dtype == torch.int32


def test_scikit_learn_agrees():
    random = torch.Generator().manual_seed(3)
    labels = torch.arange(5).repeat(8)
    train = torch.randn(40, 6, generator=random) + labels[:, None]
    test = torch.randn(100, 6, generator=random) + 2
    means = torch.stack([train[labels == label].mean(0) for label in range(5)])
    expected = KNeighborsClassifier(1, metric="cosine").fit(means, range(5)).predict(test)
    assert nearest_mean(labels, train, test).tolist() == expected.tolist()
