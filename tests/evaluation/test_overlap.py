"""The overlap of margins: by hand, by trying all thresholds, and for Gaussians in closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lca.evaluation.overlap import by_task, overlaps
from lca.progress import Progress


def of(one, two):
    """The overlap of two classes whose images have these margins."""
    margins = torch.tensor([*one, *two], dtype=torch.float32)
    labels = torch.tensor([0] * len(one) + [1] * len(two))
    best, _ = overlaps(torch.stack([margins, torch.zeros_like(margins)], dim=1), labels, Progress(), "test")
    assert best[0, 1] == pytest.approx(float(best[1, 0]))
    return float(best[0, 1])


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ([2, 3], [0, 1], 0),
        ([0, 1], [2, 3], 1),  # the wrong way round: the best threshold calls everything i
        ([1, 3], [0, 2], 0.5),  # at t = 0 or 2 one of two is wrong
        ([1, 3, 5, 7], [0, 2], 0.25),  # at t = 2 one of four
        ([1, 1], [1, 1], 1),
        ([5], [4, 4, 4, 6], 0.25),
    ],
)
def test_overlap_by_hand(one, two, expected):
    assert of(one, two) == pytest.approx(expected)


margins = st.lists(st.integers(-4, 4) | st.floats(-5, 5, width=32), min_size=1, max_size=12)


@given(one=margins, two=margins)
def test_no_threshold_is_better(one, two):
    def errors(threshold):
        wrong = sum(each <= threshold for each in one) / len(one)
        return wrong + sum(each > threshold for each in two) / len(two)

    thresholds = [min(one + two) - 1, *one, *two]
    assert of(one, two) == pytest.approx(min(map(errors, thresholds)), abs=1e-9)
    assert of(one, two) <= errors(0) + 1e-9


def test_of_two_gaussians_it_is_the_common_area():
    """N(1, 1) and N(-1, 1): the densities cross at 0, 2 Φ(-1)."""
    draws = torch.Generator().manual_seed(0)
    one, two = (torch.randn(200_000, generator=draws) + mean for mean in (1, -1))
    assert of(one.tolist(), two.tolist()) == pytest.approx(1 + math.erf(-1 / math.sqrt(2)), abs=0.005)


def test_all_pairs_of_classes():
    """Pair by pair from the definition, with a class without images and classes of several sizes."""
    draws = torch.Generator().manual_seed(1)
    labels = torch.tensor([0] * 5 + [1] * 8 + [3] * 6)
    logits = torch.randn(19, 4, generator=draws) + torch.nn.functional.one_hot(labels, 4)
    best, answered = overlaps(logits, labels, Progress(), "test")
    for i, j in ((0, 1), (0, 3), (1, 3)):
        one, two = ((logits[labels == k, i] - logits[labels == k, j]).double() for k in (i, j))
        assert best[[i, j], [j, i]].tolist() == pytest.approx([of(one.tolist(), two.tolist())] * 2)
        wrong = float((one <= 0).double().mean() + (two >= 0).double().mean())
        assert answered[i, j] == answered[j, i] == pytest.approx(wrong)
        assert best[i, j] <= answered[i, j] + 1e-9
    for found in (best, answered):
        assert found[2].isnan().all()
        assert found[:, 2].isnan().all()
        assert found.diagonal().isnan().all()


def test_a_shifted_head_is_seen_as_answered_only():
    """Two classes that their margin tells apart, but the second head says more of everything."""
    labels = torch.tensor([0, 0, 1, 1])
    logits = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    plain, shifted = (overlaps(logits + torch.tensor([0.0, by]), labels, Progress(), "test") for by in (0.0, 2.5))
    assert (plain[0][0, 1], plain[1][0, 1]) == (0, 0)
    assert (shifted[0][0, 1], shifted[1][0, 1]) == (0, 0.5)


def test_means_over_pairs_of_one_task_and_of_several():
    nan = torch.nan
    values = torch.tensor([[nan, 0.1, 0.2, nan], [0.1, nan, 0.4, nan], [0.2, 0.4, nan, nan], [nan] * 4])
    assert by_task(values, [0, 0, 1, 1]) == {
        "within_tasks": pytest.approx(0.1),
        "between_tasks": pytest.approx(0.3),
    }
    assert by_task(values[:2, :2], [0, 0])["between_tasks"] is None
