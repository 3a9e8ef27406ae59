"""Percentiles of distances: against NumPy, by hand, and on data whose distribution is known."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lca.statistics.distances import KEPT, STEADINESS, KnownDistances
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

FEW = [4.0, 1.0, 9.0, 2.5, 6.0]


def known(*classes, typical=None):
    """Distances as a branch observes them: after it has said how large they typically are."""
    distances = KnownDistances()
    distances.rescale(torch.tensor(typical or [1.0] * len(classes)))
    for label, values in enumerate(classes):
        distances.observe(label, torch.as_tensor(values))
    return distances


def ask(distances, values):
    return distances.percentiles(torch.as_tensor(np.asarray(values), dtype=torch.float64)).double().numpy()


def interpolated(values, asked):
    """The distribution function of all values, linear between them, with a place left for one more."""
    values = np.sort(values)
    heights = (np.arange(len(values)) + 0.5) / (len(values) + 1)
    return 100 * np.interp(asked, [0.0, *values], [0.0, *heights])


def log_normal(count, seed, spread=0.4, centre=3.0):
    return torch.tensor(np.random.default_rng(seed).lognormal(centre, spread, count), dtype=torch.float32)


def test_nothing_known_gives_no_answer():
    assert KnownDistances().percentiles(torch.ones(3)) is None
    only_single_images = known([float("nan")], [float("nan")])
    assert only_single_images.percentiles(torch.ones(3)) is None
    assert only_single_images.state()[0] == {}


def test_few_values_give_the_interpolated_distribution_function():
    asked = np.linspace(0, 9, 50)
    np.testing.assert_allclose(ask(known(FEW), asked), interpolated(FEW, asked), atol=1e-4)
    np.testing.assert_allclose(ask(known(FEW), [9.0]), [100 * 4.5 / 6], atol=1e-4)


def test_the_values_of_all_classes_count_alike():
    classes = [FEW, [3.0, 7.0], [0.5]]
    asked = np.linspace(0, 9, 50)
    np.testing.assert_allclose(ask(known(*classes), asked), interpolated(np.concatenate(classes), asked), atol=1e-4)


def test_the_shape_of_the_question_stays():
    asked = torch.tensor([[0.3, 4.0, 80.0], [5.0, 2.0, 1.0]])
    answer = known(FEW).percentiles(asked)
    assert answer.shape == (2, 3)
    for row, column in np.ndindex(2, 3):
        assert float(answer[row, column]) == pytest.approx(ask(known(FEW), [float(asked[row, column])])[0], abs=1e-4)


numbers = st.floats(0, 1e8, width=32)


@given(
    values=st.lists(numbers, min_size=1, max_size=80),
    asked=st.lists(numbers, min_size=2, max_size=20),
    cut=st.integers(0, 80),
)
def test_percentiles_grow_and_stay_between_0_and_100(values, asked, cut):
    answers = ask(known(values[:cut], values[cut:]), np.sort([*asked, *values]))
    assert np.isfinite(answers).all()
    assert answers.min() >= 0
    assert answers.max() <= 100
    assert (np.diff(answers) >= -1e-4).all()


def test_nan_is_left_out():
    with_nan = known([4.0, float("nan"), 1.0, 9.0, float("nan"), 2.5, 6.0])
    asked = np.linspace(0, 40, 50)
    np.testing.assert_array_equal(ask(with_nan, asked), ask(known(FEW), asked))
    with_nan.observe(0, torch.tensor([float("nan")]))
    np.testing.assert_array_equal(ask(with_nan, asked), ask(known(FEW), asked))


@pytest.mark.parametrize("count", [KEPT + 1, 100, 5000])
def test_many_values_are_kept_as_quantiles_close_to_all_of_them(count):
    values = log_normal(count, seed=count)
    distances = known(values)
    part, _ = distances.state()
    assert part["0"].shape == (KEPT,)
    assert np.isin(part["0"], values).all(), "quantiles are values that occurred"
    asked = np.quantile(values, np.linspace(0.01, 0.98, 60))
    np.testing.assert_allclose(ask(distances, asked), interpolated(values, asked), atol=100 * 1.2 / KEPT)


def test_no_more_than_needed_is_kept_and_small_classes_whole():
    part, _ = known(log_normal(KEPT, 1)).state()
    np.testing.assert_array_equal(part["0"], np.sort(log_normal(KEPT, 1)))


@pytest.mark.parametrize(("first", "second"), [(3, 5), (20, 12)])
def test_few_values_in_two_observations_are_like_one(first, second):
    values = log_normal(first + second, seed=7)
    twice = known(values[:first])
    twice.observe(0, values[first:])
    asked = np.linspace(0, 200, 80)
    np.testing.assert_array_equal(ask(twice, asked), ask(known(values), asked))


@pytest.mark.parametrize(("first", "second"), [(300, 300), (600, 40), (40, 600), (20, 500)])
def test_many_values_in_two_observations_weigh_by_their_number(first, second):
    near, far = log_normal(first, seed=1, centre=2.0), log_normal(second, seed=2, centre=4.0)
    twice = known(near)
    twice.observe(0, far)
    together = torch.cat([near, far])
    asked = np.quantile(together, np.linspace(0.02, 0.95, 40))
    np.testing.assert_allclose(ask(twice, asked), interpolated(together, asked), atol=100 * 2.5 / KEPT)


def test_a_large_class_weighs_more_than_a_small_one():
    large, small = log_normal(2000, seed=1, centre=2.0), log_normal(10, seed=2, centre=4.0)
    asked = np.quantile(large, np.linspace(0.02, 0.95, 40))
    expected = interpolated(torch.cat([large, small]), asked)
    np.testing.assert_allclose(ask(known(large, small), asked), expected, atol=100 * 1.5 / KEPT)


def test_the_tail_by_hand():
    asked = np.array([9.0001, 12.0, 30.0, 400.0])
    spread = np.std(np.log(FEW))
    expected = 100 * (1 - (1 - 4.5 / 6) * (9 / asked) ** (2 / spread))
    np.testing.assert_allclose(ask(known(FEW), asked), expected, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 33, 400])
def test_the_tail_goes_on_growing_and_calls_far_things_far(count):
    values = log_normal(count, seed=3)
    far = float(values.max()) * np.geomspace(1, 1e6, 200)
    answers = ask(known(values), far)
    assert (np.diff(answers[answers < 99.999]) > 0).all()
    assert answers.max() <= 100
    if count <= KEPT:
        assert answers[0] <= 100 * count / (count + 1)
    if count >= 10:
        assert ask(known(values), [10 * float(values.max())])[0] >= 99
    assert answers[-1] >= 99.9


def test_equal_and_zero_distances_do_not_break_it():
    for value in (0.0, 5.0):
        answers = ask(known([value] * 6), [0.0, value, value + 1, 1e9])
        assert np.isfinite(answers).all()
        assert (np.diff(answers) >= 0).all()
        assert answers[-1] >= 99


def test_forgetting_a_class_moves_the_labels_above_down():
    classes = [log_normal(count, seed) for seed, count in enumerate((4, 50, 6, 9))]
    distances, asked = known(*classes, typical=[1.0, 2.0, 3.0, 4.0]), np.linspace(0, 200, 60)
    distances.forget(1)
    rest = known(*(each for number, each in enumerate(classes) if number != 1), typical=[1.0, 3.0, 4.0])
    np.testing.assert_array_equal(ask(distances, asked), ask(rest, asked))
    assert {name: len(values) for name, values in distances.state()[0].items()} == {"0": 4, "1": 6, "2": 9}
    assert distances.state()[1] == rest.state()[1]
    for _ in range(3):
        distances.forget(0)
    assert distances.percentiles(torch.ones(2)) is None


def test_forgetting_a_class_without_a_distance():
    distances = known(FEW, [float("nan")], [1.0, 2.0])
    distances.forget(1)
    assert set(distances.state()[0]) == {"0", "1"}
    np.testing.assert_array_equal(ask(distances, FEW), ask(known(FEW, [1.0, 2.0]), FEW))


def test_state_and_load_are_inverse():
    distances = known(log_normal(100, 1), FEW, [float("nan")], [2.0], typical=[3.0, 4.0, float("nan"), 2.0])
    part, meta = distances.state()
    twin = KnownDistances()
    twin.load({name: tensor.clone() for name, tensor in part.items()}, json.loads(json.dumps(meta, allow_nan=False)))
    asked = np.linspace(0, 300, 70)
    np.testing.assert_array_equal(ask(twin, asked), ask(distances, asked))
    for each in (twin, distances):
        each.rescale(torch.tensor([6.0, 1.0, 5.0, 3.0]))
        each.observe(0, torch.tensor([3.0, 50.0]))
        each.observe(2, torch.tensor([7.0]))
    np.testing.assert_array_equal(ask(twin, asked), ask(distances, asked))


def test_kept_distances_are_scaled_with_what_is_typical_now():
    distances, asked = known(FEW, [5.0, 8.0], typical=[2.0, 10.0]), np.linspace(0, 40, 50)
    distances.rescale(torch.tensor([6.0, 5.0]))
    np.testing.assert_allclose(ask(distances, asked), ask(known(3 * torch.tensor(FEW), [2.5, 4.0]), asked), atol=1e-4)


@pytest.mark.parametrize("unusable", [float("nan"), 0.0, -3.0])
def test_a_typical_distance_that_is_none_scales_nothing(unusable):
    """Such as that of the only class with any spread, once the others are forgotten."""
    distances, asked = known(FEW, [5.0, 8.0], typical=[2.0, 10.0]), np.linspace(0, 40, 50)
    distances.rescale(torch.tensor([unusable, 10.0]))
    np.testing.assert_array_equal(ask(distances, asked), ask(known(FEW, [5.0, 8.0]), asked))
    json.dumps(distances.state()[1], allow_nan=False)
    distances.rescale(torch.tensor([4.0, 10.0]))
    np.testing.assert_allclose(ask(distances, asked), ask(known(2 * torch.tensor(FEW), [5.0, 8.0]), asked), atol=1e-4)


# On data of a known distribution

WIDTH, CLASSES = 16, 4


def mixture(seed=0):
    """Draws of Gaussians with one covariance and means far apart."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=random)
    means = 60 * torch.randn(CLASSES, WIDTH, generator=random)
    return means, lambda label, count: means[label] + torch.randn(count, WIDTH, generator=random) @ mixing


