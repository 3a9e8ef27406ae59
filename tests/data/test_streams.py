import itertools
import unicodedata

import pytest
import torch

from lca.data.images import ClosedError
from lca.data.options import DataOptions
from lca.data.sources import Source
from lca.data.streams import Stream, class_order, task_sizes
from lca.data.views import ViewOptions
from lca.errors import LcaError

NAMES = tuple("abcdef")

REFERENCE = {
    (100, 1993): ([68, 56, 78, 8, 23, 84, 90, 65, 74, 76], [57, 33]),
    (100, 1994): ([72, 6, 33, 96, 60, 94, 29, 40, 45, 66], [34, 54]),
    (100, 1995): ([91, 18, 57, 73, 66, 71, 68, 61, 44, 54], [82, 36]),
    (200, 1993): ([168, 136, 51, 9, 183, 101, 171, 99, 42, 159], [185, 161]),
    (200, 1994): ([85, 41, 23, 28, 70, 87, 134, 151, 51, 159], [99, 182]),
    (200, 1995): ([146, 198, 169, 126, 142, 183, 108, 86, 79, 35], [166, 164]),
    (50, 1993): ([43, 41, 23, 14, 13, 40, 42, 22, 16, 45], [49, 33]),
    (50, 1994): ([19, 0, 33, 14, 23, 41, 7, 45, 8, 44], [34, 35]),
    (50, 1995): ([4, 39, 37, 8, 3, 21, 22, 48, 33, 10], [18, 36]),
}
"""First ten and last two classes of the literature's orders."""


@pytest.fixture
def source(make_images):
    train = make_images(NAMES, [10, 10, 10, 10, 5, 1], seed=1)
    return Source("tiny", train, make_images(NAMES, 2, seed=2), 3, ViewOptions())


def stream(source, seed=0, **options):
    return Stream(source, DataOptions(**options), seed)


def pictures(images):
    return [each.numpy().tobytes() for each in images.pixels.canvas]


@pytest.mark.parametrize(("count", "seed"), list(REFERENCE))
def test_the_class_order_is_the_literatures(count, seed):
    names = [f"{number:03}" for number in range(count)]
    order = [int(name) for name in class_order(names, DataOptions(), seed)]
    first, last = REFERENCE[count, seed]
    assert order[:10] == first
    assert order[-2:] == last
    assert sorted(order) == list(range(count))


def test_natural_order_and_a_seed_of_its_own():
    assert class_order("gfedcba", DataOptions(order="natural"), 5) == tuple("gfedcba")
    many = [str(number) for number in range(50)]
    assert class_order(many, DataOptions(order_seed=1994), 5) == class_order(many, DataOptions(), 1994)
    assert class_order(many, DataOptions(), 5) != class_order(many, DataOptions(), 1994)


def test_the_literatures_sizes_where_nothing_is_given(make_images):
    source = Source("tiny", make_images(NAMES, 2), make_images(NAMES, 1), 3, ViewOptions(), sizes=(1, 3, 2))
    assert [len(each) for each in stream(source).task_classes] == [1, 3, 2]
    assert [len(each) for each in stream(source, tasks=2).task_classes] == [3, 3]
    assert [len(each) for each in stream(source, base=5, increment=1).task_classes] == [5, 1]
    other = Source("tiny", make_images(NAMES, 2), make_images(NAMES, 1), 3, ViewOptions(), sizes=(1, 3))
    assert [len(each) for each in stream(other).task_classes] == [2, 2, 2], "a part of the data set"


