"""Which backbone a new model stands on when nobody says, and when somebody does."""

import json

import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from lca import ContinualClassifier, Recipe
from lca.backbones import PHOTOS
from lca.recipe import load_recipe

SMALL = "vit_pico_patch8_64"
FAST = ("--set", "method=simplecil", "--set", "device=cpu")


@pytest.fixture(autouse=True)
def _photos(tmp_path, monkeypatch):
    """Every command runs beside a folder of two classes of two photos."""
    monkeypatch.chdir(tmp_path)
    for name, deviation in {"calm": 10, "wild": 90}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            Image.effect_noise((40, 40), deviation + number).save(tmp_path / "photos" / name / f"{number}.png")


def test_photos_get_the_backbone_for_photos(lca):
    code, out, _ = lca("learn", "model", "photos", *FAST)
    assert code == 0
    first, second = out.splitlines()[:2]
    assert first == (f"the backbone is {PHOTOS}, which comes along: 5.5 million parameters, sees 224 px, no download")
    assert second.startswith("--backbone chooses another (see `lca backbones`), such as vit_small_patch16_224")
    assert second.endswith(f"sees 224 px, 3.7 times the compute of {PHOTOS}, about 88 MB to download once")
    model = ContinualClassifier.load("model")
    assert (model.backbone.name, model.backbone.preprocessing.size) == (PHOTOS, 224)
    code, out, _ = lca("learn", "model", "photos")
    assert code == 0
    assert "--backbone" not in out, "it can no longer be chosen"


@pytest.mark.parametrize(
    "words",
    [("--backbone", SMALL), ("--set", f"backbone.name={SMALL}"), ("--recipe", "mine.yaml")],
    ids=lambda words: words[0],
)
def test_whoever_names_a_backbone_gets_it(lca, tmp_path, words):
    (tmp_path / "mine.yaml").write_text(f"backbone: {{name: {SMALL}}}")
    code, out, _ = lca("learn", "model", "photos", *words, *FAST, "--quiet")
    assert code == 0
    assert "the backbone is" not in out
    assert ContinualClassifier.load("model").backbone.name == SMALL


def test_other_options_of_the_backbone_leave_its_name_open(lca):
    assert lca("learn", "model", "photos", "--set", "backbone.preprocessing=raw", *FAST, "--json")[0] == 0
    recipe = ContinualClassifier.load("model").recipe
    assert (recipe.backbone.name, recipe.backbone.preprocessing) == (PHOTOS, "raw")


def test_in_python_too():
    model = ContinualClassifier()
    assert model.recipe.model_copy(update={"backbone": Recipe().backbone}) == load_recipe("best")
    assert (model.backbone.name, Recipe().backbone.name) == (PHOTOS, SMALL)


def test_a_convolutional_network_stays_frozen(lca, tmp_path):
    weights = timm.create_model("test_resnet", num_classes=5).state_dict()  # its head is left out
    save_file(weights, tmp_path / "weights.safetensors")
    words = ("learn", "model", "photos", "--backbone", "test_resnet.r160_in1k", "--weights", "weights.safetensors")
    code, _, err = lca(*words, "--set", "device=cpu")
    assert code == 2
    assert "tuner 'lora' needs a vision transformer" in err
    assert "test_resnet.r160_in1k is a ResNet" in err
    assert "tuning: none" in err
    assert not (tmp_path / "model").exists()
    code, out, _ = lca(*words, "--set", "device=cpu", "--set", "tuning=none")
    assert code == 0
    assert "give --weights weights.safetensors" in out
    code, _, err = lca("predict", "model", "photos/calm/0.png")
    assert (code, "from a file ('weights.safetensors')" in err) == (2, True)
    code, out, _ = lca("predict", "model", "photos/calm/0.png", "--json", "--weights", "weights.safetensors")
    assert code == 0
    assert json.loads(out)[0]["label"] in {"calm", "wild"}
