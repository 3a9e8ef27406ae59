import itertools
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets as torchvision_sets

import trees
from lca.data.benchmarks import BENCHMARKS, Listing, find
from lca.data.options import DataOptions
from lca.data.sources import CARDS, load_source, read_card, sources
from lca.data.streams import Stream
from lca.data.verification import _check_tasks, verify
from lca.errors import LcaError
from lca.progress import Progress, QuietProgress

FOLDERS = ("imagenet_a", "imagenet_r", "omnibenchmark", "vtab")
BIRDS = {"001.Albatross": (3, 2), "002.Bobolink": (2, 1), "010.Auklet": (1, 3)}
CARS = {"Zonda C12 2004": (3, 1), "AM General Hummer SUV 2000": (1, 2), "Ram C/V Cargo Van 2012": (2, 2)}


class Told(Progress):
    def __init__(self):
        self.lines, self.warnings = [], []

    def line(self, text):
        self.lines.append(text)

    def warning(self, text):
        self.warnings.append(text)


def read(source, progress=None, view_size=64, seed=0, **options):
    return load_source(DataOptions(source=source, **options), seed, view_size, progress or Told())


def counts(images):
    return torch.bincount(images.labels, minlength=len(images.classes)).tolist()


def colours(images):
    """(class, number) as the trees paint them."""
    return [tuple(each[:2, 0, 0].tolist()) for each in images.pixels.canvas]


def wrong(name, path, split=None, **options):
    return [each.text for each in verify(name, path, split, Progress(), **options) if not each.fine]


# cards


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_card_says_everything_and_does_not_contradict_itself(name):
    card = read_card(name)
    assert {"title", "page", "origin", "licence", "view", "tasks", "classes"} <= card.keys()
    assert card["view"]["augment"] == {"crop_scale": [0.05, 1.0], "flip": True}
    assert card["view"]["centre_crop"] == (1.0 if name.startswith("cifar") else 0.875)
    assert len(card.get("names", [None] * card["classes"])) == card["classes"]
    for split in card["splits"].values():
        assert {"layout", "train", "test"} <= split.keys()
        assert ("tree" in split) != (split["layout"] == "class_folders"), "class folders are described once"
        assert card.get("download") or split.get("archive") or split["get"]
        for seed, row in split.get("per_task", {}).items():
            assert seed in (1993, 1994, 1995)
            assert len(row) == card["tasks"]
            if all(isinstance(each, int) for each in row):
                assert sum(row) == split["test"]
            else:
                assert sum(np.max(each) for each in row if each is not None) <= split["test"] + 107
        if "per_class" in split:
            assert [split["per_class"][part] * card["classes"] for part in ("train", "test")] == [
                split["train"],
                split["test"],
            ]
    assert name in sources


def test_the_numbers_of_the_literature():
    sizes = {name: [read_card(name)["classes"], read_card(name)["tasks"]] for name in BENCHMARKS}
    assert sizes["cars196"] == [196, 10]
    assert sizes["vtab"] == [50, 5]
    assert sizes["omnibenchmark"] == [300, 10]
    splits = read_card("cub200")["splits"]
    assert (splits["official"]["train"], splits["official"]["test"]) == (5994, 5794)
    assert (splits["revisitingcil"]["train"], splits["revisitingcil"]["test"]) == (9430, 2358)
    birds = read_card("cub200")["images_per_class"]
    assert len(birds) == 200
    assert [*birds] == sorted(birds)
    assert sum(birds.values()) == 11788 == 5994 + 5794 == 9430 + 2358


# folders of classes


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("inside", [False, True])
def test_class_folders(tmp_path, name, inside):
    root = tmp_path / read_card(name)["folders"][-1] if inside else tmp_path
    trees.class_folders(root, {"n02": (3, 2), "n01": (2, 1), "n10": (1, 1)})
    told = Told()
    source = read(f"{name}:{tmp_path}", told)
    assert source.name == name
    assert source.classes == ("n01", "n02", "n10")
    assert (counts(source.train), counts(source.test)) == ([2, 3, 1], [1, 2, 1])
    assert colours(source.test.of_classes(["n02"])) == [(0, 100), (0, 101)]
    assert source.view.centre_crop == 0.875
    assert source.tasks == 3
    (warning,) = told.warnings
    card, split = read_card(name), read_card(name)["splits"]["revisitingcil"]
    assert f"expected {card['classes']} classes with {split['train']} training and {split['test']} test" in warning
    assert "got 3 with 6 and 4" in warning
    assert f"lca datasets verify {name} {tmp_path}" in warning


def test_nothing_to_say_about_a_whole_one(tmp_path, monkeypatch):
    trees.class_folders(tmp_path, {"a": (2, 1), "b": (2, 1)})
    trees.shrink(monkeypatch, "vtab", 2, "revisitingcil", train=4, test=2)
    told = Told()
    read(f"vtab:{tmp_path}", told)
    assert (told.warnings, told.lines) == ([], [])


def test_a_broken_file_costs_a_line(tmp_path):
    trees.class_folders(tmp_path, {"a": (3, 2), "b": (3, 2)})
    bad = tmp_path / "train" / "a" / "001.png"
    bad.write_text("broken")
    told = Told()
    assert counts(read(f"vtab:{tmp_path}", told).train) == [2, 3]
    assert told.lines[0] == "1 file or image left out:"
    assert str(bad) in told.lines[1]
    assert wrong("vtab", tmp_path)  # another size than the card
    assert not any("cannot be read" in text for text in wrong("vtab", tmp_path))
    assert any("1 cannot be read" in text and str(bad) in text for text in wrong("vtab", tmp_path, open_images=True))


