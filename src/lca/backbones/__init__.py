"""Backbones: timm's models of images by their full tag, with the preprocessing of their own cards.

The embedded ones need no network. Weights can also come from a local safetensors file with timm's key names. Frozen or
wholly tuned, any model does; what puts tensors of its own into a backbone needs timm's `VisionTransformer`.
"""

import hashlib
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import yaml
from huggingface_hub import try_to_load_from_cache
from timm.models import VisionTransformer
from timm.models._hub import check_cached_file
from torch import Tensor, nn

from lca.backbones import network
from lca.backbones.pooling import pooled_shape
from lca.data.views import Preprocessing
from lca.errors import LcaError, nearest
from lca.files import Part, hash_file, hash_json, load_tensors
from lca.options import Options

EMBEDDED = Path(__file__).parent / "embedded"
PHOTOS = "deit_tiny_patch16_224.fb_in1k"
"""The backbone of people's photos, unless they choose another. The one of recipes is smaller and sees less."""


class BackboneOptions(Options):
    """Which model, which weights, which input scaling."""

    name: str = "vit_pico_patch8_64"
    """A full timm tag (`vit_base_patch16_224.augreg_in21k_ft_in1k`) or an embedded model."""
    weights: Path | None = None
    """A safetensors file with the weights (`$NAME` is expanded); by default timm's download, or the embedded ones."""
    preprocessing: Literal["card", "raw"] = "card"
    """`card`: the mean and standard deviation of the weights' card. `raw`: [0, 1], as the published runs did."""


@dataclass(frozen=True)
class Backbone:
    """A pre-trained model of timm's without head, how its input is scaled, and which weights exactly it has."""

    vit: Any
    """A `torch.nn.Module`, mostly a vision transformer. In evaluation."""
    preprocessing: Preprocessing
    name: str
    fingerprint: str
    """Hash of the weights as loaded, wherever they came from; part of every result."""
    licence: str = ""
    """What is known about the terms of the weights."""

    @property
    def width(self) -> int:
        """How many values a feature has. `num_features`, as timm calls it, is of many models the width before another
        layer of the head."""
        return int(self.vit.head_hidden_size)


def embedded_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.stem for path in EMBEDDED.glob("*.yaml"))


def purpose(name: str) -> str:
    """What an embedded model is for."""
    return str(_card(name)["purpose"])


def transformer_names() -> list[str]:
    """Names of timm's models of the class that all tuners fit, by where timm defines them.

    A name alone does not tell: `vit_base_patch16_dinov3` is of another class. A few elsewhere (vitamin) would do too.
    """
    modules = ("vision_transformer", "vision_transformer_hybrid", "deit")
    return [name for module in modules for name in timm.list_models(module=module)]


def load_backbone(options: BackboneOptions, weights: Part | None = None) -> Backbone:
    """Build the model, fill in the weights, take the preprocessing from the card.

    The weights are those given (a model that carries its backbone), those of `options.weights`, the embedded ones, or
    timm's download, in that order.
    """
    path = None if options.weights is None else Path(os.path.expandvars(options.weights)).expanduser()
    if options.name in embedded_names():
        vit, card = _embedded(options.name)
        if path is None and weights is None:
            path = EMBEDDED / card["weights"]
            if hash_file(path) != card["sha256"]:
                raise LcaError(f"{path} does not have the hash of its card; reinstall the package")
        scaling, licence = card["preprocessing"], " ".join(card["licence"].split())
    else:
        vit, scaling = _timm_model(options.name, download=path is None and weights is None)
        licence = str(vit.pretrained_cfg.get("license") or "")
    if weights is not None:
        _fill(vit, weights, "the weights the model carries")
    elif path is not None:
        _fill(vit, load_tensors(path), f"the weights in {path}")
    vit.requires_grad_(False).eval()
    raw = options.preprocessing == "raw"
    preprocessing = Preprocessing(
        size=int(scaling["size"]),
        mean=(0.0, 0.0, 0.0) if raw else _triple(scaling["mean"]),
        std=(1.0, 1.0, 1.0) if raw else _triple(scaling["std"]),
        interpolation=str(scaling["interpolation"]),
    )
    fingerprint = hash_json({name: _digest(tensor) for name, tensor in vit.state_dict().items()})
    return Backbone(vit, preprocessing, options.name, fingerprint, licence)


def at_hand(name: str) -> bool:
    """Whether the weights of that name are on this machine: they come with the package, or were downloaded before."""
    if name in embedded_names():
        return True
    card = timm.get_pretrained_cfg(name) if timm.is_model(name.partition(".")[0]) else None
    if card is None:
        return True  # there is nothing to download: building it tells what is wrong with the name
    if card.hf_hub_id:
        files = (card.hf_hub_filename,) if card.hf_hub_filename else ("model.safetensors", "pytorch_model.bin")
        return any(isinstance(try_to_load_from_cache(card.hf_hub_id, file), str) for file in files)
    return bool(card.url) and check_cached_file(card.url)


def input_size(name: str) -> int | None:
    """Side of the square that the backbone of that name sees, without building it; None for an unknown name."""
    if name in embedded_names():
        return int(_card(name)["preprocessing"]["size"])
    card = timm.get_pretrained_cfg(name)
    return None if card is None else int(card.input_size[-1])


