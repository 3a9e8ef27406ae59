"""Near copies are found among real photographs; other photographs are not."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images

from lca.data import duplicates
from lca.data.images import Pixels
from lca.data.options import DataOptions
from lca.data.sources import load_source
from lca.progress import Progress

pytestmark = pytest.mark.filterwarnings("error")


def near_copies(one, two):
    return duplicates.near_copies(one, two, Progress())


def photographs():
    """Twenty crops of scikit-learn's two photographs, of different sizes."""
    draw, found = np.random.default_rng(0), []
    for picture in load_sample_images().images:
        for _ in range(10):
            height, width = draw.integers(80, 200, 2)
            top, left = draw.integers(0, 427 - height), draw.integers(0, 640 - width)
            found.append(Image.fromarray(picture[top : top + height, left : left + width]))
    return found


def pixels(pictures):
    return Pixels.of([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in pictures])


def compressed(picture):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=70)
    return Image.open(file).convert("RGB")


CHANGES = {
    "the same": lambda picture: picture,
    "recompressed": compressed,
    "smaller": lambda picture: picture.resize((picture.width * 3 // 4, picture.height * 3 // 4), Image.BICUBIC),
    "a little brighter": lambda picture: picture.point(lambda value: min(value + 4, 255)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_are_found_and_nothing_else(change):
    originals = photographs()
    others = [CHANGES[change](each) for each in originals[5:12]]
    assert near_copies(pixels(originals), pixels(others)) == [(number, number - 5) for number in range(5, 12)]


def test_different_pictures_are_no_copies():
    originals = photographs()
    assert near_copies(pixels(originals[:10]), pixels(originals[10:])) == []
    mirrored = [each.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for each in originals]
    assert near_copies(pixels(originals), pixels(mirrored)) == []


def test_pictures_on_plain_ground_are_not_taken_for_each_other():
    """Shapes on white agree nearly everywhere, and flat pictures have nothing to be recognised by."""
    flat = [Image.new("RGB", (40, 30), (level,) * 3) for level in (0, 100, 200)]
    assert near_copies(pixels(flat), pixels(flat)) == []
    draw, shapes = np.random.default_rng(0), []
    for number in range(60):
        picture = Image.new("RGB", (64, 64), "white")
        left, top = draw.integers(4, 40, 2)
        colour = tuple(int(value) for value in draw.integers(0, 200, 3))
        shape = (left, top, left + 18, top + 18)
        pen = ImageDraw.Draw(picture)
        pen.ellipse(shape, fill=colour) if number % 2 else pen.rectangle(shape, fill=colour)
        shapes.append(picture)
    assert len(near_copies(pixels(shapes[:40]), pixels(shapes[40:]))) <= 1
    assert [found for _, found in near_copies(pixels(shapes), pixels(shapes[40:]))] == list(range(20))
    noisy = [Image.new("RGB", (64, 64), "white") for _ in range(30)]
    for picture in noisy:
        picture.paste(Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)), (22, 22))
    assert len(near_copies(pixels(noisy[:20]), pixels(noisy[20:]))) <= 1


def test_many_small_things_on_white_are_told_apart():
    """Product photos: nearly all of their hashes are near each other, and in grey some look much alike."""
    draw, canvas = np.random.RandomState(0), np.full((2500, 3, 64, 64), 255, dtype=np.uint8)
    for picture in canvas:
        top, left = draw.randint(20, 36, 2)
        picture[:, top : top + 12, left : left + 12] = draw.randint(0, 255, (3, 12, 12))
    things = Pixels(torch.from_numpy(canvas), torch.full((2500, 2), 64))
    some = torch.arange(2000, 2500)
    assert near_copies(things.batch(torch.arange(2000)), things.batch(some)) == []
    assert near_copies(things, things.batch(some)) == [(number, number - 2000) for number in range(2000, 2500)]


def test_pictures_whose_hashes_agree_in_part():
    """A quarter of their rows rise alike, the others fall."""
    levels = np.linspace(0, 255, 90)
    rising = np.tile(levels, (80, 1))
    half = np.concatenate([rising[:20], rising[20:, ::-1]])
    one, two = (Image.fromarray(each.astype(np.uint8)).convert("RGB") for each in (rising, half))
    assert near_copies(pixels([one]), pixels([two])) == []


def test_nothing_has_no_copies():
    assert near_copies(pixels([]), pixels(photographs()[:2])) == []
    assert near_copies(pixels(photographs()[:2]), pixels([])) == []


@pytest.mark.parametrize("split", [True, False])
def test_a_run_on_a_folder_is_told(split, tmp_path):
    pictures = photographs()
    for number, picture in enumerate(pictures):
        part = ("train", "test")[number % 2] if split else ""
        (tmp_path / part / "ab"[number // 10]).mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / part / "ab"[number // 10] / f"{number}.png")
    told = Told()
    load_source(DataOptions(source=f"folder:{tmp_path}"), 0, 64, told)
    assert told.lines == []
    where = ("test/a", "train/a") if split else ("a", "a")
    for copy in range(8 if not split else 1):  # split by seed, some end on the other side
        compressed(pictures[0 if split else 2]).save(tmp_path / where[0] / f"copy{copy}.png")
    load_source(DataOptions(source=f"folder:{tmp_path}"), 0, 64, told)
    assert any("nearly the same as training images" in line for line in told.lines)
    assert "looks like" in told.lines[-1]
    if split:
        assert "test/a/copy0.png looks like train/a/0.png" in told.lines[-1]


def test_copies_have_names_also_where_files_were_left_out(tmp_path):
    for number, picture in enumerate(photographs()):
        path = tmp_path / ("train", "test")[number % 2] / "ab"[number // 10] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    for part, number in (("train", "00"), ("test", "01")):
        (tmp_path / part / "a" / f"{number}.png").write_text("broken")
    for number in ("02", "04"):
        compressed(Image.open(tmp_path / "train" / "a" / f"{number}.png")).save(
            tmp_path / "test" / "b" / f"{number}.png"
        )
    told = Told()
    load_source(DataOptions(source=f"folder:{tmp_path}"), 0, 64, told)
    assert told.lines[-2:] == [
        "  test/b/02.png looks like train/a/02.png",
        "  test/b/04.png looks like train/a/04.png",
    ]


class Told(Progress):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)
