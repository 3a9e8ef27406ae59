"""Distances of Gaussians: closed forms against numerical integration, and what they must obey."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from lca.instruments.theory.divergence import Normal, covariance, distance
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

SAMPLES = 100_000


def gaussian(mean, matrix):
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(matrix, dtype=torch.float64)


def random_gaussian(generator, width, rank=None):
    rows = torch.randn(rank or 2 * width, width, generator=generator, dtype=torch.float64)
    return torch.randn(width, generator=generator, dtype=torch.float64), rows.T @ rows / len(rows)


def between(p, q, samples=100, seed=0):
    return distance(Normal.of(*p), Normal.of(*q), samples, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("other", [([0.5], [[1.0]]), ([0.0], [[4.0]]), ([2.0], [[0.3]])])
def test_in_one_dimension_they_are_the_integrals(other):
    p, q = gaussian([0.0], [[1.0]]), gaussian(*other)
    one, two = stats.norm(0, 1), stats.norm(other[0][0], math.sqrt(other[1][0][0]))
    grid = np.linspace(-25, 25, 400_001)

    def integral(values):
        return integrate.trapezoid(values, grid)

    affinity = integral(np.sqrt(one.pdf(grid) * two.pdf(grid)))
    divergences = [integral(a.pdf(grid) * (a.logpdf(grid) - b.logpdf(grid))) for a, b in ((one, two), (two, one))]
    found = between(p, q, SAMPLES)
    assert found.at_least == pytest.approx(1 - affinity, abs=1e-6)
    assert found.hellinger == pytest.approx(math.sqrt(1 - affinity**2), abs=1e-6)
    assert found.pinsker == pytest.approx(math.sqrt(min(divergences) / 2), abs=1e-6)
    exact = integral(np.abs(one.pdf(grid) - two.pdf(grid))) / 2
    assert found.estimate == pytest.approx(exact, abs=5e-3)
    assert found.at_least <= exact <= found.at_most


def test_in_two_dimensions_they_are_the_integrals():
    p, q = gaussian([0.0, 0.0], [[1.0, 0.3], [0.3, 0.5]]), gaussian([0.4, -0.2], [[0.7, -0.2], [-0.2, 0.9]])
    axis = np.linspace(-9, 9, 1201)
    grid = np.stack(np.meshgrid(axis, axis), -1)
    one, two = (stats.multivariate_normal(mean.numpy(), matrix.numpy()).pdf(grid) for mean, matrix in (p, q))
    cell = (axis[1] - axis[0]) ** 2
    found = between(p, q, SAMPLES)
    assert found.at_least == pytest.approx(1 - np.sqrt(one * two).sum() * cell, abs=1e-6)
    assert found.estimate == pytest.approx(np.abs(one - two).sum() * cell / 2, abs=5e-3)


def test_bounds_and_estimate_are_in_order():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        found = between(random_gaussian(generator, 3), random_gaussian(generator, 3), 20_000)
        assert 0 <= found.at_least <= found.estimate + 0.02 <= found.at_most + 0.04
        assert found.at_most <= 1


def test_noise_in_every_direction_brings_gaussians_together():
    """Both get the same noise, so every distance can only shrink: the data-processing inequality."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        (mean, one), (other, two) = random_gaussian(generator, 6, rank=3), random_gaussian(generator, 6, rank=3)
        ridges = [1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]
        found = [
            between((mean, one + ridge * torch.eye(6)), (other, two + ridge * torch.eye(6)), 20_000) for ridge in ridges
        ]
        for name in ("at_least", "hellinger", "pinsker", "at_most"):
            values = [getattr(each, name) for each in found]
            assert values == sorted(values, reverse=True), name
        assert found[0].at_most > 0.99 > 0.5 > found[-1].at_most


def test_equal_gaussians_have_no_distance_and_singular_ones_no_bound():
    singular = gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 0.0]])
    assert between(singular, singular).at_most == 0
    found = between(singular, gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]))
    assert (found.at_least, found.at_most, found.estimate) == (0.0, 1.0, None)


def test_swapped_classes_show_why_labels_count():
    """The features of both classes together have not moved; those of each class have, and so has the loss."""
    one, two = stats.norm(-1, 1), stats.norm(1, 1)
    grid = np.linspace(-10, 10, 100_001)
    mixture, swapped = one.pdf(grid) + two.pdf(grid), two.pdf(grid) + one.pdf(grid)
    assert np.abs(mixture - swapped).max() == 0
    p, q = gaussian([-1.0], [[1.0]]), gaussian([1.0], [[1.0]])
    exact = 2 * stats.norm.cdf(1) - 1
    assert between(p, q, SAMPLES).estimate == pytest.approx(exact, abs=5e-3)
    loss_before, loss_after = 1 - stats.norm.cdf(1), stats.norm.cdf(1)  # of the classifier x > 0
    assert loss_after - loss_before == pytest.approx(exact)  # the corrected Theorem 2 is tight here


@pytest.mark.parametrize("options", [{}, {"unbiased": False}, {"rank": 2}, {"kind": "shared"}, {"kind": "diagonal"}])
@pytest.mark.parametrize("images", [12, 1])
def test_the_covariance_is_that_of_the_samples(options, images):
    memory = GaussianMemory(CovarianceOptions(ridge=0.0, **options))
    generator = torch.Generator().manual_seed(3)
    for label, count in enumerate((images, 9)):
        memory.observe(label, torch.randn(count, 4, generator=generator) @ torch.randn(4, 4, generator=generator))
    samples, _ = memory.sample(200_000, torch.Generator().manual_seed(4))
    for label in range(2):
        expected = samples[label].double().T.cov()
        torch.testing.assert_close(covariance(memory, label), expected, atol=0.03 * float(expected.max()), rtol=0)