def test_an_order_from_a_file(source, tmp_path):
    path = tmp_path / "order.txt"
    path.write_text("f\n a \n\nb\ne\nd\nc\n", encoding="utf-8")
    made = stream(source, order="file", order_file=path)
    assert made.classes == tuple("fabedc")
    for text, message in (
        ("f\na\nb", "leaves out 3 of 6 classes: c, d, e"),
        ("f\na\nb\ne\nd\nc\nf", "more than once: f"),
        ("f\na\nb\ne\nd\nx", "names 'x', which is no class"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(LcaError, match=message):
            stream(source, order="file", order_file=path)
    with pytest.raises(LcaError, match="cannot be read"):
        stream(source, order="file", order_file=tmp_path / "none.txt")
    for wrong in ({"order": "file"}, {"order_file": path}):
        with pytest.raises(ValueError, match="go together"):
            DataOptions(**wrong)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_an_order_file_from_another_system(make_images, tmp_path, monkeypatch, encoding):
    """macOS writes accents apart, Windows begins with a mark; `~` is the home folder."""
    names = ("Zoë", "Äpfel", "c")
    source = Source("tiny", make_images(names, 2), make_images(names, 1), 2, ViewOptions())
    (tmp_path / "order.txt").write_text(unicodedata.normalize("NFD", "Äpfel\nc\nZoë\n"), encoding=encoding)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stream(source, order="file", order_file="~/order.txt").classes == ("Äpfel", "c", "Zoë")


def test_domains_that_no_name_has(make_images):
    names = ("001.Black_a", "002.Laysan_b", "003.c")
    source = Source("tiny", make_images(names, 2), make_images(names, 1), 2, ViewOptions())
    with pytest.raises(LcaError, match=r"data\.order=domains: no two of the 3 classes have a domain in common"):
        stream(source, order="domains")


@pytest.mark.parametrize("options", [{"returning": 0.5, "train_limit": 1}, {"returning": 0.05}])
def test_no_class_can_come_back(source, options):
    with pytest.raises(LcaError, match=f"data.returning={options['returning']} brings no class back"):
        stream(source, **options)


def test_domain_by_domain(make_images):
    names = ("pet-a", "air_b", "pet-c", "sea-d_e", "air-f", "sea-g", "pet-h")
    source = Source("tiny", make_images(names, 2), make_images(names, 1), 2, ViewOptions())
    orders = {stream(source, seed, order="domains").classes for seed in range(20)}
    assert len(orders) > 5
    for order in orders:
        domains = [name[:3] for name in order]
        assert len([1 for one, two in itertools.pairwise(domains) if one != two]) == 2, "each in one piece"
    made = stream(source, 0, order="domains")
    assert [{name[:3] for name in classes} for classes in made.task_classes] == [
        {made.classes[0][:3]},
        {made.task_classes[1][0][:3]},
        {made.classes[-1][:3]},
    ]
    assert len(stream(source, 0, order="domains", tasks=7)) == 7


def test_a_long_tail(make_images):
    source = Source("tiny", make_images(NAMES, 20), make_images(NAMES, 1), 3, ViewOptions())
    made = stream(source, long_tail=16.0)
    assert sorted(made.train_counts(), reverse=True) == [round(20 * 16 ** (-rank / 5)) for rank in range(6)]
    assert made.train_counts() != stream(source, seed=1, long_tail=16.0).train_counts()
    assert sorted(stream(source, long_tail=1e9).train_counts())[:4] == [1, 1, 1, 1]
    assert max(stream(source, long_tail=16.0, train_limit=7).train_counts()) == 7
    assert stream(source, long_tail=1.0).train_counts() == [20] * 6


def test_classes_come_back_with_images_of_their_own(source):
    made = stream(source, returning=0.5)
    plain = stream(source)
    seen, known = [], set()
    for index in range(len(made)):
        with made.open(index) as task, plain.open(index) as usual:
            assert task.classes[: len(usual.classes)] == usual.classes
            back = task.classes[len(usual.classes) :]
            assert set(back) <= known
            assert len(back) <= round(0.5 * len(known))
            assert len(task.train) > 0
            assert set(task.train.labels.tolist()) == set(range(len(task.classes)))
            seen += [(name, picture) for name in task.classes for picture in pictures(task.train.of_classes([name]))]
            known |= set(usual.classes)
    everything = [(n, picture) for n in source.classes for picture in pictures(source.train.of_classes([n]))]
    assert sorted(seen) == sorted(everything), "every image in one task"
    with made.open(2) as task:
        assert len(task.classes) > 2
    assert [len(each) for each in made.task_classes] == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "count", "expected"),
    [
        ({}, 10, [2, 2, 2, 2, 2]),
        ({"tasks": 3}, 10, [4, 3, 3]),
        ({"tasks": [1, 2, 7]}, 10, [1, 2, 7]),
        ({"tasks": 1}, 10, [10]),
        ({"base": 4, "increment": 2}, 10, [4, 2, 2, 2]),
        ({"base": 16, "increment": 20}, 196, [16] + [20] * 9),
        ({"base": 4, "increment": 4}, 10, [4, 4, 2]),
        ({"base": 10, "increment": 3}, 10, [10]),
    ],
)
def test_task_sizes(options, count, expected):
    assert task_sizes(range(count), DataOptions(**options), default_tasks=5) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": [3, 3]}, "hold 6 classes, the source has 10"),
        ({"tasks": 11}, "data.tasks is 11, but there are only 10 classes"),
        ({"base": 11, "increment": 1}, "data.base is 11"),
    ],
)
def test_task_sizes_that_do_not_fit(options, message):
    with pytest.raises(LcaError, match=message):
        task_sizes(range(10), DataOptions(**options), default_tasks=5)


