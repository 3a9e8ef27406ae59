"""A model as a checkpoint of timm's: loaded by timm and by transformers, and compared with the head it is made of."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import tiny
from lca import ContinualClassifier, LcaError
from lca.backbones import BackboneOptions, architecture, load_backbone
from lca.data.views import ViewOptions
from lca.heads.discriminant import DiscriminantOptions
from lca.heads.lda import linear_discriminant
from lca.models.timm_checkpoint import export_timm
from lca.recipe import validate_recipe
from parts import build_model_backbone

BRANCHES = ["none", {"preset": "lda"}, {"preset": "best"}]


@pytest.fixture(scope="module")
def photographs():
    """Pieces of two photographs, larger than what is seen of them."""
    random, pieces = np.random.default_rng(0), []
    for number in range(24):
        whole = load_sample_images().images[number % 2]
        height, width = random.integers(90, 160, 2)
        top, left = random.integers(0, (427 - height, 640 - width))
        pieces.append(Image.fromarray(whole[top : top + height, left : left + width]))
    return pieces


@pytest.fixture(scope="module")
def taught(photographs):
    content = {
        "training": {"epochs": 1, "batch_size": 8, "lr": 0.05},
        "tuning": {"name": "lora", "rank": 2},
        "method": {"align": BRANCHES},
        "device": "cpu",
    }
    model = ContinualClassifier(validate_recipe(content))
    pairs = [(piece, "temple" if number % 2 == 0 else "flower") for number, piece in enumerate(photographs[:16])]
    model.learn(pairs, effort="thorough")
    model.temperatures = {"none": 1.0, "lda": 1.7, "best": 1.3}
    return model


@pytest.fixture(scope="module")
def folder(taught, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "flowers-timm"
    assert export_timm(taught, path, branch="lda") == path / "lca.json"
    return path


def views(model, images):
    return model.extractor.evaluation_views(model.read([(image, "x") for image in images]).images.pixels)


@torch.no_grad()
def close(loaded, model, expected):
    torch.testing.assert_close(loaded.eval()(expected[0]), expected[1], rtol=1e-4, atol=1e-4)


def test_timm_answers_as_the_linear_head_of_the_model(taught, folder, photographs):
    seen = views(taught, photographs)
    logits = taught.logits(taught.extractor.eval()(seen).detach(), "lda") / 1.7
    assert logits.std() > 0.5
    close(timm.create_model(f"local-dir:{folder}", pretrained=True), taught, (seen, logits))
    name, options = architecture(taught.backbone.name)
    file = folder / "model.safetensors"
    close(timm.create_model(name, checkpoint_path=file, num_classes=2, **options), taught, (seen, logits))
    about = json.loads((folder / "lca.json").read_text())
    assert (about["classes"], about["branch"], about["temperature"]) == (taught.classes, "lda", 1.7)


def test_transformers_answers_as_the_model(taught, folder, photographs, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("image-classification", str(folder), device="cpu")
    answers = pipeline(photographs[16:])
    for answer, ours in zip(answers, taught.predict(photographs[16:], branch="lda"), strict=True):
        assert [each["label"] for each in answer] == [label for label, _ in ours.top(2)]
        assert answer[0]["score"] == pytest.approx(ours.probability, abs=2e-3), "it rounds the resized photo to bytes"


def test_the_quadratic_branch_gives_the_linear_head_of_its_statistics(taught, photographs, tmp_path):
    export_timm(taught, tmp_path / "best", branch="best")
    memory = taught.method.statistics("best")[0]
    weight, bias = linear_discriminant(memory, DiscriminantOptions(shrinkage=None, means="bayes"))
    seen = views(taught, photographs[:4])
    features = taught.extractor.eval()(seen).detach()
    expected = (features @ weight.T + bias) / 1.3
    close(timm.create_model(f"local-dir:{tmp_path / 'best'}", pretrained=True), taught, (seen, expected))


def other(name, tuning, method="im", **changes):
    """A model on one of timm's own, with random weights, that has learnt a task."""
    if name == "test_vit.r160_in1k":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            weights = timm.create_model("test_vit", num_classes=0).state_dict()
        backbone = load_backbone(BackboneOptions(name=name), weights)
    else:
        backbone = build_model_backbone(name)
    method = {"name": method, "align": ["best"], **changes}
    recipe = tiny.recipe(training={"epochs": 1}, tuning=tuning, method=method)
    model = ContinualClassifier(recipe, ViewOptions(), backbone=backbone)
    model.learn(tiny.task(0, {"0": 6, "1": 6}))
    return model


@pytest.mark.parametrize(
    ("name", "tuning", "method"),
    [
        ("test_vit.r160_in1k", {"name": "ssf"}, "im"),
        ("test_vit.r160_in1k", {"name": "lora", "rank": 2}, "frozen"),
        ("test_convnext.r160_in1k", {"name": "full"}, "im"),
        ("test_resnet.r160_in1k", {"name": "none"}, "frozen"),
    ],
)
def test_whatever_can_be_merged_answers_alike(tmp_path, name, tuning, method):
    model = other(name, tuning, method)
    export_timm(model, tmp_path / "out")
    pixels = tiny.images({"0": 3, "1": 3}, skip=6).pixels
    weight, bias = linear_discriminant(model.method.statistics("best")[0], DiscriminantOptions())
    expected = (model.features(pixels).detach() @ weight.T + bias) / model.temperatures.get("best", 1.0)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    close(loaded, model, (model.extractor.evaluation_views(pixels), expected))


@pytest.mark.parametrize(
    ("tuning", "changes", "message"),
    [
        ({"name": "vpt", "tokens": 2}, {}, "tuning is 'vpt', whose modules or prompts cannot be merged"),
        ({"name": "adapter", "bottleneck": 2}, {}, "tuning is 'adapter', whose modules or prompts cannot be merged"),
        ({"name": "lora", "rank": 2, "feature_norm": True}, {}, "feature_norm is a layer"),
        ({"name": "lora", "rank": 2}, {"second_pass": "mirror"}, "makes its features of several passes"),
        ({"name": "lora", "rank": 2}, {"align": ["none"]}, "keeps no class Gaussians for branch 'none'"),
    ],
)
def test_what_cannot_be_merged_is_refused(tmp_path, tuning, changes, message):
    model = other("test_vit.r160_in1k", tuning, **changes)
    with pytest.raises(LcaError, match=message):
        export_timm(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_in_the_way_stays(taught, folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("mine")
    with pytest.raises(LcaError, match="was not made by lca export"):
        export_timm(taught, tmp_path / "mine", branch="lda")
    with pytest.raises(LcaError, match="no branch 'other'"):
        export_timm(taught, tmp_path / "new", branch="other")
    with pytest.raises(LcaError, match="nothing to export"):
        export_timm(tiny.classifier(tiny.recipe()), tmp_path / "new")
    export_timm(taught, folder, branch="lda")
    assert (tmp_path / "mine" / "config.json").read_text() == "mine"
