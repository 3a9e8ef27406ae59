"""SLCA, MagMax and SLDC: cases of incremental merging, against plain computations."""

import torch

import tiny
from lca.heads.alignment import align
from lca.randomness import generator
from lca.recipe import load_recipe
from lca.training.options import TrainingOptions

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


def rows(heads):
    return {name: each.clone() for name, each in heads.state()[0].items()}


def test_slca_restores_its_heads_and_aligns_anew_after_every_task():
    """The heads stay as they were trained, and every alignment starts from those, not from the last aligned ones."""
    model, plain = (
        tiny.classifier(tiny.recipe(ALIKE, method=tiny.method_section("slca", **changes)))
        for changes in ({}, {"align": ["none"]})
    )
    branches, trained = model.method.branch_set, {}
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        plain.learn(tiny.task(number, counts))
        now = rows(model.method.heads)
        assert now.keys() == {f"{n}.{name}" for n in range(number + 1) for name in ("weight", "bias")}
        assert all(torch.equal(now[name], each) for name, each in trained.items()), "old rows as they were trained"
        trained = rows(plain.method.heads)  # never aligned
        assert all(torch.equal(now[name], each) for name, each in trained.items())
        if number:
            last = branches.heads["slca"].copy()
            expected, _ = align(
                plain.method.heads,
                branches.memory("slca"),
                branches.options["slca"],
                lambda purpose, epoch, device, task=number: generator(5, purpose, task, epoch, device),
            )
            assert all(torch.equal(rows(last)[name], each) for name, each in rows(expected).items())
            assert not any(torch.allclose(rows(last)[name], each, atol=1e-4) for name, each in trained.items())
    assert branches.options["slca"].start == "restart"


def test_slca_aligned_from_the_last_alignment_is_something_else():
    quick = {"preset": "slca", "samples": 16, "epochs": 2, "batch_size": 16}
    usual, other = (
        taught("slca", align=[{**quick, "start": start}])[0].method.branch_set.heads["slca"]
        for start in ("restart", "cumulative")
    )
    assert not torch.allclose(rows(usual)["0.weight"], rows(other)["0.weight"], atol=1e-4)


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
    still, _ = taught("sldc", align=[{"preset": "balanced", "name": "best", **tiny.QUICK, "drift": {"model": "none"}}])
    one, two = (each.method.branch_set.memories["best"].means() for each in (moved, still))
    assert torch.allclose(one[-2:], two[-2:], atol=1e-5)
    assert not torch.allclose(one[:2], two[:2], atol=1e-4)


def test_the_slca_recipe_learns_slowly():
    recipe = load_recipe("slca")
    assert recipe.method.name == "slca"
    assert recipe.tuning.name == "full"
    assert recipe.training.tuner_lr == recipe.training.lr / 100
