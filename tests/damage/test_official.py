"""The published arrays, in small files of the same layout."""

import numpy as np
import pytest
import torch

from lca.damage.official import corrupted_files, perturbed_files
from lca.errors import LcaError

LABELS = torch.tensor([2, 0, 1, 1])


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "labels.npy", np.tile(LABELS.numpy(), 5))
    np.save(tmp_path / "fog.npy", draw.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    np.save(tmp_path / "tilt.npy", draw.integers(0, 256, (4, 5, 8, 8, 3), dtype=np.uint8))
    np.save(tmp_path / "other.npy", np.zeros(3))
    return tmp_path


def test_images_come_by_severity_and_sequences_by_number(folder):
    fog, tilt = np.load(folder / "fog.npy"), np.load(folder / "tilt.npy")
    found = corrupted_files(folder, LABELS)
    assert list(found) == ["fog"]
    for severity in (1, 5):
        expected = torch.from_numpy(fog[4 * (severity - 1) : 4 * severity]).permute(0, 3, 1, 2)
        assert torch.equal(found["fog"](severity), expected)
    sequences = perturbed_files(folder, 4)
    assert list(sequences) == ["tilt"]
    assert torch.equal(sequences["tilt"](torch.tensor([3, 1])), torch.from_numpy(tilt[[3, 1]]).permute(0, 1, 4, 2, 3))


def test_files_that_do_not_fit(folder):
    with pytest.raises(LcaError, match="do not repeat those of the 3 test images"):
        corrupted_files(folder, LABELS[:3])
    with pytest.raises(LcaError, match="do not repeat"):
        corrupted_files(folder, LABELS.flip(0))
    with pytest.raises(LcaError, match=r"expected uint8 \(9, frames, height, width, 3\)"):
        perturbed_files(folder, 9)
    np.save(folder / "snow.npy", np.zeros((20, 8, 8, 3)))
    with pytest.raises(LcaError, match="holds float64"):
        corrupted_files(folder, LABELS)
    (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes()[:500])
    with pytest.raises(LcaError, match=r"snow\.npy cannot be read"):
        corrupted_files(folder, LABELS)
    for damaged in (b"", b"junk" * 50, (folder / "fog.npy").read_bytes().replace(b"shape", b"sh(pe", 1)):
        (folder / "snow.npy").write_bytes(damaged)
        with pytest.raises(LcaError, match=r"snow\.npy cannot be read .*unpack the archive again") as caught:
            corrupted_files(folder, LABELS)
        assert "pickle" not in str(caught.value)
    (folder / "labels.npy").unlink()
    with pytest.raises(LcaError, match=r"there is no .*labels\.npy"):
        corrupted_files(folder, LABELS)
