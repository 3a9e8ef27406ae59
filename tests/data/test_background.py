"""The generated background and spoilt photos: always the same, as different as they say, whatever the size."""

import pytest
import torch

from lca.data.background import CLOSE, FAMILIES, PICTURES, SPOILT, background, defocused, one_of_each, paint, spoilt
from lca.data.images import ImageSet, Pixels


@pytest.mark.parametrize("size", [8, 32, 50])
def test_pictures_of_every_family_fill_any_size(size):
    for name in FAMILIES:
        pictures = paint(name, 3, size)
        assert pictures.shape == (3, 3, size, size)
        assert pictures.dtype == torch.uint8
        assert len(pictures.flatten(1).unique(dim=0)) == 3, f"{name}: each picture is another one"


def test_the_same_pictures_are_painted_for_every_model_and_others_with_another_seed():
    first = background(32)
    background.cache_clear()
    assert torch.equal(background(32).canvas, first.canvas)
    assert len(first) == PICTURES * len(FAMILIES) == 144
    by_family = first.canvas.unflatten(0, (-1, PICTURES))
    for place, name in enumerate(FAMILIES):
        assert torch.equal(by_family[place], paint(name, PICTURES, 32))
        assert not torch.equal(by_family[place], paint(name, PICTURES, 32, seed=1))


def test_families_look_as_they_are_called():
    seen = {name: paint(name, 20, 64).float() for name in FAMILIES}
    spread = {name: pictures.std((2, 3)).mean() for name, pictures in seen.items()}
    assert spread["blank"] == 0
    assert max(spread["black"], spread["white"]) < 13
    assert min(spread["uniform noise"], spread["blocks"]) > 60
    assert spread["wall"] < spread["corner"] < spread["checker"]
    assert seen["black"].mean() < 26
    assert seen["white"].mean() > 230
    assert torch.equal(seen["grey noise"][:, 0], seen["grey noise"][:, 1])
    rough = {name: pictures.diff(dim=3).abs().mean() for name, pictures in seen.items()}
    assert rough["clouds"] < rough["coarse noise"] < rough["uniform noise"]
    inked = (seen["text"] - seen["text"].flatten(2).median(2).values[:, :, None, None]).abs().amax(1) > 40
    assert 0.03 < inked.float().mean() < 0.5
    assert 0.005 < (seen["scribbles"].diff(dim=3).abs().amax(1) > 40).float().mean() < 0.3


def photos():
    """Three classes; of the first image of each there is a square in the middle."""
    random = torch.Generator().manual_seed(0)
    images = [torch.randint(80, 176, (3, 48, 40), generator=random, dtype=torch.uint8) for _ in range(6)]
    for number in (0, 1, 3):
        images[number][:, 20:28, 16:24] = 255
    return ImageSet(Pixels.of(images), torch.tensor([2, 0, 0, 1, 1, 2]), ("a", "b", "c"))


def test_one_photo_of_each_class_is_spoilt():
    assert one_of_each(photos()).tolist() == [1, 3, 0]
    few = photos().subset(torch.tensor([0, 5]))
    assert one_of_each(few).tolist() == [0], "not every class need be there"


def test_photos_are_spoilt_in_three_ways():
    rows = one_of_each(photos())
    found = spoilt(photos(), rows, 32, "bicubic", 1.0, torch.Generator().manual_seed(1))
    blurred, dark, close = found.canvas.float().unflatten(0, (len(SPOILT), len(rows)))
    assert len(found) == 9
    assert blurred.std((2, 3)).max() < 25, "nothing is left of noise"
    assert 80 < blurred.mean() < 176
    assert dark.mean() < 30
    assert close.mean() > 250, f"a share of {CLOSE} of the side lies within the square"
    again = spoilt(photos(), rows, 32, "bicubic", 1.0, torch.Generator().manual_seed(1))
    assert torch.equal(again.canvas, found.canvas)


@pytest.mark.parametrize("radius", [0.02, 0.1, 0.9])
def test_out_of_focus_a_point_is_a_disc(radius):
    photo = torch.zeros(3, 65, 65)
    photo[:, 32, 32] = 1000
    found = defocused(photo, radius)
    assert found.shape == photo.shape
    if radius == 0.1:
        inside = (found[0] > found[0].max() / 2).sum()
        assert float(inside) == pytest.approx(3.1416 * (0.1 * 65 + 0.5) ** 2, rel=0.15)
        assert float(found[0].sum()) == pytest.approx(1000, rel=1e-3)
    torch.testing.assert_close(defocused(torch.full((3, 20, 20), 0.7), radius), torch.full((3, 20, 20), 0.7))
