"""The study of what the answers of a taught model are worth, on small pictures and a tiny transformer."""

import pytest
from PIL import Image

import tiny
from lca.progress import Progress
from paper import trust

QUICK = [
    "device=cpu",
    "training={epochs: 1, batch_size: 8, lr: 0.05}",
    "tuning={name: lora, rank: 2}",
    "method.align=[best]",
]


@pytest.fixture
def data(tmp_path):
    """Digits: seven classes to be taught, three that are far."""
    pictures = tiny.images({str(digit): 9 for digit in range(10)})
    seen = dict.fromkeys(pictures.classes, 0)
    for picture, label in zip(pictures.pixels.canvas, pictures.labels.tolist(), strict=True):
        name = pictures.classes[label]
        folder = tmp_path / ("taught" if int(name) < 7 else "far") / ("train" if seen[name] < 6 else "test") / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{seen[name]}.png")
        seen[name] += 1
    return tmp_path


def test_all_that_is_told_is_measured(data):
    with tiny.tiny_backbone():
        row = trust.measure(data, "taught", QUICK, 0, Progress())
        again = trust.measure(data, "taught", QUICK, 0, Progress())
    assert row == again, "the seed decides"
    assert row.keys() == trust.ROWS.keys()
    assert all(0 <= value <= 100 for value in row.values())
    assert row["accuracy"] > 100 / 5, "better than a guess among the five that were taught"
    shown = trust.show({"cases": [{"backbone": "tiny", "taught": "digits", "seeds": {"0": row, "1": row}}]})
    assert f"| {trust.ROWS['accuracy']} | {row['accuracy']:.1f} ± 0.0 |" in shown


def test_a_lesson_of_every_task_is_taught(data):
    source = [f"data.source=folder:{data / 'taught'}", "data.tasks=3"]
    with tiny.tiny_backbone():
        model = trust.teach(trust.load_recipe("best", [*QUICK, *source]), data / "taught" / "train", Progress())
    assert sorted(model.classes) == [str(digit) for digit in range(7)]
    assert len(model.history) == 3
