"""Decoded images on disk: keyed by content, whole or absent, bounded, never in the way."""

import json
import os
import stat
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import lca.files
from lca.data import cache, decoding, sources
from lca.data.decoding import read_together
from lca.data.images import Packed, Pixels
from lca.data.options import DataOptions
from lca.errors import LcaError
from lca.progress import Progress


class Told(Progress):
    def __init__(self):
        self.lines, self.warnings, self.tasks = [], [], []

    def line(self, text):
        self.lines.append(text)

    @contextmanager
    def task(self, what, total):
        self.tasks.append(what)
        yield lambda units: None

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


def read(tree, monkeypatch, told=None):
    """The training images as a run reads them, and how many sets were decoded for it."""
    decoded = []
    plain = sources.read_together
    monkeypatch.setattr(
        sources, "read_together", lambda paths, *given: (len(paths) > 2 and decoded.append(1)) or plain(paths, *given)
    )
    sources._decoded.clear()
    images = sources.load_source(DataOptions(source=f"folder:{tree}"), 0, 64, told or Progress()).train
    monkeypatch.setattr(sources, "read_together", plain)
    return images, len(decoded)


def reading(tree):
    return read_together([path for own in files(tree / "train").values() for path in own], 64, Progress())


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
    def key(listing, size=64):
        return cache.key(listing, size, Progress())

    plain = key(files(tree / "train"))
    assert plain == key(files(tree / "train"))
    assert plain != key(files(tree / "train"), 65)
    assert plain != key(files(tree / "test"))
    listing = files(tree / "train")
    assert plain != key({"cat": listing["dog"], "dog": listing["cat"]})
    os.rename(tree / "train" / "cat" / "0.png", tree / "train" / "cat" / "00.png")
    assert plain != key(files(tree / "train"))


