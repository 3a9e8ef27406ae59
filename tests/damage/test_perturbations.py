"""Perturbation sequences: what holds for each of them, and their definitions."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from lca.damage import perturbations as sequences
from lca.damage.perturbations import EXTRA, NAMES, NOISE, STANDARD, affine, frame_count, perturb, perturbations
from lca.damage.sizes import tier_of
from lca.errors import LcaError
from photographs import change, flat, photographs

WITH_DRAWS = {*NOISE, "snow", "spatter"}
CLEAN = {"zoom_blur": 0, "brightness": 15, "rotate": 15, "shear": 15, "translate": 7, "scale": 15} | dict.fromkeys(
    NOISE, 0
)
"""Which frame is the image itself, at 32 pixels."""

each = pytest.mark.parametrize("name", NAMES)


def test_there_are_10_and_4():
    assert (len(STANDARD), len(EXTRA)) == (10, 4)
    assert sorted(NAMES) == list(perturbations)


@each
def test_frames_shape_and_type(name):
    for height, width in ((32, 32), (17, 23), (64, 80)):
        images = photographs(height, width, 2)
        before = images.clone()
        frames = perturb(images, name)
        assert frames.shape == (2, frame_count(name, tier_of(images)[0]), 3, height, width)
        assert frames.dtype == torch.uint8
        assert torch.equal(images, before)
    assert perturb(images[:0], name).shape == (0, *frames.shape[1:])


def test_frame_counts():
    assert [frame_count("motion_blur", tier) for tier in (32, 64, 224, 299)] == [21, 31, 31, 31]
    assert [frame_count("translate", tier) for tier in (32, 64, 224, 299)] == [16, 31, 41, 41]
    assert frame_count("rotate", 32) == 31


@each
def test_an_image_moves_alike_in_every_batch(name, monkeypatch):
    images = photographs(32, 32, 4)
    together = perturb(images, name, seed=3)
    assert torch.equal(together[2:3], perturb(images[2:3], name, seed=3, numbers=[2]))
    assert torch.equal(together, perturb(images.flip(0), name, seed=3, numbers=[3, 2, 1, 0]).flip(0))
    monkeypatch.setattr("lca.damage.corruptions.AT_ONCE", {"cpu": 3 * 3 * 32 * 32})
    assert torch.equal(together, perturb(images, name, seed=3))


@each
def test_draws_belong_to_seed_and_number(name):
    images = photographs(32, 32, 1).expand(2, -1, -1, -1)
    frames = perturb(images, name)
    if name in WITH_DRAWS:
        assert not torch.equal(frames[0], frames[1])
        assert not torch.equal(frames, perturb(images, name, seed=1))
    else:
        assert torch.equal(frames[0], frames[1])


@each
def test_the_path_is_smooth(name):
    images = photographs(64, 64)
    frames = perturb(images, name)
    if name in NOISE:
        assert torch.equal(frames[:, 0], images)
        assert not torch.equal(frames[:, 1], frames[:, 2])
        return
    step = change(frames[:, 1:], frames[:, :-1])
    far = change(frames[:, -1], frames[:, 0])
    assert 0 < step < 25
    if name not in {"motion_blur", "translate", "spatter"}:
        assert step < far


@pytest.mark.parametrize(("name", "frame"), CLEAN.items())
def test_one_frame_is_the_image(name, frame):
    images = photographs(32, 32)
    assert torch.equal(perturb(images, name)[:, frame], images)


def test_motion_blur_and_tilt_have_no_clean_frame():
    images = photographs(32, 32)
    for name in ("motion_blur", "tilt"):
        assert min(change(frame, images) for frame in perturb(images, name).unbind(1)) > 1


@pytest.mark.parametrize("name", NOISE)
def test_noise_grows_with_difficulty_and_does_not_add_up(name):
    images = photographs(32, 32)
    changes = []
    for difficulty in (1, 2, 3):
        frames = perturb(images, name, difficulty=difficulty)
        changes.append(change(frames[:, 1], images))
        assert change(frames[:, -1], images) == pytest.approx(changes[-1], rel=0.1)
    assert changes == sorted(changes)


def test_other_sequences_know_no_difficulty():
    images = photographs(32, 32)
    assert torch.equal(perturb(images, "snow", difficulty=3), perturb(images, "snow"))


@pytest.mark.parametrize(("degrees", "scale", "shear"), [(7, 1, 0), (0, 1.3, 0), (0, 0.7, 0), (0, 1, 5), (-13, 0.9, 3)])
def test_affine_maps_are_pillows(degrees, scale, shear):
    image = photographs(30, 41, 1)
    angle, slant = math.radians(degrees), math.radians(shear)
    length = 1 / scale / math.cos(slant)
    a, b = length * math.cos(angle + slant), length * math.sin(angle + slant)
    d, e = -length * math.sin(angle), length * math.cos(angle)
    x, y = 41 / 2 + 0.5, 30 / 2 + 0.5
    matrix = (a, b, x - a * x - b * y, d, e, y - d * x - e * y)
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    expected = np.asarray(pillow.transform((41, 30), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR))
    ours = affine(image, degrees, scale, shear)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours.astype(int) - expected.astype(int)).max() <= 1
    assert (ours != expected).mean() < 0.02  # whole values that Pillow just misses


def test_translate_shifts_by_pixels():
    image = photographs(32, 32, 1)
    frames = perturb(image, "translate")[0]
    assert torch.equal(frames[0, :, :, :25], image[0, :, :, 7:])
    assert not bool(frames[0, :, :, 25:].any())
    assert torch.equal(frames[15, :, :, 8:], image[0, :, :, :24])
    assert not bool(frames[15, :, :, :8].any())


def test_tilt_shrinks_a_little_and_tapers():
    height, width = 32, 32
    middle = sequences.tilt_matrix(height, width, 0.0)
    focus = math.hypot(width, height)
    seen = middle @ torch.tensor([32.0, 16.0, 1.0], dtype=torch.float64)
    assert float(seen[0] / seen[2]) == pytest.approx(16 + 16 * focus / (focus + 1))
    assert focus / (focus + 1) == pytest.approx(0.978, abs=5e-4)
    tilted = sequences.tilt_matrix(height, width, 11.25)
    corners = torch.tensor([[0, 0, 1], [32, 0, 1], [0, 32, 1], [32, 32, 1]], dtype=torch.float64) @ tilted.T
    x, y = (corners[:, axis] / corners[:, 2] for axis in (0, 1))
    assert abs(float(x[1] - x[0]) - float(x[3] - x[2])) > 1  # one side is nearer
    assert abs(float(y[2] - y[0]) - float(y[3] - y[1])) > 1


def test_drops_run_down_as_measured():
    drop = torch.zeros(1, 1, 6, 1, dtype=torch.float64)
    drop[0, 0, 1] = 1
    assert sequences.dripped(drop, sequences.SHORT_DRIP).flatten().tolist() == [0, 0.2, 0.8, 0, 0, 0]
    drop = drop.roll(1, 2)
    assert sequences.dripped(drop, sequences.LONG_DRIP).flatten().tolist() == [0, 0.05, 0.1, 0.15, 0.7, 0]
    gone = sequences.dripped(drop.roll(3, 2), sequences.SHORT_DRIP)
    assert float(gone.sum()) == pytest.approx(0.2)


def test_frames_without_drops_are_the_image_and_rare():
    images = flat(100, count=150)
    untouched = (perturb(images, "spatter") == 100).flatten(2).all(2).double().mean(0)
    assert float(untouched.mean()) == pytest.approx(0.063, abs=0.03)


def test_gaussian_blur_is_scipys():
    image = photographs(32, 32, 1)
    last = perturb(image, "gaussian_blur")[0, -1, 0]
    expected = ndimage.gaussian_filter(image[0, 0].double().numpy(), 0.3 + 0.015 * 30, mode="nearest", truncate=7)
    assert np.array_equal(last, np.floor(expected + 1e-6))


def test_zoom_blur_is_a_running_mean():
    images = photographs(32, 32)
    frames = perturb(images, "zoom_blur")
    total = images.double() + affine(images, scale=1.004).double() + affine(images, scale=1.008).double()
    assert torch.equal(frames[:, 2], (total / 3 + 1e-6).floor().to(torch.uint8))
    changes = [change(frames[:, number], images) for number in (0, 10, 20, 30)]
    assert changes == sorted(changes)


def test_a_crop_shows_what_lies_around():
    images = photographs(48, 60, 2)
    middle = images[..., 8:40, 14:46]
    moved = perturb(images, "translate", crop=32)
    assert moved.shape == (2, 16, 3, 32, 32)
    assert torch.equal(moved[:, 0], images[..., 8:40, 21:53])
    assert torch.equal(perturb(images, "brightness", crop=32), perturb(middle, "brightness"))
    with pytest.raises(LcaError, match="does not fit"):
        perturb(images, "scale", crop=50)


def test_what_does_not_exist_is_said():
    with pytest.raises(LcaError, match="did you mean 'rotate'"):
        perturb(photographs(32, 32), "rotat")
    with pytest.raises(LcaError, match="difficulty 4"):
        perturb(photographs(32, 32), "rotate", difficulty=4)
