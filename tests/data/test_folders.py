import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lca.data.decoding import LeftOut
from lca.data.folders import (
    ReadingReport,
    case_variants,
    class_files,
    class_name,
    image_files,
    read_labelled,
)
from lca.data.labelled import read_images
from lca.errors import LcaError
from lca.progress import Progress


def paint(path, red=0, green=0, size=(6, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (red, green, 0)).save(path)
    return path


def fill(folder, count, red=0):
    for number in range(count):
        paint(folder / f"{number:03}.png", red, number)


def read(root):
    return read_images(root, 64, Progress())


def counts(images):
    return torch.bincount(images.labels, minlength=len(images.classes)).tolist()


def below(root, names):
    return [Path(name).relative_to(root).as_posix() for name in names]


# class folders


def test_clean_folders_leave_nothing_to_say(tmp_path):
    fill(tmp_path / "dog", 3, 1)
    fill(tmp_path / "cat", 2, 2)
    images, report = read(tmp_path)
    assert images.classes == ("cat", "dog")
    assert counts(images) == [2, 3]
    assert images.pixels.canvas[:, 0, 0, 0].tolist() == [2, 2, 1, 1, 1]
    assert images.pixels.canvas[:, 1, 0, 0].tolist() == [0, 1, 0, 1, 2]
    assert (report.read, report.lines()) == (5, [])


def test_one_bad_file_is_left_out_and_named(tmp_path):
    fill(tmp_path / "a", 3)
    fill(tmp_path / "b", 3, 1)
    bad = tmp_path / "a" / "001.png"
    bad.write_bytes(b"")
    images, report = read(tmp_path)
    assert counts(images) == [2, 3]
    assert images.pixels.canvas[:2, 1, 0, 0].tolist() == [0, 2]
    assert report.left_out == [LeftOut(str(bad), "is empty")]
    assert report.read == 5
    assert report.lines() == ["1 file or image left out:", f"  {bad} is empty"]


def test_nothing_but_bad_files_is_an_error_with_the_list(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(12):
            (tmp_path / name / f"{number:02}.jpg").write_text("no image")
    with pytest.raises(LcaError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert message.startswith("none of the 24 images could be read:")
    assert str(tmp_path / "a" / "00.jpg") in message
    assert "is no image of a known format" in message
    assert len(message.splitlines()) == 22
    assert message.endswith("and 4 more")


def test_a_class_of_bad_files_and_one_without_images_are_left_out(tmp_path):
    fill(tmp_path / "good", 2)
    paint(tmp_path / "bad" / "x.png").write_text("broken")
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "notes.txt").write_text("x")
    images, report = read(tmp_path)
    assert images.classes == ("good",)
    assert images.labels.tolist() == [0, 0]
    assert report.empty_classes == ["bad", "empty", "words"]
    assert "classes without a readable image, left out: bad, empty, words" in report.lines()


def test_other_files_are_counted_and_clutter_is_passed_over_silently(tmp_path):
    fill(tmp_path / "a", 1)
    for name in ("notes.txt", "film.mp4", "drawing.eps", "paper.pdf", "README"):
        (tmp_path / "a" / name).write_text("%!PS")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._000.png", "@eaDir/000.png", "__MACOSX/000.png"):
        path = tmp_path / "a" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    for name in (".git", "__MACOSX", "@eaDir"):
        paint(tmp_path / name / "x.png")
    (tmp_path / "labels.csv").write_text("x")
    images, report = read(tmp_path)
    assert images.classes == ("a",)
    assert below(tmp_path, report.other_files) == [
        "labels.csv",
        "a/README",
        "a/drawing.eps",
        "a/film.mp4",
        "a/notes.txt",
        "a/paper.pdf",
    ]
    assert report.left_out == []
    (line,) = report.lines()
    assert line.startswith("6 other files passed over: ")
    assert line.endswith(f"{tmp_path / 'a' / 'notes.txt'} and 1 more")


def test_image_files_are_found_below_sorted_and_without_a_suffix(tmp_path):
    for name in ("b.JPG", "a.png", "deep/er/c.webp", "deep/d.Jpeg", ".hidden/e.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    Image.new("RGB", (3, 3)).save(tmp_path / "download", format="PNG")
    (tmp_path / "LICENSE").write_text("words")
    paint(tmp_path / "folder.png" / "inside.png")
    report = ReadingReport()
    assert below(tmp_path, image_files(tmp_path, report)) == [
        "a.png",
        "b.JPG",
        "deep/d.Jpeg",
        "deep/er/c.webp",
        "download",
        "folder.png/inside.png",
    ]
    assert below(tmp_path, report.other_files) == ["LICENSE"]
    assert report.left_out == []


def test_images_without_class_folders(tmp_path):
    fill(tmp_path, 3)
    with pytest.raises(LcaError, match=r"holds 3 images and no class folders; expected one folder of images per class"):
        read(tmp_path)


def test_images_beside_class_folders_are_named(tmp_path):
    fill(tmp_path / "a", 2)
    lost = paint(tmp_path / "lost.png")
    images, report = read(tmp_path)
    assert len(images) == 2
    assert report.left_out == [LeftOut(str(lost), "lies beside the class folders; put it into one")]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "there is no folder or file"),
        ("file", "is a file; expected"),
        ("bare", "holds 0 images and no class folders"),
        ("empty", "none of its folders holds an image"),
    ],
)
def test_what_is_no_folder_of_classes(tmp_path, kind, words):
    (tmp_path / "file").write_text("x")
    (tmp_path / "bare").mkdir()
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(LcaError, match=words) as caught:
        read(tmp_path / kind)
    assert kind in str(caught.value)
    assert "one folder of images per class" in str(caught.value)


