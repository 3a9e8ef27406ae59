import io
import os
import signal
import struct
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageCms, ImageOps
from torchvision.transforms import InterpolationMode, Resize

from lca.data import decoding
from lca.data.decoding import (
    FORMATS,
    SUFFIXES,
    Decoded,
    LeftOut,
    UnreadableImage,
    decode,
    is_image,
    printable,
    unreadable_images,
)
from lca.errors import LcaError
from lca.progress import Progress

RAISE = "make it smaller, or raise the limit (--max-megapixels, LCA_MAX_MEGAPIXELS)"


def noise(width, height, seed=0):
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8))


def smooth(width, height):
    y, x = np.mgrid[:height, :width] / max(width, height)
    return Image.fromarray(np.stack([127 + 100 * np.sin(9 * x + k * y) for k in (1, 4, 7)], -1).astype(np.uint8))


def shown(decoded):
    """As Pillow and NumPy have it: (h, w, 3)."""
    return decoded.permute(1, 2, 0).numpy()


def decode_all(images, size, progress):
    """The pixels of every image, or why it was left out."""
    read = decoding.read_all(images, size, progress)
    return [each.pixels if isinstance(each, Decoded) else each for each in read]


def colour(decoded, row=0, column=0):
    return tuple(decoded[:, row, column].tolist())


def reason(image, size=64):
    with pytest.raises(UnreadableImage) as caught:
        decode(image, size)
    assert str(caught.value) == f"{caught.value.what} {caught.value.reason}"
    return caught.value.reason


# sizes


def test_a_small_image_is_kept_as_it_is():
    image = noise(13, 9)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 9, 13)
    assert decoded.dtype == torch.uint8
    assert np.array_equal(shown(decoded), np.array(image))


def test_the_shorter_side_shrinks_to_the_working_size():
    image = noise(90, 60)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 20, 30)
    assert np.array_equal(shown(decoded), np.array(image.resize((30, 20), Image.Resampling.BICUBIC)))


def test_a_panorama_is_cut_to_its_middle():
    image = noise(100, 10)
    decoded = decode(image, 20)
    assert decoded.shape == (3, 10, 20)
    assert np.array_equal(shown(decoded), np.array(image)[:, 40:60])
    assert decode(noise(10, 100), 20).shape == (3, 20, 10)


# formats


@pytest.mark.parametrize(
    ("format_name", "suffix", "tolerance"),
    [
        ("PNG", "png", 0),
        ("BMP", "bmp", 0),
        ("PPM", "ppm", 0),
        ("TIFF", "tif", 0),
        ("TGA", "tga", 0),
        ("PCX", "pcx", 0),
        ("QOI", "qoi", 0),
        ("SGI", "sgi", 0),
        ("JPEG2000", "jp2", 0),
        ("JPEG", "jpg", 6),
        ("MPO", "mpo", 6),
        ("WEBP", "webp", 6),
        ("GIF", "gif", 6),
        ("AVIF", "avif", 6),
        ("HEIF", "heic", 6),
    ],
)
def test_formats(tmp_path, format_name, suffix, tolerance):
    if format_name == "AVIF" and "AVIF" not in FORMATS:
        pytest.skip("this Pillow reads no AVIF")
    if format_name == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    image, path = smooth(48, 40), tmp_path / f"image.{suffix.upper()}"
    image.save(path, format=format_name)
    difference = np.abs(shown(decode(path, 64)).astype(int) - np.array(image).astype(int))
    assert difference.mean() <= tolerance
    assert f".{suffix}" in SUFFIXES


@pytest.mark.parametrize("suffix", ["eps", "pdf", "ps", "wmf", "txt", "fits", "mpg"])
def test_other_suffixes_are_not_tried(suffix):
    assert f".{suffix}" not in SUFFIXES


def test_postscript_is_never_run(tmp_path, monkeypatch):
    smooth(8, 8).save(tmp_path / "drawing.eps")
    (tmp_path / "drawing.eps").rename(tmp_path / "drawing.jpg")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    assert "is no image of a known format" in reason(tmp_path / "drawing.jpg")


