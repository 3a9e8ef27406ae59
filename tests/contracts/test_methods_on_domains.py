"""Streams in which all classes come back in another style: every method learns them, and all figures hold."""

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score

import tiny
from lca.files import read_json
from lca.methods import methods
from lca.results.packs import record_of, whole, without_what_follows
from lca.results.stored import read_run
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run

PLACES = {
    "ink/cat": 4,
    "ink/dog": 4,
    "ink/elk": 3,
    "oil/cat": 4,
    "oil/dog": 3,
    "wax/cat": 3,
    "wax/dog": 4,
    "wax/owl": 3,
}


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    draw, root = np.random.default_rng(0), tmp_path_factory.mktemp("photos")
    for number, (place, count) in enumerate(PLACES.items()):
        (root / place).mkdir(parents=True)
        for image in range(count):
            pixels = np.clip(30 * number + draw.normal(0, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / place / f"{image}.png")
    return root


def recipe(photos, name, **changes):
    data = {"source": f"domains:{photos}", "order": "domains", "tasks": None, "test_share": 0.4, "train_limit": None}
    return tiny.recipe(method=tiny.method_section(name), data=data, training={"epochs": 1}, **changes)


@pytest.mark.parametrize("name", list(methods))
def test_every_method_learns_domains(tmp_path, photos, name):
    run(recipe(photos, name, ood=True, forward_transfer=True), tmp_path / "run")
    results = read_json(tmp_path / "run" / "results.json")
    predictions = load_file(tmp_path / "run" / "predictions.safetensors")
    data, labels, tasks = results["data"], predictions["labels"], predictions["tasks"]
    assert sorted(data["domains"]) == ["ink", "oil", "wax"]
    assert data["task_sizes"] == [4, 4, 4]
    assert sum(data["train_images"]) + sum(data["test_images"]) == sum(PLACES.values())
    images = {place: max(round(0.4 * count), 1) for place, count in PLACES.items()}
    asked = [images.get(f"{domain}/{label}", 0) for domain in data["domains"] for label in data["class_order"]]
    assert data["test_images"] == asked == np.bincount(4 * tasks + labels, minlength=12).tolist()
    for branch, found in results["branches"].items():
        matrix = []
        for task in range(3):
            prediction, seen = predictions[f"{task}/{branch}/prediction"], tasks <= task
            assert len(prediction) == seen.sum()
            known = {place.split("/")[1] for place in PLACES if place.split("/")[0] in data["domains"][: task + 1]}
            assert prediction.max() < len(known)
            assert (predictions[f"{task}/{branch}/prediction within task"] == prediction).all()
            own = [tasks[seen] == domain for domain in range(task + 1)]
            matrix.append([100 * accuracy_score(labels[seen][rows], prediction[rows]) for rows in own])
            assert f"{task}/{branch}/ood" not in predictions
        metrics = found["metrics"]
        assert metrics["matrix"] == [pytest.approx(row) for row in matrix]
        assert metrics["after_each_task"]["sample_weighted"][-1] == pytest.approx(100 * np.mean(prediction == labels))
        drops = [max(row[j] for row in matrix[j:]) - matrix[-1][j] for j in range(3)]
        by_domain = metrics["by_domain"]
        assert by_domain["last"] == pytest.approx(dict(zip(data["domains"], matrix[-1], strict=True)))
        assert by_domain["forgetting"] == pytest.approx(dict(zip(data["domains"], drops, strict=True)))
        assert by_domain["mean"] == pytest.approx(np.mean(matrix[-1]))
        assert by_domain["worst"] == pytest.approx(min(matrix[-1]))
        assert metrics["forgetting"] == pytest.approx(np.mean(drops[:-1]))
        assert metrics["unknown_detection"] is None
        assert record_of(results, branch).by_domain() == by_domain
        if not methods[name].info.needs_all_data:
            reached = [100 * np.mean(predictions[f"{task - 1}/next task"] == labels[tasks == task]) for task in (1, 2)]
            assert metrics["forward_transfer"]["reached"] == pytest.approx(reached)
    assert whole(without_what_follows(results)) == results
    assert read_run(tmp_path / "run")[1][branch].record().correct == found["correct"]


@pytest.mark.parametrize("name", ["im", "simplecil", "joint"])
def test_a_run_of_domains_goes_on_bit_equal(tmp_path, photos, name):
    chosen = recipe(photos, name)
    run(chosen, tmp_path / "whole")
    while True:
        try:
            run(chosen, tmp_path / "sliced", budget=Budget(0))
            break
        except BudgetSpent:
            continue
    assert tiny.outcome(tmp_path / "whole") == tiny.outcome(tmp_path / "sliced")