@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_a_benchmark_of_which_files_are_gone_is_told_also_when_quiet(tmp_path, monkeypatch, damage, capsys):
    trees.cub(tmp_path, {"001.A": (2, 2), "002.B": (2, 2)})
    trees.shrink(monkeypatch, "cub200", 2, "official", train=4, test=4)
    whole = read(f"cub200:{tmp_path}", QuietProgress())
    assert whole.as_published
    assert capsys.readouterr().err == ""
    image = min((tmp_path / "CUB_200_2011" / "images" / "001.A").iterdir())
    image.unlink() if damage == "missing" else image.write_text("broken")
    assert read(f"cub200:{tmp_path}", QuietProgress()).as_published is False
    told = capsys.readouterr().err
    assert "is not the cub200 of the literature" in told
    assert "expected 2 classes with 4 training and 4 test images, got 2 with 3 and 4" in told


def test_the_place_may_come_from_the_environment(tmp_path, monkeypatch):
    trees.class_folders(tmp_path / "vtab", {"a": (2, 1), "b": (2, 1)})
    monkeypatch.delenv("LCA_DATA", raising=False)
    with pytest.raises(LcaError, match=r"where is vtab\? Give its folder as vtab:PATH, or set LCA_DATA"):
        read("vtab")
    monkeypatch.setenv("LCA_DATA", str(tmp_path))
    assert read("vtab").classes == ("a", "b")
    monkeypatch.setenv("ELSEWHERE", str(tmp_path))
    assert read("vtab:$ELSEWHERE/vtab").classes == ("a", "b")


def test_bad_folders(tmp_path):
    with pytest.raises(LcaError, match=r"there is no folder .*gone; `lca datasets get imagenet_r --to"):
        read(f"imagenet_r:{tmp_path / 'gone'}")
    with pytest.raises(LcaError, match=r"does not hold imagenet_r: it holds nothing; expected\n  .*/train/CLASS/"):
        read(f"imagenet_r:{tmp_path}")
    trees.class_folders(tmp_path / "photos", {"a": (1, 1)})
    with pytest.raises(LcaError, match=r"it holds photos/; expected"):
        read(f"imagenet_r:{tmp_path}")
    with pytest.raises(LcaError, match=r"holds the class 'a' only; 200 were expected"):
        read(f"imagenet_r:{tmp_path / 'photos'}")
    trees.class_folders(tmp_path / "photos", {"a": (1, 1), "b": (1, 0), "c": (1, 1)})
    with pytest.raises(LcaError, match=r"the test part has no images of 1 of 3 classes: b;"):
        read(f"imagenet_r:{tmp_path / 'photos'}")


# CUB


@pytest.mark.parametrize("where", ["", "CUB_200_2011"])
def test_cub_as_its_authors_pack_it(tmp_path, where):
    trees.cub(tmp_path, BIRDS)
    source = read(f"cub200:{tmp_path / where}")
    assert source.name == "cub200-official"
    assert source.classes == tuple(BIRDS)
    assert (counts(source.train), counts(source.test)) == ([3, 2, 1], [2, 1, 3])
    assert colours(source.test) == [(0, 3), (0, 4), (1, 2), (2, 1), (2, 2), (2, 3)]


def test_the_labels_of_cub_count_not_the_names_of_the_classes(tmp_path):
    trees.cub(tmp_path, {"b": (1, 1), "a": (1, 1)})
    assert read(f"cub200:{tmp_path}").classes == ("b", "a")


def test_the_splits_of_cub(tmp_path):
    trees.cub(tmp_path, BIRDS)
    assert read(f"cub200:{tmp_path}", split="official").name == "cub200-official"
    with pytest.raises(LcaError, match=r"does not hold cub200 in the split 'revisitingcil': it holds the split 'offic"):
        read(f"cub200:{tmp_path}", split="revisitingcil")
    trees.class_folders(tmp_path / "cub", dict.fromkeys(BIRDS, (4, 1)))
    with pytest.raises(
        LcaError, match=r"several splits of cub200; choose with data\.split=official or revisitingcil \(--split of"
    ):
        read(f"cub200:{tmp_path}")
    assert counts(read(f"cub200:{tmp_path}", split="official").train) == [3, 2, 1]
    other = read(f"cub200:{tmp_path}", split="revisitingcil")
    assert (other.name, counts(other.train)) == ("cub200-revisitingcil", [4, 4, 4])


