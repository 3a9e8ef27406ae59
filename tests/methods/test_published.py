"""What a method's defaults give is what the published code has: learning rates epoch by epoch, and constants."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from lca.recipe import load_recipe

COSINE = {"aper": (20, 0.01), "ease": (20, 0.025), "mos": (20, 0.003), "tuna": (15, 0.01)}
"""Epochs, and the learning rate of the head."""


def ours(name, *changes):
    """The learning rates of the head and of what is tuned, in every epoch."""
    training = load_recipe(name, list(changes)).training
    full = (training.lr, training.tuner_lr or training.lr)
    return training, *([training.rate(rate, epoch) for epoch in range(training.epochs)] for rate in full)


def scheduled(full, epochs, make):
    """What a scheduler of torch gives in every epoch, stepped after each of them."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=full)
    scheduler, rates = make(optimiser), []
    for _ in range(epochs):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("name", COSINE)
@pytest.mark.parametrize("changes", [(), ("training.epochs=7",)])
def test_cosine_annealing_down_to_zero(name, changes):
    epochs, rate = COSINE[name]
    training, head, tuner = ours(name, *changes)
    assert (training.epochs, training.lr) == (7 if changes else epochs, rate)
    for found, full in ((head, rate), (tuner, 0.03 if name == "mos" else rate)):
        expected = scheduled(full, training.epochs, lambda each: CosineAnnealingLR(each, training.epochs, eta_min=0))
        assert found == pytest.approx(expected, rel=1e-6)
        assert found[0] == full


def test_slca_divides_by_ten_for_the_last_two_of_twenty_epochs():
    training, head, backbone = ours("slca")
    assert training.epochs == 20
    for found, full in ((head, 0.01), (backbone, 0.0001)):
        assert found == pytest.approx(scheduled(full, 20, lambda each: MultiStepLR(each, [18], gamma=0.1)), rel=1e-6)
        assert found == pytest.approx([full] * 18 + [full / 10] * 2, rel=1e-6)


@pytest.mark.parametrize("changes", [(), ("training.epochs=5",), ("training.epochs=2",)])
def test_coda_prompt_descends_a_quarter_of_a_cosine_from_the_second_epoch_on(changes):
    training, found, _ = ours("coda_prompt", *changes)
    assert training.lr == 0.001
    assert training.epochs == (int(changes[0].partition("=")[2]) if changes else 20)
    last = training.epochs - 1
    expected = [0.001 * math.cos(99 * math.pi * max(epoch - 1, 0) / (200 * last)) for epoch in range(training.epochs)]
    assert found == pytest.approx(expected, rel=1e-6)
    assert found[0] == found[1] == 0.001


def test_coda_prompt_with_one_epoch_has_its_full_rate():
    assert ours("coda_prompt", "training.epochs=1")[1] == [0.001]


# Constants


def test_slca_aligns_for_three_epochs_and_shortens_old_means_by_up_to_a_tenth():
    (align,) = load_recipe("slca", ["method.align=[slca]"]).method.align
    assert (align.epochs, align.mean_decay, align.logit_norm, align.samples) == (3, 0.1, 0.1, 256)
    assert (align.lr, align.batch_size, align.weight_decay, align.start) == (0.01, 256, 5e-4, "restart")


def test_mos_merges_by_a_tenth_and_keeps_features_apart_by_a_tenth():
    recipe = load_recipe("mos")
    assert (recipe.method.momentum, recipe.method.orthogonality) == (0.1, 0.1)
    assert (recipe.tuning.name, recipe.tuning.bottleneck, recipe.training.batch_size) == ("adapter", 16, 48)
    assert recipe.training.tuner_lr == 10 * recipe.training.lr


def test_what_methods_with_prompts_are_published_with():
    l2p, dual = (load_recipe(name) for name in ("l2p", "dualprompt"))
    assert (l2p.method.pull, l2p.method.pool_size, l2p.method.top_k, l2p.method.tokens) == (0.1, 10, 5, 5)
    assert (l2p.training.epochs, l2p.training.batch_size, l2p.training.lr) == (5, 16, 0.001875)
    assert (dual.method.pull, dual.method.tokens) == (0.1, 5)
    assert (dual.method.general_layers, dual.method.expert_layers) == ((0, 1), (2, 3, 4))
    assert (dual.training.epochs, dual.training.batch_size, dual.training.lr) == (5, 24, 0.001)
    coda = load_recipe("coda_prompt")
    assert (coda.training.epochs, coda.training.batch_size, coda.training.lr) == (20, 128, 0.001)


@pytest.mark.parametrize(
    ("name", "bottleneck"), [("aper", 64), ("ease", 64), ("fecam", 64), ("mos", 16), ("ranpac", 64), ("tuna", 16)]
)
def test_adapters_add_a_tenth_of_what_they_compute(name, bottleneck):
    tuning = load_recipe(name).tuning
    assert (tuning.name, tuning.bottleneck, tuning.scale, tuning.dropout) == ("adapter", bottleneck, 0.1, 0.1)
