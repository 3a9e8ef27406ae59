import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop, Resize
from torchvision.transforms.functional import center_crop

from lca.data.decoding import decode
from lca.data.images import Pixels
from lca.data.views import (
    AugmentOptions,
    Preprocessing,
    draw_crops,
    evaluation_crop,
    evaluation_view,
    resize_crops,
    training_view,
)
from lca.errors import LcaError

PLAIN = Preprocessing(16, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bilinear")
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture(height, width, seed=0):
    """Smooth shapes and some noise, as photographs have; uint8 (3, h, w)."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(random.uniform(2, 25) * x + random.uniform(2, 25) * y + random.uniform(0, 6)) for _ in range(3)]
    image = 127 + 90 * np.stack(waves) + random.normal(0, 12, (3, height, width))
    return torch.from_numpy(image.clip(0, 255).astype(np.uint8))


def pillow(image, box, size, interpolation):
    top, left, height, width = box
    whole = Image.fromarray(image.permute(1, 2, 0).numpy())
    cut = whole.crop((left, top, left + width, top + height)).resize((size, size), FILTERS[interpolation])
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1).float()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [8, 24, 64])
def test_resizing_crops_equals_pillow(interpolation, size):
    images = [picture(50, 40, 1), picture(23, 61, 2), picture(64, 64, 3), picture(9, 12, 4)]
    boxes = [(3, 5, 31, 17), (0, 0, 23, 61), (10, 20, 24, 24), (1, 2, 5, 7)]
    ours = resize_crops(Pixels.of(images), torch.tensor(boxes), size, interpolation)
    assert ours.shape == (4, 3, size, size)
    for mine, image, box in zip(ours, images, boxes, strict=True):
        difference = (mine - pillow(image, box, size, interpolation)).abs()
        assert difference.mean() <= 1
        assert difference.max() <= 2


@pytest.mark.parametrize("width", [*range(257, 300, 5), 341, 384, 447, 512, 640])
@pytest.mark.parametrize("height", [256, 427, 333])
def test_photos_are_seen_as_by_the_literature(height, width):
    """Resize(256), CenterCrop(224), at sizes odd and even."""
    photo = Image.fromarray(picture(height, width).permute(1, 2, 0).numpy())
    view = Preprocessing(224, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bicubic")
    ours = evaluation_crop(Pixels.of([decode(photo, 256)]), view, 0.875)[0].round()
    theirs = center_crop(Resize(256, InterpolationMode.BICUBIC)(photo), [224, 224])
    assert torch.equal(ours, torch.from_numpy(np.array(theirs)).permute(2, 0, 1).float())


def test_a_crop_of_the_wanted_size_is_copied():
    image = picture(30, 20)
    for interpolation in FILTERS:
        same = resize_crops(Pixels.of([image]), torch.tensor([[4, 3, 8, 8]]), 8, interpolation)[0]
        torch.testing.assert_close(same, image[:, 4:12, 3:11].float(), rtol=0, atol=1e-3)


def test_what_lies_outside_the_box_does_not_matter():
    image = picture(30, 30)
    changed = torch.full_like(image, 255)
    changed[:, 5:15, 8:20] = image[:, 5:15, 8:20]
    for interpolation in FILTERS:
        one, two = (
            resize_crops(Pixels.of([each]), torch.tensor([[5, 8, 10, 12]]), 7, interpolation)
            for each in (image, changed)
        )
        assert torch.equal(one, two)


def test_a_larger_canvas_does_not_matter():
    small, large = picture(12, 10), picture(60, 70)
    together = resize_crops(Pixels.of([small, large]), torch.tensor([[0, 0, 12, 10], [0, 0, 60, 70]]), 8, "bicubic")
    alone = resize_crops(Pixels.of([small]), torch.tensor([[0, 0, 12, 10]]), 8, "bicubic")
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-3)


def test_a_single_pixel_fills_the_view():
    image = picture(5, 5)
    view = resize_crops(Pixels.of([image]), torch.tensor([[2, 3, 1, 1]]), 6, "bicubic")[0]
    torch.testing.assert_close(view, image[:, 2:3, 3:4].float().expand(3, 6, 6), rtol=0, atol=1e-3)


def test_an_unknown_interpolation_is_named():
    with pytest.raises(LcaError, match="unknown interpolation 'lanczos'"):
        resize_crops(Pixels.of([picture(5, 5)]), torch.tensor([[0, 0, 5, 5]]), 4, "lanczos")


def test_the_evaluation_view_is_the_scaled_central_square():
    image = picture(40, 64)
    preprocessing = Preprocessing(16, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), "bicubic")
    view = evaluation_view(Pixels.of([image]), preprocessing, centre_crop=0.5)[0]
    mean, std = (torch.tensor(each)[:, None, None] for each in (preprocessing.mean, preprocessing.std))
    expected = pillow(image, (10, 22, 20, 20), 16, "bicubic")
    torch.testing.assert_close((view * std + mean) * 255, expected, rtol=0, atol=2)


def test_the_training_view_is_mirrored_where_drawn():
    image = picture(20, 20)
    pixels, boxes = Pixels.of([image, image]), torch.tensor([[2, 3, 10, 12]] * 2)
    plain, mirrored = training_view(pixels, boxes, torch.tensor([False, True]), PLAIN)
    torch.testing.assert_close(plain.flip(2), mirrored)
    assert not torch.allclose(plain, mirrored)
    torch.testing.assert_close(plain * 255, pillow(image, (2, 3, 10, 12), 16, "bilinear"), rtol=0, atol=2)


@pytest.mark.parametrize("size", [(8, 8), (40, 90), (90, 40), (1, 1), (200, 11), (1, 3)])
@pytest.mark.parametrize("scale", [(0.05, 1.0), (0.6, 1.0), (0.001, 0.002)])
def test_drawn_boxes_lie_inside_the_image(size, scale):
    sizes = torch.tensor([size]).repeat(300, 1)
    boxes, flips = draw_crops(sizes, AugmentOptions(crop_scale=scale), torch.Generator().manual_seed(0))
    top, left, height, width = boxes.T
    assert boxes.dtype == torch.long
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (top + height <= size[0]).all()
    assert (left + width <= size[1]).all()
    assert flips.shape == (300,)


@pytest.mark.parametrize("size", [(60, 80), (30, 200), (200, 30)])
@pytest.mark.parametrize(("scale", "ratio"), [((0.05, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.9), (0.5, 1.5))])
def test_boxes_are_distributed_as_in_torchvision(size, scale, ratio):
    count = 4000
    options = AugmentOptions(crop_scale=scale, crop_ratio=ratio)
    ours = draw_crops(torch.tensor([size]).repeat(count, 1), options, torch.Generator().manual_seed(0))[0].double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        image = torch.zeros(3, *size)
        theirs = torch.tensor([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(count)])
    theirs = theirs.double()
    error = (ours.std(0) + theirs.std(0)) / math.sqrt(count) + 0.02
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all()
    assert ((ours.std(0) - theirs.std(0)).abs() < 4 * error).all()
    for share in (0.1, 0.5, 0.9):
        spread = torch.tensor(size).double()[[0, 1, 0, 1]]
        assert ((ours.quantile(share, 0) - theirs.quantile(share, 0)).abs() <= 0.05 * spread + 1).all()


def test_half_of_the_images_are_mirrored_unless_switched_off():
    sizes = torch.full((4000, 2), 8)
    flips = draw_crops(sizes, AugmentOptions(), torch.Generator().manual_seed(0))[1]
    assert float(flips.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert not draw_crops(sizes, AugmentOptions(flip=False), torch.Generator().manual_seed(0))[1].any()


def test_switching_mirroring_off_leaves_the_crops():
    sizes = torch.full((20, 2), 30)
    on, off = (draw_crops(sizes, AugmentOptions(flip=each), torch.Generator().manual_seed(0))[0] for each in (1, 0))
    assert torch.equal(on, off)


def test_the_whole_image_as_the_only_crop():
    options = AugmentOptions(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0))
    boxes, _ = draw_crops(torch.tensor([[20, 20], [9, 9]]), options, torch.Generator())
    assert boxes.tolist() == [[0, 0, 20, 20], [0, 0, 9, 9]]