def test_a_split_must_be_one_of_the_card(tmp_path):
    with pytest.raises(LcaError, match=r"cub200 has no split 'oficial'; its splits: official, revisitingcil"):
        read(f"cub200:{tmp_path}", split="oficial")
    with pytest.raises(LcaError, match=r"digits has no split 'official'; it has no named splits"):
        read("digits", split="official")


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "image_class_labels",
            "4 1\n",
            "4 2\n",
            r"image 4 is 001\.Albatross/\S+, but image_class_labels.txt says class 2",
        ),
        ("image_class_labels", "4 1\n", "4 9\n", r"says class 9, which is not in classes\.txt"),
        ("image_class_labels", "12 3\n", "", r"is about 11 images, images\.txt about 12: image 12 is in one"),
        ("train_test_split", "4 0\n", "4 2\n", r"train_test_split\.txt: image 4 has '2'; expected 0 or 1"),
        ("train_test_split", "4 0\n", "3 0\n", r"train_test_split\.txt, line 4: expected a new number and a text"),
        ("classes", "2 002.Bobolink\n", "two\n", r"classes\.txt, line 2: expected a new number and a text, got 'two'"),
    ],
)
def test_wrong_label_files_of_cub(tmp_path, file, old, new, message):
    trees.cub(tmp_path, BIRDS)
    edit(tmp_path / "CUB_200_2011" / f"{file}.txt", old, new)
    with pytest.raises(LcaError, match=message):
        read(f"cub200:{tmp_path}")
    (text,) = wrong("cub200", tmp_path)
    assert text.startswith("layout: ")


def test_missing_files_of_cub(tmp_path):
    trees.cub(tmp_path, BIRDS)
    folder = tmp_path / "CUB_200_2011"
    (folder / "images" / "002.Bobolink" / "image_0001.png").unlink()
    told = Told()
    assert counts(read(f"cub200:{tmp_path}", told).train) == [3, 1, 1]
    assert "image_0001.png does not exist" in told.lines[1]
    assert any(
        "1 that the labels name are missing" in text and "image_0001.png" in text for text in wrong("cub200", folder)
    )
    (folder / "train_test_split.txt").unlink()
    with pytest.raises(LcaError, match=r"there is no file .*train_test_split\.txt"):
        read(f"cub200:{tmp_path}")
    (folder / "classes.txt").write_text("")
    with pytest.raises(LcaError, match=r"classes\.txt is empty"):
        read(f"cub200:{tmp_path}")


# Stanford Cars


@pytest.mark.parametrize("where", ["", "stanford_cars"])
def test_cars(tmp_path, where):
    trees.cars(tmp_path, CARS)
    source = read(f"cars196:{tmp_path / where}")
    assert source.classes == tuple(CARS)  # the devkit's order, not sorted
    assert (counts(source.train), counts(source.test)) == ([3, 1, 2], [1, 2, 2])
    assert colours(source.train.of_classes([*CARS][2:])) == [(2, 0), (2, 1)]


def test_cars_as_others_unpack_them(tmp_path):
    root = trees.cars(tmp_path, CARS) / "stanford_cars"
    (root / "cars_train").rename(root / "inner")
    (root / "cars_train").mkdir()
    (root / "inner").rename(root / "cars_train" / "cars_train")
    labels = root / "cars_test_annos_withlabels.mat"
    labels.rename(root / "devkit" / labels.name)
    assert counts(read(f"cars196:{tmp_path}").train) == [3, 1, 2]


def merged_cars(root):
    """The authors' archive of all images in one folder, with one file of labels."""
    columns = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")
    rows = []
    for label, parts in enumerate(CARS.values(), 1):
        for test, count in enumerate(parts):
            for index in range(count):
                file = f"car_ims/{len(rows) + 1:06}.png"
                trees.paint(root / file, label - 1, index)
                rows.append((file, 1, 2, 3, 4, np.uint8(label), np.uint8(test)))
    table = np.zeros((1, len(rows)), dtype=[(name, object) for name in columns])
    for number, row in enumerate(rows):
        for name, value in zip(columns, row, strict=True):
            table[0, number][name] = value
    savemat(root / "cars_annos.mat", {"annotations": table, "class_names": np.array([*CARS], dtype=object)})
    return root


def foldered_cars(root):
    """Class folders as others pack them, and the names in the order of the labels."""
    trees.class_folders(root / "car_data" / "car_data", {name.replace("/", "-"): each for name, each in CARS.items()})
    (root / "names.csv").write_text("".join(f"{name}\n" for name in CARS))
    return root


@pytest.mark.parametrize(
    ("make", "inner"),
    [(merged_cars, ""), (foldered_cars, ""), (foldered_cars, "car_data"), (foldered_cars, "car_data/car_data")],
)
def test_other_layouts_of_cars(tmp_path, make, inner):
    source = read(f"cars196:{make(tmp_path) / inner}")
    assert [name.replace("/", "-") for name in source.classes] == [name.replace("/", "-") for name in CARS]
    assert (counts(source.train), counts(source.test)) == ([3, 1, 2], [1, 2, 2])
    assert colours(source.train) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    texts = wrong("cars196", tmp_path / inner)
    assert "classes: expected 196, got 3" in texts
    assert "train images: expected 8144, got 6" in texts


def test_one_folder_of_cars_of_which_some_are_missing(tmp_path):
    merged_cars(tmp_path)
    (tmp_path / "car_ims" / "000004.png").unlink()
    texts = wrong("cars196", tmp_path)
    missing = tmp_path / "car_ims" / "000004.png"
    assert f"files: 1 that the labels name are missing: {missing}" in texts
    assert "test images: expected 8041, got 4" in texts
    savemat(tmp_path / "cars_annos.mat", {"annotations": trees.annotations([("1.png", 1)])})
    (text,) = wrong("cars196", tmp_path)
    assert "cars_annos.mat has no labels" in text
    assert "expected relative_im_path, class, test" in text