def test_the_content_decides_not_the_name(tmp_path):
    image = noise(6, 5)
    image.save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "named.jpg")
    assert np.array_equal(shown(decode(tmp_path / "named.jpg", 20)), np.array(image))
    assert np.array_equal(shown(decode(str(tmp_path / "named.jpg"), 20)), np.array(image))


def test_content_without_a_name(tmp_path):
    noise(5, 5).save(tmp_path / "picture", format="JPEG")
    (tmp_path / "notes").write_text("nothing to see")
    (tmp_path / "nothing").write_bytes(b"")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    header = struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 4, 4, 24, 0)
    (tmp_path / "raw").write_bytes(header + bytes(48))  # a TGA file, and much else that begins with zeros
    expected = {"picture": True, "notes": False, "nothing": False, "dangling": True, "raw": False}
    assert {name: is_image(tmp_path / name) for name in expected} == expected
    (tmp_path / "raw").rename(tmp_path / "raw.tga")
    assert decode(tmp_path / "raw.tga", 20).shape == (3, 4, 4)


# colours


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_becomes_three_equal_channels(mode, tmp_path):
    grey = smooth(8, 6).convert(mode)
    grey.save(tmp_path / "grey.png")
    decoded = decode(tmp_path / "grey.png", 20)
    assert torch.equal(decoded[0], decoded[1])
    assert torch.equal(decoded[0], decoded[2])
    assert np.array_equal(decoded[0].numpy(), np.array(grey.convert("L")))


def see_through(mode):
    """Left half clear, next pixel half clear, right opaque; the colour is (200, 100, 0) or grey 200."""
    alpha = Image.fromarray(np.array([[0, 0, 128, 255]] * 2, dtype=np.uint8))
    image = Image.new("RGB" if mode == "RGBA" else "L", (4, 2), (200, 100, 0) if mode == "RGBA" else 200)
    image.putalpha(alpha)
    return image


@pytest.mark.parametrize(
    ("mode", "half", "whole"), [("RGBA", (227, 177, 127), (200, 100, 0)), ("LA", (227, 227, 227), (200, 200, 200))]
)
def test_transparency_lies_over_white(mode, half, whole, tmp_path):
    image = see_through(mode)
    image.save(tmp_path / "image.png")
    for each in (image, tmp_path / "image.png", image.convert(mode[:-1] + "a")):
        decoded = decode(each, 20)
        assert colour(decoded, 0, 1) == (255, 255, 255)
        assert np.abs(np.subtract(colour(decoded, 0, 2), half)).max() <= 1
        assert np.abs(np.subtract(colour(decoded, 0, 3), whole)).max() <= 1


def test_an_opaque_image_does_not_change_by_its_alpha():
    image = noise(50, 50)
    opaque = image.copy()
    opaque.putalpha(255)
    assert torch.equal(decode(image, 64), decode(opaque, 64))


def palette_image():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    return image


@pytest.mark.parametrize("transparency", [None, 0, b"\x00\xff"])
@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_palettes(tmp_path, transparency, suffix):
    path = tmp_path / f"image.{suffix}"
    options = {} if transparency is None else {"transparency": transparency if suffix == "png" else 0}
    palette_image().save(path, **options)
    decoded = decode(path, 20)
    assert colour(decoded, 0, 0) == ((10, 20, 30) if transparency is None else (255, 255, 255))
    assert colour(decoded, 0, 1) == (40, 50, 60)


def test_a_palette_with_alpha():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 0, 40, 50, 60, 255], "RGBA")
    image.putdata([0, 1])
    decoded = decode(image, 20)
    assert [colour(decoded, 0, column) for column in (0, 1)] == [(255, 255, 255), (40, 50, 60)]


def test_one_transparent_colour_of_an_image_without_palette(tmp_path):
    image = Image.new("RGB", (2, 1), (9, 8, 7))
    image.putpixel((1, 0), (1, 2, 3))
    image.save(tmp_path / "image.png", transparency=(9, 8, 7))
    decoded = decode(tmp_path / "image.png", 20)
    assert [colour(decoded, 0, column) for column in (0, 1)] == [(255, 255, 255), (1, 2, 3)]


