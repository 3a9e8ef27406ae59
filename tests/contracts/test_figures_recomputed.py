"""Contract 7 over every method: all figures follow from the predictions and the counts."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score

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
    run(tiny.recipe(method=tiny.method_section(name)), tmp_path / "run")
    results = read_json(tmp_path / "run" / "results.json")
    predictions = load_file(tmp_path / "run" / "predictions.safetensors")
    labels, sizes = predictions.pop("labels"), results["data"]["task_sizes"]
    ends = np.cumsum(sizes)
    starts = ends - sizes
    assert len(results["data"]["class_order"]) == ends[-1] == 10
    assert np.bincount(labels).tolist() == results["data"]["test_images"]
    used = set()
    for branch, found in results["branches"].items():
        matrix, weighted = [], []
        for task, end in enumerate(ends):
            seen = labels[labels < end]
            prediction = predictions[f"{task}/{branch}/prediction"]
            confidence = predictions[f"{task}/{branch}/confidence"]
            used |= {f"{task}/{branch}/{what}" for what in ("prediction", "confidence", "unknown")}
            assert prediction.shape == confidence.shape == seen.shape
            assert prediction.max() < end
            assert ((1 / end - 1e-6 <= confidence) & (confidence <= 1 + 1e-6)).all()
            unknown = predictions.get(f"{task}/{branch}/unknown")
            assert unknown is None or (unknown.shape == seen.shape and np.isfinite(unknown).all())
            right = [int((prediction[seen == label] == label).sum()) for label in range(end)]
            assert found["correct"][task] == right
            weighted.append(100 * accuracy_score(seen, prediction))
            of_task = [(seen >= start) & (seen < stop) for start, stop in zip(starts, ends[: task + 1], strict=False)]
            matrix.append([100 * accuracy_score(seen[rows], prediction[rows]) for rows in of_task])
        metrics, task_mean = found["metrics"], [np.mean(row) for row in matrix]
        assert metrics["after_each_task"]["sample_weighted"] == pytest.approx(weighted)
        assert metrics["after_each_task"]["task_mean"] == pytest.approx(task_mean)
        assert metrics["average_accuracy"]["sample_weighted"] == pytest.approx(np.mean(weighted))
        assert metrics["average_accuracy"]["task_mean"] == pytest.approx(np.mean(task_mean))
        assert metrics["last_accuracy"]["sample_weighted"] == pytest.approx(weighted[-1])
        assert metrics["last_accuracy"]["task_mean"] == pytest.approx(task_mean[-1])
        drops = [max(row[task] for row in matrix[task:]) - matrix[-1][task] for task in range(len(sizes) - 1)]
        assert metrics["forgetting"] == pytest.approx(np.mean(drops))
    assert set(predictions) <= used
