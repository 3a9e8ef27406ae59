import logging

import numpy as np
import pytest
import torch
from PIL import Image

from lca.data.decoding import decode, decode_all, image_files
from lca.errors import LcaError
from lca.progress import Progress


def noise(width, height, seed=0):
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8))


def test_a_small_image_is_kept_as_it_is():
    image = noise(13, 9)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 9, 13)
    assert decoded.dtype == torch.uint8
    assert np.array_equal(decoded.permute(1, 2, 0).numpy(), np.array(image))


def test_the_shorter_side_shrinks_to_the_working_size():
    image = noise(90, 60)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 20, 30)
    expected = np.array(image.resize((30, 20), Image.Resampling.BICUBIC))
    assert np.array_equal(decoded.permute(1, 2, 0).numpy(), expected)


def test_a_panorama_is_cut_to_its_middle():
    image = noise(100, 10)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 10, 20)
    assert np.array_equal(decoded.permute(1, 2, 0).numpy(), np.array(image)[:, 40:60])
    assert decode(noise(10, 100), 20).shape == (3, 20, 10)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_other_modes_become_rgb(mode):
    image = noise(8, 6).convert("L").convert(mode) if mode == "LA" else noise(8, 6).convert(mode)
    assert decode(image, 20).shape == (3, 6, 8)


def test_a_turned_photo_is_put_upright(tmp_path):
    image = noise(12, 8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    decoded = decode(tmp_path / "turned.png", 20)
    assert np.array_equal(decoded.permute(1, 2, 0).numpy(), np.rot90(np.array(image), -1))


def broken_png(path):
    """A file whose second data chunk has no valid name: Pillow opens it and fails while it reads the pixels."""
    noise(200, 200).save(path, compress_level=0)
    content = bytearray(path.read_bytes())
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)
    content[second : second + 4] = b"\x00\x01\x02\x03"
    path.write_bytes(content)


def write_broken(path):
    kind = path.stem
    if kind == "text":
        path.write_text("this is no image")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        noise(64, 64).save(path)
        path.write_bytes(path.read_bytes()[:900])
    else:
        broken_png(path)


@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "chunk"])
def test_a_broken_file_is_left_out_with_a_log_line(tmp_path, kind, caplog):
    good, bad = tmp_path / "good.png", tmp_path / f"{kind}.png"
    noise(6, 6).save(good)
    write_broken(bad)
    with caplog.at_level(logging.WARNING, logger="lca.data.decoding"):
        decoded = decode_all([bad, good], 20, Progress())
    assert decoded[0] is None
    assert decoded[1] is not None
    assert [record.message for record in caplog.records if str(bad) in record.message]
    assert "left out" in caplog.text


def test_nothing_but_broken_files_is_an_error(tmp_path):
    (tmp_path / "a.png").write_text("nothing")
    with pytest.raises(LcaError, match="none of the 1 image files could be read"):
        decode_all([tmp_path / "a.png"], 20, Progress())
    assert decode_all([], 20, Progress()) == []


def test_images_keep_the_order_of_their_paths(tmp_path):
    for number in range(12):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    decoded = decode_all(image_files(tmp_path), 20, Progress())
    assert [int(image[0, 0, 0]) for image in decoded] == list(range(12))


def test_image_files_are_found_below_and_others_left_out(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.JPG", "a.png", "deep/er/c.webp", ".hidden.png", "notes.txt", "deep/._d.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    assert [path.relative_to(tmp_path).as_posix() for path in image_files(tmp_path)] == [
        "a.png",
        "b.JPG",
        "deep/er/c.webp",
    ]
