"""Decoded images on disk: keyed by content, whole or absent, bounded, never in the way."""

import os
import stat
import time

import numpy as np
import pytest
import torch
from PIL import Image

from lca.config import DataOptions
from lca.data import cache, sources
from lca.data.images import ImageSet, Pixels
from lca.errors import LcaError
from lca.progress import Progress


class Told(Progress):
    def __init__(self):
        self.warnings = []

    def warning(self, text):
        self.warnings.append(text)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LCA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LCA_CACHE_GB", "1")
    monkeypatch.setattr(cache, "FEWEST", 3)
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path):
    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for number in range(4):
                values = draw.integers(0, 256, (9 + number, 12, 3), dtype=np.uint8)
                Image.fromarray(values).save(tmp_path / "photos" / part / name / f"{number}.png")
    return tmp_path / "photos"


def files(root):
    return {each.name: sorted(each.iterdir()) for each in sorted(root.iterdir())}


def read(tree, monkeypatch, forget=True):
    """The training images as a run reads them, and how many files were decoded for it."""
    decoded = []
    plain = sources._decode
    monkeypatch.setattr(sources, "_decode", lambda *given: decoded.append(1) or plain(*given))
    if forget:
        sources._decoded.clear()
    images = sources.load_source(DataOptions(source=f"folder:{tree}"), 0, 64, Progress()).train
    monkeypatch.setattr(sources, "_decode", plain)
    return images, len(decoded)


def equal(one, two):
    same = torch.equal(one.labels, two.labels) and one.classes == two.classes
    return same and all(
        torch.equal(getattr(one.pixels, each), getattr(two.pixels, each)) for each in ("canvas", "sizes")
    )


def test_a_second_process_decodes_nothing(tree, monkeypatch):
    first, decoded = read(tree, monkeypatch)
    assert decoded == 2
    again, decoded = read(tree, monkeypatch)
    assert decoded == 0
    assert equal(first, again)
    assert len(cache.entries()) == 2
    again.pixels.canvas[0] = 0  # a private map: the entry stays as it is
    assert equal(first, read(tree, monkeypatch)[0])


def test_other_content_is_another_entry(tree, monkeypatch):
    read(tree, monkeypatch)
    path = tree / "train" / "cat" / "2.png"
    before = path.stat()
    Image.new("RGB", (12, 11), (1, 2, 3)).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed, decoded = read(tree, monkeypatch)
    assert decoded == 1
    assert (changed.pixels.canvas[2, :, 0, 0] == torch.tensor([1, 2, 3])).all()


def test_the_key_depends_on_content_names_classes_and_size(tree, tmp_path):
    plain = cache.key(files(tree / "train"), 64)
    assert plain == cache.key(files(tree / "train"), 64)
    assert plain != cache.key(files(tree / "train"), 65)
    assert plain != cache.key(files(tree / "test"), 64)
    listing = files(tree / "train")
    assert plain != cache.key({"cat": listing["dog"], "dog": listing["cat"]}, 64)
    os.rename(tree / "train" / "cat" / "0.png", tree / "train" / "cat" / "00.png")
    assert plain != cache.key(files(tree / "train"), 64)


@pytest.mark.parametrize("damage", ["cut", "other count", "no json", "missing part"])
def test_a_broken_entry_is_thrown_away(tree, monkeypatch, damage):
    images, _ = read(tree, monkeypatch)
    copy = Pixels(images.pixels.canvas.clone(), images.pixels.sizes)  # the set itself is a map of the file
    whole = ImageSet(copy, images.labels, images.classes)
    del images
    sources._decoded.clear()
    for entry in [each.path for each in cache.entries()]:
        if damage == "cut":
            content = (entry / "canvas.npy").read_bytes()
            (entry / "canvas.npy").write_bytes(content[: len(content) // 2])
        elif damage == "other count":
            np.save(entry / "labels.npy", np.zeros(3, dtype=np.int64))
        elif damage == "no json":
            (entry / "about.json").write_text("{")
        else:
            (entry / "sizes.npy").unlink()
    again, decoded = read(tree, monkeypatch)
    assert decoded == 2
    assert equal(whole, again)


def test_small_sets_are_not_kept(tree, monkeypatch):
    monkeypatch.setattr(cache, "FEWEST", 100)
    read(tree, monkeypatch)
    assert cache.entries() == []


def test_the_least_recently_used_entry_goes(tree, monkeypatch):
    read(tree, monkeypatch)
    train, test = cache.entries()
    monkeypatch.setenv("LCA_CACHE_GB", str((train.bytes + test.bytes + 10) / 1e9))
    (tree / "train" / "cat" / "9.png").write_bytes((tree / "train" / "cat" / "1.png").read_bytes())
    read(tree, monkeypatch)
    paths = [each.path for each in cache.entries()]
    assert len(paths) == 2
    assert test.path in paths
    assert train.path not in paths
    monkeypatch.setenv("LCA_CACHE_GB", "1e-9")
    (tree / "train" / "cat" / "8.png").write_bytes((tree / "train" / "cat" / "1.png").read_bytes())
    read(tree, monkeypatch)
    assert test.path in [each.path for each in cache.entries()], "what cannot fit at all drives nothing out"
    monkeypatch.setenv("LCA_CACHE_GB", "much")
    with pytest.raises(LcaError, match="number of gigabytes, came 'much'"):
        cache.limit()


def test_a_disk_that_takes_nothing_costs_a_warning(tree, monkeypatch, home):
    images, _ = read(tree, monkeypatch)
    cache.clear()
    told = Told()
    plain = np.save

    def full(path, values):
        if "canvas" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        plain(path, values)

    monkeypatch.setattr(np, "save", full)
    cache.save("a" * 40, images, told)
    assert "No space left on device" in told.warnings[0]
    assert list(home.iterdir()) == []
    assert cache.load("a" * 40) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tree, monkeypatch, home):
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    read(tree, monkeypatch)
    assert cache.entries() == []


def test_clearing(tree, monkeypatch, home):
    assert cache.clear() == 0
    read(tree, monkeypatch)
    (home / f".{'a' * 40}.{'b' * 32}").mkdir()
    (home / f".{'a' * 40}.{'b' * 32}" / "canvas.npy").write_bytes(b"half")
    others = {"notes", ".git", ".ssh", "f" * 39}
    for name in others:
        (home / name).mkdir()
        (home / name / "about.json").write_text("{}")
    assert cache.clear() > 0
    assert {each.name for each in home.iterdir()} == others, "what is not ours stays"


def test_what_a_killed_removal_left_is_not_in_the_way(tree, monkeypatch):
    read(tree, monkeypatch)
    for entry in cache.entries():
        (entry.path / "about.json").unlink()
    assert read(tree, monkeypatch)[1] == 2
    assert read(tree, monkeypatch)[1] == 0


def test_an_entry_survives_a_failed_look(tree, monkeypatch):
    read(tree, monkeypatch)
    plain = np.load

    def failing(*given, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(np, "load", failing)
    assert cache.load(cache.entries()[0].path.name) is None
    monkeypatch.setattr(np, "load", plain)
    assert cache.load(cache.entries()[0].path.name) is not None


def test_what_a_killed_writer_left_goes_after_a_day(tree, monkeypatch, home):
    left = {age: home / f".{age * 40}.{'b' * 32}" for age in "01"}
    for age, path in left.items():
        path.mkdir(parents=True)
        os.utime(path, (time.time() - 90000 * int(age),) * 2)
    read(tree, monkeypatch)
    assert left["0"].exists(), "somebody may be writing it"
    assert not left["1"].exists()
