"""Quantiles that are kept of many values, and distribution functions: against NumPy and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lca.statistics.quantiles import KEPT, Distribution, kept, weights

FEW = [4.0, -1.0, 9.0, 2.5, -6.0]


def distribution(values, counted=None, spread=2.0):
    values = torch.as_tensor(np.asarray(values), dtype=torch.float64)
    return Distribution.of(values, torch.ones_like(values) if counted is None else counted, spread)


def drawn(count, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(-3, 5, count))


def sketched(values, counted):
    return values[kept(values, counted)]


def interpolated(values, asked):
    """1 - F, linear between values, with a place left for one more."""
    values = np.sort(values)
    return 1 - np.interp(asked, values, (np.arange(len(values)) + 0.5) / (len(values) + 1))


def test_between_values_the_function_is_linear():
    asked = np.linspace(-6, 9, 60)
    np.testing.assert_allclose(distribution(FEW).above(torch.tensor(asked)), interpolated(FEW, asked), atol=1e-12)


def test_both_tails_by_hand():
    found = distribution(FEW, spread=0.5).above(torch.tensor([9.3, 30.0, -6.2, -90.0], dtype=torch.float64))
    over, under = 1 - 4.5 / 6, 0.5 / 6
    expected = [over * np.exp(-4 * 0.3), over * np.exp(-4 * 21), 1 - under * np.exp(-4 * 0.2), 1.0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50),
    asked=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=20),
    spread=st.floats(0.01, 1e4),
)
def test_it_never_rises_and_stays_between_0_and_1(values, asked, spread):
    found = distribution(values, spread=spread).above(torch.tensor(np.sort([*asked, *values])))
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert (found.diff() <= 1e-9).all()


def test_the_shape_of_the_question_stays():
    asked = torch.tensor([[0.3, 4.0, 80.0], [5.0, 2.0, -1.0]])
    found = distribution(FEW).above(asked)
    assert found.shape == (2, 3)
    assert torch.equal(found[1], distribution(FEW).above(asked[1]))


@pytest.mark.parametrize("count", [1, 2, KEPT])
def test_few_values_are_kept_whole(count):
    values = drawn(count)
    assert torch.equal(sketched(values, weights(count)), values.sort().values)


@pytest.mark.parametrize("count", [KEPT + 1, 100, 5000])
def test_many_values_are_kept_as_quantiles_close_to_all_of_them(count):
    values = drawn(count, seed=count)
    few = sketched(values, torch.ones(count).double())
    assert few.shape == (KEPT,)
    asked = np.quantile(values, np.linspace(0.01, 0.98, 60))
    found = Distribution.of(few, weights(count), 1.0).above(torch.tensor(asked))
    np.testing.assert_allclose(found, interpolated(values, asked), atol=1.2 / KEPT)


@pytest.mark.parametrize(("first", "second"), [(300, 300), (600, 40), (20, 500)])
def test_what_was_kept_is_kept_again_by_how_many_it_stands_for(first, second):
    near, far = drawn(first, 1), drawn(second, 2) + 12
    few = sketched(near, torch.ones(first).double())
    again = sketched(torch.cat([few, far]), torch.cat([weights(first), torch.ones(second)]))
    together = torch.cat([near, far])
    asked = np.quantile(together, np.linspace(0.02, 0.95, 40))
    found = Distribution.of(again, weights(first + second), 1.0).above(torch.tensor(asked))
    np.testing.assert_allclose(found, interpolated(together, asked), atol=2.5 / KEPT)


def test_the_upper_end_of_many_values_lies_where_it_should():
    values = torch.cat([sketched(drawn(1000, seed), torch.ones(1000).double()) for seed in range(50)])
    found = Distribution.of(values, weights(1000).repeat(50), 5.0)
    share = float((found.above(drawn(200_000, 99)) <= 0.01).double().mean())
    assert share == pytest.approx(0.01, abs=0.0015)
