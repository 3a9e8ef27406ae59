"""The optimisers that training asks for, against their formulas."""

import pytest
import torch

from lca.optimisation import make_optimiser
from lca.recipe import load_recipe

GRADIENTS = (1.0, -3.0, 0.5, 2.0)


def trace(name, momentum, weight_decay=0.0, rate=0.1):
    """Where a number goes that starts at 1 and gets the gradients one after another."""
    value = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimiser, places = make_optimiser(name, [([value], rate)], momentum, weight_decay), []
    for gradient in GRADIENTS:
        value.grad = torch.tensor([gradient], dtype=torch.float64)
        optimiser.step()
        places.append(value.item())
    return places


@pytest.mark.parametrize("first_beta", [0.9, 0.6])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_adam_takes_the_momentum_as_first_beta_and_0_999_as_second(first_beta, weight_decay):
    """m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², x ← (1 - η w) x - η m̂ / (sqrt(v̂) + 10⁻⁸), hats over 1 - βᵗ."""
    x, mean, square, expected = 1.0, 0.0, 0.0, []
    for step, gradient in enumerate(GRADIENTS, 1):
        mean = first_beta * mean + (1 - first_beta) * gradient
        square = 0.999 * square + 0.001 * gradient**2
        x *= 1 - 0.1 * weight_decay
        x -= 0.1 * (mean / (1 - first_beta**step)) / ((square / (1 - 0.999**step)) ** 0.5 + 1e-8)
        expected.append(x)
    assert trace("adamw", first_beta, weight_decay) == pytest.approx(expected, rel=1e-12)


def test_sgd_takes_the_momentum_without_damping():
    """m ← μ m + g + w x, x ← x - η m."""
    x, mean, expected = 1.0, 0.0, []
    for gradient in GRADIENTS:
        mean = 0.7 * mean + gradient + 0.05 * x
        x -= 0.1 * mean
        expected.append(x)
    assert trace("sgd", 0.7, 0.05) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["l2p", "dualprompt", "coda_prompt"])
def test_prompts_are_trained_by_adam_with_its_usual_betas_as_published(name):
    training = load_recipe(name).training
    assert (training.optimiser, training.momentum, training.weight_decay) == ("adamw", 0.9, 0.0)
    usual = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).defaults["betas"]
    made = make_optimiser(training.optimiser, [([torch.nn.Parameter(torch.zeros(1))], 1.0)], training.momentum, 0.0)
    assert made.param_groups[0]["betas"] == usual == (0.9, 0.999)
