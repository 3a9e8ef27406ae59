"""Terms and right sides: against exact values, the inequalities themselves, and where the printed one fails."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from lca.instruments.theory import bounds
from lca.instruments.theory.bounds import Draws, mean_distances, terms
from lca.instruments.theory.losses import bounded_losses

THRESHOLD = 0.5


def two_classes(count, seed):
    """Samples (2, count, 1) of N(-1, 1) and N(1, 1), whose cells meet at 0."""
    noise = torch.randn(2, count, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.tensor([-1.0, 1.0])[:, None, None] + noise


def at_threshold(samples):
    """Logits of a classifier that says 1 above 0.5; its cross-entropy is softplus(±(x - 0.5))."""
    return torch.cat([torch.zeros_like(samples), samples - THRESHOLD], 1)


def draws(samples, logits, loss):
    """Losses and cells of samples (classes, n, d) whose cells are those of the means -1 and 1."""
    labels = torch.arange(2).repeat_interleave(samples.shape[1])
    losses = loss.of(logits(samples.flatten(0, 1)), labels).view(samples.shape[:2])
    return Draws(list(losses), [samples[0, :, 0] < 0, samples[1, :, 0] > 0])


def test_the_zero_one_terms_of_two_classes_are_the_exact_ones():
    loss = bounded_losses()["zero-one"]
    drawn = draws(two_classes(50, 1), at_threshold, loss)
    found = terms(drawn, draws(two_classes(400_000, 2), at_threshold, loss), 1.0)
    cell, below = stats.norm.cdf(1), stats.norm.cdf(THRESHOLD - 1)
    wrong = [1 - stats.norm.cdf(THRESHOLD + 1), below]
    wrong_inside = [0.0, (below - (1 - cell)) / cell]
    torch.testing.assert_close(found.inside, torch.tensor([cell, cell]).double(), atol=3e-3, rtol=0)
    torch.testing.assert_close(found.expected, torch.tensor(wrong).double(), atol=3e-3, rtol=0)
    for label in range(2):  # |1 - 0| whenever one is right and the other is not
        seen, seen_inside = float(found.drawn[label]), float(found.drawn_inside[label])
        assert seen == drawn.losses[label].mean()
        spread = seen * (1 - wrong[label]) + wrong[label] * (1 - seen)
        robustness = seen_inside * (1 - wrong_inside[label]) + wrong_inside[label] * (1 - seen_inside)
        assert float(found.spread[label]) == pytest.approx(spread, abs=3e-3)
        assert float(found.robustness[label]) == pytest.approx(robustness, abs=3e-3)
    assert found.robustness[0] == 0, "in its cell, class 0 is never taken for 1"


def test_the_clipped_terms_of_two_classes_are_integrals():
    loss = bounded_losses(1.0)["clipped"]
    drawn = draws(two_classes(30, 1), at_threshold, loss)
    found = terms(drawn, draws(two_classes(400_000, 3), at_threshold, loss), 1.0)

    def expectation(values, where):
        return integrate.trapezoid(np.where(where, values * stats.norm.pdf(grid - 1), 0), grid)

    grid = np.linspace(-8, 10, 20_001)
    cost = np.minimum(np.log1p(np.exp(THRESHOLD - grid)), 1.0)
    inside = drawn.losses[1][drawn.inside[1]].numpy()
    distances = np.abs(cost[:, None] - inside).mean(1)
    robustness = expectation(distances, grid > 0) / stats.norm.cdf(1)
    assert float(found.expected[1]) == pytest.approx(expectation(cost, True), abs=2e-3)
    assert float(found.robustness[1]) == pytest.approx(robustness, abs=2e-3)


def test_mean_distances_are_means_over_all_pairs():
    generator = torch.Generator().manual_seed(0)
    for sizes in ((1, 1), (5, 300), (200, 3)):
        one, two = (torch.randn(size, generator=generator).round(decimals=1) for size in sizes)  # with ties
        expected = (one.double()[:, None] - two).abs().mean(1)
        torch.testing.assert_close(mean_distances(one, two), expected, rtol=0, atol=1e-12)


def test_the_right_sides_are_their_formulas():
    drawn = Draws([torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5])], [torch.tensor([True, False])] * 2)
    fresh = Draws([torch.tensor([0.0, 1.0]), torch.tensor([0.25, 0.75])], [torch.tensor([True, True])] * 2)
    found = terms(drawn, fresh, 2.0)
    assert found.robustness.tolist() == [0.5, 0.25]
    assert found.spread.tolist() == [0.5, 0.25]
    assert found.drawn_inside.tolist() == [0.0, 0.5]
    rest = 2 * math.sqrt((2 * math.log(4) + 2 * math.log(10)) / 4)
    assert bounds.uncertainty(2, 4, 0.1, 2.0) == pytest.approx(rest)
    assert bounds.theorem_1(found, 0.1) == pytest.approx(0.5 + 0.375 + rest)
    assert bounds.within_cells(found) == pytest.approx((0.5 + 0.75) / 2)
    assert bounds.without_cells(found) == pytest.approx(0.5 + 0.375)
    assert bounds.theorem_2(1.0, 0.25, 2.0) == 2.0
    assert bounds.theorem_2_corrected(1.0, 0.25, 2.0) == 1.5


def test_corollary_1_is_theorem_1_for_equal_counts_and_refuses_others():
    loss = bounded_losses()["clipped"]
    found = terms(*(draws(two_classes(count, count), at_threshold, loss) for count in (40, 400)), 5.0)
    assert bounds.corollary_1(found, 0.05) == pytest.approx(bounds.theorem_1(found, 0.05))
    uneven = Draws([torch.zeros(3), torch.zeros(4)], [torch.ones(3, dtype=bool), torch.ones(4, dtype=bool)])
    with pytest.raises(ValueError, match="equally many"):
        bounds.corollary_1(terms(uneven, uneven, 1.0), 0.05)


EVERYWHERE, NOWHERE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


@pytest.mark.parametrize(("drawn_inside", "fresh_inside"), [(NOWHERE, EVERYWHERE), (EVERYWHERE, NOWHERE)])
@pytest.mark.parametrize("cost", [0.0, 1.0, 3.0])
def test_a_cell_without_samples_costs_the_largest_loss_and_no_more(cost, drawn_inside, fresh_inside):
    losses = [torch.full((4,), cost, dtype=torch.float64)]
    found = terms(Draws(losses, [drawn_inside]), Draws(losses, [fresh_inside]), 3.0)
    assert float(found.drawn + found.robustness) == float(found.drawn_inside + found.robustness) == 3.0
    assert bounds.within_cells(found) == 3.0
    assert bounds.theorem_1(found, 0.05) == 3.0 + bounds.uncertainty(1, 4, 0.05, 3.0)


def test_no_bound_is_below_its_loss_by_rounding():
    """Of losses that are all alike on each side, both sides are the same number."""
    for number in range(1, 200):
        drawn = Draws([torch.zeros(3, dtype=torch.float64)], [EVERYWHERE[:3]])
        fresh = Draws([torch.full((4,), number / 7, dtype=torch.float64)], [EVERYWHERE])
        found = terms(drawn, fresh, 100.0)
        assert bounds.without_cells(found) == pytest.approx(float(found.expected), abs=1e-13)
        assert bounds.within_cells(found) == pytest.approx(float(found.expected), abs=1e-13)


@pytest.mark.parametrize("name", ["clipped", "zero-one"])
def test_standard_errors_are_how_far_repetitions_differ(name):
    """The same samples D against many fresh ones: what the estimates spread by is what each of them says."""
    loss = bounded_losses(2.0)[name]
    drawn, weight = draws(two_classes(25, 7), at_threshold, loss), torch.tensor([0.5, 0.5], dtype=torch.float64)
    runs = [terms(drawn, draws(two_classes(300, 100 + seed), at_threshold, loss), loss.maximum) for seed in range(200)]
    for key, value in {
        "robustness": lambda found: found.robustness @ weight,
        "inside": lambda found: found.inside.mean(),
        "expected": lambda found: found.expected.mean(),
        "within_cells": bounds.within_cells,
        "without_cells": bounds.without_cells,
    }.items():
        spread = torch.tensor([float(value(found)) for found in runs]).std()
        said = torch.tensor([found.error(key) for found in runs])
        assert float(said.mean()) == pytest.approx(float(spread), rel=0.2), key
    uneven = terms(
        Draws([drawn.losses[0], drawn.losses[1][:5]], [drawn.inside[0], drawn.inside[1][:5]]),
        draws(two_classes(300, 0), at_threshold, loss),
        loss.maximum,
    )
    parts = uneven.errors["robustness"] * torch.tensor([25 / 30, 5 / 30], dtype=torch.float64)
    assert uneven.error("robustness") == pytest.approx(float(parts.square().sum().sqrt()))
    assert uneven.error("expected") == pytest.approx(float(uneven.errors["expected"].square().sum().sqrt()) / 2)


@pytest.mark.parametrize("name", ["clipped", "zero-one"])
def test_the_bounds_hold_for_random_classifiers(name):
    """The printed one needs luck with the samples (δ); the corrected ones never: only the fresh samples are finite."""
    loss, too_low = bounded_losses(2.0)[name], 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        weight = 2 * torch.randn(2, 1, generator=generator, dtype=torch.float64)
        offset = torch.randn(2, generator=generator, dtype=torch.float64)

        def logits(samples, weight=weight, offset=offset):
            return samples @ weight.T + offset

        drawn = draws(two_classes(20, 1000 + seed), logits, loss)
        found = terms(drawn, draws(two_classes(20_000, 2000 + seed), logits, loss), loss.maximum)
        truth = draws(two_classes(200_000, 3000 + seed), logits, loss)
        expected = float(torch.stack(truth.losses).mean())
        tolerance = 0.02 * loss.maximum
        assert expected <= bounds.theorem_1(found, 0.05)
        assert expected <= bounds.within_cells(found) + tolerance, seed
        assert expected <= bounds.without_cells(found) + tolerance, seed
        too_low += expected > float(found.drawn.mean()) + tolerance
    assert too_low > 5, "without the robustness it would fail"


def test_the_printed_theorem_fails_where_a_class_leaves_its_cell_and_the_corrected_ones_hold():
    """A classifier that learnt D by heart: right in the cells and on D, wrong everywhere else."""
    samples = two_classes(2000, 0)

    def losses(points, known):
        inside = [points[0, :, 0] < 0, points[1, :, 0] > 0]
        return Draws([torch.zeros(points.shape[1]) if known else (~mask).double() for mask in inside], inside)

    found = terms(losses(samples, True), losses(two_classes(200_000, 1), False), 1.0)
    expected = 1 - stats.norm.cdf(1)
    assert float(found.expected.mean()) == pytest.approx(expected, abs=3e-3)
    assert bounds.theorem_1(found, 0.05) < expected - 0.1
    assert bounds.within_cells(found) == pytest.approx(expected, abs=3e-3)
    assert bounds.without_cells(found) == pytest.approx(expected, abs=3e-3)


def test_with_counts_that_are_fixed_nothing_is_left_of_the_uncertainty():
    """n_i = m: the weights n_i/n are 1/C, so only the second difference of the proof remains, and needs no luck."""
    loss = bounded_losses()["zero-one"]
    drawn, fresh = (draws(two_classes(count, count), at_threshold, loss) for count in (10, 50_000))
    found = terms(drawn, fresh, 1.0)
    weights = found.counts / found.counts.sum()
    assert float(weights @ found.expected) == float(found.expected.mean())
    assert bounds.without_cells(found) < bounds.theorem_1(found, 0.05)


def test_a_bound_is_vacuous_from_the_maximum_on():
    assert bounds.is_vacuous(1.0, 1.0)
    assert bounds.is_vacuous(1.5, 1.0)
    assert not bounds.is_vacuous(0.99, 1.0)


def test_losses_have_their_maximum():
    logits, labels = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.1, 0.0]]), torch.tensor([1, 1, 0])
    losses = bounded_losses(4.0)
    clipped = losses["clipped"].of(logits, labels)
    assert clipped[0] == 4.0 == losses["clipped"].maximum
    assert float(clipped[2]) == pytest.approx(math.log1p(math.exp(-0.1)), abs=1e-6)
    assert losses["zero-one"].of(logits, labels).tolist() == [1.0, 0.0, 0.0]
