"""Linear CKA and cosine, by hand and by what must not change them."""

import pytest
import torch

from lca.evaluation.similarity import linear_cka, mean_cosine, similarity


def features(seed, width=5, count=40):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_cka_by_hand():
    """x = (-1, 0, 1) in one direction, y = (-1, 0, 1) and (1, -2, 1) in two: xᵀx = 2, yᵀx = (2, 0), yᵀy = diag(2, 6).
    A constant that is added to all images does not count."""
    x = torch.tensor([[-1.0], [0.0], [1.0]]) + 7
    y = torch.tensor([[-1.0, 1.0], [0.0, -2.0], [1.0, 1.0]]) - 3
    assert linear_cka(x, y) == pytest.approx(4 / (2 * (4 + 36) ** 0.5))


def test_cka_is_the_normalised_alignment_of_the_centred_kernels():
    """The definition by n x n kernels: tr(KHLH) / sqrt(tr(KHKH) tr(LHLH)) (Kornblith et al., Eq. 2 and 3)."""
    x, y = features(0).double(), (features(0) + features(1)).double() @ features(2, 3, 5).double()
    centre = torch.eye(40) - 1 / 40

    def hsic(one, two):
        return torch.trace(one @ one.T @ centre.double() @ two @ two.T @ centre.double())

    assert linear_cka(x, y) == pytest.approx(float(hsic(x, y) / (hsic(x, x) * hsic(y, y)).sqrt()))
    assert linear_cka(y, x) == pytest.approx(linear_cka(x, y))


def test_rotation_factor_and_shift_do_not_change_cka():
    x, y = features(0), features(0) + 0.5 * features(1)
    rotation = torch.linalg.qr(features(3, 5, 5)).Q
    assert linear_cka(x, x @ rotation) == pytest.approx(1)
    assert linear_cka(x, 3 * y @ rotation + 2) == pytest.approx(linear_cka(x, y))
    assert 0.3 < linear_cka(x, y) < 0.95
    assert linear_cka(x, torch.ones(40, 5)) is None


def test_cosine_by_hand():
    one, two = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 3.0], [0.0, 5.0]])
    assert mean_cosine(one, two) == pytest.approx((0.5**0.5 + 1) / 2)
    assert mean_cosine(one, torch.ones(2, 3)) is None, "features of other widths have no angle"


def test_both():
    x, y = features(0), features(0) + features(1)
    assert similarity(x, y) == {"cka": linear_cka(x, y), "cosine": mean_cosine(x, y)}
    assert similarity(x, x) == {"cka": pytest.approx(1), "cosine": pytest.approx(1)}
