import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lca.errors import LcaError
from lca.merging.incremental import IncrementalMerge
from lca.merging.operators import Agree, Budget, MaxAbs, Mean, Slow, Sum, operators, trim

PREVIOUS = torch.tensor([1.0, 1.0, -2.0, 3.0])
CURRENT = torch.tensor([3.0, -4.0, -1.0, 0.0])

values = st.floats(-8, 8, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
vectors = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.lists(values, min_size=n, max_size=n), st.lists(values, min_size=n, max_size=n))
)


def merge(name, previous, current, count=1, keep=1.0):
    operator = operators[name](**({"keep": keep} if name == "ties" else {}))
    return operator(torch.as_tensor(previous), torch.as_tensor(current), count)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("agree", [2, 0, -1.5, 3]),
        ("budget", [1 + 0.2 * 15**0.5, 1 - 0.2 * 15**0.5, -2 + 0.1 * 15**0.5, 3]),  # 0.3 √15 of a step of length 1.5
        ("max_abs", [3, -4, -2, 3]),
        ("max", [3, 1, -1, 3]),
        ("min", [1, -4, -2, 0]),
        ("ties", [2, -4, -1.5, 3]),
        ("mean", [2, -1.5, -1.5, 1.5]),
        ("slow", [1.6, -0.5, -1.7, 2.1]),
        ("sum", [4, -3, -3, 3]),
        ("last", [3, -4, -1, 0]),
        ("first", [1, 1, -2, 3]),
    ],
)
def test_operator_on_an_example(name, expected):
    assert merge(name, PREVIOUS, CURRENT).tolist() == pytest.approx(expected)


def test_every_operator_has_an_example_above():
    assert set(operators) == {
        "agree",
        "max_abs",
        "max",
        "min",
        "ties",
        "mean",
        "slow",
        "sum",
        "last",
        "first",
        "budget",
    }


def test_max_abs_gives_ties_to_the_current_vector():
    assert merge("max_abs", [2.0, -2.0], [-2.0, 2.0]).tolist() == [-2, 2]


@pytest.mark.parametrize("name", sorted(set(operators) - {"sum"}))
@given(vector=st.lists(values, min_size=1, max_size=12), count=st.integers(1, 5))
def test_merging_a_vector_with_itself_changes_nothing(name, vector, count):
    assert merge(name, vector, vector, count=count).tolist() == pytest.approx(vector)


@given(pair=vectors)
def test_max_abs_takes_one_of_the_two_and_the_larger(pair):
    merged = merge("max_abs", *pair)
    for m, p, c in zip(merged.tolist(), *pair, strict=True):
        assert m in (p, c)
        assert abs(m) == max(abs(p), abs(c))


@given(pair=vectors)
def test_agree_is_zero_for_opposite_signs_and_between_the_two_otherwise(pair):
    merged = merge("agree", *pair)
    for m, p, c in zip(merged.tolist(), *pair, strict=True):
        if p * c < 0:
            assert m == 0
        elif p * c > 0:
            assert m == pytest.approx((p + c) / 2)
        else:
            assert m == p + c


@given(pair=vectors)
def test_agree_and_ties_are_symmetric(pair):
    for name in ("agree", "ties"):
        assert merge(name, *pair).tolist() == merge(name, *reversed(pair)).tolist()


@given(pair=vectors)
def test_ties_carries_the_sign_of_the_larger_mass(pair):
    merged = merge("ties", *pair)
    for m, p, c in zip(merged.tolist(), *pair, strict=True):
        assume(abs(p + c) > 1e-4 or p == -c)
        assert math.copysign(1, m) * (m != 0) == math.copysign(1, p + c) * (p + c != 0)
        if p * c < 0 and p != -c:
            assert m == max(p, c, key=abs)


def test_trimming_keeps_the_share_of_largest_magnitude():
    vector = torch.tensor([0.1, -5.0, 0.2, 4.0, -0.3])
    assert trim(vector, 0.4).tolist() == [0, -5, 0, 4, 0]
    assert trim(vector, 1.0).tolist() == vector.tolist()


def test_ties_trims_before_it_merges():
    previous, current = torch.tensor([1.0, 0.2, 0.1, 0.0]), torch.tensor([0.1, 0.2, 3.0, 2.0])
    assert merge("ties", previous, current, keep=0.5).tolist() == pytest.approx([1.0, 0.2, 3.0, 2.0])
    assert merge("ties", previous, current, keep=0.25).tolist() == pytest.approx([1.0, 0.0, 3.0, 0.0])


def test_trimming_never_keeps_nothing():
    assert trim(torch.tensor([0.5, 3.0]), 0.2).tolist() == [0, 3]


