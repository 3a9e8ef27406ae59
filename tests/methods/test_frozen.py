"""Methods whose features never change after the first task: against plain computations, and computed once."""

import pytest
import torch
from torch.nn import functional

import tiny
from lca.methods import methods
from lca.runs.experiment import run
from lca.tuning import tuners

FROZEN = [name for name in methods if name in {"simplecil", "aper", "ranpac", "fecam", "fetril", "linear_probe"}]


def pretrained(images):
    vit, preprocessing = tiny.load_tiny_backbone().vit, tiny.load_tiny_backbone().preprocessing
    from lca.data.views import evaluation_view

    with torch.no_grad():
        views = evaluation_view(images.pixels, preprocessing, 1.0)
        return vit.forward_head(vit.forward_features(views), pre_logits=True)


def means(features, labels):
    return torch.stack([features[labels == label].mean(0) for label in labels.unique()])


@pytest.mark.parametrize("tuner", tuners)
def test_pretrained_features_are_those_without_the_tuner(make_extractor, make_tuning, make_images, make_vit, tuner):
    extractor = make_extractor(make_tuning(tuner, feature_norm=True))
    random = torch.Generator().manual_seed(1)
    values = {name: each + torch.randn(each.shape, generator=random) for name, each in extractor.tensors().items()}
    extractor.load(values)
    views = extractor.evaluation_views(make_images(("a", "b")).pixels)
    plain = make_vit()
    with torch.no_grad():
        expected = plain.forward_head(plain.forward_features(views), pre_logits=True)
        tuned = extractor(views)
        torch.testing.assert_close(extractor.pretrained(views), expected, rtol=0, atol=1e-6)
        assert torch.equal(extractor(views), tuned)  # and the tuner is back
        assert not torch.allclose(tuned, expected, atol=1e-2)


@pytest.mark.parametrize("tuner", ["lora", "ssf", "full"])
def test_simplecil_is_the_cosine_to_class_means_of_the_pretrained_features(tuner):
    model = tiny.classifier(tiny.recipe(method="simplecil", tuning={"name": tuner}))
    counts = {"3": 6, "7": 5, "1": 4}
    model.learn(tiny.task(0, {"3": 6, "7": 5}))
    model.learn(tiny.task(1, {"1": 4}))
    images = tiny.images(counts)
    test = pretrained(tiny.images(dict.fromkeys(counts, 3), skip=20))
    expected = functional.cosine_similarity(test[:, None], means(pretrained(images), images.labels)[None], dim=2)
    torch.testing.assert_close(model.logits(test), expected, rtol=0, atol=1e-5)
    assert set(model.memory()) == {"means"}


def test_aper_tunes_on_the_first_task_only_and_puts_both_features_side_by_side():
    model = tiny.classifier(tiny.recipe(method="aper"))
    base = model.extractor.tensors()
    model.learn(tiny.task(0, {"3": 6, "7": 5}))
    tuned = model.extractor.tensors()
    assert any(not torch.equal(tuned[name], base[name]) for name in base)
    model.learn(tiny.task(1, {"1": 4, "0": 4}))
    assert all(torch.equal(model.extractor.tensors()[name], each) for name, each in tuned.items())
    images = tiny.images({"3": 6, "7": 5, "1": 4, "0": 4})
    views = model.extractor.evaluation_views(images.pixels)
    with torch.no_grad():
        both = torch.cat([pretrained(images), model.extractor.eval()(views)], dim=1)
    torch.testing.assert_close(model.features(images), both, rtol=0, atol=1e-5)
    expected = functional.cosine_similarity(both[:, None], means(both, images.labels)[None], dim=2)
    torch.testing.assert_close(model.logits(both), expected, rtol=0, atol=1e-5)


def test_a_first_task_of_one_class_leaves_aper_with_the_pretrained_backbone():
    model = tiny.classifier(tiny.recipe(method="aper"))
    base = model.extractor.tensors()
    model.learn(tiny.task(0, {"3": 6}))
    model.learn(tiny.task(1, {"1": 4, "0": 4}))
    assert all(torch.equal(model.extractor.tensors()[name], each) for name, each in base.items())


def test_the_head_option_of_aper_changes_what_is_tuned():
    def tuned(**head):
        model = tiny.classifier(tiny.recipe(method={"name": "aper", "head": head}))
        model.learn(tiny.task(0, {"3": 6, "7": 5}))
        return torch.cat([each.flatten() for each in model.extractor.tensors().values()])

    usual = tuned(name="cosine", scale=1.0)
    assert not torch.equal(usual, tuned(name="cosine", scale=20.0))
    assert not torch.equal(usual, tuned(name="linear"))


@pytest.mark.parametrize("method", FROZEN)
def test_no_test_image_is_seen_twice(tmp_path, method):
    """Every part of its feature is computed once for an image, whatever is learnt later."""
    recipe = tiny.recipe(method={"name": method}, keep_models="none")
    with tiny.tiny_backbone(), tiny.counted_passes() as passes:
        results = run(recipe, tmp_path / "run")
    images = sum(results["data"]["train_images"]) + sum(results["data"]["test_images"])
    parts = 2 if method == "aper" else 1
    assert passes["images"] == parts * images
