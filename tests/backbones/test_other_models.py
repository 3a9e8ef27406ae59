"""Backbones that are no vision transformers: frozen with `none`, tuned as a whole with `full`, refused by the rest."""

import copy

import pytest
import timm
import torch
from torch import nn

import tiny
from lca import ContinualClassifier, LcaError
from lca.backbones import BackboneOptions, load_backbone
from lca.backbones.pooling import pooled, pooled_shape
from lca.data.views import ViewOptions
from lca.recipe import validate_recipe
from lca.tuning import tuners
from parts import SMALL_MODELS, build_model_backbone

LESSONS = ({"0": 4, "1": 4}, {"2": 4, "3": 4})
TAUGHT = {
    "frozen": {"method": "simplecil", "tuning": "none"},
    "finetune": {"method": "finetune", "tuning": "full"},
    "im": {"method": {"name": "im", "align": ["none", {"preset": "balanced", **tiny.QUICK}]}, "tuning": "full"},
}


def classifier(backbone, how="frozen", **changes):
    chosen = tiny.recipe(TAUGHT[how], training={"epochs": 1}, backbone={"name": backbone.name}, **changes)
    view = ViewOptions.model_validate({"augment": {"crop_scale": [0.6, 1.0], "flip": False}, "centre_crop": 1.0})
    return ContinualClassifier(chosen, view, backbone=backbone)


def noise(count=5):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def running(vit):
    return {key: each.clone() for key, each in vit.named_buffers() if "running_" in key}


@pytest.fixture(
    scope="module", params=[(name, how) for name in SMALL_MODELS for how in TAUGHT], ids=lambda each: "-".join(each)
)
def taught(request):
    """A model after two lessons, and its backbone as it was before. Tests do not teach it further."""
    name, how = request.param
    backbone = build_model_backbone(name)
    before = copy.deepcopy(backbone.vit)
    return tiny.taught(classifier(backbone, how), LESSONS), before


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_width_is_that_of_the_feature(name):
    backbone = build_model_backbone(name)
    feature = pooled(backbone.vit, noise(2))
    assert feature.shape == (2, backbone.width)
    torch.testing.assert_close(feature, backbone.vit(noise(2)))  # without a head it returns its feature
    if "mobilenetv3" in name:
        assert backbone.width != backbone.vit.num_features


@pytest.mark.parametrize(
    ("name", "width"),
    [("resnet50_clip", 2048), ("vit_base_patch16_clip_224", 768), ("vgg11", 4096), ("efficientvit_b0", 1280)],
)
def test_the_width_is_known_without_values(name, width):
    with torch.device("meta"):
        vit = timm.create_model(name, num_classes=0).eval()
    assert pooled_shape(vit, 224) == (1, width)


def test_answers_do_not_depend_on_the_batch(taught):
    model, _ = taught
    images = tiny.images({"0": 3, "2": 2}, skip=8)
    whole = model.logits(model.features(images))
    alone = torch.cat([model.logits(model.features(images.subset(torch.tensor([row])))) for row in range(5)])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


def test_a_saved_model_answers_alike(taught, tmp_path):
    model, _ = taught
    images, name = tiny.images({"0": 3, "2": 2}, skip=8), model.backbone.name
    if SMALL_MODELS[name]:  # a shape without a name
        again = ContinualClassifier(model.recipe, model.view, backbone=build_model_backbone(name))
        again.load_state(model.state())
    else:
        model.bundle = True
        model.save(tmp_path / "model")
        again = ContinualClassifier.load(tmp_path / "model")
    assert again.backbone.fingerprint == model.backbone.fingerprint
    assert torch.equal(again.logits(again.features(images)), model.logits(model.features(images)))


def test_pretrained_features_stay_those_of_the_backbone_before(taught):
    model, before = taught
    extractor, views = model.extractor.eval(), noise()
    with torch.no_grad():
        expected = pooled(before, views)
        assert torch.equal(extractor.pretrained(views), expected)
        assert torch.equal(extractor(views), expected) is (model.recipe.tuning.name == "none")


def test_running_statistics_stay_as_they_were(taught):
    model, before = taught
    expected = running(before)
    assert bool(expected) == any(isinstance(each, nn.BatchNorm2d) for each in before.modules())
    assert not any(key.startswith("running_") for key in model.extractor.tensors())
    for key, each in running(model.extractor.vit).items():
        assert torch.equal(each, expected[key]), key


@pytest.mark.parametrize("name", ["test_resnet.r160_in1k", "mobilenetv3_small_050.lamb_in1k"])
def test_in_training_too_an_image_is_seen_without_its_batch(name):
    extractor = classifier(build_model_backbone(name), "finetune").extractor.train()
    assert extractor.training
    views = noise(4)
    torch.testing.assert_close(extractor(views[:1]), extractor(views)[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_how_images_lie_in_memory_changes_no_feature(name):
    extractor = classifier(build_model_backbone(name)).extractor.eval()
    views = noise()
    expected = extractor(views)
    torch.testing.assert_close(extractor(views.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)
    extractor.vit.to(memory_format=torch.channels_last)
    torch.testing.assert_close(extractor(views), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in tuners if not tuners[name].any_backbone])
def test_a_tuner_for_transformers_says_so(name):
    backbone = build_model_backbone("test_convnext.r160_in1k")
    with pytest.raises(LcaError, match=f"tuner '{name}' needs a vision transformer .* is a ConvNeXt.*tuning: none"):
        ContinualClassifier(validate_recipe({"tuning": name}), backbone=backbone)


def test_a_method_for_transformers_says_so():
    backbone = build_model_backbone("test_convnext.r160_in1k")
    for method, what in (("l2p", "method 'l2p'"), ({"name": "mos", "repeated_ema": True}, "method.repeated_ema")):
        with pytest.raises(LcaError, match=f"{what} needs a vision transformer .* is a ConvNeXt.*simplecil"):
            ContinualClassifier(validate_recipe({"method": method, "tuning": "none"}), backbone=backbone)
    ContinualClassifier(validate_recipe({"method": "mos", "tuning": "full"}), backbone=backbone)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepseek_vit_412m_enc", "DeepseekVitEncoder, which gives no feature vector"),
        ("vit_base_patch16_sapiens2", "here images are 3 x n x n"),
    ],
)
def test_a_model_that_gives_no_feature_of_a_square_is_refused(name, message):
    with pytest.raises(LcaError, match=message):
        load_backbone(BackboneOptions(name=name, weights="none.safetensors"))