def test_cmyk_and_ycbcr(tmp_path):
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    image.save(tmp_path / "print.jpg", quality=95)
    assert np.abs(np.subtract(colour(decode(tmp_path / "print.jpg", 20)), (255, 0, 0))).max() <= 6
    assert colour(decode(Image.new("CMYK", (1, 1), (255, 0, 0, 0)), 20)) == (0, 255, 255)
    blue = Image.new("RGB", (4, 4), (0, 0, 255)).convert("YCbCr")
    assert np.abs(np.subtract(colour(decode(blue, 20)), (0, 0, 255))).max() <= 2


def test_lab(tmp_path):
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    wanted = (180, 60, 90)
    image = ImageCms.profileToProfile(Image.new("RGB", (4, 4), wanted), srgb, lab, outputMode="LAB")
    image.save(tmp_path / "lab.tif")
    with Image.open(tmp_path / "lab.tif") as opened:
        assert opened.mode == "LAB"
    assert np.abs(np.subtract(colour(decode(tmp_path / "lab.tif", 20)), wanted)).max() <= 4


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 257, 300], [32896, 65278, 65535]], dtype=np.uint16)
    path = tmp_path / f"deep.{suffix}"
    Image.fromarray(values).save(path)
    assert decode(path, 20)[0].tolist() == [[0, 1, 1], [128, 254, 255]]
    assert decode(Image.fromarray(values.astype(np.int32)), 20)[1].tolist() == [[0, 1, 1], [128, 254, 255]]


def test_16_bit_portable_grey(tmp_path):
    (tmp_path / "deep.pgm").write_bytes(b"P5 2 1 65535\n" + np.array([32896, 65535], dtype=">u2").tobytes())
    assert decode(tmp_path / "deep.pgm", 20)[2].tolist() == [[128, 255]]


def test_16_bit_colour(tmp_path):
    pixels = b"\x00" + struct.pack(">6H", 0, 32896, 65535, 65535, 257, 514)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    decoded = decode(tmp_path / "deep.png", 20)
    assert [colour(decoded, 0, column) for column in (0, 1)] == [(0, 128, 255), (255, 1, 2)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 3.0, 254.6], [0, 3, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([100.0, 500.0, 1100.0], [0, 102, 255]),
        ([float("nan"), 0.2, float("inf")], [0, 51, 0]),
        ([7e5, 7e5, 7e5], [0, 0, 0]),
    ],
)
def test_float_images(tmp_path, values, expected):
    Image.fromarray(np.array([values, values], dtype=np.float32)).save(tmp_path / "float.tif")
    assert decode(tmp_path / "float.tif", 20)[0].tolist() == [expected, expected]


def test_large_integers_are_stretched():
    values = np.array([[0, 50_000], [100_000, 0]], dtype=np.int32)
    assert decode(Image.fromarray(values), 20)[0].tolist() == [[0, 128], [255, 0]]


# orientation, frames, size


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photo_is_put_upright(tmp_path, orientation, suffix):
    image, path = smooth(24, 16), tmp_path / f"turned.{suffix}"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(path, exif=exif)
    with Image.open(path) as opened:
        expected = np.array(ImageOps.exif_transpose(opened).convert("RGB"))
    assert expected.shape[:2] == ((16, 24) if orientation < 5 else (24, 16))
    assert np.array_equal(shown(decode(path, 40)), expected)


