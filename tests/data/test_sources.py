import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from lca.data.labelled import read_images
from lca.data.options import DataOptions
from lca.data.sources import load_source, read_card, sources, working_size
from lca.errors import LcaError
from lca.progress import LineProgress, Progress


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


def test_digits_have_no_argument():
    with pytest.raises(LcaError, match=r"data\.source=digits stands alone, got 'foo' behind it"):
        load_source(DataOptions(source="digits:foo"), 0, 64, Progress())


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
    source, again, other = read(tmp_path, 1), read(tmp_path, 2), read(tmp_path, 1, split_seed=2)
    assert counts(source.test) == [2, 2, 2]
    train, test = set(identities(source.train)), set(identities(source.test))
    assert not train & test
    assert len(train | test) == 30
    assert identities(again.test) == identities(source.test), "the run's seed has no say in what is tested"
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


class Lines(Progress):
    """Keeps the lines."""

    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def told(root, seed=0):
    progress = Lines()
    source = load_source(DataOptions(source=f"folder:{root}"), seed, 64, progress)
    return source, progress.lines


def test_a_broken_file_is_left_out_and_told_once(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, 10, ord(name))
    bad = tmp_path / "a" / "003.png"
    bad.write_text("broken")
    (tmp_path / "a" / "notes.txt").write_text("x")
    source, lines = told(tmp_path)
    assert np.add(counts(source.train), counts(source.test)).tolist() == [9, 10]
    assert lines[0] == "1 file or image left out:"
    assert str(bad) in lines[1]
    again, lines = told(tmp_path)
    assert again.fingerprint == source.fingerprint
    assert lines == []  # from memory: all of it was told before


def test_a_broken_file_does_not_move_the_split(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, 10, ord(name))
    before = read(tmp_path, 1)
    gone = identities(before.train)[0]
    (tmp_path / "a" / f"{gone[1]:03}.png").write_text("broken")
    after = read(tmp_path, 1)
    assert identities(after.train) == identities(before.train)[1:]
    assert identities(after.test) == identities(before.test)


def test_a_broken_test_image_ends_nothing(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, 5, ord(name))
    (colour, number), _ = identities(read(tmp_path, 1).test)
    bad = tmp_path / chr(colour) / f"{number:03}.png"
    bad.write_text("broken")
    source, lines = told(tmp_path, 1)
    assert counts(source.train) == [4, 4]
    assert counts(source.test) == [0, 1]
    assert str(bad) in lines[1]


def test_a_class_whose_readable_images_all_fell_into_the_test_part_is_learnt(tmp_path):
    """A class of one whole and one broken file is a class of one image, on whichever side the broken one fell."""
    for name in "abcdefgh":
        fill(tmp_path / name, 2, ord(name))
        (tmp_path / name / "001.png").write_text("broken")
    fill(tmp_path / "z", 10, ord("z"))
    source, lines = told(tmp_path)
    assert counts(source.train)[:8] == [1] * 8
    assert counts(source.train)[8:] == counts(read(tmp_path).train)[8:] == [8]
    assert lines[0] == "8 files or images left out:"
    assert sum("001.png" in line for line in lines) == 8
    assert "classes without a test image, which no accuracy is about: a, b, c, d, e and 3 more" in lines


def test_a_test_part_of_broken_files_only_is_drawn_again(tmp_path):
    fill(tmp_path / "a", 1, 1)
    fill(tmp_path / "b", 3, 2)
    ((_, number),) = identities(read(tmp_path).test)
    (tmp_path / "b" / f"{number:03}.png").write_text("broken")
    source = read(tmp_path)
    assert (counts(source.train), counts(source.test)) == ([1, 1], [0, 1])


def test_classes_without_test_images_are_told(tmp_path):
    fill(tmp_path / "one", 1)
    fill(tmp_path / "two", 2)
    assert "classes without a test image, which no accuracy is about: one" in told(tmp_path)[1]


@pytest.mark.parametrize(
    ("train", "test"), [("train", "val"), ("Train", "Test"), ("TRAIN", "validation"), ("train", "Valid")]
)
def test_other_names_of_the_parts(tmp_path, train, test):
    for number, name in enumerate("ab"):
        fill(tmp_path / train / name, 4, number)
        fill(tmp_path / test / name, 2, 100 + number)
    source = read(tmp_path)
    assert source.classes == ("a", "b")
    assert (counts(source.train), counts(source.test)) == ([4, 4], [2, 2])


