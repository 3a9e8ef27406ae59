"""Intervals: cases that can be worked out, simulations, and SciPy."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, bootstrap

from lca.evaluation import intervals
from lca.evaluation.accuracy import AccuracyRecord
from lca.evaluation.intervals import Outcomes, mean_and_deviation, student_interval, wilson_interval
from lca.results.metrics import summary

# Tasks of 2 and 1 classes with 2, 3 and 4 test images.
BY_HAND = Outcomes(
    ("b", "c", "a"),
    [2, 1],
    torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2]),
    [
        torch.tensor([True, True, True, False, False]),
        torch.tensor([True, False, False, False, False, True, True, True, False]),
    ],
)


def seed_intervals(runs, shared, **options):
    return intervals.seed_intervals(runs, shared, summary, **options)


def paired_differences(one, two, **options):
    return intervals.paired_differences(one, two, summary, **options)


def drawn_outcomes(shares, images=60, seed=0, order="abcdef"):
    """One task of six classes; every class is recognised with its share."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat_interleave(images)
    chance = torch.tensor([shares[name] for name in order]).repeat_interleave(images)
    return Outcomes(tuple(order), [6], labels, [torch.rand(len(labels), generator=random) < chance])


EVEN = dict.fromkeys("abcdef", 0.7)


def test_the_record_by_hand():
    assert BY_HAND.record() == AccuracyRecord([[2, 1], [1, 0, 3]], [2, 3, 4], [2, 1])


def test_weighted_records_by_hand():
    weights = torch.tensor([[0, 2, 3, 0, 0, 1, 1, 0, 2], [1, 1, 0, 0, 3, 4, 0, 0, 0]]).float()
    assert BY_HAND.records(weights) == [
        AccuracyRecord([[2, 3], [0, 0, 2]], [2, 3, 4], [2, 1]),
        AccuracyRecord([[2, 0], [1, 0, 4]], [2, 3, 4], [2, 1]),
    ]


def test_what_cannot_vary_has_no_interval():
    """Twenty right answers of twenty do not mean that the next one is right for certain."""
    labels = torch.arange(2).repeat_interleave(10)
    perfect = Outcomes(("a", "b"), [1, 1], labels, [torch.ones(10) > 0, torch.ones(20) > 0])
    assert set(seed_intervals([perfect], True, draws=20).values()) == {None}


def test_images_are_drawn_within_their_class():
    """A class all right, one all wrong: only the answers about the third vary, from none to all of its four."""
    right = torch.tensor([True] * 5 + [False] * 15 + [True, True, True, False])
    outcomes = Outcomes(("a", "b", "c"), [3], torch.tensor([0] * 5 + [1] * 15 + [2] * 4), [right])
    low, high = seed_intervals([outcomes], True, draws=500)["last accuracy"]
    assert (low, high) == pytest.approx((100 * (5 + 4 / 3) / 24, 100 * 9 / 24))
    fixed = Outcomes(("a", "b"), [2], outcomes.labels[:20], [right[:20]])
    assert seed_intervals([fixed], True, draws=50)["last accuracy"] is None


def test_a_handful_of_images_has_no_interval():
    def interval(images):
        labels = torch.arange(len(images)).repeat_interleave(torch.tensor(images))
        right = torch.arange(len(labels)) % 3 > 0
        return seed_intervals([Outcomes(tuple("abcdefghijkl"[: len(images)]), [len(images)], labels, [right])], True)

    assert interval([10, 9])["last accuracy"] is None, "nineteen images"
    assert interval([10, 10])["last accuracy"] is not None
    assert interval([10, 9, 1, 1])["last accuracy"] is None, "two of 21 images cannot be drawn otherwise"
    assert interval([10, 9, 1, 0])["last accuracy"] is not None
    assert paired_differences(BY_HAND, BY_HAND)["last accuracy"] == (0, None)


def test_few_images_of_many_classes_do_not_make_it_narrow():
    """With n images drawn of n the variance would be (n - 1) / n of what it is: half of it for two."""
    classes = tuple(f"{number:03}" for number in range(200))
    held = 0
    for seed in range(100):
        right = torch.rand(400, generator=torch.Generator().manual_seed(seed)) < 0.7
        outcomes = Outcomes(classes, [200], torch.arange(200).repeat_interleave(2), [right])
        low, high = seed_intervals([outcomes], True, draws=200, seed=seed)["last accuracy"]
        held += low <= 70 <= high
    assert 90 <= held <= 99


def test_the_interval_of_one_run_is_that_of_scipy():
    right = drawn_outcomes(EVEN).right[0]
    one_class = Outcomes(("a",), [1], torch.zeros(360, dtype=torch.long), [right])
    expected = bootstrap(
        (right.double().numpy(),), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(0)
    ).confidence_interval
    low, high = seed_intervals([one_class], True, draws=5000)["last accuracy"]
    assert (low, high) == pytest.approx((100 * expected.low, 100 * expected.high), abs=0.6)


