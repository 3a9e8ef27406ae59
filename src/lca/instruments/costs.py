"""What methods store and tuners train with their default options, counted on transformers without values."""

import copy
from functools import cache

import torch
from timm.models import VisionTransformer

from lca.backbones import Backbone, untrained
from lca.data.views import AugmentOptions, Preprocessing
from lca.device import Compute
from lca.features import FeatureExtractor
from lca.methods import methods
from lca.progress import Progress
from lca.recipe import validate_recipe
from lca.training.setting import Setting
from lca.tuning import tuners

TASKS, CLASSES = 10, 100


def stored_bytes(method: str, backbone: str, images: int) -> tuple[int, int, int] | None:
    """Bytes that a class more, a task more, and all of 100 classes in ten tasks take besides the backbone, at so many
    images of a class; None where that depends on the images."""
    recipe, unit = validate_recipe({"method": method}), (1.0, 1.0, 1.0)
    shape = Backbone(copy.deepcopy(_shape(backbone)), Preprocessing(224, unit, unit, "bicubic"), backbone, "")
    extractor = FeatureExtractor(shape, recipe.tuning, 0, Compute(torch.device("meta")))
    setting = Setting(extractor, recipe.training, AugmentOptions(), 0, Progress())
    count = methods[method](setting, recipe.method).expected_bytes
    now = count(TASKS, CLASSES, images)
    more_classes, more_tasks = (count(TASKS + tasks, CLASSES + 10, images) for tasks in (0, 1))
    if now is None or more_classes is None or more_tasks is None:
        return None
    return (more_classes - now) // 10, more_tasks - more_classes, now


def trained_parameters(tuner: str, backbone: str) -> int:
    """How many parameters a tuner trains."""
    attached = tuners[tuner](tuners[tuner].Options(name=tuner))
    attached.attach(copy.deepcopy(_shape(backbone)), torch.Generator())
    return sum(parameter.numel() for parameter in attached.parameters().values())


@cache
def _shape(backbone: str) -> VisionTransformer:
    with torch.device("meta"):
        return untrained(backbone)