@pytest.mark.parametrize("notes", [b"garbage", b"II*\x00", b"II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00"])
def test_a_photo_with_damaged_notes_is_read(tmp_path, notes):
    image = noise(6, 6)
    image.save(tmp_path / "image.png", exif=b"Exif\x00\x00" + notes)
    assert np.array_equal(shown(decode(tmp_path / "image.png", 20)), np.array(image))


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tif"])
def test_of_several_frames_the_first_counts(tmp_path, suffix):
    frames = [Image.new("RGB", (6, 6), each) for each in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    options = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(tmp_path / f"moving.{suffix}", save_all=True, append_images=frames[1:], **options)
    frames[0].save(tmp_path / f"still.{suffix}", **options)
    moving, still = decoding.read_all([tmp_path / f"{name}.{suffix}" for name in ("moving", "still")], 20, Progress())
    assert colour(moving.pixels) == colour(still.pixels) == (250, 0, 0)
    assert moving.several_frames
    assert not still.several_frames
    assert moving.digest == still.digest


def test_the_second_picture_of_a_phone_photo_is_no_animation(tmp_path):
    first, second = noise(16, 16, 1), noise(16, 16, 2)
    first.save(tmp_path / "photo.jpg", format="MPO", save_all=True, append_images=[second])
    read = next(decoding.read_all([tmp_path / "photo.jpg"], 20, Progress()))
    assert not read.several_frames
    first.save(tmp_path / "first.jpg")
    assert torch.equal(read.pixels, decode(tmp_path / "first.jpg", 20))


def png_header(width, height):
    """A PNG file that says how large it is and holds nothing."""
    content = io.BytesIO()
    Image.new("1", (1, 1)).save(content, "png")
    head = struct.pack(">II", width, height) + content.getvalue()[24:29]
    whole = bytearray(content.getvalue())
    whole[16:33] = head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    return bytes(whole)


def test_a_decompression_bomb_is_named_with_its_size(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_header(50_000, 40_000))
    assert reason(tmp_path / "bomb.png") == "has 2000 megapixels, the limit is 50; " + RAISE


@pytest.mark.parametrize("filters", ["default", "error"])
def test_a_large_image_below_the_limit_is_read_without_a_warning(tmp_path, monkeypatch, filters):
    noise(30, 30).save(tmp_path / "image.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)  # Pillow warns above, and refuses above twice as much
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(filters)
        decoded = decode(tmp_path / "image.png", 64)
        together = decode_all([tmp_path / "image.png"] * 3, 64, Progress())
    assert not caught
    assert all(torch.equal(decoded, each) for each in together)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    assert reason(tmp_path / "image.png").startswith("has 0 megapixels, the limit is 0")


def test_warnings_are_as_before_afterwards(tmp_path):
    noise(3, 3).save(tmp_path / "a.png")
    before = list(warnings.filters)
    decode(tmp_path / "a.png", 20)
    decode_all([tmp_path / "a.png"], 20, Progress())
    assert warnings.filters == before


def plain_decode(path, size):
    """Everything at full size, as without tricks."""
    with Image.open(path) as opened:
        whole = opened.convert("RGB")
    return np.array(Resize(size, InterpolationMode.BICUBIC)(whole) if size < min(whole.size) else whole)


@pytest.mark.parametrize("size", [(30, 20), (64, 64), (120, 90), (140, 127)])
def test_jpegs_up_to_four_times_the_working_size_are_decoded_in_full(tmp_path, size):
    noise(*size).save(tmp_path / "photo.jpg", quality=90)
    assert np.array_equal(shown(decode(tmp_path / "photo.jpg", 32)), plain_decode(tmp_path / "photo.jpg", 32))


@pytest.mark.parametrize("orientation", [1, 6])
def test_large_jpegs_are_decoded_at_a_part_of_their_size(tmp_path, monkeypatch, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / "photo.jpg"
    smooth(400, 300).save(path, quality=90, exif=exif)
    sizes, finish = [], decoding._finish
    monkeypatch.setattr(decoding, "_finish", lambda image, size: (sizes.append(image.size), finish(image, size))[1])
    decoded = shown(decode(path, 32))
    assert sizes == [(100, 75)]  # a quarter: an eighth would be less than twice the working size
    expected = plain_decode(path, 32)
    expected = expected if orientation == 1 else np.rot90(expected, -1)
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected.astype(int)).max() <= 4


# arrays and tensors


def test_arrays():
    image = np.array(noise(7, 5))
    assert np.array_equal(shown(decode(image, 20)), image)
    assert np.array_equal(shown(decode(image[:, ::-1], 20)), image[:, ::-1])
    grey = decode(image[:, :, 0], 20)
    assert np.array_equal(shown(grey), image[:, :, [0, 0, 0]])
    assert torch.equal(decode(image[:, :, :1], 20), grey)
    clear = np.concatenate([image, np.zeros((5, 7, 1), dtype=np.uint8)], 2)
    assert colour(decode(clear, 20)) == (255, 255, 255)
    assert np.array_equal(shown(decode(image / 255, 20)), image)
    assert np.array_equal(shown(decode((image / 255).astype(np.float16), 300)), image)
    assert decode(np.zeros((90, 60, 3), dtype=np.uint8), 20).shape == (3, 30, 20)


def test_tensors():
    image = torch.from_numpy(np.array(noise(7, 5))).permute(2, 0, 1)
    assert torch.equal(decode(image, 20), image)
    assert torch.equal(decode(image[:1], 20), image[:1].expand(3, 5, 7))
    assert torch.equal(decode((image / 255).requires_grad_(), 20), image)
    assert decode(image, 20).data_ptr() != image.data_ptr()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((3, 8, 8), dtype=np.uint8), "has the shape (3, 8, 8); expected"),
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), "has the shape (2, 8, 8, 3)"),
        (np.zeros((0, 8, 3), dtype=np.uint8), "has the shape (0, 8, 3)"),
        (np.zeros((8, 8), dtype=np.int64), "holds int64; expected uint8, or floats in [0, 1]"),
        (np.zeros((8, 8), dtype=bool), "holds bool"),
        (np.full((8, 8), 200.0), "has floats from 200 to 200; expected [0, 1]"),
        (np.full((8, 8), np.nan), "has floats from nan to nan"),
        (np.full((8, 8), -0.1), "has floats from -0.1"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), "has the shape (8, 8, 3)"),
        (torch.zeros(8, 8), "has the shape (8, 8)"),
        (torch.zeros(4, 8, 8), "has the shape (4, 8, 8)"),
        (torch.zeros(3, 8, 8, dtype=torch.int32), "holds int32"),
        (None, "is of type NoneType; expected a path"),
        (b"bytes", "is no image of a known format"),
        (7, "is of type int"),
    ],
)
def test_other_things_are_refused_with_what_was_expected(image, words):
    assert words in reason(image)
    good = np.zeros((4, 4), dtype=np.uint8)
    read = decode_all([good, good, image], 20, Progress())
    assert isinstance(read[1], torch.Tensor)
    assert read[2].what == "image 3"
    assert words in read[2].reason