def test_sum_needs_tasks_that_start_from_the_base():
    Sum().check("base")
    for start in ("merged", "previous"):
        with pytest.raises(LcaError, match="init_from: base"):
            Sum().check(start)


def test_an_unknown_operator_suggests_the_nearest():
    with pytest.raises(LcaError, match="'max_abs'"):
        operators["maxabs"]


def parameters(seed):
    random = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(3, 2, generator=random), "b": torch.randn(4, generator=random)}


def run(operator, tasks):
    merged = IncrementalMerge.start(operator, parameters(0))
    for task in tasks:
        merged = merged.add(parameters(task))
    return merged


@pytest.mark.parametrize("name", list(operators))
def test_the_first_task_enters_unchanged(name):
    keep = {"keep": 0.3} if name == "ties" else {}
    merged = run(operators[name](**keep), [1]).parameters()
    for key, tensor in parameters(1).items():
        torch.testing.assert_close(merged[key], tensor)


def test_before_the_first_task_it_is_the_base():
    for key, tensor in run(Agree(), []).parameters().items():
        assert torch.equal(tensor, parameters(0)[key])


@given(tasks=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_the_running_mean_is_the_mean_of_all(tasks):
    merged = run(Mean(), tasks).parameters()
    for key, tensor in merged.items():
        torch.testing.assert_close(tensor, torch.stack([parameters(task)[key] for task in tasks]).mean(0))


def test_the_sum_adds_all_task_vectors_to_the_base():
    merged = run(Sum(), [1, 2, 3]).parameters()
    for key, tensor in merged.items():
        base = parameters(0)[key]
        torch.testing.assert_close(tensor, base + sum(parameters(task)[key] - base for task in (1, 2, 3)))


@given(tasks=st.lists(st.integers(1, 50), min_size=2, max_size=6), step=st.floats(0.05, 1))
def test_a_slow_merge_moves_by_a_share_of_what_is_left(tasks, step):
    """Over all tasks a moving average, in which the first task has weight (1 - step)^(T - 1)."""
    weights = [step * (1 - step) ** (len(tasks) - 1 - number) for number in range(len(tasks))]
    weights[0] = (1 - step) ** (len(tasks) - 1)
    merged = run(Slow(step=step), tasks).parameters()
    for key, tensor in merged.items():
        expected = sum(weight * parameters(task)[key] for weight, task in zip(weights, tasks, strict=True))
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)


def test_a_budget_starts_from_nothing_with_what_agrees():
    assert Budget()(torch.zeros(4), CURRENT, 1).tolist() == CURRENT.tolist()


@given(pair=vectors, budget=st.floats(0.05, 3))
def test_a_budget_is_the_longest_way_towards_what_agrees(pair, budget):
    previous, current = (torch.tensor(each) for each in pair)
    agreed, merged = Agree()(previous, current, 1), Budget(budget=budget)(previous, current, 1)
    way, length, most = agreed - previous, float((agreed - previous).norm()), budget * float(previous.norm())
    if most == 0 or length <= most:
        torch.testing.assert_close(merged, agreed)
    else:
        torch.testing.assert_close(merged, previous + way * most / length, rtol=1e-4, atol=1e-5)
        assert float((merged - previous).norm()) == pytest.approx(most, rel=1e-4)


def test_alpha_scales_the_vector_around_the_base():
    full, half = (run(Agree(alpha=alpha), [1, 2]).parameters() for alpha in (1.0, 0.5))
    for key, base in parameters(0).items():
        torch.testing.assert_close(half[key] - base, (full[key] - base) / 2)


def test_the_magnitude_of_max_abs_never_falls():
    merged, last = IncrementalMerge.start(MaxAbs(), parameters(0)), 0.0
    for task in range(1, 8):
        merged = merged.add(parameters(task))
        size = float(torch.cat([each.abs().flatten() for each in merged.vector.values()]).sum())
        assert size >= last
        last = size


def test_two_vectors_are_held_however_many_tasks():
    merged = run(Agree(), range(1, 9))
    held = [tensor for each in vars(merged).values() if isinstance(each, dict) for tensor in each.values()]
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == 2 * 4 * (3 * 2 + 4)
    assert merged.count == 8


def test_adding_leaves_what_was_there():
    merged = run(MaxAbs(), [1])
    kept = {key: tensor.clone() for key, tensor in merged.vector.items()}
    merged.add(parameters(2))
    assert all(torch.equal(merged.vector[key], kept[key]) for key in kept)


def test_nothing_tuned_merges_to_nothing():
    merged = IncrementalMerge.start(Agree(), {}).add({}).add({})
    assert merged.parameters() == {}
    assert merged.count == 2
