"""L2P, against plain computations."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

import tiny
from lca.classifier import ContinualClassifier
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.methods.l2p import L2p, L2pOptions
from lca.models import export as shipping
from lca.training.setting import Given
from parts import build_backbone, build_images, build_setting, build_task, build_vit

TASKS = ({"3": 6, "7": 5}, {"1": 6}, {"0": 5, "9": 6})
SMALL = {"pool_size": 4, "top_k": 2, "tokens": 3}
TEST = {"3": 3, "0": 3}
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])


def untaught(**options):
    return tiny.classifier(tiny.recipe(method={"name": "l2p", **SMALL, **options}))


def taught(tasks=TASKS, **options):
    model = untaught(**options)
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts))
    return model


def views(model):
    return model.extractor.evaluation_views(tiny.images(TEST, skip=20).pixels)


def prompts_of_their_own(model):
    """Make the keys such that images choose differently: all queries of the tiny transformer point the same way."""
    query = model.method.query(views(model))
    common = functional.normalize(query.mean(0), dim=0)
    apart = query - (query @ common)[:, None] * common
    model.method.prompts["keys"].data.copy_(
        functional.normalize(apart - apart.mean(0))[: len(model.method.prompts["keys"])]
    )
    return model


def prompts(model):
    return {name: each.detach().clone() for name, each in model.method.prompts.items()}


def nearest(query, keys, count):
    """The numbers of the keys that are nearest to one query, and their cosines."""
    cosines = [float(query @ key / (query.norm() * key.norm())) for key in keys]
    chosen = sorted(range(len(keys)), key=lambda number: -cosines[number])[:count]
    return chosen, [cosines[number] for number in chosen]


@torch.no_grad()
def by_hand(vit, images, pool, chosen):
    """One image after the other, each with the prompts whose numbers are chosen for it."""
    first, features = vit.num_prefix_tokens, []
    with_position = vit.cls_token is not None and not vit.no_embed_class
    for image, numbers in zip(images, chosen, strict=True):
        tokens = torch.cat([pool[number] for number in numbers])[None]
        if with_position:
            tokens = tokens + vit.pos_embed[:, :1]
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(image[None])))
        x = torch.cat([x[:, :first], tokens, x[:, first:]], 1)
        for block in vit.blocks:
            x = block(x)
        mean = vit.norm(x)[:, first : first + tokens.shape[1]].mean(1)
        features.append(vit.fc_norm(mean if vit.attn_pool is None else vit.attn_pool(mean[:, None])))
    return torch.cat(features)


@torch.no_grad()
def plain_query(vit, images):
    return vit.forward_head(vit.forward_features(images), pre_logits=True)


def test_an_image_takes_the_prompts_of_its_nearest_keys():
    model, vit = prompts_of_their_own(taught()), tiny.load_tiny_backbone().vit
    own, images = prompts(model), views(model)
    query = plain_query(vit, images)
    chosen = [nearest(each, own["keys"], 2)[0] for each in query]
    assert len({tuple(sorted(each)) for each in chosen}) > 1, "images should choose differently"
    expected = by_hand(vit, images, own["pool"], chosen)
    torch.testing.assert_close(model.method.embed(images, ""), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.method.query(images), query, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, query, atol=1e-2)


@pytest.mark.parametrize("batch_vote", [False, True])
@pytest.mark.parametrize("pull", [0.0, 0.1, 3.0])
def test_the_loss(pull, batch_vote):
    model, vit = prompts_of_their_own(untaught(pull=pull, batch_vote=batch_vote)), tiny.load_tiny_backbone().vit
    own, images = prompts(model), views(model)
    head = model.method.heads.new_head(2, torch.Generator().manual_seed(0))
    query = plain_query(vit, images)
    chosen = [nearest(each, own["keys"], 2)[0] for each in query]
    if batch_vote:
        chosen = [most_chosen(chosen, 4, 2)] * len(query)
    closeness = [
        sum(float(functional.cosine_similarity(each, own["keys"][number], dim=0)) for number in numbers)
        for each, numbers in zip(query, chosen, strict=True)
    ]
    logits = head(by_hand(vit, images, own["pool"], chosen))
    expected = functional.cross_entropy(logits, LABELS) - pull * sum(closeness) / len(closeness)
    loss, found = model.method.training.loss(images, LABELS, head, None)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-5)


def test_gradients_reach_the_chosen_prompts_and_keys_only():
    for pull in (0.0, 0.1):
        model = untaught(pull=pull)
        images = views(model)
        query = plain_query(tiny.load_tiny_backbone().vit, images)
        chosen = {number for each in query for number in nearest(each, model.method.prompts["keys"].detach(), 2)[0]}
        assert 0 < len(chosen) < 4
        head = model.method.heads.new_head(2, torch.Generator().manual_seed(0))
        model.method.training.loss(images, LABELS, head, None)[0].backward()
        touched = {name: each.grad.flatten(1).any(1) for name, each in model.method.prompts.items()}
        assert set(touched["pool"].nonzero()[:, 0].tolist()) == chosen
        assert set(touched["keys"].nonzero()[:, 0].tolist()) == (chosen if pull else set())
        assert all(each.grad is None for each in model.extractor.parameters())


def most_chosen(chosen, size, count):
    votes = [sum(number in each for each in chosen) for number in range(size)]
    return sorted(range(size), key=lambda number: (-votes[number], number))[:count]


def test_a_batch_votes_if_it_is_asked_to():
    model, vit = prompts_of_their_own(taught(batch_vote=True)), tiny.load_tiny_backbone().vit
    own, images = prompts(model), views(model)
    chosen = [nearest(each, own["keys"], 2)[0] for each in plain_query(vit, images)]
    voted = most_chosen(chosen, 4, 2)
    assert any(set(each) != set(voted) for each in chosen)
    expected = by_hand(vit, images, own["pool"], [voted] * len(images))
    together = model.method.embed(images, "")
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-5)
    alone = torch.cat([model.method.embed(each[None], "") for each in images])
    torch.testing.assert_close(alone, by_hand(vit, images, own["pool"], chosen), rtol=0, atol=1e-5)
    assert not torch.allclose(together, alone, atol=1e-3)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([[0, 1], [2, 1], [2, 3]], {1, 2}),
        ([[3, 2], [1, 0]], {0, 1}),
        ([[3, 2], [3, 0], [3, 1]], {0, 3}),
    ],
)
def test_of_equally_many_votes_the_first_prompts_win(chosen, expected):
    method = untaught(batch_vote=True).method
    cosines = torch.zeros(len(chosen), 4)
    for row, numbers in enumerate(chosen):
        cosines[row, numbers] = 1.0
    assert all(set(each) == expected for each in method._chosen(cosines).tolist())


def test_the_pool_stays_as_large_and_the_backbone_as_it_was():
    before, after = untaught(), taught()
    assert {name: each.shape for name, each in prompts(after).items()} == {"pool": (4, 3, 24), "keys": (4, 24)}
    assert all(each.abs().max() <= 1 and each.min() < -0.5 for each in prompts(before).values())
    assert not any(torch.equal(each, prompts(after)[name]) for name, each in prompts(before).items())
    assert set(after.method.trained()) == {"pool", "keys"}
    query = plain_query(tiny.load_tiny_backbone().vit, views(after))
    torch.testing.assert_close(after.method.query(views(after)), query, rtol=0, atol=1e-6)
    tensors = before.extractor.tensors()
    assert all(torch.equal(tensors[name], each) for name, each in after.extractor.tensors().items())


@pytest.mark.parametrize("first", [True, False])
def test_a_task_of_one_class_leaves_the_pool_and_gets_the_mean_of_prompted_features(first):
    before = taught(() if first else TASKS[:1])
    state, centre = prompts(before), before.method.centre.means.clone()
    before.learn(tiny.task(1, TASKS[1]))
    assert all(torch.equal(each, state[name]) for name, each in prompts(before).items())
    images = tiny.images(TASKS[1])
    shown = before.extractor.evaluation_views(images.pixels)
    vit = tiny.load_tiny_backbone().vit
    chosen = [nearest(each, state["keys"], 2)[0] for each in plain_query(vit, shown)]
    mean = by_hand(vit, shown, state["pool"], chosen).mean(0)
    row = before.method.heads.tasks[-1].weight[0]
    expected = torch.zeros_like(mean) if first else functional.normalize(mean - centre[0], dim=0) * row.norm()
    torch.testing.assert_close(row, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("change", [{"pool_size": 9}, {"top_k": 3}, {"tokens": 2}, {"head": {"bias": False}}])
def test_every_other_option_changes_a_number(change):
    one, two = taught(), taught(**change)
    images = tiny.images(TEST, skip=20)
    assert not torch.allclose(one.logits(one.features(images)), two.logits(two.features(images)), atol=1e-4)


def test_keys_are_pulled_towards_their_images():
    def closeness(pull):
        model = taught(TASKS[:1], pull=pull)
        shown = model.extractor.evaluation_views(tiny.images(TASKS[0]).pixels)
        keys = model.method.prompts["keys"].detach()
        return np.mean([sum(nearest(each, keys, 2)[1]) for each in model.method.query(shown)])

    assert closeness(5.0) > closeness(0.0) + 0.01


def test_the_pool_is_in_the_state():
    model, fresh = taught(), untaught()
    state = model.state()
    assert not torch.equal(fresh.method.embed(views(model), ""), model.method.embed(views(model), ""))
    fresh.load_state(state)
    assert torch.equal(fresh.method.embed(views(model), ""), model.method.embed(views(model), ""))
    for each in (model, fresh):
        each.method.prompts["pool"].data.zero_()
    assert state.parts["prompts"]["pool"].any(), "the state has tensors of its own"


def test_initial_prompts_can_be_given():
    keys = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    setting = replace(build_setting(), given=Given({"prompt.keys": keys}))
    method = L2p(setting, L2pOptions(**SMALL))
    assert torch.equal(method.prompts["keys"], keys)
    drawn = L2p(build_setting(), L2pOptions(**SMALL)).prompts["pool"]
    assert torch.equal(method.prompts["pool"], drawn)


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"])
def test_other_kinds_of_transformers(kind, tmp_path):
    """Also without a class token, or one whose position has no embedding: then the prompts get none."""
    recipe = tiny.recipe(method={"name": "l2p", **SMALL}, training={"epochs": 1})
    model = ContinualClassifier(recipe, ViewOptions(centre_crop=1.0), backbone=build_backbone(kind))
    model.learn(build_task(0, ("a", "b")))
    vit = build_vit(kind)
    images = model.extractor.evaluation_views(build_images(("a", "b", "c"), 2, seed=9).pixels)
    own, query = prompts(model), plain_query(vit, images)
    torch.testing.assert_close(model.method.query(images), query, rtol=0, atol=1e-5)
    expected = by_hand(vit, images, own["pool"], [nearest(each, own["keys"], 2)[0] for each in query])
    torch.testing.assert_close(model.method.embed(images, ""), expected, rtol=0, atol=1e-5)
    scaled = images * 0.5 + 0.5
    torch.testing.assert_close(shipping.deployed(model)(scaled)[1], model.logits(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch_vote", [False, True])
def test_exports_answer_as_the_model(tmp_path, batch_vote):
    model = taught(batch_vote=batch_vote)
    before = [type(each) for each in model.extractor.modules()]
    shown = views(model)
    shipping.export_onnx(model, tmp_path / "model.onnx")
    shipping.export_torch(model, tmp_path / "model.pt2")
    assert [type(each) for each in model.extractor.modules()] == before
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for images in (shown, shown[:1], shown[[4, 0, 1]]):
        scaled = (images * 0.5 + 0.5).contiguous()
        with torch.no_grad():
            expected = model.logits(model.method.embed(images, ""))
            torch.testing.assert_close(program(scaled)[1], expected, rtol=0, atol=1e-4)
        found = torch.as_tensor(session.run(None, {"images": scaled.numpy()})[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(LcaError, match=r"top_k must be at most pool_size \(4\), got 5"):
        untaught(top_k=5)
    with pytest.raises(LcaError, match="the tuner has wrapped it; use tuning: none"):
        tiny.classifier(tiny.recipe(method="l2p", tuning="ssf"))
