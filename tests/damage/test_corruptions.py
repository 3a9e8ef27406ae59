"""What holds for every corruption that is registered."""

import pytest
import torch

from lca.damage.corruptions import EXTRA, NAMES, STANDARD, corrupt, corruptions
from lca.errors import LcaError
from photographs import change, flat, photographs

WITHOUT_DRAWS = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
NOT_IN_ORDER = {"elastic_transform", "glass_blur", "frost", "saturate", "spatter"}
"""Published severities whose change does not grow from step to step, at 32 or 224 pixels."""

each = pytest.mark.parametrize("name", NAMES)


def test_there_are_15_and_4_in_the_usual_order():
    assert (len(STANDARD), len(EXTRA)) == (15, 4)
    assert sorted(NAMES) == list(corruptions)
    assert NAMES[:3] == ("gaussian_noise", "shot_noise", "impulse_noise")
    assert NAMES[14:] == ("jpeg_compression", "speckle_noise", "gaussian_blur", "spatter", "saturate")


@each
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_shape_and_type_stay_and_the_input_is_not_touched(name, severity):
    images = photographs(32, 32)
    before = images.clone()
    damaged = corrupt(images, name, severity)
    assert damaged.shape == images.shape
    assert damaged.dtype == torch.uint8
    assert torch.equal(images, before)
    assert not torch.equal(damaged, images)


@each
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_an_image_is_damaged_alike_in_every_batch(name, severity):
    images = photographs(32, 32, 6)
    together = corrupt(images, name, severity, seed=7)
    alone = corrupt(images[4:5], name, severity, seed=7, numbers=[4])
    backwards = corrupt(images.flip(0), name, severity, seed=7, numbers=range(5, -1, -1))
    assert torch.equal(together[4:5], alone)
    assert torch.equal(together, backwards.flip(0))


@each
def test_large_batches_are_cut_without_a_trace(name, monkeypatch):
    images = photographs(32, 32, 6)
    whole = corrupt(images, name, 3)
    monkeypatch.setattr("lca.damage.corruptions.AT_ONCE", {"cpu": 4 * 3 * 32 * 32})
    assert torch.equal(corrupt(images, name, 3), whole)


@each
def test_draws_belong_to_seed_severity_and_number(name):
    images = photographs(32, 32, 1).expand(2, -1, -1, -1)
    first = corrupt(images, name, 3, seed=0)
    assert torch.equal(first, corrupt(images, name, 3, seed=0))
    another = corrupt(images, name, 3, seed=1)
    if name in WITHOUT_DRAWS:
        assert torch.equal(first[0], first[1])
        assert torch.equal(first, another)
    else:
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first, another)


@each
@pytest.mark.parametrize("size", [(32, 32), (224, 224)])
def test_severity_makes_it_stronger(name, size):
    images = photographs(*size, 4)
    if size == (32, 32):  # many draws for the few pixels
        images = images.repeat(8, 1, 1, 1)
    chosen = [1, 5] if size == (224, 224) else [1, 2, 3, 4, 5]
    changes = [change(corrupt(images, name, severity), images) for severity in chosen]
    if name in NOT_IN_ORDER:
        assert min(changes) > 0.2
    elif name == "motion_blur":  # 3 and 4 are alike
        assert changes[0] < changes[-1]
    else:
        assert changes == sorted(changes)


@each
@pytest.mark.parametrize("size", [(17, 23), (40, 17), (50, 64), (96, 130)])
def test_any_size_will_do(name, size):
    images = photographs(*size, 2)
    for severity in (1, 5):
        damaged = corrupt(images, name, severity)
        assert damaged.shape == images.shape
        assert change(damaged, images) < 130


@each
def test_tiny_images_and_empty_batches_are_no_error(name):
    for size in ((1, 1), (2, 3), (5, 9)):
        images = photographs(32, 32, 2)[:, :, : size[0], : size[1]]
        assert corrupt(images, name, 5).shape == images.shape
    assert corrupt(photographs(32, 32)[:0], name, 5).shape == (0, 3, 32, 32)


@each
@pytest.mark.parametrize("value", [0, 128, 255])
def test_flat_images(name, value):
    for severity in (1, 5):
        images = flat(value)
        damaged = corrupt(images, name, severity)
        unchanged = {
            "defocus_blur",
            "glass_blur",
            "motion_blur",
            "zoom_blur",
            "contrast",
            "elastic_transform",
            "pixelate",
            "gaussian_blur",
        }
        if name in unchanged:
            assert torch.equal(damaged, images)
        if name in {"shot_noise", "speckle_noise", "fog"} and value == 0:
            assert torch.equal(damaged, images)


@each
def test_grey_images_stay_grey_where_no_colour_comes_in(name):
    images = photographs(32, 32)[:, 1:2].expand(-1, 3, -1, -1).contiguous()
    damaged = corrupt(images, name, 2)
    coloured = {"gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "frost", "spatter"}
    if name not in coloured:
        assert int((damaged.amax(1).int() - damaged.amin(1).int()).max()) <= 1


def test_views_of_a_larger_tensor_are_taken():
    images = photographs(64, 64)[:, :, ::2, ::2]
    for name in NAMES:
        assert torch.equal(corrupt(images, name, 2), corrupt(images.contiguous(), name, 2))


def test_what_does_not_exist_is_said():
    images = photographs(32, 32)
    with pytest.raises(LcaError, match="did you mean 'gaussian_noise'"):
        corrupt(images, "gausian_noise", 1)
    with pytest.raises(LcaError, match="severity 6"):
        corrupt(images, "fog", 6)
    with pytest.raises(ValueError, match="uint8"):
        corrupt(images.float(), "fog", 1)
    with pytest.raises(ValueError, match="2 numbers"):
        corrupt(images, "fog", 1, numbers=[1, 2])
