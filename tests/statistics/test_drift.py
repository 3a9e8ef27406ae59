import pytest
import torch

from lca.errors import LcaError
from lca.statistics.drift import drifts
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

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


# What a map leaves unexplained


def noisy(seed, before=BEFORE, width=6):
    random = torch.Generator().manual_seed(seed)
    return before @ LINEAR[:width, :width] + SHIFT[:width] + 0.5 * torch.randn(before.shape, generator=random)


def unexplained(before, after, strength):
    """The covariance of the residuals of a ridge regression, by what it has left of n - 1 degrees of freedom: each
    direction of the data spends v / (v + penalty), v its sum of squares."""
    x, y = (each.double() - each.double().mean(0) for each in (before, (after - before)))
    penalty = strength * float(x.square().sum()) / x.shape[1]
    left, sizes, _ = torch.linalg.svd(x, full_matrices=False)
    kept = sizes.square() / (sizes.square() + penalty)
    errors = y - (left * kept) @ left.T @ y
    return errors.T @ errors / (len(x) - 1 - float(kept.sum()))


@pytest.mark.parametrize("strength", [1e-6, 0.2, 3.0])
@pytest.mark.parametrize("count", [200, 12])
def test_the_residual_is_the_covariance_of_what_the_fit_leaves(strength, count):
    before = BEFORE[:count]
    after = noisy(1)[:count]
    rows = transport("affine", after, before, strength=strength, residual=True).residual.double()
    torch.testing.assert_close(rows.T @ rows, unexplained(before, after, strength), rtol=1e-3, atol=1e-4)
    if count == 200 and strength < 1:
        assert torch.linalg.eigvalsh(unexplained(before, after, 1e-6)).mean() == pytest.approx(0.25, rel=0.1)


def test_few_images_leave_few_rows_and_no_residual_is_made_where_none_is_asked_for():
    assert transport("affine", noisy(1)[:4], BEFORE[:4], residual=True).residual.shape == (4, 6)
    assert transport("affine", noisy(1)[:1], BEFORE[:1], residual=True).residual.isfinite().all()
    assert all(transport(model, noisy(1)).residual is None for model in drifts)


def learnt(*counts, **options):
    memory = GaussianMemory(CovarianceOptions(**options))
    for label, count in enumerate(counts):
        memory.observe(label, BEFORE[10 * label : 10 * label + count] + label)
    return memory


@pytest.mark.parametrize("kind", ["full", "shared"])
def test_old_classes_gain_the_residual_alike_and_it_moves_with_them(kind):
    """Over three lessons: a lesson's residual counts for the classes there were, and the map moves what there was."""
    memory, freedom = learnt(5, 9, kind=kind), 4 + 8
    scatter = memory.pooled().scatter
    for lesson in range(3):
        move = drifts["affine"](strength=0.2, residual=True).fit(BEFORE[:50], noisy(lesson)[:50])
        linear = move.rows(torch.eye(6).double())
        residual = unexplained(BEFORE[:50], noisy(lesson)[:50], 0.2)
        memory.transport(move)
        scatter = linear.T @ scatter @ linear + freedom * residual
        new = BEFORE[60 + 10 * lesson : 66 + 10 * lesson]
        memory.observe(2 + lesson, new)
        scatter, freedom = scatter + 5 * torch.cov(new.double().T), freedom + 5
        assert memory.pooled().freedom == freedom
        torch.testing.assert_close(memory.pooled().scatter, scatter, rtol=1e-3, atol=1e-2)
    assert memory.residual.shape == (6, 6)
    twin = GaussianMemory(memory.options)
    twin.load(*memory.state())
    assert torch.equal(twin.pooled().scatter, memory.pooled().scatter)
    assert torch.equal(memory.to(torch.device("cpu")).pooled().scatter, memory.pooled().scatter)


@pytest.mark.parametrize("unbiased", [True, False])
def test_what_is_left_unexplained_stays_the_same_when_a_class_is_forgotten(unbiased):
    memory = learnt(5, 9, 7, unbiased=unbiased)
    memory.transport(drifts["affine"](residual=True).fit(BEFORE, noisy(1)))
    residual = unexplained(BEFORE, noisy(1), 0.05)
    for classes in (3, 2, 1):
        freedom = memory.pooled().freedom
        found = memory.residual.double().T @ memory.residual.double() / freedom
        torch.testing.assert_close(found, residual, rtol=1e-3, atol=1e-4)
        assert len(memory.classes) == classes
        memory.forget(0)
    assert len(memory.residual) == 0
    assert "residual" not in memory.state()[0]


def test_statistics_of_before_there_was_a_residual_are_read():
    memory = learnt(5, 9)
    part, meta = memory.state()
    assert "residual" not in part
    twin = learnt(3)
    twin.transport(drifts["affine"](residual=True).fit(BEFORE, noisy(1)))
    twin.load(part, meta)
    assert torch.equal(twin.pooled().scatter, memory.pooled().scatter)


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
