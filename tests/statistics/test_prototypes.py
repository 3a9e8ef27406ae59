"""Class means, in one lesson or several."""

import torch
from torch.nn import functional

from lca.statistics.prototypes import ClassMeans

FEATURES = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0, 2, 1, 1])


def expected():
    return torch.stack([FEATURES[label == LABELS].mean(0) for label in range(3)])


def test_means_in_one_lesson_and_in_several():
    once, often = ClassMeans(), ClassMeans()
    once.observe(LABELS, FEATURES)
    for start, end in ((0, 2), (2, 3), (3, 12)):
        often.observe(LABELS[start:end], FEATURES[start:end])
    for means in (once, often):
        torch.testing.assert_close(means.means, expected())
        assert means.counts.tolist() == [4, 5, 3]


def test_cosines():
    means = ClassMeans()
    means.observe(LABELS, FEATURES)
    by_hand = functional.cosine_similarity(FEATURES[:, None], expected()[None], dim=2)
    torch.testing.assert_close(means.cosines(FEATURES), by_hand)


def test_forgetting_and_state():
    means = ClassMeans()
    assert means.state()[0] == {}
    means.observe(LABELS, FEATURES)
    means.forget(1)
    torch.testing.assert_close(means.means, expected()[[0, 2]])
    loaded = ClassMeans()
    loaded.load(*means.state())
    assert torch.equal(loaded.cosines(FEATURES), means.cosines(FEATURES))
    loaded.load({})
    loaded.observe(LABELS, FEATURES)
    torch.testing.assert_close(loaded.means, expected())


def test_two_classes_made_one_have_the_mean_of_all_images():
    features, labels = (
        torch.randn(9, 4, generator=torch.Generator().manual_seed(1)),
        torch.tensor([0, 0, 1, 2, 2, 2, 2, 1, 1]),
    )
    means, union = ClassMeans(), ClassMeans()
    means.observe(labels, features)
    before = means.means
    copied = before.clone()
    union.observe(labels % 2, features)  # 2 is 0
    means.merge(0, 2)
    torch.testing.assert_close(means.means, union.means)
    assert torch.equal(means.counts, union.counts)
    assert torch.equal(before, copied), "what may be kept somewhere stays"