def test_class_folders_of_cars_need_the_order_of_the_labels(tmp_path):
    foldered_cars(tmp_path)
    names = tmp_path / "names.csv"
    names.write_text(names.read_text().replace("Zonda", "Honda"))
    (text,) = wrong("cars196", tmp_path)
    assert "names.csv does not name the classes that are in" in text
    assert "Honda C12 2004, Zonda C12 2004" in text
    names.unlink()
    with pytest.raises(LcaError, match=r"no names\.csv lies there .*data\.source=folder:"):
        read(f"cars196:{tmp_path}")


def test_cars_without_any_labels(tmp_path):
    trees.paint(tmp_path / "cars_train" / "00001.jpg")
    (text,) = wrong("cars196", tmp_path)
    assert "it holds cars_train/; expected\n" in text
    for part in ("devkit/{cars_meta.mat, cars_train_annos.mat}", "cars_annos.mat", "names.csv"):
        assert part in text
    (tmp_path / "devkit").mkdir()
    (text,) = wrong("cars196", tmp_path)
    assert "there is no file" in text
    assert "devkit/cars_train_annos.mat; `lca datasets get cars196` says where to find it" in text


def test_other_names_for_the_same_files_are_seen(tmp_path):
    """What is kept in memory must not be taken for something else."""
    trees.cars(tmp_path, CARS)
    assert read(f"cars196:{tmp_path}").classes == tuple(CARS)
    names = np.array(["one", "two", "three"], dtype=object)
    savemat(tmp_path / "stanford_cars" / "devkit" / "cars_meta.mat", {"class_names": names})
    assert read(f"cars196:{tmp_path}").classes == ("one", "two", "three")


