"""Two classifiers on three seeds, by hand."""

import math

import pytest

from lca.errors import LcaError
from lca.evaluation.intervals import student_interval, wilson_interval
from lca.report import comparison, ranking
from lca.report.comparison import differences
from lca.report.ranking import mean_ranks, places
from lca.results.classifiers import STUDENT, WILSON, classifiers
from lca.results.reading import Run, collect
from packs import made, packed

# After the first task 20 images are asked, after the second 40. Of `a` 18, 16, 20 are right, then 28, 26, 30.
A = {1: [[9, 9], [7, 7, 7, 7]], 2: [[8, 8], [6, 6, 7, 7]], 3: [[10, 10], [7, 7, 8, 8]]}
B = {1: [[9, 9], [5, 5, 7, 7]], 2: [[8, 8], [5, 5, 6, 6]], 3: [[9, 9], [6, 6, 6, 6]]}
T = 4.302652729911275
"""The 97.5 % point of Student's t with two degrees of freedom, from a table."""


def runs(**labels):
    return [
        Run(label, made({"default": rows}, seed=seed))
        for label, by_seed in labels.items()
        for seed, rows in by_seed.items()
    ]


@pytest.fixture
def pair():
    (rows,) = classifiers(runs(a=A, b=B)).values()
    return rows


def test_mean_deviation_and_interval_over_seeds(pair):
    a, b = pair
    assert a.values("last") == {1: 70.0, 2: 65.0, 3: 75.0}
    assert a.values("AA") == {1: 80.0, 2: 72.5, 3: 87.5}
    last = a.measured["last"]
    assert (last.mean, last.deviation) == (70.0, 5.0)
    half = T * 5.0 / math.sqrt(3)
    assert last.interval == pytest.approx((70 - half, 70 + half))
    assert last.kind == STUDENT
    assert b.values("last") == {1: 60.0, 2: 55.0, 3: 60.0}
    assert b.values("forgets") == {1: 40.0, 2: 30.0, 3: 30.0}


def test_differences_are_paired_by_seed(pair):
    a, b = pair
    found = differences(b, a)["last"]
    assert found.values == [-10.0, -10.0, -15.0]
    mean, deviation = -35 / 3, math.sqrt((2 * (5 / 3) ** 2 + (10 / 3) ** 2) / 2)
    half = T * deviation / math.sqrt(3)
    assert found.interval == pytest.approx((mean - half, mean + half))
    assert found.clear, "from -18.8 to -4.5"
    assert differences(a, b)["last"].mean == pytest.approx(-mean)
    forgets = differences(b, a)["forgets"]  # 40, 30, 30 minus 20, 20, 30
    assert forgets.values == [20.0, 10.0, 0.0]
    assert not differences(b, a)["forgets"].clear, "10 ± 24.8"


def test_only_shared_seeds_with_the_same_tasks_are_paired():
    others = {2: B[2], 3: B[3], 4: B[1]}
    (rows,) = classifiers(runs(a=A, b=others)).values()
    assert differences(rows[1], rows[0])["last"].values == [-10.0, -15.0]
    moved = Run("c", made({"default": B[1]}, seed=1, classes=["class 1", "class 0", "class 2", "class 3"]))
    (rows,) = classifiers([*runs(a=A), moved]).values()
    assert differences(rows[1], rows[0]) == {}, "another class order"


def test_one_seed_without_predictions_has_a_difference_and_no_interval():
    (rows,) = classifiers(runs(a={1: A[1]}, b={1: B[1]})).values()
    found = differences(rows[1], rows[0])["AA"]
    assert (found.values, found.interval) == ([-5.0], None)
    assert not found.clear
    assert rows[0].measured["last"].interval == wilson_interval(28, 40)
    assert rows[0].measured["last"].kind == WILSON
    assert rows[0].measured["AA"].interval is None


def test_ranks():
    assert mean_ranks([{"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 1.0, "b": 2.0, "c": 2.0}]) == {
        "a": 2.0,
        "b": 1.75,
        "c": 2.25,
    }
    assert mean_ranks([{"a": 1.0, "b": 2.0}, {"b": 2.0, "c": 3.0}]) == {"b": 1.0}, "what one block lacks has no rank"
    assert mean_ranks([]) == {}


def test_best_and_second_as_they_are_shown():
    def row(label, right):
        return Run(label, made({"default": [[right], [right, right]]}, sizes=(1, 1), images=10_000))

    (rows,) = classifiers([row("a", 7000), row("b", 7001), row("c", 6900), row("d", 6800)]).values()
    assert places(rows, "AA") == {"a": 1, "b": 1, "c": 2}, "70.00 and 70.01 are both shown as 70.0"
    assert set(places(rows, "forgets").values()) == {1}


def test_one_alone_is_not_the_best_of_anything(pair):
    assert places(pair[:1], "AA") == {}


def test_less_forgetting_is_better(pair):
    assert places(pair, "forgets") == {"a": 1, "b": 2}
    assert places(pair, "last") == {"a": 1, "b": 2}


def test_what_sees_all_data_is_never_the_best():
    joint = Run("joint", made({"default": [[10, 10], [10, 10, 10, 10]]}, method="joint"))
    (rows,) = classifiers([joint, *runs(a={1: A[1]}, b={1: B[1]})]).values()
    assert comparison.choose(rows, None).label == "a"
    assert comparison.choose(rows, "joint").label == "joint", "unless it is asked for"
    assert places(rows, "AA") == {"a": 1, "b": 2}
    assert ranking.mean_ranks(ranking.blocks_of(rows)) == {"a": 1.0, "b": 2.0}


def test_a_run_that_comes_twice_is_refused(tmp_path):
    pack = packed(tmp_path / "p.json", ("a", made({"default": A[1]})))
    with pytest.raises(LcaError, match="with seed 1 was given twice"):
        classifiers(collect([pack, pack]).runs)


def test_a_wrong_reference_names_the_nearest(pair):
    found = classifiers(runs(a={1: A[1]}, b={1: B[1]}), only=["[b-z]"])
    assert [row.label for row in found["digits"]] == ["b"]
    with pytest.raises(LcaError, match=r"no classifier 'bb'; .*b"):
        comparison.choose(pair, "bb")


def test_intervals_of_shares_end_at_0_and_100():
    assert student_interval([90.0, 99.0], 100.0)[1] == 100.0
    assert student_interval([1.0, 9.0], 100.0)[0] == 0.0
    rows = {1: [[10, 10], [10, 10, 10, 10]], 2: [[10, 10], [4, 4, 9, 9]]}
    ((row,),) = classifiers(runs(a=rows)).values()
    assert row.measured["last"].interval[1] == row.measured["AA"].interval[1] == 100.0
    assert row.measured["forgets"].interval[0] < 0, "which may be below zero"


def test_only_some_labels():
    found = classifiers(runs(a={1: A[1]}, b={1: B[1]}), only=["b"])
    assert [row.label for row in found["digits"]] == ["b"]
    with pytest.raises(LcaError, match=r"no classifier 'bb'; .*b"):
        classifiers(runs(a={1: A[1]}, b={1: B[1]}), only=["bb"])