def test_a_pillow_image_whose_file_is_damaged(tmp_path):
    noise(64, 64).save(tmp_path / "image.png")
    (tmp_path / "image.png").write_bytes((tmp_path / "image.png").read_bytes()[:900])
    with Image.open(tmp_path / "image.png") as opened:
        assert "is damaged or cut short" in reason(opened)


# bad files


def broken_png(path):
    """A file whose second data chunk has no valid name: Pillow opens it and fails while it reads the pixels."""
    noise(200, 200).save(path, compress_level=0)
    content = bytearray(path.read_bytes())
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)
    content[second : second + 4] = b"\x00\x01\x02\x03"
    path.write_bytes(content)


def write_bad(path, kind):
    if kind == "text":
        path.write_text("this is no image")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        noise(64, 64).save(path)
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "chunk":
        broken_png(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path.parent / "gone.png")
    elif kind == "circle":
        path.symlink_to(path)


BAD = {
    "text": "is no image of a known format",
    "empty": "is empty",
    "truncated": "is damaged or cut short",
    "chunk": "is damaged or cut short",
    "folder": "is a folder",
    "pipe": "is a pipe or a device",
    "link": "which does not exist",
    "circle": "cannot be opened",
    "missing": "does not exist",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_named_with_its_reason_and_others_are_read(tmp_path, kind):
    good, bad = tmp_path / "good.png", tmp_path / f"{kind}.png"
    noise(6, 6).save(good)
    write_bad(bad, kind)
    with pytest.raises(UnreadableImage) as caught:
        decode(bad, 20)
    assert str(caught.value).startswith(f"{bad} ")
    assert BAD[kind] in str(caught.value)
    assert isinstance(caught.value, LcaError)
    decoded = decode_all([bad, good, str(bad)], 20, Progress())
    assert decoded[0] == decoded[2] == LeftOut(str(bad), caught.value.reason)
    assert torch.equal(decoded[1], decode(good, 20))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "tif", "bmp", "ppm", "avif", "jp2", "tga", "heic"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_truncated_file_is_left_out(tmp_path, suffix, share):
    if suffix == "heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    elif suffix == "avif" and "AVIF" not in FORMATS:
        pytest.skip("this Pillow reads no AVIF")
    path = tmp_path / f"image.{suffix}"
    noise(64, 64).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert any(words in reason(path) for words in ("is damaged or cut short", "only the start of one"))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "tif", "bmp", "ico", "tga", "jp2"])
