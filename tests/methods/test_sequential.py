"""SLCA, MagMax and SLDC: cases of incremental merging, against plain computations."""

import torch

import tiny
from lca.config import TrainingOptions, load_recipe

TASKS = ({"3": 6, "7": 5}, {"1": 6, "0": 4}, {"2": 6, "9": 6})


ALIKE = {"training": TrainingOptions(epochs=2, batch_size=8, lr=0.05).model_dump(), "tuning": {"targets": ["qkv"]}}
"""Every key is given: the methods differ in their defaults."""


def taught(method, **changes):
    """The classifier after three tasks, and the tuned tensors before and after each of them."""
    model = tiny.classifier(tiny.recipe(ALIKE, method=tiny.method_section(method, **changes)))
    tensors = [model.extractor.tensors()]
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        tensors.append(model.extractor.tensors())
    return model, tensors


def same(one, two):
    return all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


def test_slca_and_sldc_fine_tune_one_task_after_another():
    plain = tiny.classifier(tiny.recipe(method="finetune"))
    for number, counts in enumerate(TASKS):
        plain.learn(tiny.task(number, counts))
    for method in ("slca", "sldc"):
        model, _ = taught(method, head={"bias": False})  # as finetune's, so that the draws agree
        assert same(model.extractor.tensors(), plain.extractor.tensors()), method


def test_slca_restores_its_heads_and_aligns_anew_after_every_task():
    model, _ = taught("slca")
    trained = model.method.heads.state()[0]
    assert all(torch.equal(model.method.heads.state()[0][name], each) for name, each in trained.items())
    aligned = model.method.branch_set.heads["slca"].state()[0]
    assert not all(torch.equal(aligned[name], trained[name]) for name in trained)
    again = taught(
        "slca", align=[{"preset": "slca", "samples": 16, "epochs": 2, "batch_size": 16, "start": "cumulative"}]
    )
    features = model.features(tiny.images({"3": 4}))
    assert not torch.allclose(model.logits(features), again[0].logits(features), atol=1e-4)


def test_magmax_keeps_the_entry_of_largest_magnitude_of_every_task():
    _, (base, *tuned) = taught("im", merge={"operator": "last"}, init_from="previous", align=["none"])
    model, _ = taught("magmax")
    for name, merged in model.extractor.tensors().items():
        vectors = torch.stack([tensors[name] - base[name] for tensors in tuned])
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))[0]
        torch.testing.assert_close(merged, base[name] + largest, rtol=0, atol=1e-6)
    assert model.method.branches() == ["none"]


def test_sldc_moves_its_statistics():
    moved, _ = taught("sldc")
    still, _ = taught("sldc", align=[{"preset": "best", **tiny.QUICK, "drift": {"model": "none"}}])
    one, two = (each.method.branch_set.memories["best"].means() for each in (moved, still))
    assert torch.allclose(one[-2:], two[-2:], atol=1e-5)
    assert not torch.allclose(one[:2], two[:2], atol=1e-4)


def test_the_slca_recipe_learns_slowly():
    recipe = load_recipe("slca")
    assert recipe.method.name == "slca"
    assert recipe.tuning.name == "full"
    assert recipe.training.tuner_lr == recipe.training.lr / 100
