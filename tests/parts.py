"""Small real parts for tests: tiny vision transformers of every kind, tiny images, tasks and settings."""

from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models import VisionTransformer

import lca.testing.parts
from lca.backbones import Backbone, BackboneOptions, load_backbone
from lca.data.images import ImageSet, Pixels
from lca.data.streams import Task
from lca.data.views import AugmentOptions
from lca.device import Compute
from lca.features import FeatureExtractor
from lca.progress import Progress
from lca.testing.parts import VITS  # noqa: F401  # tests use it
from lca.training.options import TrainingOptions
from lca.training.setting import Setting
from lca.tuning import tuners
from lca.tuning.base import TuningOptions

SMALL_TUNING: dict[str, dict[str, Any]] = {
    "lora": {"rank": 4, "alpha": 8.0},
    "adapter": {"bottleneck": 4},
    "vpt": {"tokens": 3},
    "prefix": {"tokens": 3, "layers": (0, 1)},
    "prompt": {"tokens": 3},
    "peft:ia3": {"options": {"target_modules": ["qkv"], "feedforward_modules": []}},
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "test_convnext.r160_in1k": {},
    "test_resnet.r160_in1k": {},
    "test_efficientnet.r160_in1k": {},
    "mobilenetv3_small_050.lamb_in1k": {},
    "swin_tiny_patch4_window7_224.ms_in1k": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 24,
        "depths": (1, 1),
        "num_heads": (2, 2),
    },
}
"""Models of timm's that are no vision transformers, the smallest of their kind, and what makes them smaller."""


def build_vit(kind: str = "plain", seed: int = 0, **changes: Any) -> VisionTransformer:
    return lca.testing.parts.build_vit(kind, seed, **{"img_size": 32, **changes})


def build_backbone(kind: str = "plain", interpolation: str = "bicubic") -> Backbone:
    return replace(lca.testing.parts.build_backbone(kind, interpolation, img_size=32), name=kind)


def build_model_backbone(name: str) -> Backbone:
    """One of `SMALL_MODELS` for images of 32 pixels, as `load_backbone` gives it where timm has a name for its shape.

    All its weights are random, running statistics among them: what they begin with would hide mistakes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model(name.partition(".")[0], num_classes=0, **SMALL_MODELS[name])
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        for key, buffer in model.named_buffers():
            if "running_" in key:
                buffer += 0.2 * torch.rand_like(buffer)
    if SMALL_MODELS[name]:
        return replace(build_backbone(), vit=model.requires_grad_(False).eval(), name=name)
    backbone = load_backbone(BackboneOptions(name=name), model.state_dict())
    return replace(backbone, preprocessing=replace(backbone.preprocessing, size=32))


def build_images(classes: tuple[str, ...], per_class: int | list[int] = 6, seed: int = 0) -> ImageSet:
    """Noisy images with a colour gradient of their class, so that the classes can be told apart."""
    random = torch.Generator().manual_seed(seed)
    counts = [per_class] * len(classes) if isinstance(per_class, int) else per_class
    ramp = torch.linspace(0, 1, 32)
    images, labels = [], []
    for label, (name, count) in enumerate(zip(classes, counts, strict=True)):
        own = torch.Generator().manual_seed(sum(name.encode()) * 7919)
        colours, slopes = torch.rand(3, 1, 1, generator=own), torch.rand(3, 2, generator=own) - 0.5
        clean = colours + slopes[:, :1, None] * ramp[None, :, None] + slopes[:, 1:, None] * ramp[None, None]
        for _ in range(count):
            noisy = clean + 0.15 * torch.randn(3, 32, 32, generator=random)
            images.append((noisy.clamp(0, 1) * 255).to(torch.uint8))
            labels.append(label)
    return ImageSet(Pixels.of(images), torch.tensor(labels), classes)


def build_task(index: int, classes: tuple[str, ...], per_class: int | list[int] = 6) -> Task:
    return Task(index, classes, build_images(classes, per_class, seed=100 + index))


def tuning_options(name: str = "lora", **changes: Any) -> TuningOptions:
    return tuners[name].Options(**{"name": name, **SMALL_TUNING.get(name, {}), **changes})


def build_extractor(tuning: TuningOptions | None = None, kind: str = "plain", seed: int = 3) -> FeatureExtractor:
    chosen = tuning or tuning_options()
    return FeatureExtractor(build_backbone(kind), chosen, seed, Compute.choose("cpu"), centre_crop=1.0)


def build_setting(
    training: TrainingOptions | None = None,
    augment: AugmentOptions | None = None,
    tuning: TuningOptions | None = None,
    seed: int = 3,
    kind: str = "plain",
) -> Setting:
    training = training or TrainingOptions(epochs=2, batch_size=4, lr=0.05)
    augment = augment or AugmentOptions(crop_scale=(0.5, 1.0))
    return Setting(build_extractor(tuning, kind, seed), training, augment, seed, Progress())