# links, pipes, permissions


def test_links_to_files_and_folders_work(tmp_path):
    fill(tmp_path / "elsewhere" / "pictures", 3)
    root = tmp_path / "root"
    paint(root / "a" / "own.png", 9)
    (root / "a" / "linked.png").symlink_to(tmp_path / "elsewhere" / "pictures" / "002.png")
    (root / "b").symlink_to(tmp_path / "elsewhere" / "pictures", target_is_directory=True)
    images, report = read(root)
    assert images.classes == ("a", "b")
    assert counts(images) == [2, 3]
    assert images.pixels.canvas[0, 1, 0, 0] == 2
    assert report.left_out == []
    assert below(root, [what for what, _ in report.duplicates[0]]) == ["a/linked.png", "b/002.png"]


def test_dangling_links_are_named(tmp_path):
    fill(tmp_path / "a", 1)
    for place, name in (("a", "gone.jpg"), ("a", "gone"), ("", "class")):
        (tmp_path / place / name).symlink_to(tmp_path / "nowhere")
    images, report = read(tmp_path)
    assert len(images) == 1
    assert below(tmp_path, [each.what for each in report.left_out]) == ["class", "a/gone", "a/gone.jpg"]
    reasons = [each.reason for each in report.left_out]
    assert reasons == ["is a link to nothing", *[f"is a link to {tmp_path}/nowhere, which does not exist"] * 2]


def test_links_in_circles_end(tmp_path):
    root = tmp_path / "root"
    fill(root / "a" / "deep", 2)
    fill(root / "b", 2, 1)
    (root / "a" / "deep" / "self").symlink_to(root / "a" / "deep")
    (root / "a" / "up").symlink_to(root / "a")
    (root / "a" / "root").symlink_to(root)
    (root / "circle").symlink_to(root)
    (root / "loop").symlink_to(root / "loop")
    images, report = read(root)
    assert images.classes == ("a", "b")
    assert counts(images) == [2, 2]  # a link to the root does not make the images of b images of a
    assert sorted(below(root, [each.what for each in report.left_out])) == [
        "a/deep/self",
        "a/root",
        "a/up",
        "circle",
        "loop",
    ]
    assert report.empty_classes == ["circle"]


def test_a_linked_class_folder_does_not_lead_to_its_neighbours(tmp_path):
    fill(tmp_path / "data" / "cats", 2)
    fill(tmp_path / "data" / "other", 2, 1)
    (tmp_path / "data" / "cats" / "up").symlink_to("..")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "cat").symlink_to(tmp_path / "data" / "cats")
    images, report = read(tmp_path / "root")
    assert counts(images) == [2]
    assert [each.reason for each in report.left_out] == ["is a link to a folder that is read already"]


def test_pipes_do_not_wait(tmp_path):
    fill(tmp_path / "a", 1)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    os.mkfifo(tmp_path / "a" / "pipe")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    images, report = read(tmp_path)
    assert len(images) == 1
    assert below(tmp_path, [each.what for each in report.left_out]) == ["a/pipe", "a/pipe.png"]
    assert below(tmp_path, report.other_files) == ["a/pipe.txt"]


