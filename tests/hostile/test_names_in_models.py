"""Nothing in a model folder names a path, a variable, a module or a download."""

import os
import sys

import pytest
import timm
import torch
from attacks import load, reseal, with_value
from safetensors.torch import save_file

from lca import ContinualClassifier, LcaError

SMALL = "test_vit.r160_in1k"
WEIGHTS = ("meta", "recipe", "backbone", "weights")


@pytest.mark.parametrize("named", ["/x/$SECRET", "$SECRET", "~/precious", "../precious", "//server/share", "precious"])
def test_weights_named_by_a_model_are_never_opened(folder, monkeypatch, tmp_path, named):
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.chdir(tmp_path)
    save_file({"x": torch.ones(1)}, tmp_path / "precious")
    reseal(folder, lambda content: with_value(content, WEIGHTS, named))
    touched = watch_files()
    with pytest.raises(LcaError, match="--weights FILE") as caught:
        ContinualClassifier.load(folder)
    assert "hunter2" not in str(caught.value)
    assert not [path for path in touched() if "precious" in path or "hunter2" in path or "server" in path]


_OPENED: list[str] = []
_WATCHING = [False, False]


def _note(event, arguments):
    if _WATCHING[0] and event == "open" and isinstance(arguments[0], str | bytes):
        _OPENED.append(os.fsdecode(arguments[0]))


def watch_files():
    """From now on; what is given says which files were opened."""
    if not _WATCHING[1]:
        sys.addaudithook(_note)
    _OPENED.clear()
    _WATCHING[:] = [True, True]

    def stop():
        _WATCHING[0] = False
        return list(_OPENED)

    return stop


def test_weights_of_my_own_may_name_variables(folder, monkeypatch, tmp_path, model):
    monkeypatch.setenv("MINE", str(tmp_path))
    with pytest.raises(LcaError, match=f"there is no file {tmp_path}/vit.safetensors"):
        ContinualClassifier.load(folder, weights="$MINE/vit.safetensors")


@pytest.mark.parametrize(
    "options",
    [
        {"megatron_config": {"a": 1}, "megatron_core": "antigravity"},
        {"init_lora_weights": "/etc/passwd"},
        {"corda_config": {"cache_file": "precious"}},
        {"eva_config": {"path": "$HOME"}},
    ],
)
def test_options_of_other_libraries_name_no_file_or_module(folder, options):
    tuning = {"name": "peft:lora", "feature_norm": False, "options": {"target_modules": ["qkv"], **options}}
    reseal(folder, lambda content: with_value(content, ("meta", "recipe", "tuning"), tuning))
    with pytest.raises(LcaError, match="names what a model may not name"):
        load(folder)


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """An empty cache, and a timm that would download."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    create, asked = timm.create_model, []

    def watched(name, pretrained=False, **options):
        if pretrained:
            asked.append(name)
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", watched)
    return asked


def test_a_model_starts_no_download(folder, downloads):
    reseal(folder, lambda content: with_value(content, ("meta", "recipe", "backbone", "name"), SMALL))
    with pytest.raises(LcaError, match="--allow-download"):
        ContinualClassifier.load(folder)
    assert not downloads
    with pytest.raises(LcaError, match="taught on other weights"):
        ContinualClassifier.load(folder, allow_download=True)
    assert downloads == [SMALL]


def test_what_was_downloaded_before_is_used(folder, downloads, tmp_path):
    reseal(folder, lambda content: with_value(content, ("meta", "recipe", "backbone", "name"), SMALL))
    repo = tmp_path / "cache" / f"models--timm--{SMALL}"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "snapshots" / "abc" / "model.safetensors").write_bytes(b"")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    with pytest.raises(LcaError, match="taught on other weights"):
        ContinualClassifier.load(folder)
    assert downloads == [SMALL]
