"""Sources whose images have a domain, and the streams in which classes come back in them."""

import pytest
import torch
from PIL import Image

from lca.data.options import DataOptions
from lca.data.sources import Domains, Source, load_source
from lca.data.streams import Stream
from lca.data.styles import STYLES
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.progress import LineProgress, Progress

PLACES = {"ink/cat": 6, "ink/dog": 6, "oil/cat": 6, "oil/dog": 6, "oil/owl": 6, "wax/dog": 6}


def fill(root, places, start=0):
    for number, (place, count) in enumerate(places.items(), start):
        (root / place).mkdir(parents=True)
        for image in range(count):
            Image.new("RGB", (6, 5), (number, image, 0)).save(root / place / f"{image}.png")


def read(root, progress=None, **options):
    return load_source(DataOptions(source=f"domains:{root}", **options), 0, 64, progress or Progress())


def stream(source, seed=0, **options):
    return Stream(source, DataOptions(order="domains", **options), seed)


def places(images):
    """The place of every image, as `fill` painted it."""
    return [[*PLACES][number] for number in images.pixels.canvas[:, 0, 0, 0].tolist()]


@pytest.fixture
def photos(tmp_path):
    fill(tmp_path, PLACES)
    return tmp_path


def test_a_folder_of_domains(photos):
    source = read(photos)
    assert source.classes == ("cat", "dog", "owl")
    assert source.domains.names == ("ink", "oil", "wax")
    for images, numbers, count in ((source.train, source.domains.train, 5), (source.test, source.domains.test, 1)):
        pairs = zip(numbers.tolist(), images.labels.tolist(), strict=True)
        assert places(images) == [f"{source.domains.names[domain]}/{source.classes[label]}" for domain, label in pairs]
        assert [places(images).count(place) for place in PLACES] == [count] * 6
    assert read(photos, split_seed=1).fingerprint != source.fingerprint == read(photos).fingerprint


def test_parts_for_training_and_for_tests(tmp_path):
    fill(tmp_path / "train", PLACES)
    fill(tmp_path / "test", {place: 2 for place in PLACES if place != "oil/cat"}, 100)
    source = read(tmp_path)
    assert (len(source.train), len(source.test)) == (36, 10)
    assert source.domains.test.tolist() == [0] * 4 + [1] * 4 + [2] * 2


def test_the_fingerprint_tells_domains_apart(photos):
    source = read(photos)
    other = Domains(source.domains.names, source.domains.train.flip(0), source.domains.test)
    assert Source(**{**vars(source), "domains": other}).fingerprint != source.fingerprint


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"ink/cat": 2, "oil/dog": 2}, "2 domains and 2 classes, none of which comes in two domains"),
        ({"ink/cat": 2, "oil/cat": 2}, "the class 'cat' only"),
        ({"cat": 2}, "holds 2 images and no class folders"),
        ({"ink/cat": 1, "ink/dog": 1, "oil/dog": 1}, "nothing to test on"),
    ],
)
def test_folders_that_are_no_domains(tmp_path, made, message):
    fill(tmp_path, made)
    with pytest.raises(LcaError, match=message):
        read(tmp_path)


def test_what_is_no_folder_or_lies_beside(photos, capsys):
    with pytest.raises(LcaError, match=r"data\.source domains:PATH needs a folder with one folder per domain"):
        read(photos / "none")
    Image.new("RGB", (6, 5)).save(photos / "loose.png")
    read(photos, LineProgress())
    assert "loose.png lies beside the domains" in capsys.readouterr().err


def test_a_class_without_training_images(tmp_path):
    fill(tmp_path / "train", PLACES)
    fill(tmp_path / "test", {**PLACES, "ink/elk": 1})
    with pytest.raises(LcaError, match=r"no training images of the classes \['elk'\]"):
        read(tmp_path)


def test_a_task_is_a_domain_and_classes_come_back(photos):
    source = read(photos)
    made = stream(source, 2, order_seed=3)
    assert sorted(made.domains) == ["ink", "oil", "wax"]
    assert len({stream(source, seed).domains for seed in range(10)}) > 2
    assert stream(source, 5, order_seed=3).domains == made.domains
    known = []
    for task, domain in enumerate(made.domains):
        expected = {place.split("/")[1] for place in PLACES if place.startswith(domain)}
        with made.open(task) as opened:
            assert set(opened.classes) == expected
            wanted = [f"{domain}/{name}" for name in opened.classes for _ in range(5)]
            assert places(opened.train) == wanted
            assert opened.train.labels.tolist() == [n for n in range(len(expected)) for _ in range(5)]
        known += [name for name in made.classes if name in expected - {*known}]
        assert made.test_of(task).labels.tolist() == [
            made.classes.index(name) for name in made.classes if name in expected
        ]
        seen = made.test(task)
        assert list(seen.classes) == known
        assert [place.split("/")[1] for place in places(seen)] == [seen.classes[label] for label in seen.labels]
        assert [place.split("/")[0] for place in places(seen)] == [
            each for each in made.domains[: task + 1] for place in PLACES if place.startswith(each)
        ]
    assert made.classes == tuple(known)
    assert made.train_counts() == [{"cat": 10, "dog": 15, "owl": 5}[name] for name in made.classes]
    expected = [int(f"{domain}/{name}" in PLACES) for domain in made.domains for name in made.classes]
    assert made.test_counts() == expected
    with made.everything() as task:
        assert task.classes == made.classes
        assert sorted(places(task.train)) == sorted(place for place in PLACES for _ in range(5))
        assert [place.split("/")[1] for place in places(task.train)] == [task.classes[n] for n in task.train.labels]