def test_folders_and_files_without_permission(tmp_path):
    fill(tmp_path / "a", 2)
    fill(tmp_path / "b", 2, 1)
    (tmp_path / "a" / "000.png").chmod(0)
    (tmp_path / "b").chmod(0)
    try:
        if os.access(tmp_path / "b", os.R_OK):
            pytest.skip("this user may read everything")
        images, report = read(tmp_path)
    finally:
        (tmp_path / "b").chmod(0o700)
    assert counts(images) == [1]
    assert report.empty_classes == ["b"]
    assert below(tmp_path, [each.what for each in report.left_out]) == ["b", "a/000.png"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    fill(tmp_path / "a", 1)
    fill(tmp_path / "b", 1, 1)
    listdir = os.listdir

    def denied(folder):
        if Path(folder).name == "b":
            raise PermissionError(13, "Permission denied", folder)
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", denied)
    images, report = read(tmp_path)
    assert images.classes == ("a",)
    assert report.left_out == [LeftOut(str(tmp_path / "b"), "cannot be opened: Permission denied")]
    assert report.empty_classes == ["b"]


@pytest.mark.parametrize("where", ["root", "classes"])
def test_when_nothing_can_be_listed_the_error_says_so(tmp_path, monkeypatch, where):
    fill(tmp_path / "a", 1)
    listdir = os.listdir

    def denied(folder):
        if where == "root" or Path(folder) != tmp_path:
            raise PermissionError(13, "Permission denied", folder)
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(LcaError, match="cannot be opened: Permission denied") as caught:
        read(tmp_path)
    assert str(tmp_path if where == "root" else tmp_path / "a") in str(caught.value)


def test_very_deep_folders(tmp_path):
    deep = tmp_path / "a"
    for _ in range(400):
        deep = deep / "d"
    deep.mkdir(parents=True)
    paint(deep / "x.png")
    assert counts(read(tmp_path)[0]) == [1]


# names


@pytest.mark.parametrize("name", ["猫", "Katze größer", "кошка", "قط", "बिल्ली", "🐈‍⬛", "l'été, 2 %"])
def test_class_names_in_any_language(tmp_path, name):
    fill(tmp_path / name, 1)
    images, report = read(tmp_path)
    assert images.classes == (name,)
    assert report.lines() == []


def test_one_name_written_in_two_ways_is_one_class(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    fill(tmp_path / composed, 2, 1)
    try:
        fill(tmp_path / decomposed, 3, 2)
    except OSError:
        pytest.skip("this file system refuses decomposed names")
    if len(os.listdir(tmp_path)) == 1:
        pytest.skip("this file system takes both names for one")
    images, report = read(tmp_path)
    assert images.classes == (composed,)
    assert counts(images) == [5]
    assert [sorted(below(tmp_path, group)) for group in report.joined] == [sorted([composed, decomposed])]
    assert report.case_only == []
    assert any("read as one class" in line for line in report.lines())


def test_a_decomposed_name_alone_is_composed(tmp_path):
    fill(tmp_path / unicodedata.normalize("NFD", "café"), 1)
    images, report = read(tmp_path)
    assert images.classes == (unicodedata.normalize("NFC", "café"),)
    assert report.lines() == []


def test_names_that_differ_only_in_case_stay_apart_but_are_told(tmp_path):
    for number, name in enumerate(("Cat", "a", "A", "cat", "CAT", "dog")):
        fill(tmp_path / name, 1, number)
    if len(os.listdir(tmp_path)) < 6:
        pytest.skip("this file system does not tell upper from lower case")
    images, report = read(tmp_path)
    assert images.classes == ("A", "CAT", "Cat", "a", "cat", "dog")
    assert report.case_only == [["A", "a"], ["CAT", "Cat", "cat"]]
    assert report.lines() == [
        "CHECK: names that differ only in case are different classes; if one is meant, give it one name:",
        "  'A', 'a'",
        "  'CAT', 'Cat', 'cat'",
    ]


def test_case_variants():
    assert case_variants(["Cat", "dog", "straße"], ["cat", "CAT", "dog", "STRASSE"]) == [
        ("Cat", "CAT"),
        ("Cat", "cat"),
        ("straße", "STRASSE"),
    ]
    assert case_variants(["cat", "Cat"], ["cat", "Cat"]) == []
    assert case_variants(iter(["b"]), iter(["a"])) == []


def test_names_that_cannot_be_printed(tmp_path):
    for name in (b"two\nlines", b"latin\xe9"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        with open(os.path.join(os.fsencode(tmp_path), name, b"\x1b[31m\xff.png"), "wb"):
            pass
    fill(tmp_path / "latin\udce9", 1)
    images, report = read(tmp_path)
    assert images.classes == ("latin\\udce9",)
    assert report.empty_classes == ["two\nlines"]
    for line in report.lines():
        assert line.isprintable()
        assert line.encode()
    assert json.dumps(report.as_json(), ensure_ascii=False).encode()
    assert class_name("plain") == "plain"


def test_long_names_are_shortened_in_lines_only(tmp_path):
    fill(tmp_path / "a", 1)
    long = tmp_path / "a" / ("n" * 240 + ".png")
    long.write_bytes(b"")
    _, report = read(tmp_path)
    assert report.left_out[0].what == str(long)
    line = report.lines()[1]
    assert len(line) < 200
    assert line.endswith("nnn.png is empty")


# copies


def test_the_same_image_under_two_labels_is_reported_and_kept(tmp_path):
    fill(tmp_path / "a", 3, 1)
    fill(tmp_path / "b", 2, 2)
    paint(tmp_path / "b" / "copy.bmp", 1, 0)  # another file format, the same picture
    paint(tmp_path / "b" / "wider.png", 1, 0, (7, 5))
    images, report = read(tmp_path)
    assert counts(images) == [3, 4]
    assert report.duplicates == [[(str(tmp_path / "a" / "000.png"), "a"), (str(tmp_path / "b" / "copy.bmp"), "b")]]
    assert report.repeated == 0
    assert report.lines() == [
        "CHECK: 1 image under several labels; keep the right one:",
        f"  {tmp_path / 'a' / '000.png'} (a), {tmp_path / 'b' / 'copy.bmp'} (b)",
    ]


def test_copies_within_a_class_are_taken_once(tmp_path):
    for name in ("1.png", "2.png", "deep/3.png"):
        paint(tmp_path / "a" / name, 5)
    fill(tmp_path / "a", 2, 1)
    paint(tmp_path / "b" / "1.png", 5)
    images, report = read(tmp_path)
    assert counts(images) == [3, 1]
    assert report.read == 4
    assert report.repeated == 2
    assert report.as_json()["repeated"] == 2
    assert [len(group) for group in report.duplicates] == [4]
    first, *copies = (str(tmp_path / "a" / name) for name in ("1.png", "2.png", "deep/3.png"))
    assert report.as_json()["copies"] == [[copy, first] for copy in copies]
    lines = report.lines()
    place = lines.index("exact copies within a class, taken once: 2")
    assert lines[place + 1 : place + 3] == [f"  {copy} is a copy of {first}" for copy in copies]
    assert report.paths == [str(tmp_path / each) for each in ("a/000.png", "a/001.png", "a/1.png", "b/1.png")]


def test_images_without_files_have_no_paths(tmp_path):
    paint(tmp_path / "1.png", 5)
    _, report = read_labelled([(Image.new("RGB", (6, 6)), "a"), (tmp_path / "1.png", "b")], 64, Progress())
    assert report.paths == [None, str(tmp_path / "1.png")]


def test_animated_copies_are_counted_once(tmp_path):
    frames = [Image.new("RGB", (6, 6), (each, 0, 0)) for each in (10, 200)]
    for name in ("1.gif", "2.gif"):
        (tmp_path / "a").mkdir(exist_ok=True)
        frames[0].save(tmp_path / "a" / name, save_all=True, append_images=frames[1:])
    _, report = read(tmp_path)
    assert (report.read, report.repeated, report.several_frames) == (1, 1, 1)


def test_images_of_equal_bytes_but_other_shape_are_no_copies():
    flat, tall = np.zeros((2, 3), dtype=np.uint8), np.zeros((3, 2), dtype=np.uint8)
    _, report = read_labelled([(flat, "a"), (tall, "b")], 64, Progress())
    assert report.duplicates == []


def test_animated_images_are_counted(tmp_path):
    fill(tmp_path / "a", 1)
    frames = [Image.new("RGB", (6, 6), (each, 0, 0)) for each in (10, 200)]
    frames[0].save(tmp_path / "a" / "moving.gif", save_all=True, append_images=frames[1:])
    _, report = read(tmp_path)
    assert report.several_frames == 1
    assert report.lines() == ["1 animated or of several pages; the first of each counts"]


# pairs


def test_pairs(tmp_path):
    path = paint(tmp_path / "x.png", 3)
    pairs = [
        (str(path), "dog"),
        (np.full((4, 4), 7, dtype=np.uint8), "cat"),
        (Image.new("RGB", (4, 4), (9, 9, 9)), "dog"),
        (torch.full((3, 4, 4), 11, dtype=torch.uint8), "cat"),
    ]
    images, report = read_labelled(pairs, 64, Progress())
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert images.pixels.canvas[:, 0, 0, 0].tolist() == [3, 7, 9, 11]
    assert (report.read, report.lines()) == (4, [])


def test_pairs_are_handled_as_folders_are(tmp_path):
    same = np.full((4, 4), 7, dtype=np.uint8)
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    pairs = [
        (same, "Cat"),
        (np.zeros(5), "Cat"),
        (tmp_path / "gone.png", "lost"),
        (same, "cat"),
        (same, "cat"),
        (np.zeros((4, 4)), composed),
        (np.ones((4, 4)), decomposed),
    ]
    images, report = read_labelled(pairs, 64, Progress())
    assert images.classes == ("Cat", "cat", composed)
    assert counts(images) == [1, 1, 2]
    assert [each.what for each in report.left_out] == ["image 2", str(tmp_path / "gone.png")]
    assert report.empty_classes == ["lost"]
    assert report.case_only == [["Cat", "cat"]]
    assert report.joined == [sorted([composed, decomposed])]
    assert report.duplicates == [[("image 1", "Cat"), ("image 4", "cat"), ("image 5", "cat")]]
    assert report.repeated == 1


def test_pairs_of_which_none_is_readable(tmp_path):
    with pytest.raises(
        LcaError, match=r"none of the 2 images could be read:\n  .*gone.png does not exist\n  image 2 is"
    ):
        read_labelled([(tmp_path / "gone.png", "a"), (None, "b")], 64, Progress())


def test_pairs_that_are_none():
    with pytest.raises(LcaError, match="there is nothing to learn"):
        read_labelled([], 64, Progress())
    for label in (3, None, ""):
        with pytest.raises(LcaError, match="expected the name of a class"):
            read_labelled([(np.zeros((4, 4)), label)], 64, Progress())


# the report


def test_only_left_out_files_are_named_at_length():
    cases = [[f"X{number}", f"x{number}"] for number in range(9)]
    lines = ReadingReport(case_only=cases).lines()
    assert lines[1:] == [*(f"  'X{n}', 'x{n}'" for n in range(5)), "  and 4 more"]
    left_out = [LeftOut(f"{number}.jpg", "is empty") for number in range(20)]
    assert len(ReadingReport(left_out=left_out).lines()) == 21


def full_report():
    report = ReadingReport(
        read=20,
        left_out=[LeftOut(f"{number}.jpg", "is empty") for number in range(29)],
        other_files=[f"{number}.txt" for number in range(7)],
        empty_classes=["nothing"],
        joined=[["x/é", "x/é"]],
        case_only=[["A", "a"]],
        several_frames=2,
    )
    report.copies[b"1"] = [("1.png", "a"), ("2.png", "b")]
    report.copies[b"2"] = [("3.png", "a"), ("4.png", "a")]
    return report


def test_lines_name_a_few_files_and_count_the_rest():
    lines = full_report().lines()
    assert lines[:22] == ["29 files or images left out:", *(f"  {n}.jpg is empty" for n in range(20)), "  and 9 more"]
    assert lines[-1] == "7 other files passed over: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more"


def test_the_report_as_json():
    assert json.loads(json.dumps(full_report().as_json())) == {
        "read": 20,
        "notes": [],
        "left_out": [{"what": f"{number}.jpg", "reason": "is empty"} for number in range(29)],
        "other_files": [f"{number}.txt" for number in range(7)],
        "empty_classes": ["nothing"],
        "joined": [["x/é", "x/é"]],
        "case_only": [["A", "a"]],
        "duplicates": [[["1.png", "a"], ["2.png", "b"]]],
        "repeated": 1,
        "copies": [["4.png", "3.png"]],
        "several_frames": 2,
    }


def test_class_files_are_sorted_by_class(tmp_path):
    for name in ("c", "a", "b"):
        fill(tmp_path / name, 2)
    report = ReadingReport()
    files = class_files(tmp_path, report)
    assert list(files) == ["a", "b", "c"]
    assert below(tmp_path, files["b"]) == ["b/000.png", "b/001.png"]


def test_a_folder_of_domains_is_read_as_classes_and_told(tmp_path):
    for place in ("photo/cat", "photo/dog", "sketch/cat", "sketch/dog", "sketch/owl"):
        fill(tmp_path / place, 1, len(place))
    images, report = read(tmp_path)
    assert images.classes == ("photo", "sketch")
    assert [line for line in report.lines() if line.startswith("CHECK: photo, sketch were read as classes")] == [
        "CHECK: photo, sketch were read as classes, but all hold folders cat, dog; if those are the classes, give one "
        "of the outer folders at a time"
    ]
    assert read(tmp_path / "sketch")[1].domains == []
    fill(tmp_path / "owl", 1)
    assert read(tmp_path)[1].domains == [], "one of them holds images only"
