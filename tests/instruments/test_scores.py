"""Scores by hand, from answers that are known beforehand."""

import pytest
import torch

from lca.errors import LcaError
from lca.instruments.robustness import Damage, accuracy, score, sequence_scores
from lca.results.robustness import RobustnessScores


def test_accuracy_and_flips_by_hand():
    labels = torch.tensor([1, 2])
    answers = torch.tensor([[1, 1, 0, 1], [0, 2, 2, 2]])
    assert accuracy(answers[:, 1], labels) == 100
    assert accuracy(answers[:, 0], labels) == 50
    found = sequence_scores(answers, labels, noise=False)
    assert found["accuracy"] == pytest.approx(100 * 6 / 8)
    assert found["flips"] == pytest.approx(100 * 3 / 6)  # 1-0, 0-1 and 0-2
    assert found["flips_previous"] == found["flips"]
    noisy = sequence_scores(answers, labels, noise=True)
    assert noisy["flips"] == pytest.approx(100 * 4 / 6)  # 0; 2, 2, 2
    assert noisy["flips_previous"] == found["flips"]


def brightness(images):
    """Two classifiers: one answers with the brightness, in tens, the other one more."""
    answers = images.float().mean((1, 2, 3)).div(10).round().long()
    return torch.stack([answers, answers + 1], dim=1)


def flat(*levels):
    return torch.stack([torch.full((3, 4, 4), level, dtype=torch.uint8) for level in levels])


def test_a_whole_measurement_by_hand():
    images, labels, told = flat(10, 20, 30, 40), torch.tensor([1, 2, 3, 9]), []
    corrupted = {
        "fog": lambda severity: images + 10 * (torch.arange(4) < severity)[:, None, None, None].byte(),
        "snow": lambda severity: images,
    }
    perturbed = {
        "tilt": lambda numbers: torch.stack([images[numbers], images[numbers] + 10], dim=1),
        "gaussian_noise": lambda numbers: images[numbers][:, None].expand(-1, 3, -1, -1, -1),
    }
    options = {"severities": (1, 5), "at_once": 3, "advance": told.append}
    scores, other = score(brightness, images, labels, Damage(corrupted, perturbed), **options)
    assert scores.clean == 75
    assert scores.corrupted == {"fog": {1: 50.0, 5: 0.0}, "snow": {1: 75.0, 5: 75.0}}
    assert scores.perturbed["tilt"] == {"accuracy": 37.5, "flips": 100.0, "flips_previous": 100.0}
    assert scores.perturbed["gaussian_noise"] == {"accuracy": 75.0, "flips": 0.0, "flips_previous": 0.0}
    assert scores.accuracy_c == pytest.approx((25 + 75) / 2)
    assert scores.at_severity_5 == pytest.approx(37.5)
    assert scores.accuracy_p == pytest.approx((37.5 + 75) / 2)
    assert scores.flip_rate == scores.flip_rate_previous == 50
    assert scores.score == pytest.approx((50 + 56.25) / 2)
    assert told == [1] * 5 + [2, 3], "clean, two corruptions in two severities, two sequences by their frames"
    assert scores.by_corruption() == {"fog": 25.0, "snow": 75.0}
    assert RobustnessScores.from_json(scores.as_json()) == scores
    assert (other.clean, other.corrupted["fog"], other.perturbed["tilt"]["accuracy"]) == (0, {1: 0.0, 5: 0.0}, 0)


def perturbed(**flips):
    return RobustnessScores(
        80.0, 10, True, {}, {name: {"accuracy": 50.0, "flips": each} for name, each in flips.items()}
    )


def test_flips_of_another_model_are_the_unit():
    """Mean of the ratios, not ratio of the means; only what both were asked."""
    ours, theirs = perturbed(tilt=10.0, scale=30.0, snow=4.0), perturbed(tilt=40.0, scale=20.0, rotate=9.0)
    assert ours.flip_ratios(theirs) == {"tilt": 25.0, "scale": 150.0}
    assert ours.mean_flip_ratio(theirs) == pytest.approx(87.5)
    assert ours.mean_flip_ratio(ours) == 100
    assert ours.mean_flip_ratio(perturbed(rotate=3.0)) is None, "nothing in common"


def test_a_model_that_never_flips_is_no_unit():
    ours, theirs = perturbed(tilt=10.0, scale=30.0), perturbed(tilt=40.0, scale=0.0)
    assert ours.flip_ratios(theirs) == {"tilt": 25.0, "scale": None}
    assert ours.mean_flip_ratio(theirs) is None


def test_numbers_from_before_there_was_a_second_flip_rate_are_read():
    old = perturbed(tilt=10.0)
    assert RobustnessScores.from_json(old.as_json()) == old
    assert (old.flip_rate, old.flip_rate_previous) == (10, None)


def test_damaged_numbers_are_refused():
    """When they are read, not after a model was measured against them."""
    good = perturbed(tilt=10.0).as_json() | {"corrupted": {"fog": {"5": 50.0}}}
    RobustnessScores.from_json(good)
    for damage in (
        {"clean": "high"},
        {"corrupted": {"fog": {}}},
        {"corrupted": {"fog": {"5": None}}},
        {"perturbed": {"tilt": 3}},
        {"perturbed": {"tilt": {"accuracy": 50.0}}},
        {"perturbed": {"tilt": {"accuracy": 50.0, "flips": [1]}}},
    ):
        with pytest.raises(LcaError, match="this is another file"):
            RobustnessScores.from_json(good | damage)


def test_sequences_come_in_pieces_that_fit_into_memory(monkeypatch):
    monkeypatch.setattr("lca.instruments.robustness.AT_ONCE", 2 * 3 * 4 * 4 * 31)
    images, asked = flat(10, 20, 30, 40, 50), []

    def sequences(numbers):
        asked.append(numbers.tolist())
        return images[numbers][:, None].expand(-1, 2, -1, -1, -1)

    score(brightness, images, torch.arange(1, 6), Damage({}, {"tilt": sequences}))
    assert asked == [[0, 1], [2, 3], [4]]


def test_what_was_not_measured_is_not_a_number():
    scores = RobustnessScores(80.0, 10, True, {"fog": {1: 60.0}})
    assert scores.accuracy_c == 60
    assert (scores.accuracy_p, scores.flip_rate, scores.score, scores.at_severity_5) == (None, None, None, None)
