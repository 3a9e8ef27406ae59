"""What only a GPU can show: the captured path equals the plain one, exact mode is bit-equal. Skipped without one."""

import json
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import lca.training
import tiny
from lca.alignment import AlignmentOptions, align
from lca.backbones import Backbone
from lca.config import validate_recipe
from lca.data.views import Preprocessing
from lca.device import Compute, replayed
from lca.files import load_state
from lca.gaussians import CovarianceOptions, GaussianMemory
from lca.heads import GrowingHeads, HeadOptions
from lca.methods import methods
from lca.randomness import generator
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _aligned(exact: bool, batches: str, samples: int = 50):
    device = torch.device("cuda")
    memory = GaussianMemory(CovarianceOptions())
    for label in range(12):
        memory.observe(label, torch.randn(20, 32, generator=generator(0, "features", label)) + label % 4)
    heads = GrowingHeads(32, HeadOptions())
    for task in range(3):
        heads.append(heads.new_head(4, generator(0, "head", task)))
    options = AlignmentOptions(
        name="x", batches=batches, nearest_mean_filter=True, samples=samples, epochs=3, batch_size=64
    )
    compute = Compute.choose("cuda", "fp32", exact)
    with compute.determinism():
        result, measured = align(
            heads.to(device), memory.to(device), options, lambda purpose, epoch, on: generator(0, purpose, 0, epoch, on)
        )
    return torch.cat([head.weight.flatten() for head in result.tasks]), measured


@pytest.mark.parametrize("batches", ["balanced", "random"])  # 12 x 50 samples in batches of 64 leave a short last one
def test_the_captured_alignment_equals_the_plain_one(batches):
    captured, captured_loss = _aligned(False, batches)
    plain, plain_loss = _aligned(True, batches)
    torch.testing.assert_close(captured, plain, atol=1e-5, rtol=1e-4)
    assert captured_loss["loss"] == pytest.approx(plain_loss["loss"], rel=1e-4)
    assert not torch.equal(captured, torch.zeros_like(captured))


def test_exact_alignment_repeats_bit_for_bit():
    assert torch.equal(_aligned(True, "balanced")[0], _aligned(True, "balanced")[0])


def _tiny_backbone(options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 0}
        vit = timm.create_model("vit_tiny_patch16_224", **shape).requires_grad_(False).eval()
    return Backbone(vit, Preprocessing(16, (0.5,) * 3, (0.5,) * 3, "bicubic"), "tiny", "tiny")


