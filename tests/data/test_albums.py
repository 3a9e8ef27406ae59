"""Labelled images as people have them: parts, zip files, lists in a file, data sets of the hub."""

import json
import shutil
import struct
import zipfile

import pytest
from PIL import Image

import trees
from lca.data import archives
from lca.data.labelled import album_of, read_images
from lca.data.parts import recognised
from lca.errors import LcaError
from lca.progress import Progress


def read(data, part="train", layout="auto", progress=None):
    return read_images(data, 64, progress or Progress(), part, layout)


def colours(images):
    """(class, red, green) of every image, as `trees` painted them: (class number, number of the image)."""
    corners = [tuple(image[:2, 0, 0].tolist()) for image in map(images.image, range(len(images)))]
    return [(images.classes[label], *corner) for label, corner in zip(images.labels.tolist(), corners, strict=True)]


def packed(folder, path, around="", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{around}{file.relative_to(folder).as_posix()}")
    return path


@pytest.fixture(params=["folder", "zip", "zip with a folder around"])
def form(request, tmp_path):
    """The same photos as a folder and as archives."""

    def go(root):
        if request.param == "folder":
            return root
        return packed(root, tmp_path / "photos.zip", "around/" if "around" in request.param else "")

    return go


# parts

TRAINED = [("cat", 0, 0), ("cat", 0, 1), ("dog", 1, 0), ("dog", 1, 1), ("dog", 1, 2)]
TESTED = [("cat", 0, 100), ("dog", 1, 100), ("dog", 1, 101)]


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("Train", "VAL"), ("train", "valid"), ("TRAIN", "validation")]
)
def test_parts_are_recognised_and_told(tmp_path, form, train, test):
    root = trees.class_folders(tmp_path / "photos", {"cat": (2, 1), "dog": (3, 2)})
    for old, new in (("train", train), ("test", test)):
        (root / old).rename(root / "x").rename(root / new)
    given = form(root)
    images, report = read(given)
    assert colours(images) == TRAINED
    assert colours(report.test[0]) == TESTED
    assert len(report.lines()) == 1
    assert f"has parts: {train} is taught, {test} is measured on afterwards" in report.lines()[0]
    measured, report = read(given, "test")
    assert colours(measured) == TESTED
    assert report.test is None
    assert f"has parts: {test} is measured on" in report.lines()[0]


def test_what_is_wrong_with_the_test_part_is_told(tmp_path, form):
    root = trees.class_folders(tmp_path / "photos", {"cat": (2, 1), "dog": (3, 2)})
    (root / "test" / "dog" / "000.png").write_text("broken")
    shutil.copytree(root / "test", root / "val")
    _, report = read(form(root))
    assert len(report.test[0]) == 2
    assert (report.read, report.left_out) == (5, [])
    assert any(
        line.startswith("to measure on:   ") and "test/dog/000.png is no image" in line for line in report.lines()
    )
    assert any("val is not used" in line for line in report.lines())
    assert report.as_json()["test"]["left_out"][0]["what"].endswith("test/dog/000.png")
    json.dumps(report.as_json())


def test_classes_called_train_and_test_take_a_word(tmp_path, form):
    root = tmp_path / "photos"
    for number, name in enumerate(("train", "test", "trout")):
        trees.paint(root / name / "1.png", number)
    given = form(root)
    with pytest.raises(
        LcaError, match=r"holds train and test beside other folders \(trout\): are these parts .*--layout"
    ):
        read(given)
    assert read(given, layout="classes").images.classes == ("test", "train", "trout")
    shutil.rmtree(root / "trout")
    given = form(root)
    with pytest.raises(LcaError, match="train and test without class folders inside: are these parts"):
        read(given)
    assert colours(read(given, layout="classes").images) == [("test", 1, 0), ("train", 0, 0)]
    (root / "test").rename(root / "trout")
    assert read(form(root)).images.classes == ("train", "trout")  # one such name alone is a class


