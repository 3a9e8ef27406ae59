"""Temperatures, calibration errors and intervals, against simulations, independent code and SciPy."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve

from lca.errors import LcaError
from lca.evaluation.calibration import STEADINESS, Bin, calibration_error, fit_temperature, reliability


def answers(count, temperature, classes=5, seed=0):
    """Logits, and labels drawn from their softmax at a temperature: then that temperature is the right one."""
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=random)
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=random)[:, 0]
    return logits, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
@pytest.mark.parametrize("last", [1.0, 3.0])
def test_many_images_tell_the_temperature(temperature, last):
    found = fit_temperature(*answers(20000, temperature), last)
    assert found == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize(
    ("count", "temperature", "last"), [(1, 3.0, 1.0), (7, 0.5, 2.0), (60, 3.0, 1.0), (400, 1.5, 0.2)]
)
def test_it_is_the_minimum_of_its_cost(count, temperature, last):
    logits, labels = answers(count, temperature, seed=count)
    scores, rows = logits.double().numpy(), np.arange(count)

    def cost(log_temperature):
        scaled = scores / math.exp(log_temperature)
        likelihood = scaled[rows, labels.numpy()] - np.logaddexp.reduce(scaled, axis=1)
        return -likelihood.sum() + STEADINESS * (log_temperature - math.log(last)) ** 2

    best = minimize_scalar(
        cost, bounds=(math.log(last) - 4, math.log(last) + 4), method="bounded", options={"xatol": 1e-7}
    )
    assert math.log(fit_temperature(logits, labels, last)) == pytest.approx(best.x, abs=2e-3)


def test_few_images_change_little_and_more_change_more():
    steps = [abs(math.log(fit_temperature(*answers(count, 6.0, seed=2), last=1.0))) for count in (1, 10, 100, 10000)]
    assert steps == sorted(steps)
    assert steps[0] < 0.4
    assert steps[-1] == pytest.approx(math.log(6), abs=0.05)
    assert fit_temperature(torch.empty(0, 4), torch.empty(0, dtype=torch.long), 1.7) == pytest.approx(1.7, rel=1e-3)


def test_one_class_says_nothing_about_the_temperature():
    assert fit_temperature(torch.randn(50, 1), torch.zeros(50, dtype=torch.long), 2.5) == pytest.approx(2.5, rel=1e-3)


def test_answers_that_are_all_right_or_all_wrong_stay_finite():
    logits = 10 * torch.eye(4).repeat(100, 1)
    right, wrong = torch.arange(4).repeat(100), (torch.arange(4).repeat(100) + 1) % 4
    assert 0 < fit_temperature(logits, right) < 1
    assert 1 < fit_temperature(logits, wrong) < math.exp(4.1)


@given(seed=st.integers(0, 10**6), last=st.floats(0.05, 20))
def test_the_order_of_the_answers_does_not_change(seed, last):
    logits, labels = answers(30, 2.0, seed=seed)
    found = fit_temperature(logits, labels, last)
    assert torch.equal((logits / found).argsort(1), logits.argsort(1))


def test_the_calibration_error_by_hand():
    """Two bins of two: |1/2 - 0.15| · 2/4 + |1 - 0.7| · 2/4; the bounds belong to the lower bin."""
    probabilities = torch.tensor([0.1, 0.2, 0.6, 0.8])
    correct = torch.tensor([False, True, True, True])
    assert calibration_error(probabilities, correct, bins=2) == pytest.approx(100 * (0.35 / 2 + 0.3 / 2), abs=1e-4)
    on_the_bound = calibration_error(torch.tensor([0.5, 0.6]), torch.tensor([False, True]), bins=2)
    assert on_the_bound == pytest.approx(100 * (0.5 / 2 + 0.4 / 2), abs=1e-4)
    assert calibration_error(torch.tensor([1.0]), torch.tensor([True])) == 0
    assert calibration_error(torch.tensor([1.0]), torch.tensor([False])) == 100


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_calibration_error_is_that_of_independent_code(bins):
    draw = np.random.default_rng(bins)
    probabilities = draw.beta(4, 1.5, 1000)
    correct = draw.random(1000) < probabilities**2
    expected, edges = 0.0, np.linspace(0, 1, bins + 1)
    for low, high in itertools.pairwise(edges):
        inside = (probabilities > low) & (probabilities <= high)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - probabilities[inside].mean())
    found = calibration_error(torch.tensor(probabilities), torch.tensor(correct), bins)
    assert found == pytest.approx(100 * expected, abs=1e-6)


def test_the_reliability_table_by_hand():
    probabilities = torch.tensor([0.125, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    correct = torch.tensor([False, True, False, True, True])
    assert reliability(probabilities, correct, bins=4) == [
        Bin(0, 25, 2, 18.75, 50),
        Bin(25, 50, 1, 50, 0),
        Bin(50, 75, 1, 75, 100),
        Bin(75, 100, 1, 100, 100),
    ]
    assert reliability(probabilities[-1:], correct[-1:], bins=2)[0] == Bin(0, 50, 0, None, None)


@pytest.mark.parametrize("bins", [5, 15])
def test_the_reliability_table_is_that_of_scikit_learn_and_gives_the_calibration_error(bins):
    draw = np.random.default_rng(bins)
    probabilities = draw.beta(4, 1.5, 500)
    correct = draw.random(500) < probabilities**2
    found = reliability(torch.tensor(probabilities), torch.tensor(correct), bins)
    shares, means = calibration_curve(correct, probabilities, n_bins=bins)
    filled = [each for each in found if each.images]
    assert [each.accuracy for each in filled] == pytest.approx(100 * shares)
    assert [each.mean_probability for each in filled] == pytest.approx(100 * means)
    assert sum(each.images for each in found) == 500
    error = sum(each.images * abs(each.accuracy - each.mean_probability) for each in filled) / 500
    assert calibration_error(torch.tensor(probabilities), torch.tensor(correct), bins) == pytest.approx(error)


def test_the_right_temperature_makes_the_calibration_error_small():
    logits, labels = answers(20000, 3.0)
    fresh, fresh_labels = answers(20000, 3.0, seed=1)

    def error(temperature):
        confidence, guess = (fresh / temperature).softmax(1).max(1)
        return calibration_error(confidence, guess == fresh_labels)

    assert error(fit_temperature(logits, labels)) < 2 < 10 < error(1.0)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="no answers"):
        calibration_error(torch.empty(0), torch.empty(0, dtype=torch.bool))


def test_probabilities_that_are_no_numbers_are_said():
    for ask in (calibration_error, reliability):
        with pytest.raises(LcaError, match="training diverged"):
            ask(torch.tensor([0.5, torch.nan]), torch.tensor([True, False]))