@pytest.fixture
def photos(tmp_path):
    """Six classes of noisy colours."""
    draw = np.random.default_rng(0)
    for label in range(6):
        (tmp_path / "photos" / f"class{label}").mkdir(parents=True)
        for number in range(12):
            pixels = np.clip(40 * label + draw.normal(0, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"class{label}" / f"{number}.png")
    return tmp_path / "photos"


def test_an_exact_run_in_slices_ends_bit_equal_to_a_run_in_one_piece(photos, tmp_path):
    align = {"samples": 32, "epochs": 2}
    branches = [{"preset": preset, **align} for preset in ("ca", "lca", "best")]
    recipe = validate_recipe(
        {
            "data": {"source": f"folder:{photos}", "tasks": 3},
            "training": {"epochs": 2, "batch_size": 16, "lr": 0.05},
            "tuning": {"name": "lora", "rank": 4, "dropout": 0.1},
            "method": {"name": "im", "align": ["none", "lda", *branches]},
            "device": "cuda",
            "exact": True,
        }
    )
    with patch("lca.runs.experiment.load_backbone", _tiny_backbone):
        run(recipe, tmp_path / "whole")
        slices = 1
        while True:
            try:
                run(recipe, tmp_path / "sliced", budget=Budget(0))
                break
            except BudgetSpent:
                slices += 1
    assert slices > 20
    whole, sliced = tmp_path / "whole", tmp_path / "sliced"
    assert (whole / "predictions.safetensors").read_bytes() == (sliced / "predictions.safetensors").read_bytes()
    one, other = load_state(whole / "models" / "task-02"), load_state(sliced / "models" / "task-02")
    assert one.parts.keys() == other.parts.keys()
    for part, tensors in one.parts.items():
        assert all(torch.equal(tensor, other.parts[part][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("method", "optimiser", "loss"),
    [
        *((method, optimiser, "cross_entropy") for method in methods for optimiser in ("sgd", "adamw")),
        ("im", "sgd", "lca"),
    ],
)
def test_captured_training_equals_the_plain_one(method, optimiser, loss, photos, tmp_path, monkeypatch):
    """Every method, with dropout: the captured steps draw what the plain ones draw. Rates are low enough that a change
    in the last digit stays one: with its own `tuner_lr` a run of MOS on such images ends elsewhere."""
    rate = 0.005 if optimiser == "sgd" else 0.002
    recipe = validate_recipe(
        {
            "data": {"source": f"folder:{photos}", "tasks": 2},
            "training": {
                "epochs": 8,
                "batch_size": 8,
                "lr": rate,
                "tuner_lr": rate,
                "optimiser": optimiser,
                "loss": loss,
            },
            "tuning": {"name": "lora", "rank": 4, "dropout": 0.2},
            "method": tiny.method_section(method),
            "device": "cuda",
            "precision": "fp32",
        }
    )
    models = []
    with patch("lca.runs.experiment.load_backbone", _tiny_backbone):
        for number, worth in enumerate((20, 10**9)):
            monkeypatch.setattr(lca.training, "_WORTH_CAPTURING", worth)
            run(recipe, tmp_path / str(number))
            models.append(load_state(next((tmp_path / str(number) / "models").iterdir())))
    captured, plain = models
    for part, tensors in plain.parts.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(captured.parts[part][name], tensor, atol=2e-3, rtol=2e-2, msg=f"{part} {name}")


@pytest.mark.parametrize("name", tiny.TUNERS)
def test_every_tuner_can_be_captured(name, photos, tmp_path, monkeypatch):
    recipe = validate_recipe(
        {
            "data": {"source": f"folder:{photos}", "tasks": 2},
            "training": {"epochs": 8, "batch_size": 8, "lr": 0.02},
            "tuning": {"name": name, **tiny.SMALL_TUNING.get(name, {}), "feature_norm": True},
            "method": "finetune",
            "device": "cuda",
            "precision": "fp32",
        }
    )
    captures = []
    monkeypatch.setattr(lca.training, "replayed", lambda *given: captures.append(given) or replayed(*given))
    models = []
    with patch("lca.runs.experiment.load_backbone", _tiny_backbone):
        for number, worth in enumerate((20, 10**9)):
            monkeypatch.setattr(lca.training, "_WORTH_CAPTURING", worth)
            run(recipe, tmp_path / str(number))
            models.append(load_state(next((tmp_path / str(number) / "models").iterdir())))
    assert len(captures) == 2
    for tensors, others in zip(*(state.parts.values() for state in models), strict=True):
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, others[key], atol=2e-3, rtol=2e-2, msg=key)


@pytest.mark.parametrize("name", ["lora", "adapter", "vpt", "full"])
def test_compiled_and_captured_training_equals_the_plain_one(name, photos, tmp_path, monkeypatch):
    """The fast path in fp32 beside the plain one: losses of every epoch, tuned tensors and accuracies."""
    tuning = {"name": name, **tiny.SMALL_TUNING.get(name, {})}
    tuning |= {"dropout": 0.0} if name in {"lora", "adapter"} else {}  # compiled, it draws other numbers
    outcomes = []
    for fast in (True, False):
        recipe = validate_recipe(
            {
                "data": {"source": f"folder:{photos}", "tasks": 2},
                "training": {"epochs": 8, "batch_size": 8, "lr": 0.02},
                "tuning": tuning,
                "method": "finetune",
                "device": "cuda",
                "precision": "fp32",
                "compile": fast,
            }
        )
        monkeypatch.setattr(lca.training, "_WORTH_CAPTURING", 20 if fast else 10**9)
        folder = tmp_path / str(fast)
        with patch("lca.runs.experiment.load_backbone", _tiny_backbone):
            results = run(recipe, folder)
        steps = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        losses = [step["loss"] for step in steps if step.get("phase") == "finetune"]
        tensors = load_state(next((folder / "models").iterdir())).parts["tuned"]
        outcomes.append((losses, tensors, results["branches"]["default"]["correct"]))
    (losses, tensors, correct), (plain_losses, plain_tensors, plain_correct) = outcomes
    assert losses == pytest.approx(plain_losses, rel=1e-3, abs=1e-4)
    for key, tensor in plain_tensors.items():
        torch.testing.assert_close(tensors[key], tensor, atol=2e-3, rtol=2e-2, msg=key)
    assert correct == plain_correct