def test_a_third_part_is_told(tmp_path):
    for part in ("train", "test", "val"):
        for number, name in enumerate("ab"):
            fill(tmp_path / part / name, 2, number + len(part))
    source, lines = told(tmp_path)
    assert (counts(source.train), counts(source.test)) == ([2, 2], [2, 2])
    assert f"  {tmp_path / 'val'} is neither the training part nor the test part" in lines


def test_what_is_odd_is_told(tmp_path):
    for part in ("train", "test"):
        for name in ("a", "A"):
            fill(tmp_path / part / name, 2, ord(name))
    fill(tmp_path / "test" / "a", 1, ord("A"))
    (tmp_path / "train" / "a" / "notes.txt").write_text("x")
    lines = told(tmp_path)[1]
    assert lines.count("  'A', 'a'") == 1
    (place,) = (number for number, line in enumerate(lines) if line.startswith("CHECK: 1 image under several labels"))
    assert f"{tmp_path / 'test' / 'a' / '000.png'} (a)" in lines[place + 1]
    assert f"{tmp_path / 'train' / 'A' / '000.png'} (A)" in lines[place + 1]
    assert f"1 other file passed over: {tmp_path / 'train' / 'a' / 'notes.txt'}" in lines


def test_a_dangling_link_does_not_end_a_benchmark(tmp_path):
    fill(tmp_path / "a", 4)
    fill(tmp_path / "b", 4, 1)
    (tmp_path / "a" / "zzz.png").symlink_to(tmp_path / "gone.png")
    source, lines = told(tmp_path)
    assert np.add(counts(source.train), counts(source.test)).tolist() == [4, 4]
    assert "zzz.png is a link to" in lines[1]


def test_a_class_of_broken_files_is_an_error_in_a_benchmark(tmp_path):
    fill(tmp_path / "a", 2)
    fill(tmp_path / "b", 2, 1)
    for path in (tmp_path / "b").iterdir():
        path.write_text("broken")
    with pytest.raises(LcaError, match=r"no image of the classes \['b'\] could be read: .*b/00\d.png is no image"):
        read(tmp_path)


def test_nothing_but_broken_files_is_an_error(tmp_path):
    fill(tmp_path / "a", 2)
    for path in (tmp_path / "a").iterdir():
        path.write_text("broken")
    with pytest.raises(LcaError, match=r"could be read:\n  .*00\d.png is no image"):
        read(tmp_path)


def test_an_empty_class_folder_is_an_error(tmp_path):
    fill(tmp_path / "a", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LcaError, match=r"hold no images: \['empty'\]"):
        read(tmp_path)


def test_a_class_missing_in_one_part_is_an_error(tmp_path):
    for part in ("train", "test"):
        fill(tmp_path / part / "a", 2)
    fill(tmp_path / "train" / "b", 2)
    with pytest.raises(LcaError, match=r"test: no folder for the classes \['b'\], .*; add it, or remove the other"):
        read(tmp_path)


def test_one_class_is_not_enough_for_a_run(tmp_path):
    fill(tmp_path / "a", 4)
    with pytest.raises(
        LcaError, match=r"holds 4 images of the class 'a' only; a run needs two or more classes: .*cat/"
    ):
        read(tmp_path)


def test_one_image_of_every_class_leaves_nothing_to_test(tmp_path):
    for name in "abcdefghij":
        fill(tmp_path / name, 1)
    with pytest.raises(LcaError, match=r"10 images of 10 classes, none of which has two: .* nothing to test on; add"):
        read(tmp_path)


def test_ten_images_in_all(tmp_path):
    for name in "ab":
        fill(tmp_path / name, 5)
    source = read(tmp_path)
    assert (len(source.train), len(source.test), source.tasks) == (8, 2, 2)


def test_copies_within_a_class_of_a_data_set_stay(tmp_path, capsys):
    fill(tmp_path / "a", 4)
    fill(tmp_path / "b", 1, 7)
    for path in sorted((tmp_path / "a").iterdir()):
        path.with_name(f"copy-{path.name}").write_bytes(path.read_bytes())
    source = load_source(DataOptions(source=f"folder:{tmp_path}"), 0, 64, LineProgress())
    assert len(source.train) + len(source.test) == 9
    assert "exact copies within a class, which count like any other image: 4" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("where", ["missing", "file", "bare"])
def test_what_is_no_folder_of_classes(tmp_path, where):
    (tmp_path / "file").write_text("x")
    (tmp_path / "bare").mkdir()
    for reader in (read, lambda root: read_images(root, 64, Progress())):
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
    images, _ = read_images(tmp_path, working_size(64), Progress())
    assert images.pixels.sizes.tolist() == [[73, 109]]
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