def test_bad_cars(tmp_path):
    root = trees.cars(tmp_path, CARS) / "stanford_cars"
    train, test = root / "devkit" / "cars_train_annos.mat", root / "cars_test_annos_withlabels.mat"
    content = train.read_bytes()
    train.write_bytes(content[: len(content) // 2])
    with pytest.raises(LcaError, match=r"cars_train_annos\.mat cannot be read as a \.mat file"):
        read(f"cars196:{tmp_path}")
    savemat(train, {"annotations": trees.annotations([("00001.png", 4)])})
    with pytest.raises(LcaError, match=r"00001\.png has class 4; cars_meta\.mat has the classes 1 to 3"):
        read(f"cars196:{tmp_path}")
    savemat(train, {"something": 1})
    with pytest.raises(LcaError, match="holds no 'annotations'"):
        read(f"cars196:{tmp_path}")
    train.write_bytes(content)
    test.rename(root / "devkit" / "cars_test_annos.mat")
    with pytest.raises(LcaError, match=r"there is no file .*withlabels\.mat$|there is no file .*withlabels\.mat;"):
        read(f"cars196:{tmp_path}")
    unlabelled = np.zeros((1, 2), dtype=[("fname", object)])
    savemat(test, {"annotations": unlabelled})
    with pytest.raises(LcaError, match=r"has no labels: its columns are \('fname',\)"):
        read(f"cars196:{tmp_path}")


def test_cars_without_labels_of_the_test_images(tmp_path):
    root = trees.cars(tmp_path, CARS) / "stanford_cars"
    (root / "cars_test_annos_withlabels.mat").rename(root / "cars_test_annos.mat")
    with pytest.raises(LcaError, match=r"cars_test_annos\.mat has no labels and does not do"):
        read(f"cars196:{tmp_path}")


# CIFAR


@pytest.mark.parametrize(("name", "classes", "batches"), [("CIFAR100", 100, 1), ("CIFAR10", 10, 5)])
def test_cifar(tmp_path, monkeypatch, name, classes, batches):
    trees.cifar(tmp_path, monkeypatch, name)
    told = Told()
    source = read(f"{name.lower()}:{tmp_path}", told)
    assert source.classes == tuple(read_card(name.lower())["names"])
    assert counts(source.train) == [5 * batches] * classes
    assert counts(source.test) == [2] * classes
    image = source.test.of_classes([source.classes[7]]).pixels.canvas[1]
    assert image.shape == (3, 32, 32)
    assert image[0].unique().tolist() == [7]
    assert image[1].unique().tolist() == [(7 + classes) % 251 + 1]
    assert (image[2, :16].unique().tolist(), image[2, 16:].unique().tolist()) == ([200], [0])
    assert source.view.centre_crop == 1.0
    assert "got" in told.warnings[0]
    folder = tmp_path / getattr(torchvision_sets, name).base_folder
    assert read(f"{name.lower()}:{folder}").fingerprint == source.fingerprint


def test_a_pickle_with_another_checksum_is_never_opened(tmp_path, monkeypatch):
    trees.cifar(tmp_path, monkeypatch)
    train = tmp_path / "cifar-100-python" / "train"
    content = train.read_bytes()
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("a pickle was opened"))
    train.write_bytes(content[:-100])
    with pytest.raises(
        LcaError, match=r"cifar-100-python/train is not the original .*remove .*lca datasets get cifar100"
    ):
        read(f"cifar100:{tmp_path}")
    train.unlink()
    (text,) = wrong("cifar100", tmp_path)
    assert "train is missing" in text


def test_no_cifar(tmp_path):
    with pytest.raises(LcaError, match=r"does not hold cifar100: it holds nothing; expected\n  .*/cifar-100-python/"):
        read(f"cifar100:{tmp_path}")


# the literature's order


def test_the_seeded_order_is_the_literatures(tmp_path, monkeypatch):
    trees.cifar(tmp_path, monkeypatch, train=1, test=1)
    source = read(f"cifar100:{tmp_path}")
    first = {1993: [68, 56, 78, 8, 23, 84, 90, 65, 74, 76], 1994: [72, 6, 33, 96, 60, 94, 29, 40, 45, 66]}
    for seed, labels in first.items():
        stream = Stream(source, DataOptions(), seed)
        assert stream.task_classes[0] == tuple(source.classes[label] for label in labels)


# verifying


def expected_counts(tests, seed, sizes):
    """By hand: test images of every task."""
    order = np.random.RandomState(seed).permutation(len(tests))
    cuts = np.cumsum([0, *sizes])
    return [int(sum(tests[label] for label in order[a:b])) for a, b in itertools.pairwise(cuts)]


def test_verify_a_whole_cars(tmp_path, monkeypatch):
    tests = [1 + (label * 7) % 3 for label in range(196)]
    tree = {f"car {(label * 5) % 196:03}": (1, count) for label, count in enumerate(tests)}
    trees.cars(tmp_path, tree, write=touch)
    card = read_card("cars196")
    sizes = [16] + [20] * 9
    rows = {seed: expected_counts(tests, seed, sizes) for seed in (1993, 1994, 1995)}
    split = {**card["splits"]["official"], "train": 196, "test": sum(tests), "per_task": rows}
    monkeypatch.setitem(card["splits"], "official", split)
    findings = [*verify("cars196", tmp_path, None, Progress())]
    assert all(each.fine for each in findings), findings
    assert sum("as published" in each.text for each in findings) == 3
    rows[1994][3] += 1
    assert wrong("cars196", tmp_path) == [
        f"test images of the tasks, seed 1994: task 4: expected {rows[1994][3]}, got {rows[1994][3] - 1}"
    ]


def test_the_tasks_of_cars_are_16_and_nine_times_20(tmp_path):
    trees.cars(tmp_path, {f"car {label:03}": (1, 1) for label in range(196)})
    assert read(f"cars196:{tmp_path}", view_size=8).sizes == (16, *[20] * 9)
    trees.cars(tmp_path / "few", CARS)
    assert read(f"cars196:{tmp_path / 'few'}").sizes == ()


def touch(path, *_):
    if path.name in ("image_0000.png", "0.jpg", "00001.png"):  # the first of its folder
        path.parent.mkdir(parents=True)
    path.touch()


def test_verify_a_whole_cub_and_say_what_is_wrong_where(tmp_path):
    birds = read_card("cub200")["images_per_class"]
    rest = 5994 - 29 * 200
    tree = {
        name: (29 + (number < rest), count - 29 - (number < rest)) for number, (name, count) in enumerate(birds.items())
    }
    trees.cub(tmp_path, tree, write=touch)
    assert wrong("cub200", tmp_path) == []
    folder = tmp_path / "CUB_200_2011"
    (folder / "images" / "013.Bobolink" / "image_0059.png").unlink()
    texts = wrong("cub200", tmp_path)
    assert texts[1] == "test images: expected 5794, got 5793"
    assert "013.Bobolink/image_0059.png" in texts[0]
    for name in ("images", "image_class_labels", "train_test_split"):
        lines = (folder / f"{name}.txt").read_text().splitlines()
        (folder / f"{name}.txt").write_text("\n".join(lines[:-1]) + "\n")
    assert "train and test images of 1 classes: 200.Common_Yellowthroat (expected 60, got 59)" in wrong(
        "cub200", tmp_path
    )


def test_verify_folders_of_cub(tmp_path, monkeypatch):
    names = [*read_card("cub200")["images_per_class"]]
    for part in ("train", "test"):
        for name in names:
            touch(tmp_path / part / name / "0.jpg")
    (tmp_path / "test" / names[4] / "0.jpg").unlink()
    (tmp_path / "train" / names[7]).rename(tmp_path / "train" / "999.New")
    (tmp_path / "test" / names[7] / "0.jpg").unlink()
    (tmp_path / "test" / names[7]).rmdir()
    texts = wrong("cub200", tmp_path, "revisitingcil")
    assert f"classes: missing: {names[7]}" in texts
    assert "classes: not in the data set: 999.New" in texts
    assert f"test: no images of 2 classes: {names[4]}, 999.New" in texts
    assert "train images: expected 9430, got 200" in texts
    assert any(f"{names[0]} (expected 60, got 2)" in text for text in texts)
    assert any(text.startswith("test images of the tasks, seed 1993: task 1: expected 247, got 20;") for text in texts)
    monkeypatch.setitem(read_card("cub200")["splits"]["revisitingcil"], "per_task", {1993: [None] * 10})
    assert not any("seed" in text for text in wrong("cub200", tmp_path, "revisitingcil"))


@pytest.mark.parametrize(("parts", "split"), [((3, 3), "official"), ((4, 1), "revisitingcil")])
def test_class_folders_of_cub_are_the_split_whose_share_they_have(tmp_path, parts, split):
    trees.class_folders(tmp_path, dict.fromkeys(BIRDS, parts))
    findings = [each.text for each in verify("cub200", tmp_path, None, Progress())]
    assert findings[0] == f"layout: {tmp_path}, split {split}"
    expected = read_card("cub200")["splits"][split]["train"]
    assert f"train images: expected {expected}, got {parts[0] * len(BIRDS)}" in findings
    source = read(f"cub200:{tmp_path}")
    assert (source.name, counts(source.train)) == (f"cub200-{split}", [parts[0]] * len(BIRDS))
    assert read(f"cub200:{tmp_path}", split="revisitingcil").name == "cub200-revisitingcil"


def test_an_image_that_is_gone_and_one_that_is_there_twice_do_not_cancel(tmp_path, monkeypatch):
    trees.class_folders(tmp_path, {"a": (3, 2), "b": (3, 2)})
    trees.shrink(monkeypatch, "vtab", 2, "revisitingcil", train=6, test=4)
    assert wrong("vtab", tmp_path) == []
    gone, copy = tmp_path / "train" / "a" / "002.png", tmp_path / "train" / "a" / "9.png"
    copy.write_bytes((tmp_path / "test" / "b" / "001.png").read_bytes())
    gone.unlink()
    assert wrong("vtab", tmp_path) == ["copies: 1 files have the content of others: test/b/001.png is train/a/9.png"]
    monkeypatch.setitem(read_card("vtab")["splits"]["revisitingcil"], "copies", 1)
    assert wrong("vtab", tmp_path) == []
    copy.unlink()
    assert "copies: 0 files have the content of others, where the original has 1: " in wrong("vtab", tmp_path)


def test_moved_files_are_named(tmp_path):
    trees.cub(tmp_path, BIRDS)
    one, two, three = ([*BIRDS][place] for place in range(3))
    images = tmp_path / "CUB_200_2011" / "images"
    for path in images.rglob("*.png"):
        path.rename(path.with_name(f"{path.parent.name}_{path.name}"))
    file = tmp_path / "CUB_200_2011" / "images.txt"
    lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
    named = [f"{number} {'/'.join((each.split('/')[0], each.replace('/', '_')))}" for number, each in lines]
    file.write_text("\n".join(named))
    counted = wrong("cub200", tmp_path)
    assert not any(text.startswith(("files", "places")) for text in counted)
    (images / one / f"{one}_image_0000.png").rename(images / two / f"{one}_image_0000.png")
    (images / two / f"{two}_image_0001.png").unlink()
    trees.paint(images / three / "more.png", 200)
    texts = [text for text in wrong("cub200", tmp_path) if text not in counted]
    assert f"places: 1 moved: images/{one}/{one}_image_0000.png lies in images/{two}" in texts
    assert f"files: 1 that no label names: images/{three}/more.png" in texts
    assert any(text.startswith("files: 1 that the labels name are missing") and "_image_0001" in text for text in texts)


def test_a_file_called_like_those_of_another_class_is_named(tmp_path):
    for name in ("Wren", "Tern", "Gull"):
        for number in range(6):
            trees.paint(
                tmp_path / ("train", "test")[number % 2] / f"1.{name}" / f"{name}_00{number}_9.png", number, len(name)
            )
    for path in (tmp_path / "test" / "1.Gull").iterdir():
        path.rename(path.with_name(f"other {path.name}"))  # as many of one name as of another say nothing
    (tmp_path / "train" / "1.Wren" / "Wren_000_9.png").rename(tmp_path / "test" / "1.Tern" / "Wren_000_9.png")
    assert "places: 1 moved: test/1.Tern/Wren_000_9.png is called like those of 1.Wren" in wrong("vtab", tmp_path)


def test_benchmarks_in_class_folders_of_others_get_a_hint(tmp_path):
    trees.class_folders(tmp_path, {"apple": (2, 1), "bear": (2, 1)})
    with pytest.raises(LcaError, match=f"give it as data.source=folder:{tmp_path}: a run reads these too"):
        read(f"cifar100:{tmp_path}")
    (text,) = wrong("cifar100", tmp_path / "train")
    assert f"data.source=folder:{tmp_path / 'train'}" in text
    (tmp_path / "empty").mkdir()
    assert "folder:" not in wrong("cifar100", tmp_path / "empty")[0]


def test_verify_without_all_classes(tmp_path):
    trees.class_folders(tmp_path, {"a": (2, 1), "b": (2, 1)})
    paint = trees.paint(tmp_path / "train" / "loose.png")
    texts = wrong("imagenet_a", tmp_path)
    assert "classes: expected 200, got 2" in texts
    assert "test images of the tasks, seed 1993: not looked at, as the order needs all 200 classes" in texts
    assert any(str(paint) in text for text in texts)


def test_a_count_of_which_two_are_possible():
    tests = [3, 4, 5, 6]
    files = {part: {f"c{label}": [None] * count for label, count in enumerate(tests)} for part in ("train", "test")}
    listing = Listing("s", None, tuple(files["test"]), files)
    card = {"classes": 4, "tasks": 2}
    came = expected_counts(tests, 5, [2, 2])

    def fine(row):
        (finding,) = _check_tasks(listing, card, 5, row)
        return finding.fine, finding.text

    assert fine([[1, came[0]], came[1]]) == (True, "test images of the tasks, seed 5: as published")
    assert fine([came[0], None]) == (True, "test images of the tasks, seed 5: as published (1 of 2 known)")
    assert fine([[1, 2], came[1]]) == (
        False,
        f"test images of the tasks, seed 5: task 1: expected 1 or 2, got {came[0]}",
    )


def test_verify_cifar(tmp_path, monkeypatch):
    trees.cifar(tmp_path, monkeypatch, train=5, test=2)
    texts = wrong("cifar100", tmp_path)
    assert "train images: expected 50000, got 500" in texts
    assert any("test images of 100 classes: apple (expected 100, got 2)" in text for text in texts)
    assert any("seed 1993: task 1: expected 1000, got 20" in text for text in texts)


def test_only_benchmarks_are_verified(tmp_path):
    with pytest.raises(LcaError, match="'cifar1000' is none of the benchmarks; did you mean 'cifar100'"):
        wrong("cifar1000", tmp_path)
    with pytest.raises(LcaError, match="there is no folder"):
        wrong("vtab", tmp_path / "gone")
    with pytest.raises(LcaError, match="vtab has no split 'x'"):
        wrong("vtab", tmp_path, "x")
    with pytest.raises(LcaError, match="none of the benchmarks"):
        find("digits", tmp_path)


# synthetic


def test_synthetic_has_the_size_that_was_asked_for():
    source = read("synthetic:classes=12,train=3,test=2,size=16")
    assert len(source.classes) == 12
    assert list(source.classes) == sorted(source.classes)
    assert (counts(source.train), counts(source.test)) == ([3] * 12, [2] * 12)
    assert source.train.pixels.canvas.shape == (36, 3, 16, 16)
    assert read("synthetic").train.pixels.canvas.shape == (200, 3, 32, 32)


def test_synthetic_depends_on_its_own_seed_only():
    one, again, other = (read(f"synthetic:seed={seed}", seed=run) for seed, run in ((1, 0), (1, 5), (2, 0)))
    assert one.fingerprint == again.fingerprint != other.fingerprint


def test_synthetic_grows_without_changing_what_was_there():
    few, many = (read(f"synthetic:classes={count}") for count in (10, 20))
    assert torch.equal(few.train.pixels.canvas, many.train.pixels.canvas[:200])


def test_synthetic_patterns_can_be_learnt():
    source = read("synthetic:classes=200,train=5,test=2,size=16")
    train, test = (part.pixels.canvas.flatten(1).float() for part in (source.train, source.test))
    means = torch.stack([train[source.train.labels == label].mean(0) for label in range(200)])
    near = torch.cdist(test, means).argmin(1)
    accuracy = (near == source.test.labels).float().mean()
    assert accuracy > 0.8
    assert not torch.equal(train[0], train[1])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("classes=1", "classes=1; expected a whole number from 2 on"),
        ("size=big", "size=big; expected a whole number from 4 on"),
        ("train=0", "train=0; expected a whole number from 1 on"),
        ("images=3", "got 'images=3'; expected some of classes, train, test, size, seed"),
        ("classes", "got 'classes'"),
    ],
)
def test_bad_synthetic(argument, message):
    with pytest.raises(LcaError, match=message):
        read(f"synthetic:{argument}")