def test_the_interval_holds_the_truth_nineteen_times_of_twenty():
    held = 0
    for seed in range(150):
        low, high = seed_intervals([drawn_outcomes(EVEN, seed=seed)], True, draws=200, seed=seed)["last accuracy"]
        held += low <= 70 <= high
    assert 0.88 * 150 <= held <= 0.995 * 150


def test_seeds_are_drawn_too():
    """Runs that differ by their seed only widen the interval to what lies between them."""
    bad, good = drawn_outcomes(dict.fromkeys("abcdef", 0.5)), drawn_outcomes(dict.fromkeys("abcdef", 0.9))
    low, high = seed_intervals([bad, good], True)["last accuracy"]
    assert low < 55
    assert high > 85
    (alone_low, alone_high) = seed_intervals([bad], True)["last accuracy"]
    assert alone_high - alone_low < 12


def test_the_same_images_move_all_runs_together():
    """Two equal runs on the same images are as uncertain as one; on images of their own, less."""
    run = drawn_outcomes(EVEN)

    def width(runs, shared):
        low, high = seed_intervals(runs, shared, draws=2000)["last accuracy"]
        return high - low

    assert width([run, run], True) == pytest.approx(width([run], True), rel=0.02)
    # by the draw of seeds both come from one of the runs half of the time: variance (1/2 + 1/2 · 1/2) of one run's
    assert width([run, run], False) == pytest.approx(0.75**0.5 * width([run], True), rel=0.1)


def test_draws_are_seeded():
    run = drawn_outcomes(EVEN)
    assert seed_intervals([run], True, draws=100) == seed_intervals([run], True, draws=100)
    assert seed_intervals([run], True, draws=100) != seed_intervals([run], True, draws=100, seed=1)
    assert seed_intervals([run], True, draws=100) != seed_intervals([run], True, draws=200)


def test_a_paired_difference_by_hand(monkeypatch):
    """The second run is wrong on one image more, of the class with two images: drawn as both or not at all."""
    worse = BY_HAND.right[1].clone()
    worse[0] = False
    second = Outcomes(BY_HAND.classes, BY_HAND.task_sizes, BY_HAND.labels, [BY_HAND.right[0], worse])
    monkeypatch.setattr("lca.evaluation.intervals.FEWEST", 9)
    found = paired_differences(BY_HAND, second)
    assert found["last accuracy"] == (pytest.approx(100 / 9), pytest.approx((0, 200 / 9)))
    assert found["learning accuracy"] == (0, (0, 0))
    assert found["forgetting"] == (pytest.approx(-20), pytest.approx((-40, 0)))


def test_images_are_the_same_whatever_the_class_order():
    """The same answers in two class orders: every draw gives both the same accuracy."""
    shares = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.4, "e": 0.8, "f": 0.6}
    first = drawn_outcomes(shares)
    order = "fbdace"
    rows = torch.cat([torch.arange(60) + 60 * "abcdef".index(name) for name in order])
    second = Outcomes(tuple(order), [6], first.labels, [first.right[0][rows]])
    assert paired_differences(first, second, draws=100)["last accuracy"] == (0, pytest.approx((0, 0), abs=1e-9))
    swapped = Outcomes(tuple("abcdef"), [6], first.labels, second.right)
    assert paired_differences(first, swapped, draws=100)["last accuracy"][1][0] < -1


def test_other_test_images_cannot_be_paired():
    with pytest.raises(ValueError, match="different test images"):
        paired_differences(drawn_outcomes(EVEN), drawn_outcomes(EVEN, images=50))
    with pytest.raises(ValueError, match="different test images"):
        paired_differences(drawn_outcomes(EVEN), drawn_outcomes({**EVEN, "z": 0.7}, order="abcdez"))


@pytest.mark.parametrize(("correct", "total"), [(0, 1), (1, 1), (0, 40), (40, 40), (3, 7), (90, 100), (499, 1000)])
def test_the_interval_is_that_of_scipy(correct, total):
    expected = binomtest(correct, total).proportion_ci(method="wilson")
    assert wilson_interval(correct, total) == pytest.approx((100 * expected.low, 100 * expected.high), abs=5e-3)


def test_no_answers_have_no_interval():
    with pytest.raises(ValueError, match="no answers"):
        wilson_interval(0, 0)


def test_mean_and_deviation_over_seeds():
    assert mean_and_deviation([70.0]) == (70.0, None)
    mean, deviation = mean_and_deviation([70.0, 74.0, 75.0])
    assert mean == 73
    assert deviation == pytest.approx(((9 + 1 + 4) / 2) ** 0.5)


def test_values_that_do_not_vary_have_no_interval():
    assert student_interval([3.0, 3.0, 3.0]) is None
    low, high = student_interval([1.0, 2.0])
    assert (low, high) == pytest.approx((1.5 - 12.706204736432095 / 2, 1.5 + 12.706204736432095 / 2))