def test_limits_and_held_out_shares_are_of_the_classes_of_every_domain(photos):
    made = stream(read(photos), train_limit=4, validation=0.5, evaluate="validation")
    assert sum(made.train_counts()) == 2 * 6
    assert sorted(places(made.test(2))) == sorted(place for place in PLACES for _ in range(2))
    with made.open(0) as task:
        assert len(task.validation) == len(task.train)
        assert {place.split("/")[0] for place in places(task.validation)} == {made.domains[0]}


def test_domains_are_nothing_to_other_orders(photos):
    made = Stream(read(photos), DataOptions(tasks=3), 0)
    assert made.domains == ()
    assert [len(classes) for classes in made.task_classes] == [1, 1, 1]
    assert sorted(made.train_counts()) == [5, 10, 15]


@pytest.mark.parametrize("option", [{"tasks": 2}, {"base": 1, "increment": 1}, {"returning": 0.5}])
def test_a_domain_cannot_be_cut(photos, option):
    with pytest.raises(LcaError, match="a task is one of the 3 domains"):
        stream(read(photos), **option)


def test_what_nobody_taught_is_not_asked(tmp_path):
    fill(tmp_path / "train", PLACES)
    fill(tmp_path / "test", {"ink/owl": 1, "ink/dog": 1, "oil/owl": 1}, 100)
    source, taught = read(tmp_path), read(tmp_path / "train")
    orders = [stream(taught, seed).domains for seed in range(20)]
    assert len(set(orders)) == 6
    for seed, order in enumerate(orders):
        if order.index("oil") < order.index("ink"):
            assert stream(source, seed).domains == order, "oil has taught owls before ink asks about one"
            continue
        with pytest.raises(
            LcaError, match="the domain 'ink' has images of 'owl' to evaluate on, but of the domains up"
        ):
            stream(source, seed)


def test_a_domain_without_training_images(tmp_path):
    fill(tmp_path / "train", {place: count for place, count in PLACES.items() if "ink" not in place})
    fill(tmp_path / "test", PLACES)
    with pytest.raises(LcaError, match="the domain 'ink' has no training images"):
        stream(read(tmp_path))


def test_flat_folders_hear_of_domains(make_images):
    source = Source("tiny", make_images(("a", "b"), 2), make_images(("a", "b"), 1), 2, ViewOptions())
    with pytest.raises(LcaError, match=r"use data\.source=domains:PATH"):
        stream(source)


# styles


def styled(argument="digits", **options):
    return load_source(DataOptions(source=f"styles:{argument}", **options), 0, 16, Progress())


def test_styles_divide_the_images_of_a_source():
    plain, source = load_source(DataOptions(), 0, 16, Progress()), styled()
    assert (source.name, source.classes, source.view) == ("styles:digits", plain.classes, plain.view)
    assert source.domains.names == tuple(STYLES)
    for before, after, numbers in (
        (plain.train, source.train, source.domains.train),
        (plain.test, source.test, source.domains.test),
    ):
        assert torch.equal(before.labels, after.labels)
        for row in range(0, len(before), 97):
            changed = [*STYLES.values()][numbers[row]](before.image(row))
            assert torch.equal(after.image(row), changed)
        counts = [torch.bincount(numbers[before.labels == label], minlength=5) for label in range(10)]
        assert all(each.max() - each.min() <= 1 for each in counts)
    assert torch.equal(styled().domains.train, source.domains.train)
    assert not torch.equal(styled(split_seed=1).domains.train, source.domains.train)
    assert len(stream(source)) == 5


def test_styles_of_images_of_many_sizes(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(12):
            Image.new("RGB", (8 + number % 4, 12 - number % 3), (200, 10, number)).save(
                tmp_path / name / f"{number}.png"
            )
    source = styled(f"folder:{tmp_path}")
    assert len({tuple(size) for size in source.train.sizes.tolist()}) > 5
    negative = torch.nonzero(source.domains.train == [*STYLES].index("negative"))[0, 0]
    assert source.train.image(int(negative))[:2, 0, 0].tolist() == [55, 245]


def test_every_style_by_hand():
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    image[0, :, 4:] = 200  # red on the right
    found = {name: style(image) for name, style in STYLES.items()}
    assert all(each.dtype == torch.uint8 and each.shape == image.shape for each in found.values())
    assert torch.equal(found["clear"], image)
    assert torch.equal(found["negative"], 255 - image)
    assert found["turned"][:, 0, 7].tolist() == [0, 200, 0], "red becomes green"
    lines = found["sketch"]
    assert torch.equal(lines[0], lines[2])
    assert lines[0, 3].tolist() == [255, 255, 255, 135, 135, 255, 255, 255], "4 · 0.299 · 200 / 2 darker at the edge"
    assert found["far"][0, 3, 0] == 0
    assert 0 < found["far"][0, 3, 3] < found["far"][0, 3, 4] < 200
    assert found["far"][0, 3, 7] == 200


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "needs another source"),
        ("nothing", "unknown data source 'nothing'"),
        ("styles:digits", "have domains already"),
    ],
)
def test_styles_of_what_has_none(argument, message):
    with pytest.raises(LcaError, match=message):
        styled(argument)