# Hugging Face


def test_hugging_face_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LcaError, match="pip install datasets"):
        read("hf:uoft-cs/cifar10")


@pytest.fixture
def save(tmp_path):
    """Save a data set of the Hugging Face library: {split: [(class, colour)]}."""
    hf = pytest.importorskip("datasets")

    def go(splits, names=("dog", "cat"), **columns):
        label = hf.ClassLabel(names=list(names)) if names else hf.Value("string")
        features = hf.Features({"picture": hf.Image(), "kind": label, **columns})
        made = {}
        for split, rows in splits.items():
            pictures = [Image.new("RGB", (300, 200), (colour, 0, 0)) for _, colour in rows]
            content = {"picture": pictures, "kind": [each for each, _ in rows]}
            content |= {name: [0] * len(rows) for name in columns}
            made[split] = hf.Dataset.from_dict(content, features=features)
        hf.DatasetDict(made).save_to_disk(str(tmp_path / "saved"))
        return tmp_path / "saved"

    return go


def test_hugging_face_from_the_disk(save):
    path = save({"train": [(0, 10), (1, 20), (0, 30)], "test": [(1, 40), (0, 50)]})
    source = read(f"hf:{path}")
    assert source.classes == ("dog", "cat")  # the labels' order
    assert source.train.labels.tolist() == [0, 1, 0]
    assert [round(each[0].float().mean().item()) for each in source.test.pixels.canvas] == [40, 50]
    assert source.train.pixels.sizes[0].tolist() == [73, 109]
    assert source.name == "hf:saved"
    swapped = read(f"hf:{path},train=test,test=train")
    assert (len(swapped.train), len(swapped.test)) == (2, 3)