def test_tasks_hold_their_classes_images(source):
    made = stream(source, seed=1993)
    assert made.classes == class_order(NAMES, DataOptions(), 1993)
    assert len(made) == 3
    seen = []
    for index in range(3):
        with made.open(index) as task:
            assert (task.index, task.classes) == (index, made.task_classes[index])
            assert task.train.classes == task.classes
            assert task.validation is None
            assert pictures(task.train) == pictures(source.train.of_classes(task.classes))
            seen += task.classes
    assert tuple(seen) == made.classes


def test_reading_after_close_is_refused(source):
    made = stream(source, validation=0.3)
    with made.open(0) as task:
        assert len(task.train) > 0
        pixels = task.train
    for read in (lambda: task.train.pixels, lambda: pixels.labels, lambda: task.validation.pixels):
        with pytest.raises(ClosedError, match="a method may read the current task only"):
            read()
    with made.open(0) as task:  # an evaluator's second look is another context
        assert len(task.train) > 0


def test_a_task_is_closed_also_after_an_error(source):
    made = stream(source)

    def fail():
        with made.open(0) as task:
            kept.append(task)
            raise RuntimeError("broken")

    kept = []
    with pytest.raises(RuntimeError, match="broken"):
        fail()
    with pytest.raises(ClosedError):
        kept[0].train.pixels  # noqa: B018
    with made.open(1):
        pass


def test_only_one_task_is_open(source):
    made = stream(source)
    with made.open(1), pytest.raises(RuntimeError, match="task 1 is still open"), made.open(2):
        pass
    with made.everything() as task, pytest.raises(RuntimeError, match="still open"), made.open(0):
        assert len(task.train) == 46


def test_everything_is_one_task(source):
    with stream(source).everything() as task:
        assert task.classes == stream(source).classes
        assert len(task.train) == len(source.train)


def test_the_test_images_of_the_tasks_so_far(source):
    made = stream(source, seed=4)
    assert [len(made.test(upto)) for upto in range(3)] == [4, 8, 12]
    assert made.test(1).classes == made.classes[:4]
    assert made.test(1).labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pictures(made.test(2)) == pictures(source.test.of_classes(made.classes))


def test_validation_images_are_never_trained_on(source):
    made = stream(source, seed=4, validation=0.3)
    for index in range(len(made)):
        with made.open(index) as task:
            train, held_out = set(pictures(task.train)), set(pictures(task.validation))
            assert not train & held_out
            assert train | held_out == set(pictures(source.train.of_classes(task.classes)))
            for name in task.classes:
                size = len(source.train.of_classes([name]))
                expected = {10: 3, 5: 2, 1: 0}[size]  # round(0.3 * size), but a class keeps its only image
                assert len(task.validation.of_classes([name])) == expected


def test_evaluation_on_validation_images(source):
    made = stream(source, seed=4, validation=0.3, evaluate="validation")
    evaluated, tests = set(pictures(made.test(2))), set(pictures(source.test))
    assert not evaluated & tests
    assert len(evaluated) == 4 * 3 + 2
    trained = set()
    for index in range(3):
        with made.open(index) as task:
            trained |= set(pictures(task.train))
    assert not trained & evaluated


def test_the_validation_share_depends_on_the_seed(source):
    one, again, other = (stream(source, seed, validation=0.3, order="natural") for seed in (1, 1, 2))

    def held_out(made):
        with made.open(0) as task:
            return pictures(task.validation)

    assert held_out(one) == held_out(again) != held_out(other)


def test_the_train_limit(source):
    made = stream(source, seed=4, train_limit=4, order="natural")
    with made.everything() as task:
        assert torch.bincount(task.train.labels).tolist() == [4, 4, 4, 4, 4, 1]
        chosen = pictures(task.train)
    assert set(chosen) < set(pictures(source.train))
    with stream(source, seed=5, train_limit=4, order="natural").everything() as task:
        assert pictures(task.train) != chosen
