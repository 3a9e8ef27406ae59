"""Small real parts: tiny vision transformers of every kind, images and tasks of scikit-learn's digits."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import timm
import torch
from timm.models import VisionTransformer

from lca.backbones import Backbone
from lca.classifier import ContinualClassifier
from lca.data.images import ImageSet
from lca.data.options import DataOptions
from lca.data.sources import Source, load_source
from lca.data.streams import Task
from lca.data.views import Preprocessing, ViewOptions
from lca.progress import Progress
from lca.recipe import Recipe, merge_mappings, validate_recipe

VITS = {
    "plain": "vit_tiny_patch16_224",
    "distilled": "deit_tiny_distilled_patch16_224",
    "registers_average": "vit_little_patch16_reg4_gap_256",
    "registers_class_token": "vit_small_patch14_reg4_dinov2",
    "attention_pool": "vit_base_patch16_siglip_224",
}
"""Kinds of timm transformers, each built in a tiny shape."""
SHAPE = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 0}
RECIPE = {
    "name": "tiny",
    "data": {"source": "digits", "tasks": [3, 1, 2, 4], "train_limit": 6},
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.05},
    "tuning": {"name": "lora", "rank": 2, "alpha": 4.0, "dropout": 0.1},
    "device": "cpu",
    "seed": 5,
}


def recipe(*changes: Mapping[str, Any], **more: Any) -> Recipe:
    """A quick recipe with changes."""
    content: dict[str, Any] = RECIPE
    for change in (*changes, more):
        content = merge_mappings(content, change)
    return validate_recipe(content)


def build_vit(kind: str = "plain", seed: int = 0, **shape: Any) -> VisionTransformer:
    """A real timm transformer in a tiny shape, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vit = timm.create_model(VITS[kind], **{**SHAPE, **shape})
        for parameter in vit.parameters():  # zeros and ones of the initialisation would hide mistakes
            parameter.data += 0.05 * torch.randn_like(parameter)
    return vit.requires_grad_(False).eval()


def build_backbone(kind: str = "plain", interpolation: str = "bilinear", **shape: Any) -> Backbone:
    vit, half = build_vit(kind, **shape), (0.5, 0.5, 0.5)
    return Backbone(vit, Preprocessing(vit.patch_embed.img_size[0], half, half, interpolation), "tiny", "0" * 64)


def classifier(chosen: Recipe, **shape: Any) -> ContinualClassifier:
    view = ViewOptions.model_validate({"augment": {"crop_scale": [0.6, 1.0], "flip": False}, "centre_crop": 1.0})
    return ContinualClassifier(chosen, view, backbone=build_backbone(**shape))


@cache
def digits() -> Source:
    return load_source(DataOptions(), 0, 16, Progress())


def images(counts: Mapping[str, int], skip: int = 0) -> ImageSet:
    """The first images of each digit named, after leaving out `skip` of them."""
    chosen = digits().train.of_classes(list(counts))
    rows = [torch.nonzero(chosen.labels == n)[skip : skip + count, 0] for n, count in enumerate(counts.values())]
    return chosen.subset(torch.cat(rows))


def task(index: int, counts: Mapping[str, int]) -> Task:
    return Task(index, tuple(counts), images(counts))
