"""Fixtures of all tests; what they build is in parts.py."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from timm.models import VisionTransformer

from hubs import hub  # noqa: F401  # a fixture
from lca.backbones import Backbone
from lca.data.images import ImageSet
from lca.data.streams import Task
from lca.features import FeatureExtractor
from lca.methods._base import Setting
from lca.tuning.base import TuningOptions
from parts import (
    build_backbone,
    build_extractor,
    build_images,
    build_setting,
    build_task,
    build_vit,
    tuning_options,
)

torch.set_num_threads(1)
os.environ["LCA_CACHE_GB"] = "0"  # tests keep no decoded images, but for those of the cache
settings.register_profile("lca", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("lca")


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported stays: a collection that went through all of it would take half a second
    gc.set_threshold(50_000, 20)  # by default one comes with every 700 objects, many in a lesson


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture
def make_vit() -> Callable[..., VisionTransformer]:
    return build_vit


@pytest.fixture
def make_backbone() -> Callable[..., Backbone]:
    return build_backbone


@pytest.fixture
def make_images() -> Callable[..., ImageSet]:
    return build_images


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return build_task


@pytest.fixture
def make_tuning() -> Callable[..., TuningOptions]:
    return tuning_options


@pytest.fixture
def make_extractor() -> Callable[..., FeatureExtractor]:
    return build_extractor


@pytest.fixture
def make_setting() -> Callable[..., Setting]:
    return build_setting


@pytest.fixture
def shared() -> Path:
    """Data and weights that do not come with the package."""
    folder = os.environ.get("LCA_SHARED")
    if not folder:
        pytest.skip("LCA_SHARED does not name the folder with shared data and weights")
    return Path(folder)