def test_a_word_may_say_that_they_are_parts(tmp_path, form):
    root = trees.class_folders(tmp_path / "photos", {"cat": (2, 1), "dog": (3, 2)})
    trees.paint(root / "notes" / "1.png", 9)
    given = form(root)
    with pytest.raises(LcaError, match=r"beside other folders \(notes\)"):
        read(given)
    images, report = read(given, layout="parts")
    assert colours(images) == TRAINED
    assert "notes is not used" in report.lines()[0]
    assert read(given, layout="classes").images.classes == ("notes", "test", "train")
    with pytest.raises(LcaError, match="these are no parts"):
        read(trees.class_folders(tmp_path / "x", {"a": (1, 1), "b": (1, 1)}) / "train", layout="parts")
    with pytest.raises(LcaError, match="layout must be one of auto, parts, classes, got 'x'"):
        read(root, layout="x")


def test_a_part_alone(tmp_path):
    root = trees.class_folders(tmp_path / "photos", {"cat": (2, 1), "dog": (3, 2)})
    for file in (root / "test").rglob("*.png"):
        file.rename(root / "test" / f"{file.parent.name}{file.name}")
    for name in ("cat", "dog"):
        (root / "test" / name).rmdir()
    images, report = read(root)  # test photos without classes, as competitions give them
    assert colours(images) == TRAINED
    assert report.test is None
    assert "train is taught, test is not used" in report.lines()[0]
    with pytest.raises(
        LcaError, match=r"has the part train alone, so there is nothing to measure on; give .*/train itself"
    ):
        read(root, "test")
    shutil.rmtree(root / "test")
    assert colours(read(root).images) == TRAINED
    (root / "train").rename(root / "test")
    with pytest.raises(LcaError, match=r"has the part test alone, so there is nothing to teach; give .*/test itself"):
        read(root)
    assert colours(read(root, "test").images) == TRAINED


def test_what_counts_as_parts():
    def parts(*folders, deep=()):
        return recognised("photos", folders, deep.__contains__)

    assert parts("cat", "dog") == {}
    assert parts("train") == parts("train", "trout", deep=("train",)) == {}
    assert parts("train", deep=("train",)) == {"train": "train"}
    assert parts("train", "val", "test", deep=("train", "val", "test")) == {"train": "train", "test": "test"}
    assert parts("valid", "test", deep=("valid", "test")) == {"test": "test"}


# archives


def test_an_archive_is_the_folder(tmp_path):
    root = trees.class_folders(tmp_path / "p", {"cat": (3, 0), "é": (2, 0)}) / "train"
    trees.paint(root / "cat" / "deep" / "x.png", 7)
    trees.paint(root / "loose.png")
    (root / "cat" / "words.txt").write_text("x")
    trees.paint(root / "__MACOSX" / "cat" / "1.png")
    trees.paint(root / ".hidden" / "1.png")
    (root / "cat" / "001.png").write_bytes(b"broken")
    one, two = read(root), read(packed(root, tmp_path / "photos.zip"))
    assert one.images.fingerprint() == two.images.fingerprint()
    where = str(tmp_path / "photos.zip")
    assert [each.replace(str(root), where) for each in one.report.lines()] == two.report.lines()
    around = read(packed(root / "cat", tmp_path / "Photos.ZIP", "around/cat/"))
    assert around.images.classes == ("cat",)
    assert "holds one folder, around; the classes are those inside" in around.report.lines()[0]


def test_nothing_leads_out_of_an_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = trees.paint(tmp_path / "good.png", 3).read_bytes()
    before = sorted(tmp_path.iterdir())
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name in (
            "cat/1.png",
            "../evil/1.png",
            "cat/../../evil.png",
            "/etc/cat/1.png",
            "C:/cat/2.png",
            "..\\x\\1.png",
        ):
            archive.writestr(name, good)
    images, report = read("photos.zip")
    assert colours(images) == [("cat", 3, 0)]
    assert [each.what for each in report.left_out] == [
        "../evil/1.png",
        "cat/../../evil.png",
        "/etc/cat/1.png",
        "C:/cat/2.png",
        r"..\x\1.png",
    ]
    assert {each.reason for each in report.left_out} == {"has a name that leads out of the archive"}
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "photos.zip"]


