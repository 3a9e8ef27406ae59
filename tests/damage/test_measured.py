"""Against numbers from elsewhere: the published definitions, run on other images, and the other device."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lca.damage import corruptions, perturbations
from lca.damage.corruptions import SEVERITIES, corrupt
from lca.damage.perturbations import perturb
from photographs import change, photographs

CHANGES = {  # mean absolute change of 200 CIFAR-100 test images under the published definitions
    "gaussian_noise": (7.86, 11.66, 15.38, 17.21, 19.03),
    "shot_noise": (5.76, 8.09, 12.64, 14.54, 17.64),
    "impulse_noise": (1.27, 2.57, 3.82, 6.39, 8.93),
    "defocus_blur": (1.34, 3.24, 4.89, 6.36, 9.09),
    "glass_blur": (10.88, 11.05, 10.87, 17.79, 17.09),
    "motion_blur": (7.04, 10.36, 13.19, 13.16, 15.40),
    "zoom_blur": (8.61, 10.26, 12.29, 14.41, 16.42),
    "snow": (10.30, 22.77, 24.24, 35.39, 49.77),
    "frost": (29.19, 44.22, 48.21, 43.68, 44.61),
    "fog": (11.46, 22.53, 29.63, 34.33, 41.63),
    "brightness": (9.33, 18.79, 27.82, 36.34, 51.51),
    "contrast": (10.83, 21.67, 26.01, 30.34, 36.85),
    "elastic_transform": (21.57, 19.76, 17.81, 16.41, 13.49),
    "pixelate": (1.75, 3.32, 4.09, 6.10, 8.56),
    "jpeg_compression": (5.51, 6.80, 7.25, 7.70, 8.30),
    "speckle_noise": (5.54, 9.07, 10.82, 14.23, 17.59),
    "gaussian_blur": (1.30, 4.77, 6.11, 7.25, 9.25),
    "spatter": (0.99, 2.63, 6.55, 3.15, 5.17),
    "saturate": (14.37, 18.55, 8.70, 20.62, 28.92),
}
STEPS = {  # mean absolute change from frame to frame, of the same images
    "motion_blur": 2.59,
    "zoom_blur": 0.34,
    "snow": 0.59,
    "brightness": 2.89,
    "translate": 16.07,
    "rotate": 3.27,
    "tilt": 1.60,
    "scale": 5.02,
    "gaussian_blur": 0.21,
    "shear": 2.69,
}


@pytest.fixture(scope="module")
def cifar():
    folder = os.environ.get("LCA_SHARED")
    if not folder:
        pytest.skip("LCA_SHARED does not name the folder with shared data and weights")
    with zipfile.ZipFile(Path(folder) / "data" / "cifar100-mini.zip") as archive:
        names = sorted(name for name in archive.namelist() if "test/" in name and name.endswith(".webp"))[::5]
        images = [np.asarray(Image.open(archive.open(name)).convert("RGB")) for name in names]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("name", corruptions.NAMES)
def test_changes_are_those_of_the_published_definitions(cifar, name):
    ours = [change(corrupt(cifar, name, severity), cifar) for severity in SEVERITIES]
    assert ours == pytest.approx(CHANGES[name], rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), STEPS.items())
def test_steps_are_those_of_the_published_sequences(cifar, name, expected):
    frames = perturb(cifar[::4], name)
    tolerance = 0.2 if name == "snow" else 0.1
    assert change(frames[:, 1:], frames[:, :-1]) == pytest.approx(expected, rel=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [32, 96])
def test_a_gpu_makes_the_same_images(size):
    images = photographs(size, size)
    for name in corruptions.NAMES:
        for severity in SEVERITIES:
            damaged = corrupt(images.cuda(), name, severity)
            assert damaged.device.type == "cuda"
            assert float((damaged.cpu() != corrupt(images, name, severity)).double().mean()) < 1e-3, name
    for name in perturbations.NAMES:
        frames = perturb(images[:2].cuda(), name)
        assert float((frames.cpu() != perturb(images[:2], name)).double().mean()) < 1e-3, name