def test_whatever_bytes_come_only_the_one_error_leaves(tmp_path, suffix):
    smooth(20, 20).save(tmp_path / f"image.{suffix}")
    content, random = (tmp_path / f"image.{suffix}").read_bytes(), np.random.RandomState(0)
    outcomes = []
    for number in range(60):
        changed = np.frombuffer(content, dtype=np.uint8).copy()
        places = random.randint(0, min(len(changed), 200), 6)
        changed[places] = random.randint(0, 256, 6)
        path = tmp_path / f"{number}.{suffix}"
        path.write_bytes(changed.tobytes())
        outcomes.append(decode_all([path], 64, Progress())[0])
    assert all(isinstance(each, LeftOut | torch.Tensor) for each in outcomes)
    assert any(isinstance(each, LeftOut) for each in outcomes)


def test_a_file_without_permission(tmp_path):
    path = tmp_path / "secret.png"
    noise(4, 4).save(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert reason(path) == "may not be read by you; change its permissions"


def test_a_denial_while_opening_is_named(tmp_path, monkeypatch):
    noise(4, 4).save(tmp_path / "secret.png")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert reason(tmp_path / "secret.png") == "may not be read by you; change its permissions"


def test_a_file_that_fails_while_it_is_read(tmp_path, monkeypatch):
    noise(4, 4).save(tmp_path / "remote.png")

    class Failing(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", lambda *_: Failing(b"x"))
    assert "Input/output error" in reason(tmp_path / "remote.png")


def test_an_image_that_does_not_fit_into_memory(tmp_path, monkeypatch):
    noise(4, 4).save(tmp_path / "image.png")

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(decoding, "_to_rgb", full)
    assert reason(tmp_path / "image.png") == "does not fit into memory; make it smaller"


@pytest.mark.parametrize("name", ["猫 и κόλπος.png", "العربية.jpg", "नमस्ते 🐈‍⬛.webp", "l'été (1).png"])
def test_names_in_any_language(tmp_path, name):
    Image.new("RGB", (4, 4), (9, 9, 9)).save(tmp_path / name)
    assert abs(colour(decode(tmp_path / name, 20))[0] - 9) <= 2
    (tmp_path / name).write_bytes(b"")
    assert decode_all([tmp_path / name], 20, Progress()) == [LeftOut(str(tmp_path / name), "is empty")]


def test_names_that_cannot_be_printed(tmp_path):
    folder = os.fsencode(tmp_path)
    for name in (b"two\nlines.png", b"latin\xe9.png", b"red\x1b[31m.png"):
        with open(os.path.join(folder, name), "wb"):
            pass
    names = sorted(os.listdir(tmp_path))
    left_out = decode_all([tmp_path / name for name in names], 20, Progress())
    assert [each.what.rpartition("/")[2] for each in left_out] == [
        "latin\\udce9.png",
        "red\\x1b[31m.png",
        "two\\nlines.png",
    ]
    message = str(unreadable_images(left_out))
    assert message.encode()
    assert message.count("\n") == 3
    assert printable("plain 猫\u200d ü\u3000") == "plain 猫\u200d ü\u3000"


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "zero\0character.png"])
def test_names_that_no_file_can_have(tmp_path, name):
    assert reason(tmp_path / name).startswith("cannot be opened: ")


# HEIC


@pytest.fixture
def heif():
    module = pytest.importorskip("pillow_heif")
    module.register_heif_opener()
    return module


