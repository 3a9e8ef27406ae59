"""Contract 7 over every method: all figures follow from the predictions and the counts."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score, roc_curve

import tiny
from lca.files import read_json
from lca.methods import methods
from lca.runs.experiment import run


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.mark.parametrize("name", list(methods))
def test_figures_follow_from_the_predictions(tmp_path, name):
    run(tiny.recipe(method=tiny.method_section(name), ood=True, forward_transfer=True), tmp_path / "run")
    results = read_json(tmp_path / "run" / "results.json")
    predictions = load_file(tmp_path / "run" / "predictions.safetensors")
    labels, sizes = predictions.pop("labels"), results["data"]["task_sizes"]
    ends = np.cumsum(sizes)
    starts = ends - sizes
    assert len(results["data"]["class_order"]) == ends[-1] == 10
    assert np.bincount(labels).tolist() == results["data"]["test_images"]
    used = {f"{task}/{what}" for task in range(len(sizes) - 1) for what in NEXT}
    for branch, found in results["branches"].items():
        matrix, weighted, within, errors, detected = [], [], [], [], []
        for task, end in enumerate(ends):
            seen = labels[labels < end]
            prediction = predictions[f"{task}/{branch}/prediction"]
            confidence = predictions[f"{task}/{branch}/confidence"]
            used |= {f"{task}/{branch}/{what}" for what in STORED}
            assert_answers(prediction, confidence, len(seen), end)
            unknown = predictions.get(f"{task}/{branch}/unknown")
            assert unknown is None or (unknown.shape == seen.shape and np.isfinite(unknown).all())
            known = predictions[f"{task}/{branch}/prediction within task"]
            assert_within_tasks(known, prediction, seen, ends)
            within.append(100 * accuracy_score(seen, known))
            errors.append(calibration_error(confidence, prediction == seen))
            ood = predictions.get(f"{task}/{branch}/ood")
            assert (ood is None) == (unknown is None or task == len(sizes) - 1)
            if ood is not None:
                assert len(ood) == (labels >= end).sum()
                detected.append(detection(unknown, ood))
            right = [int((prediction[seen == label] == label).sum()) for label in range(end)]
            assert found["correct"][task] == right
            weighted.append(100 * accuracy_score(seen, prediction))
            of_task = [(seen >= start) & (seen < stop) for start, stop in zip(starts, ends[: task + 1], strict=False)]
            matrix.append([100 * accuracy_score(seen[rows], prediction[rows]) for rows in of_task])
        metrics = found["metrics"]
        assert_accuracies(metrics, weighted, matrix)
        assert metrics["task_known"]["after_each_task"]["sample_weighted"] == pytest.approx(within)
        assert metrics["calibration"]["after_each_task"] == pytest.approx(errors, abs=1e-4)
        assert_reliability(metrics["calibration"]["reliability"], len(labels), weighted[-1])
        if detected:
            area, known_first, ood_first = np.mean(detected, axis=0)
            assert metrics["unknown_detection"]["auroc"] == pytest.approx(area)
            assert metrics["unknown_detection"]["fpr95_known_positive"] == pytest.approx(known_first)
            assert metrics["unknown_detection"]["fpr95_ood_positive"] == pytest.approx(ood_first)
        else:
            assert metrics["unknown_detection"] is None
        if methods[name].info.needs_all_data:
            assert metrics["forward_transfer"] is None
        else:
            gains = [forward_gain(predictions, labels, task, starts, ends) for task in range(1, len(sizes))]
            assert metrics["forward_transfer"]["mean"] == pytest.approx(np.mean([g for g in gains if g is not None]))
        assert_confusions(metrics["most_confused"], labels, prediction, results["data"]["class_order"])
    assert set(predictions) <= used


def assert_answers(prediction, confidence, images, classes):
    assert prediction.shape == confidence.shape == (images,)
    assert prediction.max() < classes
    assert ((1 / classes - 1e-6 <= confidence) & (confidence <= 1 + 1e-6)).all()


def assert_within_tasks(known, prediction, seen, ends):
    task, answered, of_image = (np.searchsorted(ends, each, "right") for each in (known, prediction, seen))
    assert (task == of_image).all()
    assert (known == prediction)[task == answered].all()


def assert_accuracies(metrics, weighted, matrix):
    task_mean, tasks = [np.mean(row) for row in matrix], len(matrix)
    for kind, values in (("sample_weighted", weighted), ("task_mean", task_mean)):
        assert metrics["after_each_task"][kind] == pytest.approx(values)
        assert metrics["average_accuracy"][kind] == pytest.approx(np.mean(values))
        assert metrics["last_accuracy"][kind] == pytest.approx(values[-1])
    drops = [max(row[task] for row in matrix[task:]) - matrix[-1][task] for task in range(tasks - 1)]
    assert metrics["forgetting"] == pytest.approx(np.mean(drops))
    assert metrics["matrix"] == [pytest.approx(row) for row in matrix]
    learnt = [row[-1] for row in matrix]
    assert metrics["learning_accuracy"] == pytest.approx(np.mean(learnt))
    changes = [last - first for first, last in zip(learnt[:-1], matrix[-1], strict=False)]
    assert metrics["backward_transfer"] == pytest.approx(np.mean(changes))


def assert_reliability(reliability, images, accuracy):
    assert sum(each["images"] for each in reliability) == images
    hits = sum(each["images"] * each["accuracy"] for each in reliability if each["images"]) / images
    assert hits == pytest.approx(accuracy)


def assert_confusions(most_confused, labels, prediction, order):
    wrong = confusion_matrix(labels, prediction, labels=range(len(order)))
    np.fill_diagonal(wrong, 0)
    for truth, answer, times in most_confused:
        assert wrong[order.index(truth), order.index(answer)] == times
    assert [times for *_, times in most_confused] == sorted(wrong[wrong > 0], reverse=True)[:10]


STORED = ("prediction", "confidence", "unknown", "prediction within task", "ood")
NEXT = ("next task", "next task, pretrained")


def forward_gain(predictions, labels, task, starts, ends):
    """What the features had gained for a task before it was learnt; None for one class."""
    own = labels[(labels >= starts[task]) & (labels < ends[task])] - starts[task]
    now, before = (100 * accuracy_score(own, predictions[f"{task - 1}/{name}"]) for name in NEXT)
    return now - before if ends[task] - starts[task] > 1 else None


def calibration_error(confidence, right, bins=15):
    inside = np.digitize(confidence.astype(np.float64), np.linspace(0, 1, bins + 1), right=True)
    gaps = [
        abs((right[inside == place] - confidence[inside == place].astype(np.float64)).sum())
        for place in range(bins + 2)
    ]
    return 100 * sum(gaps) / len(confidence)


def detection(unknown, ood):
    """AUROC, and the false positive rates at 95 % true ones with known images and with OOD images as positives."""
    truth, scores = np.repeat([0, 1], [len(unknown), len(ood)]), np.concatenate([unknown, ood])
    rates = [roc_curve(*each, drop_intermediate=False)[:2] for each in ((1 - truth, -scores), (truth, scores))]
    return [100 * roc_auc_score(truth, scores), *(100 * false[(true >= 0.95).argmax()] for false, true in rates)]
