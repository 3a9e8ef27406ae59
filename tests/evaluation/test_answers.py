"""Evaluations by hand."""

import pytest

from lca.evaluation.answers import Answer, Evaluation

ANSWERS = [
    Answer("cat", "cat", 0.9, False),
    Answer("cat", "dog", 0.6, False),
    Answer("cat", "dog", 0.5, True, "cats/3.jpg", "cat"),
    Answer("dog", "dog", 0.8, False),
    Answer("dog", "owl", 0.4, False),
    Answer("fox", "dog", 0.7, True),
    Answer("elk", "cat", 0.9, False),
    Answer("elk", "owl", 0.3, True),
]


def test_all_of_it_by_hand():
    found = Evaluation(ANSWERS, ("dog", "cat", "owl")).as_json()
    low, high = found.pop("accuracy_interval_95")
    assert 0 < low < 40 < high < 100
    assert found == {
        "images": 5,
        "right": 2,
        "accuracy": 40.0,
        "mean_probability": pytest.approx(64, abs=1e-4),
        # bins of 1/15: 0.9 | 0.6 | 0.5 | 0.8 | 0.4, one answer each
        "calibration_error": pytest.approx(100 * (0.1 + 0.6 + 0.5 + 0.2 + 0.4) / 5, abs=1e-4),
        "called_unknown": 20.0,
        "ood": 3,
        "ood_called_unknown": pytest.approx(200 / 3),
        "unknown_detection": None,
        "by_class": {"dog": [1, 2], "cat": [1, 3]},
        "confusions": [["cat", "dog", 2], ["dog", "owl", 1]],
        "wrong": [
            {"path": None, "truth": "cat", "answer": "dog", "probability": 0.6, "unknown": False},
            {"path": "cats/3.jpg", "truth": "cat", "answer": "dog", "probability": 0.5, "unknown": True},
            {"path": None, "truth": "dog", "answer": "owl", "probability": 0.4, "unknown": False},
        ],
    }
    assert list(found["by_class"]) == ["dog", "cat"], "in the order they were learnt"


def test_only_ood_images_or_none_or_nothing():
    ood = Evaluation(ANSWERS[5:], ("dog",)).as_json()
    assert (ood["accuracy"], ood["calibration_error"], ood["called_unknown"]) == (None, None, None)
    known = Evaluation(ANSWERS[:2], ("cat", "dog")).as_json()
    assert (known["ood"], known["ood_called_unknown"]) == (0, None)
    assert Evaluation([], ("cat",)).as_json()["images"] == 0


def test_equal_confusions_are_in_alphabetical_order():
    wrong = [Answer("b", "a", 1.0, False), Answer("a", "b", 1.0, False), Answer("a", "c", 1.0, False)]
    assert Evaluation(wrong, ("c", "b", "a")).confusions() == [("a", "b", 1), ("a", "c", 1), ("b", "a", 1)]


def test_distances_tell_ood_images_from_known_ones():
    """Of the six pairs of a known and an OOD image the OOD one is farther in four, and as far in one."""
    told = [("dog", 10.0), ("cat", 60.0), ("wolf", 60.0), ("fox", 99.0), ("elk", 30.0)]
    found = Evaluation(
        [Answer(truth, "dog", 0.5, False, distance=far) for truth, far in told], ("dog", "cat")
    ).as_json()
    assert found["unknown_detection"]["auroc"] == pytest.approx(100 * 4.5 / 6)
    assert found["unknown_detection"].keys() == {"auroc", "fpr95_known_positive", "fpr95_ood_positive"}
    known = Evaluation([Answer("dog", "dog", 0.5, False, distance=10.0)], ("dog",))
    assert known.unknown_detection() is None, "there is nothing to tell it from"
