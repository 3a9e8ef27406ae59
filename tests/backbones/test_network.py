"""Without a network nobody waits for weights, and what was downloaded before is still found."""

import socket
import time

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from lca import LcaError
from lca.backbones import BackboneOptions, load_backbone, network

TAG = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def closed():
    """The address of a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_what_answers_is_reachable_whatever_it_says(hub):
    assert network.unreachable(hub) is None


def test_what_refuses_is_not(closed):
    assert "refused" in network.unreachable(closed)


def test_a_look_up_that_hangs_is_given_up(monkeypatch):
    class Hanging:
        def head(self, *_, **__):
            time.sleep(2)

    monkeypatch.setattr(huggingface_hub, "get_session", Hanging)
    began = time.monotonic()
    assert network.unreachable("https://weights.example/a", patience=0.1) == "no answer from weights.example in 0.1 s"
    assert time.monotonic() - began < 1


def test_weights_that_cannot_be_fetched_are_told_in_time_with_what_to_do(monkeypatch, closed, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", closed)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    offline, began = constants.HF_HUB_OFFLINE, time.monotonic()
    with pytest.raises(LcaError, match=rf"{closed} cannot be reached: .*refused.*`--weights FILE` of `lca learn`"):
        load_backbone(BackboneOptions(name=TAG))
    assert time.monotonic() - began < 4
    assert offline == constants.HF_HUB_OFFLINE


def test_what_was_downloaded_before_needs_no_network(monkeypatch, closed, tmp_path):
    vit = timm.create_model(TAG, num_classes=1000)
    snapshot = tmp_path / f"models--timm--{TAG}" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / f"models--timm--{TAG}" / "refs").mkdir()
    (tmp_path / f"models--timm--{TAG}" / "refs" / "main").write_text(snapshot.name)
    save_file(vit.state_dict(), snapshot / "model.safetensors")
    monkeypatch.setattr(constants, "ENDPOINT", closed)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    loaded = load_backbone(BackboneOptions(name=TAG))
    assert torch.equal(loaded.vit.cls_token, vit.cls_token)


def test_timm_says_where_weights_come_from():
    class Card:
        hf_hub_id, url = None, "https://weights.example/a.pth"

    assert network.server_of(Card) == "https://weights.example/a.pth"
    assert network.server_of(None) == constants.ENDPOINT
