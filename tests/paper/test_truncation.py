"""The curve of accuracy against the bytes of the Gaussians."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import tiny
from lca.files import read_json
from lca.progress import Progress
from paper import truncation

ROOT = Path(__file__).resolve().parents[2]
WIDTH, IMAGES = 12, 40


@pytest.fixture
def found():
    """Two classes, wide along the diagonal of two features and apart in the first of them: no feature alone tells."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(2).repeat_interleave(IMAGES)

    def draw():
        rows = 0.1 * torch.randn(2 * IMAGES, WIDTH, generator=random)
        rows[:, :2] += 3 * torch.randn(2 * IMAGES, 1, generator=random)
        rows[:, 0] += labels
        return rows

    return truncation.Features(draw(), labels, draw(), labels)


def test_bytes_are_of_the_gaussians_alone_and_accuracy_falls_with_what_matters(found):
    kept = {
        name: truncation.KEPT[name]
        for name in ("everything", "rank 1", "one for all classes", "a variance per feature")
    }
    rows = {row["kept"]: row for row in truncation.measure(found, kept, (0, 1))}
    floats = {name: row["bytes"] // 4 for name, row in rows.items()}
    assert floats == {
        "everything": 2 * (WIDTH + WIDTH * WIDTH),
        "rank 1": 2 * (WIDTH + WIDTH),
        "one for all classes": 2 * WIDTH + WIDTH * WIDTH,
        "a variance per feature": 2 * (WIDTH + WIDTH),
    }
    everything, diagonal = (rows[name]["lda"] for name in ("everything", "a variance per feature"))
    assert min(everything["accuracy"].values()) > 80
    assert diagonal["difference"] + diagonal["half_interval"] < -5
    lost = [diagonal["accuracy"][seed] - everything["accuracy"][seed] for seed in ("0", "1")]
    assert diagonal["difference"] == pytest.approx(sum(lost) / 2)
    assert rows["one for all classes"]["lda"]["difference"] == 0


def test_seeds_draw_the_samples_of_aligned_heads_and_lda_draws_nothing():
    noise = torch.randn(2, 2 * IMAGES, WIDTH, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(2).repeat(IMAGES)
    row = truncation.measure(truncation.Features(noise[0], labels, noise[1], labels), {"everything": {}}, (0, 1, 2))[0]
    assert len(set(row["lda"]["accuracy"].values())) == 1
    for classifier in ("best", "lca"):
        assert len(set(row[classifier]["accuracy"].values())) > 1


def test_the_superclasses_are_twenty_of_five_classes_each():
    names = sorted(name for group in truncation.SUPERCLASSES for name in group.split())
    assert len(set(names)) == len(names) == 100
    assert truncation.superclasses(names).bincount().tolist() == [5] * 20
    home = dict(zip(names, truncation.superclasses(names).tolist(), strict=True))
    assert home["whale"] == home["seal"] != home["shark"]


def test_the_committed_curve_is_of_classes_with_more_images_than_features_and_can_be_drawn(tmp_path):
    results = read_json(ROOT / "results" / "truncation.json")
    assert min(results["images"]) > results["features"]
    assert [row["kept"] for row in results["rows"]] == list(truncation.KEPT)
    truncation.plot(results, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_features_are_of_superclasses(tmp_path):
    names = sorted(name for group in truncation.SUPERCLASSES for name in group.split())
    for number, name in enumerate(names):
        for part, images in {"train": 2, "test": 1}.items():
            folder = tmp_path / "cifar100-mini" / part / name
            folder.mkdir(parents=True)
            for image in range(images):
                Image.new("RGB", (16, 16), (2 * number, 80 * image, 9)).save(folder / f"{image}.png")
    with tiny.tiny_backbone():
        found, machine = truncation.features_of(tmp_path, {"name": "tiny"}, Progress())
    assert found.train.shape == (200, 24)
    assert found.test_labels.bincount().tolist() == [5] * 20
    assert found.train_labels.bincount().tolist() == [10] * 20
    assert machine["device"]
