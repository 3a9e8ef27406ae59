"""Lessons too large for memory: decoded pixels in a private file, and everything above as before."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

from lca.data import folders, store
from lca.data.decoding import AHEAD, read_all, read_together
from lca.data.images import Packed
from lca.data.labelled import read_images
from lca.data.store import PixelFile, PixelRow
from lca.errors import LcaError
from lca.progress import Progress


def photos(folder, sizes=((6, 5), (9, 4), (4, 8))):
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(9):
            noise = torch.randint(256, (*sizes[number % len(sizes)], 3), generator=torch.manual_seed(number))
            Image.fromarray(noise.byte().numpy()).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize("sizes", [((6, 5), (9, 4), (4, 8)), ((6, 5),)])
def test_a_lesson_in_a_file_is_the_lesson_in_memory(tmp_path, monkeypatch, sizes):
    root = photos(tmp_path / "photos", sizes)
    inside = read_images(root, 64, Progress()).images
    monkeypatch.setattr(folders, "IN_MEMORY", 200)
    outside = read_images(root, 64, Progress()).images
    assert (inside.streamed, outside.streamed) == (False, True)
    assert outside.fingerprint() == inside.fingerprint()
    some = torch.tensor([17, 0, 3])
    assert torch.equal(outside.batch(some).canvas, inside.batch(some).canvas)
    part = outside.subset(some).of_classes(["dog"])
    assert part.streamed
    assert torch.equal(part.image(0), inside.image(17))


def test_few_images_need_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    root = photos(tmp_path / "photos")
    assert isinstance(
        read_together([*root.glob("cat/*.png")], 64, Progress(), in_memory=10_000).pixels.row, torch.Tensor
    )
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(LcaError, match=r"none can be made in .*nowhere \(No such file or directory\); name another fo"):
        read_together([*root.glob("cat/*.png")], 64, Progress(), in_memory=10)


def test_the_file_is_private_and_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    row = PixelRow(3, 10)
    for number in range(3):
        row.append(torch.full((3, 2, 2), number, dtype=torch.uint8))
    file = row.finished()
    assert isinstance(file, PixelFile)
    status = os.fstat(file._file.fileno())
    assert (status.st_mode & 0o777, status.st_nlink, status.st_size) == (0o600, 0, 36)
    assert [*tmp_path.iterdir()] == []
    assert file[10:14].tolist() == [0, 0, 1, 1]
    assert file[10:].tolist() == [0, 0, *[1] * 12, *[2] * 12]
    packed = Packed(file, torch.tensor([[2, 2]] * 3))
    assert packed.image(2).unique().tolist() == [2]


def test_a_lesson_that_will_not_fit_is_refused_early(tmp_path, monkeypatch):
    class Usage:
        free = store._SPARE + 100

    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: Usage)
    row = PixelRow(9, 10)
    with pytest.raises(LcaError, match=r"about 1\.08e-07 GB are needed in .*TMPDIR, or teach the photos in parts"):
        row.append(torch.zeros(3, 2, 2, dtype=torch.uint8))  # 12 bytes, 108 in all
    PixelRow(8, 10).append(torch.zeros(3, 2, 2, dtype=torch.uint8))  # 96 in all


FILL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from lca.data import folders
folders.IN_MEMORY = 1000
from lca.data.labelled import read_images
from lca.progress import Progress
from lca.errors import LcaError
try:
    read_images(sys.argv[1], 64, Progress())
except LcaError as error:
    print(error)
"""


def test_a_disk_that_fills_up_is_said(tmp_path):
    """The system refuses to let the file grow, as a full disk does."""
    root = photos(tmp_path / "photos", ((60, 60),))
    said = subprocess.run([sys.executable, "-c", FILL, str(root)], capture_output=True, text=True, check=True).stdout
    assert "the decoded photos of this lesson do not fit on the disk: the disk of" in said
    assert "or teach the photos in parts" in said


def test_a_file_that_was_cut_is_an_error():
    row = PixelRow(2, 1)
    row.append(torch.zeros(3, 4, 4, dtype=torch.uint8))
    file = row.finished()
    os.ftruncate(file._file.fileno(), 10)
    with pytest.raises(OSError, match="cut short") as caught:
        file[0:48]
    assert caught.value.errno == errno.EIO


def test_reading_is_ahead_by_some_images_only(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    opened = []

    class Watched:
        def __len__(self):
            return 5000

        def __iter__(self):
            for number in range(5000):
                opened.append(number)
                yield tmp_path / "a.png"

    results = read_all(Watched(), 64, Progress())
    for _ in range(10):
        next(results)
    assert 10 <= len(opened) <= 10 + AHEAD * (os.cpu_count() or 1) + 1
    results.close()


def test_memory_stays_bounded():
    """What 300 MB of pixels take in a process that may keep 20 of them."""
    script = (
        "import resource, torch\n"
        "from lca.data.store import PixelRow\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before, row, size = peak(), PixelRow(300, 20e6), 3 * 512 * 682\n"
        "for _ in range(300): row.append(torch.ones(3, 512, 682, dtype=torch.uint8))\n"
        "file = row.finished()\n"
        "assert sum(int(file[n * size:(n + 1) * size].sum()) for n in range(300)) == 300 * size\n"
        "print(peak() - before)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(said) < 100_000  # kB
