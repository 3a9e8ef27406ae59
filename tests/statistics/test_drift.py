import pytest
import torch

from lca.errors import LcaError
from lca.statistics.drift import drifts

RANDOM = torch.Generator().manual_seed(4)
BEFORE = torch.randn(200, 6, generator=RANDOM) @ torch.randn(6, 6, generator=RANDOM) + 2
LINEAR = torch.eye(6) + 0.3 * torch.randn(6, 6, generator=RANDOM)
SHIFT = torch.randn(6, generator=RANDOM)
OLD = torch.randn(5, 6, generator=RANDOM) + 3


def transport(model, after, before=BEFORE, **options):
    return drifts[model](**options).fit(before, after)


def test_none_is_the_identity():
    moved = transport("none", BEFORE @ LINEAR + SHIFT)
    assert torch.equal(moved.means(OLD), OLD)
    assert torch.equal(moved.rows(OLD), OLD)


def test_affine_recovers_an_affine_map():
    moved = transport("affine", BEFORE @ LINEAR + SHIFT, strength=1e-9)
    torch.testing.assert_close(moved.means(OLD), OLD @ LINEAR + SHIFT, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(moved.rows(OLD), OLD @ LINEAR, rtol=1e-3, atol=1e-3)


def test_a_strong_penalty_tends_to_a_plain_shift_and_not_to_zero():
    after = BEFORE @ LINEAR + SHIFT
    moved = transport("affine", after, strength=1e9)
    torch.testing.assert_close(moved.means(OLD), OLD + (after - BEFORE).mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.rows(OLD), OLD, rtol=1e-4, atol=1e-4)


def test_the_penalty_is_in_units_of_the_data():
    small = transport("affine", (BEFORE @ LINEAR + SHIFT), strength=0.1)
    large = transport("affine", 1000 * (BEFORE @ LINEAR + SHIFT), before=1000 * BEFORE, strength=0.1)
    torch.testing.assert_close(1000 * small.means(OLD), large.means(1000 * OLD), rtol=1e-4, atol=1e-2)


def test_affine_with_fewer_images_than_features_stays_near_the_identity_elsewhere():
    before = torch.zeros(3, 6)
    before[:, 0] = torch.tensor([-1.0, 0.0, 1.0])
    moved = transport("affine", 2 * before, before=before, strength=1e-6)
    far = torch.eye(6)[1:2]
    torch.testing.assert_close(moved.means(far), far, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.means(torch.eye(6)[:1]), 2 * torch.eye(6)[:1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", ["mean_shift", "affine"])
def test_a_uniform_move_moves_everything_by_it(model):
    moved = transport(model, BEFORE + SHIFT)
    torch.testing.assert_close(moved.means(OLD), OLD + SHIFT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.rows(OLD), OLD, rtol=1e-4, atol=1e-4)


def test_mean_shift_follows_the_nearest_features():
    before = torch.cat([torch.zeros(20, 2), torch.full((20, 2), 10.0)]) + 0.1 * torch.randn(40, 2, generator=RANDOM)
    moves = torch.cat([torch.full((20, 2), 1.0), torch.full((20, 2), -3.0)])
    moved = transport("mean_shift", before + moves, before=before, bandwidth=0.05)
    near = torch.tensor([[0.5, 0.5], [9.0, 9.0]])
    torch.testing.assert_close(moved.means(near) - near, torch.tensor([[1.0, 1.0], [-3.0, -3.0]]), rtol=0, atol=1e-3)
    wide = transport("mean_shift", before + moves, before=before, bandwidth=1e4)
    torch.testing.assert_close(wide.means(near) - near, torch.full((2, 2), -1.0), rtol=0, atol=1e-2)


@pytest.mark.parametrize("model", list(drifts))
def test_a_single_image_and_equal_images_give_numbers(model):
    for before in (BEFORE[:1], BEFORE[:1].expand(4, 6)):
        moved = transport(model, before + SHIFT, before=before)
        assert moved.means(OLD).isfinite().all()
        assert moved.rows(OLD).isfinite().all()


@pytest.mark.parametrize("model", list(drifts))
def test_rows_of_an_empty_factor(model):
    assert transport(model, BEFORE + SHIFT).rows(torch.zeros(0, 6)).shape == (0, 6)


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(LcaError, match="'affine'"):
        drifts["afine"]
