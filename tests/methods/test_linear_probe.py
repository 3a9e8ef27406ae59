"""Linear probe: plain SGD on pre-trained features that are computed once."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import tiny
from lca.data.streams import Task
from lca.data.views import evaluation_view
from lca.files import load_state, save_state
from lca.optimisation import cosine
from lca.randomness import generator

TASKS = ({"3": 6, "7": 5, "1": 4}, {"9": 5}, {"4": 6, "8": 3})
TEST = dict.fromkeys("371948", 4)


def make(*changes, **options):
    return tiny.classifier(tiny.recipe(*changes, method={"name": "linear_probe", **options}))


def taught(tasks=TASKS, *changes, **options):
    return tiny.taught(make(*changes, **options), tasks)


def unseen():
    return tiny.images(TEST, skip=20)


def pretrained(images):
    """Features of the tiny transformer, without any of the package's extraction."""
    backbone = tiny.load_tiny_backbone()
    with torch.no_grad():
        views = evaluation_view(images.pixels, backbone.preprocessing, 1.0)
        return backbone.vit.forward_head(backbone.vit.forward_features(views), pre_logits=True)


def plain_head(number, counts, epochs=2, lr=0.05, momentum=0.9, weight_decay=5e-4, batch_size=8):
    """A linear layer trained on the features of a task with torch's own optimiser."""
    images = tiny.images(counts)
    features, layer = pretrained(images), nn.Linear(24, len(counts))
    layer.weight.data = torch.empty(len(counts), 24).normal_(0, 0.02, generator=generator(5, "head", number))
    layer.bias.data.zero_()
    optimiser = torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = cosine(lr, 1e-6, epoch / epochs)
        order = torch.randperm(len(images), generator=generator(5, "shuffle", number, epoch))
        for index in order.split(batch_size):
            loss = functional.cross_entropy(layer(features[index]), images.labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return layer.requires_grad_(False)


@pytest.mark.parametrize("tuner", ["none", "lora", "full"])
def test_it_is_plain_sgd_on_the_pretrained_features(tuner):
    """The row of a class alone points from the mean of the features before it to its own, as long as the other rows."""
    model = taught(TASKS, {"tuning": {"name": tuner, "feature_norm": True}})
    first, third = plain_head(0, TASKS[0]), plain_head(2, TASKS[2])
    mean, centre = (pretrained(tiny.images(TASKS[number])).mean(0) for number in (1, 0))
    alone = first.weight.norm(dim=1).mean() * functional.normalize(mean - centre, dim=0)[None]
    weight = torch.cat([first.weight, alone, third.weight])
    bias = torch.cat([first.bias, -alone @ (mean + centre) / 2, third.bias])
    heads = model.method.heads.tasks
    torch.testing.assert_close(torch.cat([head.weight for head in heads]), weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat([head.bias for head in heads]), bias, rtol=0, atol=1e-5)
    assert bias.abs().max() > 1e-3
    test = pretrained(unseen())
    torch.testing.assert_close(model.features(unseen()), test, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.logits(test), functional.linear(test, weight, bias), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "change", [{"epochs": 3}, {"lr": 0.02}, {"momentum": 0.5}, {"weight_decay": 0.1}, {"batch_size": 4}]
)
def test_every_option_of_the_training_reaches_the_head(change):
    model = taught(TASKS[:1], {"training": change})
    torch.testing.assert_close(
        model.method.heads.tasks[0].weight, plain_head(0, TASKS[0], **change).weight, rtol=0, atol=1e-5
    )
    assert not torch.allclose(model.method.heads.tasks[0].weight, plain_head(0, TASKS[0]).weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize("head", [{"name": "cosine"}, {"name": "mlp"}, {"bias": False}])
def test_the_head_option_changes_the_answers(head):
    test = pretrained(unseen())
    assert not torch.allclose(taught().logits(test), taught(head=head).logits(test), atol=1e-3)


@pytest.mark.parametrize("tuner", ["lora", "adapter", "full", "vpt"])
def test_the_tuner_is_never_changed_and_not_stored(tuner):
    model = make({"tuning": {"name": tuner, **tiny.SMALL_TUNING.get(tuner, {}), "feature_norm": True}})
    base = model.extractor.tensors()
    assert base
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        now = model.extractor.tensors()
        assert all(torch.equal(now[name], each) for name, each in base.items())
    assert set(model.memory()) == {"heads", "centre"}
    assert set(model.state().parts["heads"]) == {f"{n}.{name}" for n in range(3) for name in ("weight", "bias")}


def test_a_training_image_goes_through_the_transformer_once_per_task():
    model = make({"training": {"epochs": 4}})
    for number, counts in enumerate(TASKS):
        with tiny.counted_passes(training=True) as passes:
            model.learn(tiny.task(number, counts))
        assert passes["images"] == sum(counts.values())


def test_old_rows_stay_as_they_were_trained():
    model = taught(TASKS[:1])
    rows = model.method.heads.tasks[0].weight.clone()
    model.learn(tiny.task(1, TASKS[1]))
    model.learn(Task(2, ("7", "4"), tiny.images({"7": 4, "4": 5}, skip=12)))  # one of them is known
    assert model.classes == list("37194")
    assert torch.equal(model.method.heads.tasks[0].weight, rows)
    assert model.method.heads.sizes == [3, 1, 1]
    model.forget("7")
    assert torch.equal(model.method.heads.tasks[0].weight, rows[[0, 2]])


def test_the_state_can_be_taken_up_after_every_step(tmp_path):
    expected = taught(TASKS[:1]).method.state()
    task, labels, stored = tiny.task(0, TASKS[0]), [0, 1, 2], None
    for place in range(3):
        method = make().method
        if stored is not None:
            method.load_state(stored)
        steps = list(method.steps(task, labels))
        assert [(step.phase, step.count) for step in steps] == [("finetune", 2), ("finetune", 2), ("keep", 1)]
        steps[place].run()
        save_state(tmp_path, method.state())
        stored = load_state(tmp_path)
        assert not any("tuned" in name for part in stored.parts for name in (part, *stored.parts[part]))
    assert expected.meta == stored.meta
    for name, each in expected.parts["heads"].items():
        assert torch.equal(stored.parts["heads"][name], each), name