@pytest.fixture
def without_heif(monkeypatch, heif):
    """As where the package is not installed."""
    monkeypatch.delitem(Image.OPEN, "HEIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)


@pytest.mark.parametrize("name", ["photo.heic", "photo.HEIF", "photo.jpg", "photo"])
def test_heic_photos_are_read_by_their_content(tmp_path, heif, monkeypatch, name):
    image = smooth(48, 40)
    image.save(tmp_path / "saved.heic", quality=95)
    (tmp_path / "saved.heic").rename(tmp_path / name)
    monkeypatch.delitem(Image.OPEN, "HEIF")  # as before the first such file came
    difference = np.abs(shown(decode(tmp_path / name, 64)).astype(int) - np.array(image).astype(int))
    assert difference.mean() < 6
    assert "HEIF" in Image.OPEN


def test_a_turned_heic_photo_is_put_upright_once(tmp_path, heif):
    image, exif = smooth(64, 32), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image.save(tmp_path / "turned.heic", exif=exif.tobytes(), quality=95)
    decoded = shown(decode(tmp_path / "turned.heic", 64))
    assert decoded.shape == (64, 32, 3)
    assert np.abs(decoded.astype(int) - np.rot90(np.array(image), -1).astype(int)).mean() < 6


@pytest.mark.parametrize("name", ["photo.heic", "photo.jpg"])
def test_without_the_extra_the_reason_says_what_to_install(tmp_path, heif, request, name):
    smooth(16, 16).save(tmp_path / "saved.heic")
    (tmp_path / "saved.heic").rename(tmp_path / name)
    request.getfixturevalue("without_heif")
    assert "pip install pillow-heif" in reason(tmp_path / name)


def test_other_formats_need_no_extra(tmp_path, heif, request):
    request.getfixturevalue("without_heif")
    if "AVIF" in FORMATS:
        smooth(16, 16).save(tmp_path / "photo.avif")
        assert decode(tmp_path / "photo.avif", 20).shape == (3, 16, 16)
    (tmp_path / "text.heic").write_text("no photo at all")
    assert "is no image of a known format" in reason(tmp_path / "text.heic")


# many


def test_images_keep_their_order(tmp_path):
    for number in range(12):
        Image.new("RGB", (4 + 40 * (number % 3), 50), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    decoded = decode_all(sorted(tmp_path.iterdir()), 20, Progress())
    assert [int(image[0, 0, 0]) for image in decoded] == list(range(12))
    assert decode_all([], 20, Progress()) == []


def test_unreadable_images_lists_the_images():
    one = unreadable_images([LeftOut("a.png", "is empty")])
    assert isinstance(one, LcaError)
    assert str(one) == "no image could be read:\n  a.png is empty"
    many = str(unreadable_images([LeftOut(f"{number}.png", "is empty") for number in range(26)]))
    assert many.startswith("none of the 26 images could be read:\n  0.png is empty\n")
    assert "19.png" in many
    assert "20.png" not in many
    assert many.endswith("and 6 more")


def test_progress_counts_bad_images_too(tmp_path):
    seen = []

    class Recording(Progress):
        def track(self, items, what, total):
            seen.append((what, total))
            for item in items:
                seen.append(type(item).__name__)
                yield item

    noise(4, 4).save(tmp_path / "a.png")
    decode_all([tmp_path / "a.png", tmp_path / "b.png"], 20, Recording())
    assert seen == [("reading images", 2), "Decoded", "LeftOut"]


@pytest.mark.parametrize("where", ["waiting", "progress"])
def test_an_interrupt_stops_at_once(monkeypatch, where):
    started, release = [], threading.Event()

    def slow(image, what, size):
        started.append(what)
        release.wait(20)
        raise UnreadableImage(what, "is slow")

    class Interrupted(Progress):
        def track(self, items, what, total):
            raise KeyboardInterrupt
            yield

    monkeypatch.setattr(decoding, "_read", slow)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    began = time.monotonic()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if where == "waiting":
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            decode_all([None] * 100, 20, Interrupted() if where == "progress" else Progress())
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGINT, before)
        release.set()
        timer.cancel()
    time.sleep(0.2)
    assert len(started) <= 2