def architecture(name: str) -> tuple[str, dict[str, Any]]:
    """What timm makes the model of that name of: `timm.create_model(architecture, **options)` has its shape."""
    if name in embedded_names():
        made = _card(name)["architecture"]
        return str(made["name"]), dict(made["options"])
    plain = name.partition(".")[0]
    if not timm.is_model(plain):
        raise LcaError(f"timm has no model {plain!r}, so nobody else could load it; choose a backbone by timm's name")
    if (size := input_size(name)) == input_size(plain):
        return plain, {}
    with torch.device("meta"):
        is_transformer = isinstance(timm.create_model(plain), VisionTransformer)
    return plain, {"img_size": size} if is_transformer else {}  # which has a position for every patch


def untrained(name: str) -> nn.Module:
    """The model of that name with random weights and without any download: to count with, not to use."""
    vit = _embedded(name)[0] if name in embedded_names() else _timm_model(name, download=False)[0]
    return vit.eval()


def _card(name: str) -> Any:
    return yaml.safe_load((EMBEDDED / f"{name}.yaml").read_text(encoding="utf-8"))


def _embedded(name: str) -> tuple[nn.Module, dict[str, Any]]:
    card = _card(name)
    vit = timm.create_model(card["architecture"]["name"], num_classes=0, **card["architecture"]["options"])
    return vit, card


def _timm_model(name: str, download: bool) -> tuple[Any, dict[str, Any]]:
    """A model of timm's, with its download or untrained, and what its card says about the input."""
    architecture, dot, tag = name.partition(".")
    if not timm.is_model(architecture):
        hint = nearest(architecture, [*timm.list_models(), *embedded_names()])
        hint = hint if hint.endswith("?") else "`lca backbones --search PATTERN` finds one"
        raise LcaError(f"timm has no model {architecture!r}; {hint}")
    _expect_features(architecture)
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
    if dot and tag not in tags:
        raise LcaError(f"timm has no weights {name!r}; {nearest(tag, tags)}")
    if not dot and download:
        full = ", ".join(f"{architecture}.{each}" for each in tags) or "none, so give backbone.weights"
        raise LcaError(
            f"backbone {name!r} does not say which weights: what a bare name means has changed between timm "
            f"releases. Full tags: {full}"
        )
    server = network.server_of(timm.get_pretrained_cfg(name))
    reason = network.unreachable(server) if download else None
    try:
        with network.from_the_cache_alone() if reason else nullcontext():
            vit = timm.create_model(name, pretrained=download, num_classes=0)
    except (OSError, RuntimeError) as error:
        reason = f"{server} cannot be reached: {reason}" if reason else f"{type(error).__name__}: {error}"
        raise LcaError(
            f"the weights of {name} could not be fetched ({reason}). Without a network, bring them as a safetensors "
            "file: `--weights FILE` of `lca learn`, or backbone.weights=FILE in a recipe"
        ) from error
    card = vit.pretrained_cfg
    return vit, {"size": card["input_size"][-1], **{key: card[key] for key in ("mean", "std", "interpolation")}}


def _expect_features(architecture: str) -> None:
    """Refuse a model that does not turn a square colour image into a vector as wide as it says. Its shape tells, before
    any download; that of vision transformers is known."""
    with torch.device("meta"):
        vit = timm.create_model(architecture, num_classes=0).eval()
    channels, height, width = vit.pretrained_cfg["input_size"]
    if (channels, height) != (3, width):
        raise LcaError(f"{architecture} wants {channels} x {height} x {width} values; here images are 3 x n x n")
    if isinstance(vit, VisionTransformer):
        return
    try:
        shape: Any = pooled_shape(vit, height)
    except (NotImplementedError, TypeError, AttributeError) as error:  # encoders without a classifier's pooling
        shape = f"{type(error).__name__}: {error}"
    if shape != (1, vit.head_hidden_size):
        raise LcaError(
            f"{architecture} is a {type(vit).__name__}, which gives no feature vector of an image ({shape}); "
            "choose one of timm's classifiers of images (`lca backbones`)"
        )


def _fill(vit: Any, stored: Part, what: str) -> None:
    """Load weights into the model: fp16 is cast, a classification head is left out, all else must fit."""
    wanted = vit.state_dict()
    named = vit.pretrained_cfg["classifier"] or ()
    heads = tuple(f"{each}." for each in ([named] if isinstance(named, str) else named))
    extra = [key for key in stored if key not in wanted and not key.startswith(heads)]
    missing = [key for key in wanted if key not in stored]
    shapes = [
        f"{key}: {tuple(stored[key].shape)} in the file, {tuple(wanted[key].shape)} in the model"
        for key in wanted
        if key in stored and stored[key].shape != wanted[key].shape
    ]
    if extra or missing or shapes:
        facts = [f"missing {missing[:3]}"] * bool(missing) + [f"unknown {extra[:3]}"] * bool(extra) + shapes[:3]
        raise LcaError(f"{what} do not fit the model: {'; '.join(facts)}")
    vit.load_state_dict({key: stored[key].to(wanted[key].dtype) for key in wanted})


def _triple(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