def test_hugging_face_without_a_test_split(save):
    path = save({"train": [(label, 10 * number) for label in (0, 1) for number in range(5)]})
    source = read(f"hf:{path}", seed=1)
    assert (counts(source.train), counts(source.test)) == ([4, 4], [1, 1])
    assert counts(read(f"hf:{path}", seed=1, test_share=0.6).test) == [3, 3]


def test_hugging_face_with_names_as_labels(save):
    path = save({"train": [("b", 1), ("a", 2)], "validation": [("a", 3)]}, names=None)
    source = read(f"hf:{path}")
    assert source.classes == ("a", "b")
    assert source.train.labels.tolist() == [1, 0]
    assert source.test.labels.tolist() == [0]


def test_hugging_face_columns_to_choose_from(save):
    hf = pytest.importorskip("datasets")
    path = save({"train": [(0, 1), (1, 2)]}, coarse=hf.ClassLabel(names=["animal", "thing"]))
    with pytest.raises(LcaError, match=r"label column: there are kind, coarse; choose with label=NAME"):
        read(f"hf:{path}")
    assert read(f"hf:{path},label=kind").classes == ("dog", "cat")
    with pytest.raises(LcaError, match=r"no readable training images of 1 of 2 classes: thing"):
        read(f"hf:{path},label=coarse")
    with pytest.raises(LcaError, match=r"label column: 'fine' is not there; there are kind, coarse"):
        read(f"hf:{path},label=fine")
    with pytest.raises(LcaError, match=r"image column: 'kind' is not there; there are picture"):
        read(f"hf:{path},label=kind,image=kind")
    with pytest.raises(LcaError, match=r"there is no split 'dev'; it has train"):
        read(f"hf:{path},label=kind,test=dev")


