import math

import pytest
import torch

from lca.errors import LcaError
from lca.statistics.drift import STRENGTHS, Affine, chosen_strength, drifts
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

RANDOM = torch.Generator().manual_seed(4)
BEFORE = torch.randn(200, 6, generator=RANDOM) @ torch.randn(6, 6, generator=RANDOM) + 2
LINEAR = torch.eye(6) + 0.3 * torch.randn(6, 6, generator=RANDOM)
SHIFT = torch.randn(6, generator=RANDOM)
OLD = torch.randn(5, 6, generator=RANDOM) + 3


LABELS = torch.arange(200) % 8
AFFINE = Affine()


def transport(model, after, before=BEFORE, labels=LABELS, **options):
    return drifts[model](**options).fit(before, after, labels[: len(before)])


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


@pytest.mark.parametrize("model", ["mean_shift", "affine", "local"])
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


# The strength, chosen by leaving classes out

CHOSEN = {"strength": "chosen"}


def lesson(move, classes=8, images=12, width=6, seed=0):
    """Features of classes before and after a move, and their labels, in no order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(images)[torch.randperm(classes * images, generator=random)] + 3
    means = 2 * torch.randn(classes, width, generator=random)
    before = means[labels - 3] + torch.randn(len(labels), width, generator=random)
    return before, move(before, random), labels


def linear(before, random):
    return before @ LINEAR + SHIFT + 0.01 * torch.randn(before.shape, generator=random)


def shifted(before, random):
    return before + SHIFT + torch.randn(before.shape, generator=random)


def mixed(before, random):
    """A linear move, and in one direction much chance."""
    return before @ LINEAR + SHIFT + 3 * torch.randn(len(before), 1, generator=random) * torch.eye(6)[0]


def root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def covariance(rows):
    apart = rows - rows.mean(0)
    return apart.T @ apart / max(len(rows) - 1, 1)


def wasserstein(moved, true, metric):
    """Squared, of two Gaussians (mean, covariance), with lengths as `metric` (d, d) has them."""
    half = root(metric)
    (m, s), (mu, sigma) = ((half @ mean, half @ spread @ half) for mean, spread in (moved, true))
    return float((m - mu).square().sum() + s.trace() + sigma.trace() - 2 * root(root(s) @ sigma @ root(s)).trace())


def missed(before, after, labels, strength, model="affine", **options):
    """By each strength, with plain loops: how far classes that were left out are transported from where they went."""
    before, after, classes = before.double(), after.double(), sorted({*labels.tolist()} - {-1})
    counts = [int((labels == label).sum()) for label in classes]
    scatters = [(n - 1) * covariance(after[labels == label]) for n, label in zip(counts, classes, strict=True)]
    within = sum(scatters) / (sum(counts) - len(counts))
    metric = torch.linalg.inv(within / 2 + within.trace() / len(within) / 2 * torch.eye(len(within)).double())
    total = 0.0
    for group in range(min(5, len(classes))):
        out = [label for number, label in enumerate(classes) if number % 5 == group]
        kept = torch.tensor([label not in out for label in labels.tolist()])
        move = transport(model, after[kept], before[kept], labels, strength=strength, **options)
        for label in out:
            was, went = before[labels == label], after[labels == label]
            matrix = move.rows(torch.eye(before.shape[1]).double())
            moved = move.means(was.mean(0)[None])[0], matrix.T @ covariance(was) @ matrix
            total += wasserstein(moved, (went.mean(0), covariance(went)), metric)
    return total


@pytest.mark.parametrize(("model", "options"), [("affine", {}), ("local", {"temperature": 0.3})])
@pytest.mark.parametrize("classes", [3, 4, 8])
@pytest.mark.parametrize("move", [linear, shifted, mixed])
def test_the_strength_is_the_one_that_misses_left_out_classes_least(classes, move, model, options):
    for seed in range(4):
        before, after, labels = lesson(move, classes, images=5, seed=seed)
        labels[labels == 3] = -1 if seed % 2 and classes > 3 else 3  # anchors are never left out
        strengths = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
        best = min(strengths, key=lambda each: missed(before, after, labels, each, model, **options))
        chosen = transport(model, after, before, labels, strength="chosen", residual=True, **options)
        expected = transport(model, after, before, labels, strength=best, residual=True, **options)
        assert torch.equal(chosen.means(OLD), expected.means(OLD))
        assert torch.equal(chosen.rows(OLD), expected.rows(OLD))
        assert torch.equal(chosen.residual, expected.residual)


@pytest.mark.parametrize(("move", "strength"), [(linear, 0.02), (shifted, 2.0)])
def test_the_chosen_strength_is_low_where_one_map_moves_all_and_high_where_only_chance_differs(move, strength):
    before, after, labels = lesson(move, images=20)
    moved = transport("affine", after, before, labels, **CHOSEN)
    assert torch.equal(moved.means(OLD), transport("affine", after, before, labels, strength=strength).means(OLD))


def test_anchors_are_of_no_class_that_could_be_left_out():
    """Those of a class that moves otherwise spoil every fit; as anchors as well, but they are not to be met."""
    before, after, labels = lesson(linear)
    odd = labels == 4
    after[odd] = before[odd] - 5 * SHIFT
    of_none = torch.where(odd, -1, labels)
    one, two = (chosen_strength(AFFINE.transport, before.double(), after.double(), each) for each in (labels, of_none))
    assert one != two


@pytest.mark.parametrize("classes", [0, 1, 2])
def test_with_fewer_than_three_classes_there_is_nothing_to_choose_by(classes):
    before, after, labels = lesson(linear, classes=8)
    labels = torch.where(labels < 3 + classes, labels, -1)
    moved = transport("affine", after, before, labels, **CHOSEN)
    assert torch.equal(moved.means(OLD), transport("affine", after, before, labels, strength=0.2).means(OLD))


def test_single_images_and_more_directions_than_images_give_a_choice():
    for images in (1, 2):
        before, after, labels = lesson(linear, classes=5, images=images)
        assert chosen_strength(AFFINE.transport, before.double(), after.double(), labels) in STRENGTHS


@pytest.mark.parametrize("strength", [0, -1.0, "best"])
def test_a_strength_is_positive_or_chosen(strength):
    with pytest.raises(ValueError, match="strength"):
        drifts["affine"](strength=strength)


# Means that move by what the affine map leaves around them


def bent(before, random):
    """A linear move, and another one for what points into one direction."""
    return linear(before, random) + 1.5 * (before[:, :1] > 0) * torch.ones(6)


def test_local_means_move_by_the_errors_around_them_and_factors_do_not():
    before, after, labels = lesson(bent)
    options = {"strength": 0.3, "residual": True}
    affine, local = (transport(model, after, before, labels, **options) for model in ("affine", "local"))
    x, centre = before.double(), before.double().mean(0)
    for share, temperature in ((0.9, 0.05), (0.5, 0.2)):
        local = transport("local", after, before, labels, share=share, temperature=temperature, **options)
        errors = after.double() - affine.means(x)
        for old in OLD.double():
            likeness = [float(torch.cosine_similarity(old - centre, each - centre, dim=0)) for each in x]
            weights = [math.exp((each - max(likeness)) / temperature) for each in likeness]
            gained = sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)
            expected = affine.means(old[None])[0] + share * gained
            torch.testing.assert_close(local.means(old[None])[0], expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(local.rows(OLD), affine.rows(OLD))
        assert torch.equal(local.residual, affine.residual)


def test_local_means_come_nearer_where_moves_differ_by_direction():
    before, after, labels = lesson(bent, classes=16)
    was, went = (torch.stack([each[labels == 3 + n].mean(0) for n in range(16)]) for each in (before, after))
    errors = []
    for model in ("affine", "local"):
        total = 0.0
        for label in range(16):
            kept = labels != 3 + label
            move = transport(model, after[kept], before[kept], labels[kept], strength=0.2)
            total += float((move.means(was[label][None])[0] - went[label]).norm())
        errors.append(total)
    assert errors[1] < 0.9 * errors[0]


def test_a_mean_that_resembles_no_feature_moves_by_the_affine_map_alone():
    before, after, labels = lesson(bent)
    before[:, 5], after[:, 5] = 0.0, 0.0
    affine, local = (transport(model, after, before, labels, strength=0.3) for model in ("affine", "local"))
    aside = before.mean(0, keepdim=True) + torch.eye(6)[5:]
    torch.testing.assert_close(local.means(aside), affine.means(aside), rtol=1e-5, atol=1e-5)


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
        move = transport("affine", noisy(lesson)[:50], BEFORE[:50], strength=0.2, residual=True)
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
    memory.transport(transport("affine", noisy(1), residual=True))
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
    twin.transport(transport("affine", noisy(1), residual=True))
    twin.load(part, meta)
    assert torch.equal(twin.pooled().scatter, memory.pooled().scatter)


@pytest.mark.parametrize(
    ("model", "options"), [*((model, {}) for model in drifts), ("affine", CHOSEN), ("local", CHOSEN)], ids=str
)
def test_a_single_image_and_equal_images_give_numbers(model, options):
    for before in (BEFORE[:1], BEFORE[:1].expand(4, 6)):
        moved = transport(model, before + SHIFT, before=before, **options)
        assert moved.means(OLD).isfinite().all()
        assert moved.rows(OLD).isfinite().all()


@pytest.mark.parametrize("model", list(drifts))
def test_rows_of_an_empty_factor(model):
    assert transport(model, BEFORE + SHIFT).rows(torch.zeros(0, 6)).shape == (0, 6)


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(LcaError, match="'affine'"):
        drifts["afine"]
