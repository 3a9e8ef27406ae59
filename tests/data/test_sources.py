import logging
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from lca.config import DataOptions
from lca.data.sources import load_source, read_card, read_class_folders, sources, working_size
from lca.errors import LcaError
from lca.progress import Progress


def fill(folder, count, colour=0):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (6, 5), (colour, number, 0)).save(folder / f"{number:03}.png")


def read(root, seed=0, **options):
    return load_source(DataOptions(source=f"folder:{root}", **options), seed, 64, Progress())


def counts(images):
    return torch.bincount(images.labels, minlength=len(images.classes)).tolist()


def identities(images):
    """Colour of every image: (class, number), as `fill` painted them."""
    return [tuple(each[:2, 0, 0].tolist()) for each in images.pixels.canvas]


def test_digits_follow_their_card():
    card, source = read_card("digits"), load_source(DataOptions(), 0, 64, Progress())
    assert source.classes == tuple("0123456789")
    assert len(source.train) + len(source.test) == card["images"] == 1797
    per_class = np.bincount(load_digits().target)
    assert counts(source.test) == [int(count) // 4 for count in per_class]
    assert counts(source.train) == [int(count) - int(count) // 4 for count in per_class]
    assert (source.tasks, source.view.centre_crop, source.view.augment.flip) == (5, 1.0, False)


def test_digits_are_the_scans():
    source, bunch = load_source(DataOptions(), 0, 64, Progress()), load_digits()
    first_test = np.flatnonzero(bunch.target == 0)[3]
    expected = torch.from_numpy(np.round(bunch.images[first_test] / 16 * 255)).to(torch.uint8)
    image = source.test.of_classes(["0"]).pixels.canvas[0]
    assert torch.equal(image, expected.expand(3, 8, 8))


def test_digits_do_not_depend_on_the_seed():
    one, two = (load_source(DataOptions(), seed, 64, Progress()) for seed in (1, 2))
    assert torch.equal(one.test.pixels.canvas, two.test.pixels.canvas)
    assert one.fingerprint == two.fingerprint


def test_a_folder_with_train_and_test(tmp_path):
    for number, name in enumerate(("b", "a")):
        fill(tmp_path / "train" / name, 4, number)
        fill(tmp_path / "test" / name, 2, 100 + number)
    source = read(tmp_path)
    assert source.classes == ("a", "b")
    assert counts(source.train) == [4, 4]
    assert counts(source.test) == [2, 2]
    assert {colour for colour, _ in identities(source.test)} == {100, 101}
    assert identities(source.train.of_classes(["b"])) == [(0, number) for number in range(4)]
    assert source.tasks == 2


def test_a_folder_with_a_seeded_split(tmp_path):
    for number, name in enumerate("abc"):
        fill(tmp_path / name, 10, number)
    source, again, other = read(tmp_path, 1), read(tmp_path, 1), read(tmp_path, 2)
    assert counts(source.test) == [2, 2, 2]
    train, test = set(identities(source.train)), set(identities(source.test))
    assert not train & test
    assert len(train | test) == 30
    assert identities(again.test) == identities(source.test)
    assert identities(other.test) != identities(source.test)
    assert counts(read(tmp_path, test_share=0.5).test) == [5, 5, 5]


def test_a_split_leaves_every_class_something_to_learn(tmp_path):
    fill(tmp_path / "one", 1)
    fill(tmp_path / "two", 2)
    source = read(tmp_path, test_share=0.9)
    assert counts(source.train) == [1, 1]
    assert counts(source.test) == [0, 1]


def test_the_fingerprint_follows_the_files(tmp_path):
    fill(tmp_path / "a", 3)
    fill(tmp_path / "b", 3)
    before = read(tmp_path).fingerprint
    assert read(tmp_path).fingerprint == before
    fill(tmp_path / "b", 4)
    assert read(tmp_path).fingerprint != before


def test_a_broken_file_is_left_out(tmp_path, caplog):
    fill(tmp_path / "a", 3)
    fill(tmp_path / "b", 3)
    (tmp_path / "a" / "000.png").write_text("broken")
    with caplog.at_level(logging.WARNING):
        images = read_class_folders(tmp_path, 64, Progress())
    assert counts(images) == [2, 3]
    assert "000.png" in caplog.text


def test_a_class_of_broken_files_is_an_error(tmp_path):
    fill(tmp_path / "a", 2)
    fill(tmp_path / "b", 2)
    for path in (tmp_path / "b").iterdir():
        path.write_text("broken")
    with pytest.raises(LcaError, match=r"no image of the classes \['b'\] could be read"):
        read_class_folders(tmp_path, 64, Progress())


def test_an_empty_class_folder_is_an_error(tmp_path):
    fill(tmp_path / "a", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LcaError, match=r"hold no images: \['empty'\]"):
        read(tmp_path)


def test_a_class_missing_in_one_part_is_an_error(tmp_path):
    for part in ("train", "test"):
        fill(tmp_path / part / "a", 2)
    fill(tmp_path / "train" / "b", 2)
    with pytest.raises(LcaError, match=r"test: no folder for the classes \['b'\]"):
        read(tmp_path)


@pytest.mark.parametrize("where", ["missing", "file", "bare"])
def test_what_is_no_folder_of_classes(tmp_path, where):
    (tmp_path / "file").write_text("x")
    (tmp_path / "bare").mkdir()
    for reader in (read, lambda root: read_class_folders(root, 64, Progress())):
        with pytest.raises(LcaError, match=where):
            reader(tmp_path / where)


def test_folder_needs_a_path_and_sources_have_names():
    with pytest.raises(LcaError, match="folder:PATH"):
        load_source(DataOptions(source="folder"), 0, 64, Progress())
    with pytest.raises(LcaError, match="did you mean 'digits'"):
        load_source(DataOptions(source="digit"), 0, 64, Progress())
    assert {"digits", "folder"} <= set(sources)


def test_large_images_are_decoded_to_the_working_size(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (300, 200)).save(tmp_path / "a" / "big.png")
    images = read_class_folders(tmp_path, working_size(64), Progress())
    assert images.pixels.sizes.tolist() == [[73, 110]]
    assert working_size(224) == 256


def test_the_shared_cifar_archive(shared, tmp_path):
    with zipfile.ZipFile(shared / "data" / "cifar100-mini.zip") as archive:
        chosen = ("apple", "turtle", "wolf")
        archive.extractall(
            tmp_path, [name for name in archive.namelist() if name.split("/")[2:3] in ([c] for c in chosen)]
        )
    source = read(tmp_path / "cifar100-mini")
    assert source.classes == chosen
    assert min(counts(source.train) + counts(source.test)) > 10
