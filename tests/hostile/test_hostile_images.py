"""Images that ask for more than they may: told from their header, or decoded in bounded memory."""

import io
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from lca.data.cache import stamp_of
from lca.data.decoding import LeftOut, decode, read_together
from lca.data.decoding_limits import Room
from lca.errors import LcaError
from lca.progress import Progress

MEASURED = """
import resource, sys
from lca.data.decoding import read_together
from lca.progress import Progress
print(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
for path in sys.argv[1:]:
    reading = read_together([path] * 3, 224, Progress())
    print(len(reading.pixels), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
SIDE = 7000


def huge(path):
    """Small files of 49 megapixels, which may be read, in several kinds."""
    for name, mode, options in (
        ("rgba.png", "RGBA", {}),
        ("float.tif", "F", {"compression": "tiff_adobe_deflate"}),
        ("grey16.png", "I;16", {}),
    ):
        Image.new(mode, (SIDE, SIDE)).save(path / name, **options)
    return sorted(path.iterdir())


@pytest.mark.slow
def test_what_may_be_read_takes_little_more_than_one_image_at_a_time(tmp_path):
    files = huge(tmp_path)
    assert max(file.stat().st_size for file in files) < 400_000
    done = subprocess.run([sys.executable, "-c", MEASURED, *files], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    before, lines = lines[0], lines[1:]
    assert [line[0] for line in lines] == ["3"] * len(files)
    assert max(int(line[1]) for line in lines) - int(before[1]) < 700, done.stdout  # MB


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp", "a.jp2"])
def test_more_is_left_out_by_its_header_and_the_others_are_read(name, tmp_path, monkeypatch):
    Image.new("RGB", (200, 150), "red").save(tmp_path / name)
    Image.new("RGB", (20, 15), "red").save(tmp_path / "small.png")
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "0.01")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded") if self.size[0] == 200 else None)
    with pytest.raises(LcaError, match=r"has 0 megapixels, the limit.* is 0; make it smaller, or raise the limit"):
        decode(tmp_path / name, 16)
    monkeypatch.undo()
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "0.01")
    overlong = tmp_path / ("x" * 5000 + ".png")
    reading = read_together([tmp_path / name, overlong, "a\0b.png", tmp_path / "small.png"], 16, Progress())
    assert len(reading.pixels) == 1
    assert sorted(reading.left_out) == [0, 1, 2]
    assert all(isinstance(each, LeftOut) for each in reading.left_out.values())
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "0.06")  # 0.03 megapixels, and formats that take twice as much
    assert decode(tmp_path / name, 16).shape == (3, 16, 21)


def test_a_canvas_and_a_tile_count_as_well(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:])
    content = bytearray((tmp_path / "a.webp").read_bytes())
    content[24:30] = b"\xfe\x3f\x00\xfe\x3f\x00"  # 16,383 x 16,383
    (tmp_path / "a.webp").write_bytes(content)
    with pytest.raises(LcaError, match="has 268 megapixels, the limit is 50"):
        decode(tmp_path / "a.webp", 16)
    tile = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: 16000, 323: 16000, 324: 8, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tile.items())
    (tmp_path / "a.tif").write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tile)) + entries + bytes(4))
    with pytest.raises(LcaError, match="has 256 megapixels, the limit of a tile is 50"):
        decode(tmp_path / "a.tif", 16)


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "x", "1e999"])
def test_a_limit_is_a_number_above_zero(limit, monkeypatch):
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", limit)
    with pytest.raises(LcaError, match="must be a number of megapixels above 0"):
        decode(Image.new("RGB", (8, 8)), 8)


def test_what_was_left_out_by_another_limit_is_looked_at_again(monkeypatch):
    usual = stamp_of({}, 16)
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "50")
    assert stamp_of({}, 16) == usual
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "51")
    assert stamp_of({}, 16) != usual


def test_only_the_first_of_many_frames_is_decoded(tmp_path):
    frames = [Image.new("L", (16, 16), number % 256) for number in range(500)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    content = (tmp_path / "a.gif").read_bytes()
    (tmp_path / "a.gif").write_bytes(content[: len(content) // 2] + os.urandom(1000))
    assert torch.equal(decode(tmp_path / "a.gif", 16), decode(frames[0], 16))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "F", "I", "CMYK", "1", "LAB"])
def test_bands_change_nothing(mode, monkeypatch):
    values = np.random.default_rng(0).integers(0, 256, (600, 40, 4), dtype=np.uint8)
    if mode in ("F", "I", "I;16"):
        image = Image.fromarray(
            (values[:, :, 0].astype(np.float32) * 200).astype({"F": "f4", "I": "i4"}.get(mode, "u2"))
        )
    elif mode == "LAB":
        image = Image.merge("LAB", [Image.fromarray(values[:, :, each]) for each in range(3)])
    else:
        image = Image.fromarray(values).convert(mode)
    if mode == "P":
        file = io.BytesIO()
        image.save(file, "PNG", transparency=3)
        image = Image.open(file)
    by_bands = decode(image, 1000)
    monkeypatch.setattr("lca.data.decoding.BAND", 10_000)
    assert torch.equal(by_bands, decode(image, 1000))


def test_memory_is_shared_out_and_who_needs_more_waits_until_nobody_else_holds_any():
    room, order = Room(10), []

    def large():
        with room.taken(50):
            order.append("large")

    with room.taken(4), room.taken(6):
        thread = threading.Thread(target=large)
        thread.start()
        thread.join(0.05)
        order.append("small")
    thread.join()
    assert order == ["small", "large"]
    with room.taken(10):
        pass


def test_the_commands_have_the_limit_as_an_option(tmp_path, monkeypatch):
    monkeypatch.setenv("LCA_MAX_MEGAPIXELS", "50")
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (40, 40), (number * 60, 0, 255 * (name == "a"))).save(
                tmp_path / "photos" / name / f"{number}.png"
            )
    Image.new("RGB", (200, 200)).save(tmp_path / "photos" / "a" / "large.png")
    with tiny.tiny_backbone():
        words = ("learn", tmp_path / "model", tmp_path / "photos", "--instant", "--max-megapixels", 0.01)
        _, told = tiny.lca_command(*words)
    assert "large.png has 0 megapixels, the limit is 0" in told