def test_archives_that_unpack_to_very_much(tmp_path, monkeypatch):
    root = trees.class_folders(tmp_path / "p", {"cat": (2, 0), "dog": (2, 0)}) / "train"
    (root / "cat" / "large.png").write_bytes(bytes(5000))
    path = packed(root, tmp_path / "photos.zip")
    monkeypatch.setattr(archives, "LARGEST", 4000)
    (left_out,) = read(path).report.left_out
    assert left_out.what.endswith("photos.zip/cat/large.png")
    assert left_out.reason.startswith("would unpack to 0 MB, the limit is 0")
    monkeypatch.setattr(archives, "MOST_FILES", 4)
    with pytest.raises(LcaError, match=r"holds 5 files of .* an archive may hold 4 and"):
        read(path)
    monkeypatch.undo()
    monkeypatch.setattr(archives, "MOST_BYTES", 5000)
    with pytest.raises(LcaError, match="Unpack it, and teach its folder"):
        read(path)


def test_an_archive_that_lies_about_a_size(tmp_path):
    """A member that unpacks to more than it says is left out, and no more than that is unpacked."""
    with zipfile.ZipFile(tmp_path / "photos.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(trees.paint(tmp_path / "1.png"), "cat/1.png")
        archive.writestr("cat/2.png", bytes(10_000_000))
    content = bytearray((tmp_path / "photos.zip").read_bytes())
    size = struct.pack("<L", 10_000_000)
    assert content.count(size) == 2
    (tmp_path / "photos.zip").write_bytes(content.replace(size, struct.pack("<L", 100)))
    images, report = read(tmp_path / "photos.zip")
    assert len(images) == 1
    assert "2.png cannot be unpacked (Bad CRC-32" in str(report.left_out[0])


def test_damaged_and_locked_archives(tmp_path):
    root = trees.class_folders(tmp_path / "p", {"cat": (2, 0)}) / "train"
    path = packed(root, tmp_path / "photos.zip", method=zipfile.ZIP_STORED)
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(LcaError, match="cannot be opened as a zip file"):
        read(path)
    locked = bytearray(content)
    place = locked.rindex(b"PK\x01\x02")  # the second image
    locked[place + 8] |= 1
    path.write_bytes(locked)
    (left_out,) = read(path).report.left_out
    assert left_out.reason.startswith("is encrypted")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("words/a.txt", "x")
    with pytest.raises(LcaError, match=r"none of its folders holds an image; expected one folder of images per class"):
        read(path)


# lists in a file


@pytest.fixture
def listed(tmp_path):
    for number, name in enumerate(("a", "b", "c, d")):
        trees.paint(tmp_path / "photos" / f"{name}.png", number, number)

    def go(text, name="labels.csv", encoding="utf-8"):
        (tmp_path / name).write_text(text, encoding=encoding)
        return tmp_path / name

    return go


ROWS = [("cat", 0, 0), ("dog", 1, 1), ("dog", 2, 2)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", 'photos/a.png,cat\nphotos/b.png,dog\n"photos/c, d.png",dog\n'),
        ("l.csv", 'path,label\n\nphotos/a.png, cat\nphotos/b.png,dog\n"photos/c, d.png",dog'),
        ("l.CSV", "Label;x;FileName\ncat;1;photos/a.png\ndog;2;photos/b.png\ndog;;photos/c, d.png\n"),
        ("l.tsv", "photos/a.png\tcat\nphotos/b.png\tdog\nphotos/c, d.png\tdog\n"),
        ("l.jsonl", '{"path": "photos/a.png", "label": "cat"}\n\n{"Image": "photos/b.png", "class": "dog"}\n'
                    '{"file_name": "photos/c, d.png", "category": "dog", "more": [1]}\n'),
    ],
)  # fmt: skip
def test_a_list_of_paths_and_labels(listed, name, text, monkeypatch):
    path = listed(text, name, "utf-8-sig")
    monkeypatch.chdir("/")  # paths are the file's, not the program's
    images, report = read(path)
    assert colours(images) == ROWS
    assert report.lines() == []


