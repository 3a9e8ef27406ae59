import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allocations import LargestTensor
from lca.errors import LcaError
from lca.files import nbytes
from lca.statistics.drift import Transport
from lca.statistics.gaussians import SHRINKAGE, CovarianceOptions, GaussianMemory, combine, fit, truncate
from lca.statistics.left_out import LeftOut


def features(count, width=5, seed=0, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=random)
    return scale * torch.randn(count, width, generator=random) @ mixing + 3 * torch.randn(width, generator=random)


def scatter(factor):
    return factor.double().T @ factor.double()


def memory_of(*classes, **options):
    memory = GaussianMemory(CovarianceOptions(**options))
    for label, rows in enumerate(classes):
        memory.observe(label, rows)
    return memory


def draw(memory, count=40000, seed=0):
    return memory.sample(count, torch.Generator().manual_seed(seed))[0].double()


@pytest.mark.parametrize("count", [2, 3, 5, 6, 40])
def test_the_factor_is_exact(count):
    rows = features(count)
    gaussian = fit(rows)
    expected = torch.cov(rows.double().T) * (count - 1)
    torch.testing.assert_close(scatter(gaussian.factor), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(gaussian.mean.double(), rows.double().mean(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("count", "rows"), [(1, 0), (2, 1), (4, 3), (5, 4), (6, 5), (50, 5)])
def test_the_factor_has_no_superfluous_row(count, rows):
    gaussian = fit(features(count))
    assert gaussian.factor.shape == (rows, 5)
    assert (gaussian.count, gaussian.factor.dtype, gaussian.mean.dtype) == (count, torch.float32, torch.float32)


def test_the_factor_is_not_the_features():
    rows = features(4)
    centred = rows - rows.mean(0)
    assert torch.cdist(fit(rows).factor, centred).min() > 1e-3


def test_a_large_offset_costs_no_precision():
    rows = features(30).double()
    far = fit((rows + 1000).float())
    expected = torch.cov((rows + 1000).float().double().T) * 29
    torch.testing.assert_close(scatter(far.factor), expected, rtol=1e-4, atol=1e-3)


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5), seed=st.integers(0, 1000))
def test_combining_batches_equals_one_fit(sizes, seed):
    rows = features(sum(sizes), seed=seed)
    batches = rows.split(sizes)
    combined = fit(batches[0])
    for batch in batches[1:]:
        combined = combine(combined, fit(batch))
    whole = fit(rows)
    assert combined.count == whole.count
    assert len(combined.factor) <= min(sum(sizes) - 1, 5)
    torch.testing.assert_close(combined.mean, whole.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scatter(combined.factor), scatter(whole.factor), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_a_class_that_returns_is_combined(kind):
    rows = features(30)
    streamed = memory_of(rows[:7], kind=kind)
    streamed.observe(0, rows[7:8])
    streamed.observe(0, rows[8:])
    whole = memory_of(rows, kind=kind)
    torch.testing.assert_close(streamed.means(), whole.means(), rtol=1e-4, atol=1e-5)
    pooled, expected = streamed.pooled(), whole.pooled()
    assert pooled.freedom == expected.freedom == 29
    torch.testing.assert_close(pooled.scatter, expected.scatter, rtol=1e-4, atol=1e-2)


def test_truncation_by_rank_is_the_best_of_that_rank():
    factor = fit(features(30)).factor
    short = truncate(factor, rank=2, energy=None)
    assert short.shape == (2, 5)
    values, vectors = np.linalg.eigh(scatter(factor).numpy())
    best = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    np.testing.assert_allclose(scatter(short).numpy(), best, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("energy", [0.3, 0.6, 0.9, 0.99, 1.0])
def test_truncation_by_energy_keeps_the_share_and_no_more(energy):
    factor = fit(features(30)).factor
    short = truncate(factor, rank=None, energy=energy)
    total = factor.double().square().sum()
    assert short.double().square().sum() / total >= energy - 1e-6
    if len(short) > 1:
        assert short[:-1].double().square().sum() / total < energy


def test_rank_and_energy_both_bound_a_stored_factor():
    rows = features(30)
    assert len(memory_of(rows, rank=3).classes[0].factor) == 3
    assert len(memory_of(rows, energy=0.5).classes[0].factor) < 5
    assert len(memory_of(rows, rank=1, energy=0.999).classes[0].factor) == 1


def test_diagonal_stores_the_variances():
    rows = features(30)
    factor = memory_of(rows, kind="diagonal").classes[0].factor
    torch.testing.assert_close(factor.double().square() / 29, rows.double().var(0), rtol=1e-4, atol=1e-4)


def test_shared_stores_one_factor_and_no_memory_behind_empty_ones():
    memory = memory_of(features(30, seed=1), features(20, seed=2), kind="shared")
    assert memory.shared.shape == (5, 5)
    for gaussian in memory.classes.values():
        assert gaussian.factor.shape == (0, 5)
        assert gaussian.factor.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_samples_have_the_class_mean_and_covariance(kind):
    rows = features(60)
    drawn = draw(memory_of(rows, kind=kind, ridge=0.0))[0]
    expected = torch.cov(rows.double().T)
    if kind == "diagonal":
        expected = expected.diag().diag()
    size = expected.trace()
    torch.testing.assert_close(drawn.mean(0), rows.double().mean(0), rtol=0, atol=0.02 * float(size.sqrt()))
    torch.testing.assert_close(torch.cov(drawn.T), expected, rtol=0, atol=0.02 * float(size))


def test_shared_samples_have_the_pooled_covariance():
    first, second = features(40, seed=1), features(10, seed=2)
    drawn = draw(memory_of(first, second, kind="shared", ridge=0.0))
    pooled = (39 * torch.cov(first.double().T) + 9 * torch.cov(second.double().T)) / 48
    for own, rows in zip(drawn, (first, second), strict=True):
        torch.testing.assert_close(torch.cov(own.T), pooled, rtol=0, atol=0.02 * float(pooled.trace()))
        assert torch.allclose(own.mean(0), rows.double().mean(0), atol=0.02 * float(pooled.trace().sqrt()))


def test_ridge_adds_variance_in_every_direction():
    rows = features(3)
    without, ridged = (draw(memory_of(rows, ridge=ridge))[0] for ridge in (0.0, 0.5))
    difference = torch.cov(ridged.T) - torch.cov(without.T)
    size = float(torch.cov(rows.double().T).trace())
    torch.testing.assert_close(difference, 0.5 * torch.eye(5).double(), rtol=0, atol=0.03 * size)
    assert torch.linalg.matrix_rank(torch.cov(without.T), rtol=1e-5) == 2
    assert torch.linalg.matrix_rank(torch.cov(ridged.T), rtol=1e-5) == 5


def test_unbiased_divides_by_one_less():
    rows = features(4)
    unbiased, biased = (draw(memory_of(rows, ridge=0.0, unbiased=each), 2000)[0] for each in (True, False))
    centre = rows.double().mean(0)
    torch.testing.assert_close((unbiased - centre) * (3 / 4) ** 0.5, biased - centre, rtol=1e-4, atol=1e-4)


def test_samples_are_in_label_order():
    memory = GaussianMemory(CovarianceOptions())
    for label in (7, 2, 5):
        memory.observe(label, features(10, seed=label, scale=0.01))
    drawn, labels = memory.sample(4, torch.Generator())
    assert labels.tolist() == [2, 5, 7]
    assert drawn.shape == (3, 4, 5)
    torch.testing.assert_close(drawn.mean(1), memory.means(), rtol=0, atol=0.2)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_a_class_with_one_image_takes_the_pooled_covariance_and_says_so(kind, caplog):
    many, other, one = features(50, seed=1), features(30, seed=2), features(1, seed=3)
    memory = memory_of(many, other, one, kind=kind, ridge=0.0)
    with caplog.at_level(logging.INFO, logger="lca.statistics.gaussians"):
        drawn = draw(memory)
    assert "1 class(es) with one image" in caplog.text
    assert "[2]" in caplog.text
    pooled = (49 * torch.cov(many.double().T) + 29 * torch.cov(other.double().T)) / 78
    if kind == "diagonal":
        pooled = pooled.diag().diag()
    torch.testing.assert_close(torch.cov(drawn[2].T), pooled, rtol=0, atol=0.03 * float(pooled.trace()))
    torch.testing.assert_close(drawn[2].mean(0), one[0].double(), rtol=0, atol=0.03 * float(pooled.trace().sqrt()))


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_classes_of_one_image_only(kind):
    memory = memory_of(features(1, seed=1), features(1, seed=2), kind=kind, ridge=0.25)
    reloaded = GaussianMemory(memory.options)
    reloaded.load(*memory.state())
    for each in (memory, reloaded):
        drawn = draw(each)
        torch.testing.assert_close(drawn.mean(1), each.means().double(), rtol=0, atol=0.02)
        torch.testing.assert_close(torch.cov(drawn[0].T), 0.25 * torch.eye(5).double(), rtol=0, atol=0.02)
        assert each.mahalanobis(each.means()).argmin(1).tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_equal_and_constant_features(kind):
    constant = torch.ones(6, 5)
    dead = features(10)
    dead[:, 2] = 4.0
    memory = memory_of(constant, dead, kind=kind)
    assert draw(memory, 50).isfinite().all()
    assert memory.mahalanobis(dead).isfinite().all()
    only = memory_of(constant, kind=kind, ridge=0.0)
    torch.testing.assert_close(draw(only, 10)[0], constant[:1].double().expand(10, 5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(bad):
    rows = features(4)
    rows[1, 2] = bad
    with pytest.raises(LcaError, match="class 3: 4 features contain NaN"):
        GaussianMemory(CovarianceOptions()).observe(3, rows)


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_state_and_load_are_inverse(kind):
    memory = memory_of(features(9, seed=1), features(1, seed=2), features(4, seed=3), kind=kind)
    part, meta = memory.state()
    twin = GaussianMemory(memory.options)
    twin.load({name: tensor.clone() for name, tensor in part.items()}, meta)
    assert torch.equal(draw(memory, 30), draw(twin, 30))
    assert {label: each.count for label, each in twin.classes.items()} == {0: 9, 1: 1, 2: 4}
    twin.observe(1, features(3, seed=4))
    memory.observe(1, features(3, seed=4))
    assert torch.equal(twin.mahalanobis(features(5)), memory.mahalanobis(features(5)))


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_transport_moves_means_as_points_and_factors_linearly(kind):
    rows = features(30)
    random = torch.Generator().manual_seed(9)
    linear = torch.randn(5, 5, generator=random) if kind != "diagonal" else (1 + torch.rand(5, generator=random)).diag()
    shift = torch.randn(5, generator=random)
    memory = memory_of(rows, kind=kind)
    memory.transport(Transport(lambda means: means @ linear + shift, lambda factor: factor @ linear))
    expected = memory_of(rows @ linear + shift, kind=kind)
    torch.testing.assert_close(memory.means(), expected.means(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(memory.pooled().scatter, expected.pooled().scatter, rtol=1e-3, atol=1e-1)
    assert memory.classes[0].count == 30


def test_the_pooled_covariance_by_hand():
    classes = [features(count, seed=count) for count in (7, 3, 12)]
    pooled = memory_of(*classes).pooled()
    by_hand = sum(
        (rows.double() - rows.double().mean(0)).T @ (rows.double() - rows.double().mean(0)) for rows in classes
    )
    assert pooled.freedom == 6 + 2 + 11
    torch.testing.assert_close(pooled.scatter, by_hand, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(scatter(pooled.factor()), by_hand, rtol=1e-4, atol=1e-2)
    covariance = by_hand / 19
    expected = 0.7 * covariance + (0.3 * covariance.trace() / 5 + 0.01) * torch.eye(5).double()
    torch.testing.assert_close(pooled.shrunk(0.3, 0.01), expected, rtol=1e-5, atol=1e-4)


def test_the_mahalanobis_distance_by_hand():
    classes = [features(20, seed=seed) for seed in (1, 2, 3)]
    memory = memory_of(*classes, ridge=0.02)
    points = features(6, seed=8)
    inverse = torch.linalg.inv(memory.pooled().shrunk(SHRINKAGE, 0.02))
    for point, distances in zip(points.double(), memory.mahalanobis(points), strict=True):
        for mean, distance in zip(memory.means().double(), distances.tolist(), strict=True):
            assert distance == pytest.approx(float((point - mean) @ inverse @ (point - mean)), rel=1e-3, abs=1e-3)


def test_sampling_in_chunks_draws_every_class_from_its_own_gaussian():
    classes = [torch.full((3, 4), 10.0 * label) + features(3, 4, scale=0.01) * 0 for label in range(40)]
    memory = memory_of(*classes, ridge=0.0)
    drawn, labels = memory.sample(2**18, torch.Generator().manual_seed(0))  # more than one chunk
    torch.testing.assert_close(drawn.mean(1)[:, 0], 10.0 * labels, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "shared"])
def test_a_borrowed_covariance_is_not_copied_for_every_class(kind):
    """Of 300 classes every other one has one image: with a factor each there would be up to 300 x d x d numbers."""
    random = torch.Generator().manual_seed(0)
    memory = memory_of(*(torch.randn(1 + 2 * (label % 2), 256, generator=random) for label in range(300)), kind=kind)
    with LargestTensor() as largest:
        memory.sample(8, torch.Generator())
    assert largest.bytes <= 300 * 8 * 256 * 4


def test_one_large_class_does_not_widen_all_others_at_once():
    """Chunks are bounded by the rows of their factors as well, which are as many as the largest class has."""
    random = torch.Generator().manual_seed(0)
    memory = memory_of(*(torch.randn(2 + 800 * (label == 7), 512, generator=random) for label in range(100)))
    with LargestTensor() as largest:
        memory.sample(4, torch.Generator())
    assert largest.bytes <= 2**24 * 4


@pytest.mark.parametrize("batches", [(50,), (20, 30), (1, 1, 8)])
def test_classes_of_fifty_images_take_less_than_a_tenth_of_their_covariances_without_loss(batches):
    random, width = torch.Generator().manual_seed(0), 768
    mixing = torch.randn(width, width, generator=random) / width**0.5
    classes = [torch.randn(sum(batches), width, generator=random) @ mixing + label for label in range(3)]
    memory = GaussianMemory(CovarianceOptions())
    for label, rows in enumerate(classes):
        for batch in rows.split(batches):
            memory.observe(label, batch)
    assert nbytes(memory.state()[0]) <= 0.1 * len(classes) * width**2 * 4
    for rows, gaussian in zip(classes, memory.classes.values(), strict=True):
        covariance = torch.cov(rows.double().T)
        stored = scatter(gaussian.factor) / (gaussian.count - 1)
        assert (stored - covariance).norm() <= 1e-6 * covariance.norm(), "no more than float32 rounds"


# Several views of an image


def viewed(images, views, width=5, seed=0):
    """(images, views, width): views of an image are less apart than images."""
    random = torch.Generator().manual_seed(100 + seed)
    return features(images, width, seed)[:, None] + 0.4 * torch.randn(images, views, width, generator=random)


def by_hand(batches):
    """Count, mean and scatter of batches (images, views, width): every image counts once, whatever its views."""
    count = sum(len(rows) for rows in batches)
    mean = sum(rows.double().mean(1).sum(0) for rows in batches) / count
    apart = [(rows.double() - mean).flatten(0, 1) / rows.shape[1] ** 0.5 for rows in batches]
    return count, mean, sum(rows.T @ rows for rows in apart)


@pytest.mark.parametrize("views", [(3,), (1, 4), (6, 1, 2)])
def test_more_views_tell_of_the_spread_and_count_no_more(views):
    """Also of a class that was seen in other views before."""
    batches = [viewed(images, count, seed=count) for images, count in zip((4, 2, 3), views, strict=False)]
    memory = GaussianMemory(CovarianceOptions())
    for rows in batches:
        memory.observe(0, rows.flatten(0, 1), rows.shape[1])
    count, mean, spread = by_hand(batches)
    gaussian = memory.classes[0]
    assert gaussian.count == count
    torch.testing.assert_close(gaussian.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scatter(gaussian.factor), spread, rtol=1e-4, atol=1e-4)


def test_the_spread_of_views_counts_where_no_class_has_more_than_one_image():
    """Beside a class of several images those of one add nothing: what they would add is not the spread of a class."""
    one, other, several = viewed(1, 6, seed=1), viewed(1, 6, seed=2), viewed(4, 6, seed=3)
    memory = GaussianMemory(CovarianceOptions())
    for label, rows in enumerate((one, other)):
        memory.observe(label, rows.flatten(0, 1), 6)
    pooled = memory.pooled()
    torch.testing.assert_close(pooled.scatter, by_hand([one])[2] + by_hand([other])[2], rtol=1e-4, atol=1e-4)
    assert pooled.freedom == 2
    memory.observe(2, several.flatten(0, 1), 6)
    torch.testing.assert_close(memory.pooled().scatter, by_hand([several])[2], rtol=1e-4, atol=1e-4)
    assert memory.pooled().freedom == 3


@pytest.mark.parametrize("views", [1, 3])
def test_what_a_class_is_without_an_image(views):
    """The mean, and the rows that the scatter loses, against a class that was learnt without it."""
    classes = [viewed(images, views, seed=images) for images in (5, 2, 1)]
    rows, labels = torch.cat(classes), label_of(classes)
    memory = memory_of()
    for label, own in enumerate(classes):
        memory.observe(label, own.flatten(0, 1), views)
    images = torch.arange(8).repeat(views)
    out = LeftOut.of(rows.transpose(0, 1).flatten(0, 1), labels.repeat(views), memory.means(), memory.counts(), images)
    assert out.left.tolist() == [4, 4, 4, 4, 4, 1, 1, 0]
    for image, label in enumerate(labels.tolist()[:-1]):
        own, place = classes[label], image - (0, 5)[label]
        _, mean, spread = by_hand([torch.cat([own[:place], own[place + 1 :]])])
        torch.testing.assert_close(out.means[image], mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(out.apart[image], own[place, 0].double() - mean, rtol=1e-4, atol=1e-4)
        lost = by_hand([own])[2] - spread
        torch.testing.assert_close(out.lost[image].T @ out.lost[image], lost, rtol=1e-4, atol=1e-3)


def test_images_may_differ_in_their_views():
    """Those of a smaller class are seen in more."""
    few, many = viewed(2, 4, seed=1), viewed(5, 1, seed=2)
    plain = torch.cat([few[:, 0], many[:, 0]])
    rows = torch.cat([plain, few[:, 1:].transpose(0, 1).flatten(0, 1)])
    labels = torch.tensor([0, 0, *[1] * 5, *[0] * 6])
    images = torch.tensor([*range(7), *[0, 1] * 3])
    memory = memory_of()
    memory.observe(0, few.flatten(0, 1), 4)
    memory.observe(1, many.flatten(0, 1))
    out = LeftOut.of(rows, labels, memory.means(), memory.counts(), images)
    for image, (own, place) in enumerate([(few, 0), (few, 1), *((many, number) for number in range(5))]):
        _, mean, spread = by_hand([torch.cat([own[:place], own[place + 1 :]])])
        torch.testing.assert_close(out.means[image], mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            out.lost[image].T @ out.lost[image], by_hand([own])[2] - spread, rtol=1e-4, atol=1e-3
        )


def test_leaving_an_image_out_leaves_all_of_its_views_out():
    classes = [viewed(images, 3, 12, seed=images) for images in (6, 2, 4)]

    def learnt(all_rows):
        memory = memory_of()
        for label, rows in enumerate(all_rows):
            memory.observe(label, rows.flatten(0, 1), 3)
        return memory

    rows, images = torch.cat(classes).transpose(0, 1).flatten(0, 1), torch.arange(12).repeat(3)
    found = learnt(classes).leave_one_out(rows, label_of(classes).repeat(3), images)
    expected = []
    for label, own in enumerate(classes):
        for place in range(len(own)):
            rest = [
                torch.cat([own[:place], own[place + 1 :]]) if number == label else each
                for number, each in enumerate(classes)
            ]
            expected.append(learnt(rest).mahalanobis(own[place, :1])[0, label])
    several = label_of(classes) != 1  # learnt anew, the image that is left of two would take no part in the scatter
    torch.testing.assert_close(found[several], torch.stack(expected)[several], rtol=1e-3, atol=1e-4)
    assert (found > 0).all()
    assert found.shape == (12,)


# Leaving one image out


def label_of(classes):
    return torch.cat([torch.full((len(rows),), label) for label, rows in enumerate(classes)])


def refitted_distances(classes, **options):
    """Brute force: for every image, learn everything but that image, then ask how far it lies from its class."""
    found = []
    for label, rows in enumerate(classes):
        for number, row in enumerate(rows):
            rest = [torch.cat([rows[:number], rows[number + 1 :]]) if each is rows else each for each in classes]
            found.append(memory_of(*rest, **options).mahalanobis(row[None])[0, label])
    return torch.stack(found)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("kind", ["full", "shared"])
@pytest.mark.parametrize("counts", [(8, 3, 12), (20, 30), (2, 2, 7), (40,), (5, 1, 6)])
def test_leaving_one_out_is_learning_without_it(kind, unbiased, counts):
    classes = [features(count, 12, seed=number) for number, count in enumerate(counts)]
    found = memory_of(*classes, kind=kind, unbiased=unbiased).leave_one_out(torch.cat(classes), label_of(classes))
    single = torch.tensor(counts)[label_of(classes)] == 1
    classes_without = [rows for rows in classes if len(rows) > 1]
    expected = refitted_distances(classes_without, kind=kind, unbiased=unbiased)
    if unbiased:  # else a class of one image changes what the scatter is divided by
        torch.testing.assert_close(found[~single], expected, rtol=1e-4, atol=1e-6)
    elif not single.any():
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert found[single].isnan().all()
    assert (found[~single] > 0).all()


@pytest.mark.parametrize("kind", ["full", "shared"])
def test_leaving_one_out_of_a_class_that_came_in_two_batches(kind):
    first, again, other = features(9, seed=1), features(6, seed=2), features(8, seed=3)
    memory = memory_of(first, other, kind=kind)
    memory.observe(0, again)
    expected = refitted_distances([torch.cat([first, again]), other], kind=kind)
    labels = label_of([torch.cat([first, again]), other])
    found = memory.leave_one_out(torch.cat([first, again, other]), labels)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    part = memory.leave_one_out(again, torch.zeros(6, dtype=torch.long))
    torch.testing.assert_close(part, expected[9:15], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_the_typical_spread_is_the_mean_square_distance_to_the_mean(kind):
    classes = [features(8, seed=1), features(6, seed=2), features(30, seed=3)]
    memory = memory_of(*classes, kind=kind)
    expected = [memory.mahalanobis(rows)[:, label].double().mean() for label, rows in enumerate(classes)]
    torch.testing.assert_close(memory.typical_spreads(), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"kind": "diagonal"}, {"rank": 2}, {"energy": 0.8}])
def test_where_factors_are_not_exact_only_the_mean_is_left_one_out(options):
    classes = [features(count, seed=count) for count in (7, 5, 30)]
    memory = memory_of(*classes, **options)
    inverse = torch.linalg.inv(memory.pooled().shrunk(SHRINKAGE, memory.options.ridge))
    found = memory.leave_one_out(torch.cat(classes), label_of(classes)).double()
    expected = []
    for rows in classes:
        for number in range(len(rows)):
            others = torch.cat([rows[:number], rows[number + 1 :]]).double()
            apart = rows[number].double() - others.mean(0)
            expected.append(apart @ inverse @ apart)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_a_class_with_one_image_has_no_distance_to_itself():
    classes = [features(1, seed=1), features(9, seed=2), features(1, seed=3)]
    memory = memory_of(*classes)
    assert memory.leave_one_out(torch.cat(classes), label_of(classes)).isnan().tolist() == [True, *[False] * 9, True]
    assert memory.typical_distances().isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("ridge", [1e-4, 0.0])
@pytest.mark.parametrize("kind", ["full", "shared"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_where_one_image_is_all_the_spread_there_is_no_distance(kind, ridge, scale):
    """Without either of two images nothing is left to measure with; rounding must not make up a number."""
    two = scale * torch.randn(2, 192, generator=torch.Generator().manual_seed(1))
    memory = memory_of(two, features(1, 192), kind=kind, ridge=ridge)
    assert memory.leave_one_out(two, torch.tensor([0, 0])).isnan().all()
    assert memory.typical_distances().isnan().all()
    memory.observe(1, features(5, 192, seed=3))
    assert (memory.leave_one_out(two, torch.tensor([0, 0])) > 0).all()
    assert (memory.typical_distances() > 0).all()


def test_an_image_that_holds_nearly_all_the_spread_is_far_not_negative():
    for noise in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        rows = noise * features(6, 192, seed=2)
        rows[0] += 30
        found = memory_of(rows, ridge=0.0).leave_one_out(rows, torch.zeros(6, dtype=torch.long))
        assert (found[~found.isnan()] >= 0).all()
        assert found[0].isnan() or found[0] > 100 * found[1:].max()


@pytest.mark.parametrize("options", [{}, {"kind": "diagonal"}, {"rank": 2}])
def test_the_typical_distance_of_two_images_is_theirs(options):
    """Two images lie equally far from their mean, so that both are typical."""
    classes = [features(2, seed=1), features(2, seed=2), features(20, seed=3)]
    memory = memory_of(*classes, **options)
    found = memory.leave_one_out(torch.cat(classes), label_of(classes))
    if options != {"kind": "diagonal"}:
        torch.testing.assert_close(memory.typical_distances()[:2], found[[0, 2]], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "shared", "diagonal"])
def test_the_typical_distance_is_about_the_mean_of_the_images(kind):
    random = torch.Generator().manual_seed(3)
    classes = [torch.randn(60, 8, generator=random) + 5 * label for label in range(3)]
    memory = memory_of(*classes, kind=kind)
    found = memory.leave_one_out(torch.cat(classes), label_of(classes)).reshape(3, 60).mean(1)
    torch.testing.assert_close(memory.typical_distances(), found, rtol=0.1, atol=0)


# Forgetting


@pytest.mark.parametrize("options", [{}, {"kind": "diagonal"}, {"rank": 2}])
def test_a_forgotten_class_leaves_nothing_and_the_labels_move_down(options):
    classes = [features(count, seed=count) for count in (7, 3, 12, 1)]
    memory = memory_of(*classes, **options)
    memory.pooled()
    memory.forget(1)
    without = memory_of(classes[0], classes[2], classes[3], **options)
    (part, meta), (expected, expected_meta) = memory.state(), without.state()
    assert meta == expected_meta
    assert part.keys() == expected.keys()
    assert all(torch.equal(part[name], expected[name]) for name in part)
    assert torch.equal(memory.mahalanobis(features(6)), without.mahalanobis(features(6)))
    with pytest.raises(KeyError):
        memory.forget(3)


def test_a_shared_covariance_stays_when_a_class_is_forgotten():
    classes = [features(count, seed=count) for count in (30, 10, 20)]
    memory = memory_of(*classes, kind="shared")
    before, points = memory.pooled().shrunk(0.3, 0.0), features(6)
    distances = memory.mahalanobis(points)
    memory.forget(1)
    assert memory.pooled().freedom == 29 + 19
    torch.testing.assert_close(memory.pooled().shrunk(0.3, 0.0), before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(memory.mahalanobis(points), distances[:, [0, 2]], rtol=1e-4, atol=1e-4)
    new = features(40, seed=5)  # and what comes then counts by its number
    memory.observe(2, new)
    mixed = (48 * (before - memory_level(before)) + 39 * torch.cov(new.double().T) * 0.7) / 87
    found = memory.pooled().shrunk(0.3, 0.0)
    torch.testing.assert_close(found - memory_level(found), mixed, rtol=1e-3, atol=1e-2)


def memory_level(shrunk, shrinkage=0.3):
    """The isotropic part of (1 - s) Σ + s tr(Σ)/d I, whose trace is that of Σ."""
    return shrinkage * shrunk.trace() / len(shrunk) * torch.eye(len(shrunk)).double()


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_after_the_last_class_is_forgotten_nothing_is_left(kind):
    memory = memory_of(features(9, seed=1), features(5, seed=2), kind=kind)
    memory.forget(0)
    memory.forget(0)
    assert memory.classes == {}
    assert memory.state() == ({}, {"counts": {}})
    memory.observe(0, features(6, seed=3))
    fresh = memory_of(features(6, seed=3), kind=kind)
    assert torch.equal(memory.mahalanobis(features(4)), fresh.mahalanobis(features(4)))


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_every_change_is_seen_in_the_pooled_covariance(kind):
    classes = [features(9, seed=1), features(7, seed=2)]

    def changed(change):
        memory = memory_of(*classes, kind=kind)
        before = memory.pooled()
        assert memory.pooled() is before, "it is computed once"
        change(memory)
        after = memory.pooled()
        recomputed = GaussianMemory(memory.options)
        recomputed.load(*memory.state())
        torch.testing.assert_close(after.scatter, recomputed.pooled().scatter, rtol=1e-6, atol=1e-6)
        assert after.freedom == recomputed.pooled().freedom
        return before, after

    other = memory_of(features(20, seed=5), kind=kind)
    for change in (
        lambda memory: memory.observe(2, features(5, seed=3)),
        lambda memory: memory.observe(0, features(5, seed=3)),
        lambda memory: memory.transport(Transport(lambda means: means, lambda rows: 2 * rows)),
        lambda memory: memory.forget(0),
        lambda memory: memory.load(*other.state()),
    ):
        before, after = changed(change)
        assert not torch.allclose(after.scatter, before.scatter, rtol=1e-3)
    moved = memory_of(*classes, kind=kind)
    assert torch.equal(moved.to(torch.device("cpu")).pooled().scatter, moved.pooled().scatter)


@pytest.mark.parametrize("options", [{}, {"kind": "shared"}, {"kind": "diagonal"}, {"unbiased": False}])
def test_two_classes_made_one_are_as_if_observed_as_one(options):
    """Batches of one class are combined exactly, and so are two classes; what is pooled counts one mean less."""
    random = torch.Generator().manual_seed(3)
    batches = [torch.randn(count, 6, generator=random) + shift for count, shift in ((5, 0), (7, 2), (4, -1))]
    merged, union = (GaussianMemory(CovarianceOptions(**options)) for _ in range(2))
    for label, batch in enumerate(batches):
        merged.observe(label, batch)
        union.observe(min(label, 1), batch)
    merged.merge(1, 2)
    assert merged.counts().tolist() == union.counts().tolist() == [5, 11]
    torch.testing.assert_close(merged.means(), union.means(), rtol=0, atol=1e-6)
    torch.testing.assert_close(merged.pooled().scatter, union.pooled().scatter, rtol=1e-5, atol=1e-5)
    assert merged.pooled().freedom == union.pooled().freedom
    torch.testing.assert_close(merged.mahalanobis(batches[0]), union.mahalanobis(batches[0]), rtol=1e-4, atol=1e-5)


def test_two_classes_made_one_leave_the_unexplained_covariance_as_it_was():
    memory = GaussianMemory(CovarianceOptions())
    for label in range(3):
        memory.observe(label, torch.randn(4, 5, generator=torch.Generator().manual_seed(label)))
    memory.residual = torch.eye(5)
    memory.merge(0, 1)
    covariance = memory.residual.T @ memory.residual / memory.pooled().freedom
    torch.testing.assert_close(covariance, torch.eye(5) / 9)  # 3 classes of 4: freedom 9, now 10


def test_a_truncated_factor_stays_truncated_when_classes_become_one():
    memory = GaussianMemory(CovarianceOptions(rank=2))
    for label in range(2):
        memory.observe(label, torch.randn(6, 5, generator=torch.Generator().manual_seed(label)))
    memory.merge(0, 1)
    assert memory.classes[0].factor.shape == (2, 5)