@pytest.mark.parametrize("damage", ["cut", "other count", "no json", "missing part", "empty", "zeros"])
def test_a_broken_entry_is_thrown_away(tree, monkeypatch, damage):
    whole = read(tree, monkeypatch)[0].fingerprint()
    sources._decoded.clear()
    for entry in [each.path for each in cache.entries()]:
        if damage == "cut":
            os.truncate(entry / "pixels", (entry / "pixels").stat().st_size // 2)
        elif damage == "other count":
            np.save(entry / "digests.npy", np.zeros((3, 16), dtype=np.uint8))
        elif damage == "no json":
            (entry / "about.json").write_text("{")
        elif damage == "empty":
            (entry / "sizes.npy").write_bytes(b"")
        elif damage == "zeros":
            (entry / "pixels").write_bytes(bytes((entry / "pixels").stat().st_size))
        else:
            (entry / "sizes.npy").unlink()
    again, decoded = read(tree, monkeypatch)
    assert decoded == 2
    assert again.fingerprint() == whole


def test_files_that_did_not_change_are_not_read_again(tree, monkeypatch):
    first, again, moved, touched = Told(), Told(), Told(), Told()
    images, _ = read(tree, monkeypatch, first)
    assert first.tasks.count("looking for changed images") == 2
    assert read(tree, monkeypatch, again)[1] == 0
    assert "looking for changed images" not in again.tasks
    other = tree.rename(tree.with_name("moved"))
    assert read(other, monkeypatch, moved)[1] == 0, "the same content elsewhere"
    assert moved.tasks.count("looking for changed images") == 2
    (other / "train" / "cat" / "0.png").touch()
    assert read(other, monkeypatch, touched)[1] == 0, "the same content at another time"
    assert touched.tasks.count("looking for changed images") == 1
    assert equal(images, read(other, monkeypatch)[0])


def test_images_of_many_sizes_are_kept_without_padding(tree, monkeypatch):
    images, _ = read(tree, monkeypatch)
    assert isinstance(images._open()[0], Packed)
    for entry in cache.entries():
        assert (entry.path / "pixels").stat().st_size == 2 * sum(3 * height * 12 for height in range(9, 13))


def test_images_of_one_size_stay_one_batch(tree, monkeypatch):
    for path in tree.rglob("*.png"):
        Image.open(path).resize((12, 9)).save(path)
    images, _ = read(tree, monkeypatch)
    assert isinstance(images._open()[0], Pixels)
    assert equal(images, read(tree, monkeypatch)[0])


def test_a_broken_file_does_not_keep_a_set_out(tree, monkeypatch):
    (tree / "train" / "cat" / "2.png").write_bytes(b"no image")
    (tree / "train" / "dog" / "3.png").unlink()
    (tree / "train" / "dog" / "3.png").symlink_to(tree / "nowhere.png")
    told = Told(), Told()
    images, decoded = read(tree, monkeypatch, told[0])
    assert (len(images), decoded) == (6, 2)
    again, decoded = read(tree, monkeypatch, told[1])
    assert decoded == 0
    assert equal(images, again)
    assert told[0].lines == told[1].lines, "it is told in every run"
    assert "2 files or images left out:" in told[1].lines[0]
    Image.new("RGB", (12, 11), (1, 2, 3)).save(tree / "nowhere.png")
    mended, decoded = read(tree, monkeypatch)
    assert (len(mended), decoded) == (7, 1)


def test_what_can_be_read_now_is_read(tree, monkeypatch):
    """A package for another format may have been installed since."""
    plain = decoding._identify

    def without(file, path, what):
        if path.name == "2.png":
            raise decoding.UnreadableImage(what, "needs another package")
        return plain(file, path, what)

    monkeypatch.setattr(decoding, "_identify", without)
    assert len(read(tree, monkeypatch)[0]) == 6
    assert read(tree, monkeypatch)[1] == 0
    monkeypatch.setattr(decoding, "_identify", plain)
    images, decoded = read(tree, monkeypatch)
    assert (len(images), decoded) == (8, 2)
    assert read(tree, monkeypatch)[1] == 0


def test_training_and_test_images_do_not_drive_each_other_out(tree, monkeypatch):
    read(tree, monkeypatch)
    train, _ = cache.entries()
    cache.clear()
    monkeypatch.setenv("LCA_CACHE_GB", str(1.2 * train.bytes / 1e9))
    for _ in range(3):
        told = Told()
        _, decoded = read(tree, monkeypatch, told)
        assert [entry.path for entry in cache.entries()] == [train.path]
        (text,) = told.lines
        assert "8 decoded images" in text
        assert "do not fit into the cache" in text
        assert "will be decoded in every run; LCA_CACHE_GB=0.02 would keep them" in text
    assert decoded == 1
    monkeypatch.setenv("LCA_CACHE_GB", "0")
    told = Told()
    assert read(tree, monkeypatch, told)[1] == 2
    assert told.lines == [], "it was asked for"


def test_near_copies_are_told_in_every_run_and_looked_for_once(tree, monkeypatch):
    draw = np.random.default_rng(1)
    smooth = Image.fromarray(draw.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((60, 50), Image.BICUBIC)
    for part in ("train", "test"):
        smooth.save(tree / part / "cat" / "same.png")
    looked, plain = [], sources.near_copies
    monkeypatch.setattr(sources, "near_copies", lambda *given: looked.append(1) or plain(*given))
    told = Told(), Told()
    for each in told:
        read(tree, monkeypatch, each)
    assert looked == [1]
    assert told[0].lines == told[1].lines
    title, pair = told[1].lines[-2:]
    assert title.startswith("1 test image nearly the same as training images")
    assert pair == "  test/cat/same.png looks like train/cat/same.png"
    assert sources.load_source(DataOptions(source=f"folder:{tree}"), 0, 64, Progress()).near_copies == 1
    cache.clear()
    sources._decoded.clear()
    read(tree, monkeypatch)
    assert looked == [1, 1]


@pytest.mark.parametrize("damaged", [5, [[0]], [["0", "1"]], [[0, 99]], [[-1, 0]], {"a": 1}, None])
def test_damaged_facts_are_found_again(tree, monkeypatch, home, damaged):
    read(tree, monkeypatch)
    facts = json.loads((home / "facts.json").read_text())
    (home / "facts.json").write_text(json.dumps(dict.fromkeys(facts, damaged)))
    read(tree, monkeypatch)
    assert json.loads((home / "facts.json").read_text()) == facts


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


@pytest.mark.parametrize("text", ["much", "nan", "-1"])
def test_a_limit_that_is_none(text, monkeypatch):
    monkeypatch.setenv("LCA_CACHE_GB", text)
    with pytest.raises(LcaError, match=f"number of gigabytes, 0 or more, got '{text}'"):
        cache.limit()


def test_a_disk_that_takes_nothing_costs_a_warning(tree, monkeypatch, home):
    told, plain = Told(), np.save

    def full(path, values):
        if "digests" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        plain(path, values)

    monkeypatch.setattr(np, "save", full)
    cache.save("a" * 40, reading(tree), told)
    (text,) = told.warnings
    assert f"could not be kept in {home} (No space left on device)" in text
    assert "make room, or name another folder with LCA_CACHE" in text
    assert list(home.iterdir()) == []
    assert cache.load("a" * 40) is None
    images, _ = read(tree, monkeypatch, told)
    assert len(images) == 8, "the run goes on"
    assert len(told.warnings) == 3


def test_an_interrupt_leaves_nothing_half_written(tree, monkeypatch, home):
    def interrupted(path, values):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.save("a" * 40, reading(tree), Progress())
    assert list(home.iterdir()) == []


def test_an_entry_is_on_the_disk_before_it_has_its_name(tree, monkeypatch, home):
    flushed = []
    for module in (cache, lca.files):
        monkeypatch.setattr(module, "flush", lambda path: flushed.append((path.name, (home / ("a" * 40)).exists())))
    cache.save("a" * 40, reading(tree), Progress())
    parts = {"pixels", "sizes.npy", "digests.npy", "several_frames.npy", "about.json"}
    assert {name for name, named in flushed if not named} >= parts
    assert (home.name, True) in flushed


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
    (home / f".{'a' * 40}.{'b' * 32}" / "pixels").write_bytes(b"half")
    assert cache.unfinished() == 4
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