def test_hugging_face_with_several_pictures_a_row(tmp_path):
    hf = pytest.importorskip("datasets")
    pictures = {f"view{place}": [Image.new("RGB", (4, 4), (place, 0, 0))] * 2 for place in (1, 2)}
    features = hf.Features({"view1": hf.Image(), "view2": hf.Image(), "label": hf.ClassLabel(names=["a", "b"])})
    made = hf.Dataset.from_dict({**pictures, "label": [0, 1]}, features=features)
    made.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(LcaError, match=r"image column: there are view1, view2; choose with image=NAME"):
        read(f"hf:{tmp_path / 'saved'}")
    source = read(f"hf:{tmp_path / 'saved'},image=view2")
    assert source.train.pixels.canvas[:, 0].unique().tolist() == [2]


def test_hugging_face_with_several_configurations(tmp_path, monkeypatch):
    hf = pytest.importorskip("datasets")
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["a", "b"])})
    folder = tmp_path / "both"
    for number, config in enumerate(("small", "large")):
        pictures = [Image.new("RGB", (4, 4), (number, 0, 0))] * 2
        (folder / config).mkdir(parents=True)
        made = hf.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features)
        made.to_parquet(str(folder / config / "train.parquet"))
    configs = "".join(f"- config_name: {each}\n  data_files: {each}/*.parquet\n" for each in ("small", "large"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for number, config in enumerate(("small", "large")):
        source = read(f"hf:{folder},config={config}")
        assert source.train.pixels.canvas[:, 0].unique().tolist() == [number]


def test_a_broken_image_of_hugging_face_costs_a_line(tmp_path):
    hf = pytest.importorskip("datasets")
    good = trees.paint(tmp_path / "good.png", 7)
    raw = [
        {"bytes": good.read_bytes(), "path": None},
        {"bytes": b"broken", "path": None},
        {"bytes": None, "path": str(good)},
    ]
    features = hf.Features({"image": hf.Image(decode=False), "label": hf.ClassLabel(names=["a", "b"])})
    made = hf.Dataset.from_dict({"image": raw, "label": [0, 0, 1]}, features=features).cast_column("image", hf.Image())
    hf.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "saved"))
    told = Told()
    source = read(f"hf:{tmp_path / 'saved'}", told)
    assert counts(source.train) == [1, 1]
    assert any("row 2 is no image of a known format" in line for line in told.lines)


def test_bad_hugging_face(save, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LcaError, match=r"hf:NAME needs a name"):
        read("hf:")
    with pytest.raises(LcaError, match=r"got 'colour=3'; expected some of config, image, label, train, test"):
        read("hf:x,colour=3")
    with pytest.raises(LcaError, match=r"could not be loaded: .*Expected a name on the hub"):
        read(f"hf:{tmp_path / 'nothing'}")
    path = save({"train": [(0, 1), (-1, 2)]})
    with pytest.raises(LcaError, match=r"some images have no label \(column 'kind'\)"):
        read(f"hf:{path}")


CARD = """\
title: Mushrooms
classes: 2
tasks: 2
splits:
  official: {layout: class_folders, train: 6, test: 4}
view: {centre_crop: 1.0}
page: https://example.org
origin: nobody
licence: none
"""
READ = """
import sys
from pathlib import Path
from lca.data import sources

sources.CARDS = Path(sys.argv[1])
source = sources.load_source(sources.DataOptions(source=f"mushrooms:{sys.argv[2]}"), 1, 16, sources.Progress())
print(source.classes, len(source.train), len(source.test), source.as_published)
"""


def test_a_card_is_all_that_a_new_benchmark_takes(tmp_path):
    shutil.copytree(CARDS, tmp_path / "cards")
    (tmp_path / "cards" / "mushrooms.yaml").write_text(CARD)
    for part, count in {"train": 3, "test": 2}.items():
        for name in ("amanita", "boletus"):
            for number in range(count):
                place = tmp_path / "photos" / part / name
                place.mkdir(parents=True, exist_ok=True)
                Image.effect_noise((20, 20), 10 + number + 20 * (part == "test")).save(place / f"{number}.png")
    words = [sys.executable, "-c", READ, str(tmp_path / "cards"), str(tmp_path / "photos")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "('amanita', 'boletus') 6 4 True\n", done.stderr
