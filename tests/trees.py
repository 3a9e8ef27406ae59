"""Small trees laid out like the benchmarks of the literature, with real images, pickles and .mat files."""

import hashlib
import pickle

import numpy as np
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from lca.data.sources import read_card


def paint(path, red=0, green=0, size=(6, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (red, green, 0)).save(path)
    return path


def class_folders(root, counts):
    """`counts`: {class: (train, test)}. The colour of an image is (class, number)."""
    for label, (name, parts) in enumerate(counts.items()):
        for part, count in zip(("train", "test"), parts, strict=True):
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                paint(root / part / name / f"{number:03}.png", label, number + 100 * (part == "test"))
    return root


def cub(root, counts, write=paint):
    """CUB's own archive; images are numbered class by class, test images last."""
    folder = root / "CUB_200_2011"
    lines = {"classes": [], "images": [], "image_class_labels": [], "train_test_split": []}
    number = 0
    for label, (name, parts) in enumerate(counts.items(), 1):
        lines["classes"].append(f"{label} {name}")
        for index in range(sum(parts)):
            number += 1
            relative = f"{name}/image_{index:04}.png"
            write(folder / "images" / relative, label - 1, index)
            lines["images"].append(f"{number} {relative}")
            lines["image_class_labels"].append(f"{number} {label}")
            lines["train_test_split"].append(f"{number} {int(index < parts[0])}")
    for name, content in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(content) + "\n")
    return root


def cars(root, counts, write=paint):
    """The devkit as torchvision reads it; the images of the classes are mixed, as in the real one."""
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array([*counts], dtype=object)})
    places = {"train": folder / "devkit" / "cars_train_annos.mat", "test": folder / "cars_test_annos_withlabels.mat"}
    for position, (part, path) in enumerate(places.items()):
        rows = []
        for index in range(max(each[position] for each in counts.values())):
            for label, parts in enumerate(counts.values(), 1):
                if index < parts[position]:
                    rows.append((f"{len(rows) + 1:05}.png", label))
                    write(folder / f"cars_{part}" / rows[-1][0], label - 1, index)
        savemat(path, {"annotations": annotations(rows)})
    return root


def annotations(rows):
    names = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    table = np.zeros((1, len(rows)), dtype=[(name, object) for name in names])
    for number, (file, label) in enumerate(rows):
        values = (1.0, 2.0, 3.0, 4.0, np.uint8(label), file)
        for name, value in zip(names, values, strict=True):
            table[0, number][name] = value
    return table


def cifar(root, monkeypatch, name="CIFAR100", train=5, test=2):
    """CIFAR's pickles, `train` and `test` images of every class, and torchvision's checksums changed to theirs."""
    kind = getattr(datasets, name)
    names, key = read_card(name.lower())["names"], "fine_labels" if name == "CIFAR100" else "labels"
    folder = root / kind.base_folder
    folder.mkdir(parents=True)

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / file).read_bytes()).hexdigest()

    def batch(count, first):
        labels = [number % len(names) for number in range(count * len(names))]
        data = np.zeros((len(labels), 3, 32, 32), dtype=np.uint8)
        data[:, 0] = np.array(labels)[:, None, None]
        data[:, 1] = np.arange(len(labels)).reshape(-1, 1, 1) % 251 + first
        data[:, 2, :16] = 200  # the upper half
        return {"data": data.reshape(len(labels), -1), key: labels}

    parts = [[file for file, _ in each] for each in (kind.train_list, kind.test_list)]
    train_list = [[file, write(file, batch(train, 0))] for file in parts[0]]
    test_list = [[file, write(file, batch(test, 1))] for file in parts[1]]
    meta = {**kind.meta, "md5": write(kind.meta["filename"], {kind.meta["key"]: names})}
    for attribute, value in (("train_list", train_list), ("test_list", test_list), ("meta", meta)):
        monkeypatch.setattr(kind, attribute, value)
    return root


def shrink(monkeypatch, name, classes, split, **changes):
    """Change the card of a benchmark to that of a small tree."""
    card = read_card(name)
    monkeypatch.setitem(card, "classes", classes)
    monkeypatch.setitem(card, "tasks", min(card["tasks"], classes))
    monkeypatch.setitem(card["splits"], split, {**card["splits"][split], "per_task": {}, **changes})
    for key in ("names", "images_per_class"):
        monkeypatch.delitem(card, key, raising=False)
