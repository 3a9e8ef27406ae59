"""Data sets of the Hugging Face library, streamed and not, given to a model and as a source of runs."""

from io import BytesIO

import pytest
from PIL import Image

import tiny
from lca.data.images import ImageSet
from lca.data.labelled import read_images
from lca.data.options import DataOptions
from lca.data.rows import CHUNK
from lca.data.sources import load_source
from lca.errors import LcaError
from lca.progress import Progress

hf = pytest.importorskip("datasets")
NAMES = ["two", "one", "never"]


def png(level, size=(9, 7)):
    content = BytesIO()
    Image.effect_noise(size, 40 + level).convert("RGB").save(content, "PNG")
    return content.getvalue()


def dataset(rows, names=NAMES, **columns):
    label = hf.ClassLabel(names=names) if names else hf.Value("string")
    content = {"image": [{"bytes": each, "path": None} for each, _ in rows], "label": [label for _, label in rows]}
    features = hf.Features({"image": hf.Image(), "label": label, **{name: hf.Value("int64") for name in columns}})
    return hf.Dataset.from_dict({**content, **columns}, features=features)


@pytest.fixture(scope="module")
def rows():
    """More than are decoded together."""
    return [(png(number), number % 2) for number in range(CHUNK + 4)]


def read(data, progress=None):
    return read_images(data, 16, progress or Progress())


def test_a_stream_is_read_as_the_set_and_as_pairs(rows):
    whole = dataset(rows)
    pairs = [(Image.open(BytesIO(content)), NAMES[label]) for content, label in rows]
    expected = read(pairs).images
    unknown = hf.IterableDataset.from_generator(
        lambda: ({"image": Image.open(BytesIO(content)), "label": NAMES[label]} for content, label in rows)
    )
    assert unknown.features is None
    for data in (whole, whole.to_iterable_dataset(), unknown):
        images, report = read(data)
        assert isinstance(images, ImageSet)
        assert images.classes == ("one", "two")
        assert images.fingerprint() == expected.fingerprint()
        assert report.read == len(rows)


def test_a_stream_says_how_far_it_is(rows, monkeypatch):
    lines = []

    class Lines(Progress):
        def line(self, text):
            lines.append(text)

    monkeypatch.setattr("lca.data.rows.TELL", CHUNK)
    read(dataset(rows), Lines())
    assert lines == [], "a set of known length has a bar"
    read(dataset(rows).to_iterable_dataset(), Lines())
    assert lines == ["256 rows read so far"]


def test_a_model_learns_from_a_stream_and_is_measured_on_one(rows):
    model = tiny.classifier(tiny.recipe(method={"align": ["best"]}))
    lesson = model.learn(dataset(rows[:20]).to_iterable_dataset(), effort="instant")
    assert sum(lesson.images.values()) + lesson.held_out == 20
    assert model.classes == ["one", "two"]
    assert len(model.evaluate(dataset(rows[20:30]).to_iterable_dataset()).answers) == 10


def test_what_is_broken_is_left_out_and_the_stream_goes_on(rows):
    broken = [(b"no image", 0), (rows[1][0][:60], 1), (b"", 0)]
    lines = []

    class Lines(Progress):
        def warning(self, text):
            lines.append(text)

    images, report = read(dataset([*rows[:3], *broken, *rows[3:6]]).to_iterable_dataset(), Lines())
    assert len(images) == 6
    assert sorted(each.what for each in report.left_out) == ["row 4", "row 5", "row 6"]
    assert lines[0] == "3 files or images left out:"
    with pytest.raises(LcaError, match="none of the 2 images could be read"):
        read(dataset(broken[:2]))


def test_what_is_unclear_is_an_error_with_the_remedy(rows):
    with pytest.raises(LcaError, match=r"several splits \(train, test\); give one"):
        read(hf.DatasetDict({"train": dataset(rows[:2]), "test": dataset(rows[:2])}))
    with pytest.raises(LcaError, match=r"one of labels, got image and label, other; keep one"):
        read(dataset([(rows[0][0], "a"), (rows[1][0], "b")], names=None, other=[1, 2]))
    with pytest.raises(LcaError, match="some images have no label"):
        read(dataset([*rows[:2], (rows[2][0], -1)]))
    with pytest.raises(LcaError, match="has no rows"):
        read(hf.IterableDataset.from_generator(lambda: iter(())))


def source(text, **options):
    return load_source(DataOptions(source=text, **options), 0, 16, Progress())


def test_a_streamed_source_is_the_stored_one(rows, tmp_path):
    splits = {"train": dataset(rows[:30], NAMES[:2]), "test": dataset(rows[30:40], NAMES[:2])}
    hf.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    hf.DatasetDict({"train": splits["train"]}).save_to_disk(str(tmp_path / "one"))
    for name in ("saved", "one"):
        stored, streamed = source(f"hf:{tmp_path / name}"), source(f"hf:{tmp_path / name},stream=yes")
        assert streamed.fingerprint == stored.fingerprint
        assert streamed.classes == ("two", "one"), "in the order of the labels"
    for stream in ("no", "yes"):
        few = source(f"hf:{tmp_path / 'saved'},stream={stream},take=6")
        assert (len(few.train), len(few.test)) == (6, 6)
    with pytest.raises(LcaError, match="stream=maybe must be yes or no"):
        source(f"hf:{tmp_path / 'saved'},stream=maybe")
    with pytest.raises(LcaError, match="take=all must be a number of rows"):
        source(f"hf:{tmp_path / 'saved'},take=all")


def test_files_are_streamed_by_the_library(rows, tmp_path):
    """As from the hub, but for the network: classes that were not seen are none."""
    (tmp_path / "data").mkdir()
    for split, some in {"train": rows[:12], "test": rows[12:18]}.items():
        dataset(some).to_parquet(str(tmp_path / "data" / f"{split}-0.parquet"))
    streamed = source(f"hf:{tmp_path},stream=yes")
    assert streamed.classes == ("two", "one")
    assert (len(streamed.train), len(streamed.test)) == (12, 6)
