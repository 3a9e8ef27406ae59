"""What methods store, tuners train and backbones cost with their default options, counted on models without values."""

import copy
from dataclasses import dataclass
from functools import cache

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lca.backbones import Backbone, embedded_names, input_size, untrained
from lca.backbones.pooling import pooled
from lca.data.views import AugmentOptions, Preprocessing
from lca.device import Compute
from lca.features import FeatureExtractor
from lca.methods import methods
from lca.progress import Progress
from lca.recipe import validate_recipe
from lca.training.setting import Setting
from lca.tuning import TuningOptions, tuners

TASKS, CLASSES = 10, 100


def stored_bytes(method: str, backbone: str, images: int) -> tuple[int, int, int] | None:
    """Bytes that a class more, a task more, and all of 100 classes in ten tasks take besides the backbone, at so many
    images of a class; None where that depends on the images."""
    recipe = validate_recipe({"method": method})
    extractor = _extractor(recipe.tuning, backbone)
    setting = Setting(extractor, recipe.training, AugmentOptions(), 0, Progress())
    count = methods[method](setting, recipe.method).expected_bytes
    now = count(TASKS, CLASSES, images)
    more_classes, more_tasks = (count(TASKS + tasks, CLASSES + 10, images) for tasks in (0, 1))
    if now is None or more_classes is None or more_tasks is None:
        return None
    return (more_classes - now) // 10, more_tasks - more_classes, now


def trained_parameters(tuner: str, backbone: str) -> int:
    """How many parameters a tuner trains."""
    extractor = _extractor(tuners[tuner].Options(name=tuner), backbone)
    return sum(parameter.numel() for parameter in extractor.tuner.parameters().values())


@dataclass(frozen=True)
class Footprint:
    """What a backbone costs."""

    parameters: int
    """Without a classification head."""
    size: int
    """Side of the square it sees, in pixels."""
    operations: int
    """Multiplications and additions for one image's feature."""
    download: int
    """Bytes of its weights in float32, with the head they come with; 0 for an embedded one."""


@cache
def footprint(backbone: str) -> Footprint:
    """What a backbone costs that is embedded or of timm's. Nothing is downloaded."""
    side, download = _side(backbone), 0
    if backbone in embedded_names():
        vit = _shape(backbone)
    else:
        with torch.device("meta"):
            vit = timm.create_model(backbone).eval()
        download = sum(4 * each.numel() for each in vit.state_dict().values())
        vit.reset_classifier(0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        pooled(vit, torch.empty(1, 3, side, side, device="meta"))
    return Footprint(sum(each.numel() for each in vit.parameters()), side, counter.get_total_flops(), download)


def _extractor(tuning: TuningOptions, backbone: str) -> FeatureExtractor:
    unit = (1.0, 1.0, 1.0)
    shape = Backbone(
        copy.deepcopy(_shape(backbone)), Preprocessing(_side(backbone), unit, unit, "bicubic"), backbone, ""
    )
    return FeatureExtractor(shape, tuning, 0, Compute(torch.device("meta")))


def _side(backbone: str) -> int:
    side = input_size(backbone)
    assert side is not None, "its shape was built"
    return side


@cache
def _shape(backbone: str) -> nn.Module:
    with torch.device("meta"):
        return untrained(backbone)