def learnt(draw, per_class, batches=1, **options):
    """As a branch learns: class by class, each image left out once."""
    memory, distances = GaussianMemory(CovarianceOptions(**options)), KnownDistances()
    for _ in range(batches):
        rows = torch.cat([draw(label, per_class // batches) for label in range(CLASSES)])
        labels = torch.arange(CLASSES).repeat_interleave(per_class // batches)
        for label in range(CLASSES):
            memory.observe(label, rows[labels == label])
        distances.rescale(memory.typical_distances())
        apart = memory.nearest_left_out(rows, labels)
        for label in range(CLASSES):
            distances.observe(label, apart[labels == label])
    return lambda features: distances.percentiles(memory.mahalanobis(features)).amin(1)


@pytest.mark.parametrize("kind", ["full", "shared"])
@pytest.mark.parametrize(("per_class", "batches"), [(300, 1), (300, 3)])
def test_about_one_of_100_fresh_images_is_called_unknown_and_nearly_all_far_ones(kind, per_class, batches):
    """1 % is meant; with 1200 learnt images, and 4000 asked for, 0.4 to 2 % are within what chance and sketch allow."""
    _, draw = mixture()
    percentile = learnt(draw, per_class, batches, kind=kind)
    fresh = percentile(torch.cat([draw(label, 1000) for label in range(CLASSES)]))
    assert 0.004 < float((fresh >= 99).float().mean()) < 0.02
    assert float(fresh.median()) == pytest.approx(50, abs=5)
    between = torch.cat([(draw(0, 500) + draw(1, 500)) / 2, 60 * torch.randn(500, WIDTH)])
    assert float((percentile(between) >= 99).float().mean()) > 0.99


def test_few_images_call_few_fresh_ones_unknown_but_far_ones_still():
    """10 images of each class: the calibration is rough, so only up to 8 % are allowed."""
    _, draw = mixture(seed=4)
    percentile = learnt(draw, 10)
    fresh = percentile(torch.cat([draw(label, 500) for label in range(CLASSES)]))
    assert float((fresh >= 99).float().mean()) < 0.08
    assert float((percentile(60 * torch.randn(500, WIDTH)) >= 99).float().mean()) > 0.95


def test_the_limit_of_large_classes_lies_where_it_should():
    """Of classes with many images only quantiles are kept, and yet one in a hundred lies beyond 99."""
    random = torch.Generator().manual_seed(0)
    for spread in (0.25, 0.5):
        known = KnownDistances()
        for label in range(50):
            known.observe(label, (spread * torch.randn(1000, generator=random)).exp())
        fresh = (spread * torch.randn(200_000, generator=random)).exp()
        share = float((known.percentiles(fresh) >= 99).float().mean())
        assert share == pytest.approx(0.01, abs=0.0015)


def test_held_out_images_correct_the_distances_of_their_classes():
    known = KnownDistances()
    known.observe(0, torch.tensor([1.0, 2.0, 4.0]))
    known.observe(1, torch.tensor([3.0, 3.0]))
    known.observe(2, torch.tensor([5.0]))
    before = {label: values.clone() for label, values in known._values.items()}
    held_out = torch.tensor([8.0, 4.0, 9.0])
    known.correct(torch.tensor([0, 1, 7]), held_out)  # nothing is known of class 7
    measured = (math.log(8) + math.log(4)) / 2
    expected = (math.log(1 * 2 * 4) + 2 * math.log(3)) / 5
    factor = math.exp((measured - expected) * 2 / (2 + STEADINESS))
    for label in (0, 1):
        torch.testing.assert_close(known._values[label], before[label] * factor)
    assert torch.equal(known._values[2], before[2])
    known.correct(torch.tensor([7]), torch.tensor([9.0]))
    known.correct(torch.zeros(0, dtype=torch.long), torch.zeros(0))
    torch.testing.assert_close(known._values[0], before[0] * factor)


def test_many_held_out_images_decide():
    known = KnownDistances()
    known.observe(0, torch.full((20,), 2.0))
    known.correct(torch.zeros(10_000, dtype=torch.long), torch.full((10_000,), 6.0))
    torch.testing.assert_close(known._values[0], torch.full((20,), 6.0), rtol=2e-3, atol=0)


def test_a_limit_of_100_calls_nothing_unknown():
    known = KnownDistances()
    known.observe(0, torch.tensor([1.0, 1.1, 1.2]))
    assert float(known.percentiles(torch.tensor([1e30]))) < 100


def test_two_classes_made_one_keep_the_distances_of_both():
    """Few images: all of their values; many: quantiles, each with its share of the images."""
    random = torch.Generator().manual_seed(0)
    one, two, third = (torch.rand(count, generator=random) + shift for count, shift in ((5, 1), (6, 3), (4, 9)))
    distances = KnownDistances()
    for label, values in enumerate((one, third, two)):
        distances.observe(label, values)
    distances.rescale(torch.tensor([2.0, 7.0, 4.0]))
    distances.merge(2, 0)
    assert (distances._counts, list(distances._values)) == ({0: 4, 1: 11}, [0, 1])
    assert distances._values[1].tolist() == torch.cat([one, two]).sort().values.tolist()
    assert distances._typical[1] == pytest.approx((5 * 2 + 6 * 4) / 11)
    distances.rescale(torch.tensor([7.0, 68 / 11]))
    torch.testing.assert_close(distances._values[1], 2 * torch.cat([one, two]).sort().values)
    many = KnownDistances()
    many.observe(0, torch.linspace(0, 1, 900))
    many.observe(1, torch.linspace(0, 1, 300) + 1)
    many.merge(0, 1)
    assert many._counts == {0: 1200}
    assert float((many._values[0] < 1).double() @ many._weights(0)) == pytest.approx(900, abs=30)


def test_a_class_without_a_distance_adds_none():
    distances = KnownDistances()
    distances.observe(0, torch.tensor([1.0, 2.0]))
    distances.rescale(torch.tensor([1.5, float("nan")]))
    distances.merge(0, 1)
    assert distances._values[0].tolist() == [1, 2]
    assert distances._typical == {0: 1.5}
