import hashlib
import json
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import VisionTransformer

from lca.backbones import EMBEDDED, PHOTOS, BackboneOptions, embedded_names, load_backbone, transformer_names
from lca.errors import LcaError
from lca.files import hash_file

NAME = "vit_pico_patch8_64"


@pytest.fixture(scope="module")
def pico():
    return load_backbone(BackboneOptions())


def views(size, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_the_embedded_model_has_the_weights_of_its_card(pico):
    stored = load_file(EMBEDDED / f"{NAME}.safetensors")
    state = pico.vit.state_dict()
    for key, tensor in stored.items():
        if key in state:
            assert torch.equal(state[key], tensor.float()), key
    assert pico.fingerprint == fingerprint_of(stored)
    assert (pico.width, pico.preprocessing.size, pico.preprocessing.interpolation) == (192, 64, "bicubic")
    assert pico.preprocessing.mean == pico.preprocessing.std == (0.5, 0.5, 0.5)
    assert not pico.vit.training
    assert not any(parameter.requires_grad for parameter in pico.vit.parameters())


def test_the_embedded_models_are_small_enough_for_a_package_index():
    assert embedded_names() == sorted((PHOTOS, NAME))
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 25e6


def test_the_embedded_backbone_for_photos_is_as_timm_has_it():
    backbone, card = load_backbone(BackboneOptions(name=PHOTOS)), timm.get_pretrained_cfg(PHOTOS)
    stored = load_file(EMBEDDED / f"{PHOTOS}.safetensors")
    assert {each.dtype for each in stored.values()} == {torch.float16}
    assert not [key for key in stored if key.startswith("head.")]
    assert backbone.fingerprint == fingerprint_of(stored)
    scaling = backbone.preprocessing
    assert (scaling.size, scaling.interpolation) == (card.input_size[-1], card.interpolation) == (224, "bicubic")
    assert (scaling.mean, scaling.std) == (card.mean, card.std)
    assert backbone.licence.startswith("Apache-2.0, by the DeiT authors")


def fingerprint_of(weights):
    """The hash of weights in float32, without a classification head, wherever they lie."""
    digests = {
        name: hashlib.sha256(tensor.float().contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in weights.items()
        if not name.startswith("head.")
    }
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def test_the_fingerprint_is_of_the_weights_not_of_the_file(tmp_path, pico):
    state = {name: tensor.clone() for name, tensor in pico.vit.state_dict().items()}
    save_file(dict(reversed(state.items())), tmp_path / "same.safetensors", metadata={"written": "elsewhere"})
    save_file({**state, "head.weight": torch.ones(2, 192)}, tmp_path / "head.safetensors")
    for name in ("same", "head"):
        path = tmp_path / f"{name}.safetensors"
        assert hash_file(path) != hash_file(EMBEDDED / f"{NAME}.safetensors")
        assert load_backbone(BackboneOptions(weights=path)).fingerprint == pico.fingerprint
    for name in ("norm.bias", "blocks.0.attn.qkv.weight"):
        changed = {**state, name: state[name].clone()}
        changed[name].view(-1)[0] += 1e-3
        assert load_backbone(BackboneOptions(), changed).fingerprint != pico.fingerprint


def test_weights_that_are_given_are_taken_before_all_others(tmp_path, pico, monkeypatch):
    given = {name: tensor + 1 for name, tensor in pico.vit.state_dict().items()}

    def fail(*_):
        raise AssertionError("no file is needed")

    monkeypatch.setattr("lca.backbones.load_tensors", fail)
    for options in (BackboneOptions(), BackboneOptions(weights=tmp_path / "missing.safetensors")):
        backbone = load_backbone(options, given)
        assert all(torch.equal(tensor, given[name]) for name, tensor in backbone.vit.state_dict().items())
        assert backbone.fingerprint == fingerprint_of(given)
    with pytest.raises(LcaError, match=r"the weights the model carries do not fit the model: missing \['norm.bias'\]"):
        load_backbone(BackboneOptions(), {name: tensor for name, tensor in given.items() if name != "norm.bias"})


def test_a_timm_model_with_given_weights_downloads_nothing(monkeypatch):
    reference = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    create = timm.create_model

    def untrained(*arguments, pretrained=False, **options):
        assert not pretrained
        return create(*arguments, **options)

    monkeypatch.setattr(timm, "create_model", untrained)
    given = dict(reference.state_dict())
    backbone = load_backbone(BackboneOptions(name="vit_tiny_patch16_224.augreg_in21k_ft_in1k"), given)
    assert backbone.fingerprint == fingerprint_of(given)
    with pytest.raises(AssertionError):
        load_backbone(BackboneOptions(name="vit_tiny_patch16_224.augreg_in21k_ft_in1k"))


def test_raw_preprocessing_leaves_the_pixels():
    raw = load_backbone(BackboneOptions(preprocessing="raw")).preprocessing
    assert (raw.mean, raw.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_weights_from_a_file(tmp_path, pico):
    state = {key: tensor.clone() for key, tensor in pico.vit.state_dict().items()}
    state["norm.bias"] += 1
    path = tmp_path / "own.safetensors"
    save_file({**state, "head.weight": torch.zeros(7, 192), "head.bias": torch.zeros(7)}, path)
    own = load_backbone(BackboneOptions(weights=path))
    assert torch.equal(own.vit.norm.bias, pico.vit.norm.bias + 1)
    assert own.fingerprint == fingerprint_of(state) != pico.fingerprint


def test_a_timm_model_with_local_weights(tmp_path):
    name = "vit_tiny_patch16_224"
    reference = timm.create_model(name, num_classes=5).eval()
    path = tmp_path / "tiny.safetensors"
    save_file({key: tensor.half().contiguous() for key, tensor in reference.state_dict().items()}, path)
    backbone = load_backbone(BackboneOptions(name=f"{name}.augreg_in21k_ft_in1k", weights=path))
    assert (backbone.width, backbone.preprocessing.size, backbone.preprocessing.mean) == (192, 224, (0.5, 0.5, 0.5))
    with torch.no_grad():
        ours = backbone.vit.forward_head(backbone.vit.forward_features(views(224)), pre_logits=True)
        theirs = reference.half().float().forward_head(reference.forward_features(views(224)), pre_logits=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm.bias"), r"missing \['norm.bias'\]"),
        (lambda state: state.update({"odd.weight": torch.zeros(1)}), r"unknown \['odd.weight'\]"),
        (lambda state: state.update({"norm.bias": torch.zeros(3)}), r"norm.bias: \(3,\) in the file, \(192,\)"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, pico, change, message):
    state = dict(pico.vit.state_dict())
    change(state)
    save_file(state, tmp_path / "bad.safetensors")
    with pytest.raises(LcaError, match=message):
        load_backbone(BackboneOptions(weights=tmp_path / "bad.safetensors"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "vit_tiny_patch16_22"}, "timm has no model .*'vit_tiny_patch16_224'"),
        ({"name": "vit_tiny_patch16_224.augreg_in21k_ft_in2k"}, "did you mean 'augreg_in21k_ft_in1k'"),
        ({"name": "vit_tiny_patch16_224"}, r"Full tags: .*vit_tiny_patch16_224\.augreg_in21k_ft_in1k"),
        ({"weights": "nowhere.safetensors"}, "there is no file nowhere.safetensors"),
        ({"name": "resnet18"}, r"Full tags: .*resnet18\.a1_in1k"),
        ({"name": "zzz"}, "timm has no model 'zzz'; `lca backbones --search PATTERN` finds one"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(LcaError, match=message):
        load_backbone(BackboneOptions(**options))


@pytest.mark.parametrize("name", ["gcvit_bas", "convnext_tny", "vit_base_patch16_22"])
def test_the_hint_names_models_of_timm(name):
    with pytest.raises(LcaError, match="timm has no model") as caught:
        load_backbone(BackboneOptions(name=name))
    suggested = re.findall(r"'(\w+)'", str(caught.value))[1:4]
    assert suggested
    assert all(map(timm.is_model, suggested))


def test_names_of_transformers_are_of_one_class():
    names = transformer_names()
    assert {"vit_small_patch16_224", "deit3_base_patch16_224", "vit_small_patch14_reg4_dinov2"} <= set(names)
    assert not [name for name in names if re.search("dinov3|relpos|_rope|vitamin|xcit|^eva02|gcvit|davit", name)]
    small = [name for name in names if "tiny" in name or "small" in name]
    for name in small[::4]:
        with torch.device("meta"):
            assert isinstance(timm.create_model(name), VisionTransformer), name


@pytest.mark.parametrize(
    ("kind", "pooled"),
    [
        ("plain", lambda tokens: tokens[:, 0]),
        ("distilled", lambda tokens: (tokens[:, 0] + tokens[:, 1]) / 2),
        ("registers_average", lambda tokens: tokens[:, 4:].mean(1)),
        ("registers_class_token", lambda tokens: tokens[:, 0]),
    ],
)
def test_the_feature_is_pooled_as_the_model_was_trained(make_extractor, make_tuning, kind, pooled):
    extractor = make_extractor(make_tuning("none"), kind)
    with torch.no_grad():
        tokens = extractor.vit.forward_features(views(32))
        expected = extractor.vit.fc_norm(pooled(tokens))
        torch.testing.assert_close(extractor(views(32)), expected)


def test_the_embedded_backbone_for_photos_is_the_shared_one(shared):
    """Results name this hash."""
    path = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    embedded, given = (load_backbone(BackboneOptions(name=PHOTOS, weights=weights)) for weights in (None, path))
    assert embedded.fingerprint == given.fingerprint
    assert embedded.preprocessing == given.preprocessing
    pack = Path(__file__).parents[2] / "results" / "compare-mini.json"
    assert embedded.fingerprint in pack.read_text(encoding="utf-8")