def test_numbers_are_names_and_absolute_paths_stay(listed, tmp_path):
    images, _ = read(listed(json.dumps({"path": str(tmp_path / "photos" / "b.png"), "label": 7}), "l.ndjson"))
    assert colours(images) == [("7", 1, 1)]


def test_what_a_list_names_and_is_not_there_is_left_out(listed):
    images, report = read(listed("photos/a.png,cat\nphotos/none.png,dog\n"))
    assert images.classes == ("cat",)
    assert [each.reason for each in report.left_out] == ["does not exist"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "l.csv",
            "photos/a.png,cat\nphotos/b.png\n",
            r"l\.csv, line 2: 1 columns where the first line has 2; expected ph",
        ),
        ("l.csv", "photos/a.png,cat\n\nphotos/c, d.png,dog\n", "line 3: 3 columns where the first line has 2"),
        ("l.csv", "a,b,c\n", "line 1: 3 columns and no header that names them"),
        ("l.csv", "photos/a.png,\n", "line 1: the label is empty"),
        ("l.csv", "path,label\n,cat\n", "line 2: the path is empty"),
        ("l.csv", 'path,label\n"photos/a.png,cat\n', "line 2: unexpected end of data"),
        ("l.csv", "path,label\n", "names no image; expected lines such as"),
        ("l.jsonl", "", "names no image"),
        ("l.jsonl", '{"path": "a", "label": "b"}\n{"path"\n', "line 2: this is no JSON"),
        ("l.jsonl", '["a", "b"]\n', r"line 1: got '\[\"a\", \"b\"\]'; expected \{\"path\""),
        ("l.jsonl", '{"path": "a", "label": null}\n', "line 1: got"),
        ("l.jsonl", '{"path": "a", "label": true}\n', "line 1: got"),
    ],
)
def test_a_bad_line_is_named(listed, name, text, message):
    with pytest.raises(LcaError, match=message):
        read(listed(text, name))


def test_what_is_no_text_and_no_set_of_photos(tmp_path, listed):
    with pytest.raises(LcaError, match="is no text in UTF-8"):
        read(listed("photos/é.png,cat", encoding="latin-1"))
    with pytest.raises(LcaError, match=r"there is no folder or file nowhere; expected .* a CSV or JSONL file"):
        album_of("nowhere")
    with pytest.raises(LcaError, match="is a file; expected"):
        album_of(tmp_path / "photos" / "a.png")


# the hub


def test_a_data_set_of_the_hub_is_a_lesson(tmp_path):
    hf = pytest.importorskip("datasets")
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog", "none"])})

    def rows(labels, first):
        pictures = [Image.new("RGB", (6, 5), (label, first + number, 0)) for number, label in enumerate(labels)]
        return hf.Dataset.from_dict({"image": pictures, "label": labels}, features=features)

    made = hf.DatasetDict({"train": rows([1, 0, 1], 0), "validation": rows([0], 100)})
    made.save_to_disk(str(tmp_path / "saved"))
    images, report = read(f"hf:{tmp_path / 'saved'}")
    assert colours(images) == [("cat", 0, 1), ("dog", 1, 0), ("dog", 1, 2)]
    assert colours(report.test[0]) == [("cat", 0, 100)]
    assert colours(read(f"hf:{tmp_path / 'saved'}", "test").images) == [("cat", 0, 100)]
    made["train"].save_to_disk(str(tmp_path / "alone"))
    assert len(read(f"hf:{tmp_path / 'alone'}").images) == 3
    with pytest.raises(LcaError, match=r"nothing to measure on; choose a split: hf:.*alone,test=SPLIT"):
        read(f"hf:{tmp_path / 'alone'}", "test")
    assert len(read(f"hf:{tmp_path / 'alone'},test=train", "test").images) == 3
