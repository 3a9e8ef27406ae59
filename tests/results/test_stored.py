"""Stored answers: every metric of two small tasks by hand, of random ones by other code, and reading run folders."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from lca.errors import LcaError
from lca.files import load_tensors, save_tensors, write_json
from lca.recipe import validate_recipe
from lca.results.details import classes_of
from lca.results.metrics import follow, metrics_of
from lca.results.stored import StoredAnswers, read_run

# Tasks {cat, dog} and {owl, fox, elk}; 2, 3, 1, 2 and 1 test images.
CLASSES, SIZES = ("cat", "dog", "owl", "fox", "elk"), [2, 3]
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4])
DATA = {"class_order": list(CLASSES), "task_sizes": SIZES}
AFTER = [
    {
        "b/prediction": torch.tensor([0, 1, 1, 1, 0]).int(),
        "b/confidence": torch.tensor([0.75, 0.75, 0.75, 1.0, 1.0]),
        "b/prediction within task": torch.tensor([0, 1, 1, 1, 0]).int(),
        "b/unknown": torch.tensor([1.0, 2.0, 1.0, 2.0, 5.0]),
        "b/ood": torch.tensor([9.0, 5.0, 3.0, 0.0]),
        "next task": torch.tensor([0, 1, 1, 0]).int(),
        "next task, pretrained": torch.tensor([0, 0, 1, 0]).int(),
        "other/prediction": torch.zeros(5).int(),
    },
    {
        "b/prediction": torch.tensor([0, 3, 1, 3, 3, 0, 3, 3, 2]).int(),
        "b/confidence": torch.tensor([0.5] * 8 + [0.9]),
        "b/prediction within task": torch.tensor([0, 0, 1, 1, 0, 2, 3, 3, 2]).int(),
        "b/unknown": torch.ones(9),
        "other/prediction": torch.zeros(9).int(),
    },
]


def test_files_of_earlier_versions_write_strangers_for_ood():
    assert validate_recipe({"strangers": True}).ood
    earlier = [{key.replace("/ood", "/strangers"): each for key, each in part.items()} for part in AFTER]
    metric = metrics_of(answers(after=earlier))["unknown_detection"]
    assert metric == metrics_of(answers())["unknown_detection"]
    assert metric is not None
    stored = {"fpr95_stranger_positive" if key == "fpr95_ood_positive" else key: each for key, each in metric.items()}
    assert follow(stored, "fpr95_ood_positive") == follow(metric, "fpr95_ood_positive")


def answers(branch="b", after=AFTER):
    return StoredAnswers.of_branch(branch, DATA, {"labels": LABELS}, after)


def without(name):
    return [{key: each for key, each in part.items() if not key.endswith(name)} for part in AFTER]


def test_all_of_it_by_hand():
    record = answers().record()
    assert record.correct == [[1, 2], [1, 1, 0, 2, 0]]
    assert record.total == [2, 3, 1, 2, 1]
    metrics = metrics_of(answers())
    assert metrics["last_accuracy"]["sample_weighted"] == pytest.approx(100 * 4 / 9)
    known = metrics["task_known"]
    assert known["after_each_task"]["sample_weighted"] == pytest.approx([60, 100 * 7 / 9])
    assert known["matrix"] == [[60.0], [80.0, 75.0]]
    # after task 1: in the bin of 75 % two of three are right, in that of 100 % one of two
    first = 100 * (3 / 5 * abs(2 / 3 - 0.75) + 2 / 5 * abs(1 / 2 - 1))
    last = 100 * (8 / 9 * abs(4 / 8 - 0.5) + 1 / 9 * 0.9)
    assert metrics["calibration"]["after_each_task"] == pytest.approx([first, last], abs=1e-5)
    assert metrics["calibration"]["error"] == metrics["calibration"]["after_each_task"][-1]
    filled = [each for each in metrics["calibration"]["reliability"] if each["images"]]
    assert [(each["images"], each["accuracy"]) for each in filled] == [(8, 50.0), (1, 0.0)]
    # OOD images 9, 5, 3, 0 against known 1, 2, 1, 2, 5: won 5 + 4 + 4 + 0 of 20, one pair equal
    assert metrics["unknown_detection"]["auroc"] == pytest.approx(100 * 13.5 / 20)
    assert metrics["unknown_detection"]["fpr95_known_positive"] == 75
    assert metrics["unknown_detection"]["fpr95_ood_positive"] == 100
    assert metrics["unknown_detection"]["after_each_task"]["auroc"] == [metrics["unknown_detection"]["auroc"]]
    # owl, fox, fox, elk are 0, 1, 1, 2 of the second task
    assert metrics["forward_transfer"] == {"mean": 25.0, "reached": [75.0], "pretrained": [50.0]}
    assert metrics["most_confused"] == [["dog", "fox", 2], ["cat", "fox", 1], ["owl", "cat", 1], ["elk", "owl", 1]]
    assert answers().confusion()[1].tolist() == [0, 1, 0, 2, 0]
    assert [each.tolist() for each in answers().outcomes().right] == [
        [True, False, True, True, False],
        [True, False, True, False, False, False, True, True, False],
    ]
    assert answers().outcomes().record() == record


@pytest.mark.parametrize("sizes", [[4], [1, 1], [1, 1, 1, 1, 1], [3, 1, 4], [2, 5, 2, 3]])
def test_other_code_agrees_on_random_answers(sizes):
    """Image by image with NumPy and scikit-learn, without counts; one class has no test images."""
    draw, tasks = np.random.default_rng(len(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    images = draw.integers(1, 9, len(tasks))
    if sizes[-1] > 1:
        images[-1] = 0
    labels, after = np.repeat(np.arange(len(tasks)), images), []
    for task in range(len(sizes)):
        scores = (
            draw.random(((tasks[labels] <= task).sum(), len(tasks)))
            + np.eye(len(tasks))[labels[tasks[labels] <= task]] / 2
        )
        scores[:, tasks > task] = -1
        own = np.where(tasks[labels[tasks[labels] <= task]][:, None] == tasks, scores, -1)
        after.append(
            {"prediction": scores.argmax(1), "prediction within task": own.argmax(1), "confidence": scores.max(1)}
        )
    stored = [{name: torch.from_numpy(each) for name, each in part.items()} for part in after]
    names = tuple(map(str, range(len(tasks))))
    found = metrics_of(StoredAnswers(names, sizes, torch.from_numpy(labels), stored))
    for what, metrics in (("prediction", found), ("prediction within task", found["task_known"])):
        matrix, weighted = np.full((len(sizes), len(sizes)), np.nan), []
        for task, part in enumerate(after):
            seen = labels[tasks[labels] <= task]
            weighted.append(100 * accuracy_score(seen, part[what]))
            for earlier in range(task + 1):
                inside = tasks[seen] == earlier
                matrix[task, earlier] = 100 * accuracy_score(seen[inside], part[what][inside])
        assert [each for row in metrics["matrix"] for each in row] == pytest.approx(matrix[~np.isnan(matrix)])
        assert metrics["average_accuracy"]["sample_weighted"] == pytest.approx(np.mean(weighted))
        assert metrics["average_accuracy"]["task_mean"] == pytest.approx(np.nanmean(matrix, 1).mean())
        assert metrics["last_accuracy"]["sample_weighted"] == pytest.approx(weighted[-1])
        assert metrics["last_accuracy"]["task_mean"] == pytest.approx(matrix[-1].mean())
        assert metrics["learning_accuracy"] == pytest.approx(matrix.diagonal().mean())
        if len(sizes) == 1:
            assert metrics["forgetting"] is metrics["backward_transfer"] is None
            continue
        assert metrics["forgetting"] == pytest.approx((np.nanmax(matrix, 0) - matrix[-1])[:-1].mean())
        assert metrics["backward_transfer"] == pytest.approx((matrix[-1] - matrix.diagonal())[:-1].mean())


def test_detection_is_averaged_over_the_tasks():
    three = StoredAnswers(
        ("a", "b", "c"),
        [1, 1, 1],
        torch.tensor([0, 1, 2]),
        [
            {"unknown": torch.tensor([1.0]), "ood": torch.tensor([2.0, 3.0])},
            {"unknown": torch.tensor([1.0, 4.0]), "ood": torch.tensor([3.0])},
            {},
        ],
    )
    found = three.unknown_detection()
    assert found["after_each_task"]["auroc"] == [100, 50]
    assert found["auroc"] == 75
    assert found["fpr95_known_positive"] == (0 + 100) / 2


def test_a_next_task_of_one_class_says_nothing():
    part = {"next task": torch.zeros(1).int(), "next task, pretrained": torch.zeros(1).int()}
    one = StoredAnswers(("a", "b"), [1, 1], torch.tensor([0, 1]), [part, {}])
    assert one.forward_transfer() == {"mean": None, "reached": [None], "pretrained": [None]}


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("within task", "task_known"),
        ("ood", "unknown_detection"),
        ("next task", "forward_transfer"),
        ("pretrained", "forward_transfer"),
    ],
)
def test_what_was_not_stored_is_not_made_up(name, metric):
    metrics, all_of_it = metrics_of(answers(after=without(name))), metrics_of(answers())
    assert metrics.pop(metric) is None
    assert all_of_it.pop(metric) is not None
    assert metrics == all_of_it


def test_a_single_task_has_no_ood_images_and_no_next_task():
    alone = StoredAnswers.of_branch(
        "b", {"class_order": CLASSES[:2], "task_sizes": [2]}, {"labels": LABELS[:5]}, AFTER[:1]
    )
    assert alone.unknown_detection() is None
    assert alone.forward_transfer() is None


def write_run(folder):
    folder.mkdir()
    data = DATA
    write_json(folder / "results.json", {"format": 1, "data": data, "branches": {"b": {}}})
    tensors = {f"{task}/{name}": each for task, part in enumerate(AFTER) for name, each in part.items()}
    save_tensors(folder / "predictions.safetensors", {"labels": LABELS.int(), **tensors})


def test_a_run_folder_is_read(tmp_path):
    write_run(tmp_path / "run")
    results, found = read_run(tmp_path / "run")
    assert results["data"]["task_sizes"] == SIZES
    assert list(found) == ["b"]
    assert metrics_of(found["b"]) == metrics_of(answers())
    assert metrics_of(read_run(tmp_path / "run" / "results.json")[1]["b"]) == metrics_of(answers())


def test_what_is_no_finished_run_is_said(tmp_path):
    with pytest.raises(LcaError, match="does not exist"):
        read_run(tmp_path / "nothing")
    with pytest.raises(LcaError, match="is no run folder"):
        read_run(tmp_path)
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(LcaError, match="not finished yet"):
        read_run(tmp_path)
    write_json(tmp_path / "pack.json", {})
    with pytest.raises(LcaError, match="is a sweep"):
        read_run(tmp_path)
    write_run(tmp_path / "run")
    (tmp_path / "run" / "predictions.safetensors").unlink()
    with pytest.raises(LcaError, match="has no predictions"):
        read_run(tmp_path / "run")
    write_json(tmp_path / "run" / "results.json", {"clean": 3})
    (tmp_path / "run" / "predictions.safetensors").touch()
    with pytest.raises(LcaError, match="has format None"):
        read_run(tmp_path / "run")
    write_json(tmp_path / "run" / "results.json", {"format": 99})
    (tmp_path / "run" / "predictions.safetensors").write_bytes(b"")
    with pytest.raises(LcaError, match="has format 99"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    "results",
    [
        [],
        {"format": 1},
        {"format": 1, "data": [], "branches": {"b": {}}},
        {"format": 1, "data": {"class_order": list(CLASSES)}, "branches": {"b": {}}},
        {"format": 1, "data": DATA | {"class_order": 5}, "branches": {"b": {}}},
        {"format": 1, "data": DATA | {"task_sizes": ["2", "3"]}, "branches": {"b": {}}},
        {"format": 1, "data": DATA | {"task_sizes": [2, 2]}, "branches": {"b": {}}},
        {"format": 1, "data": DATA, "branches": None},
        {"format": 1, "data": DATA, "branches": {"lost": {}}},
    ],
)
def test_damaged_results_are_refused(tmp_path, results):
    write_run(tmp_path / "run")
    write_json(tmp_path / "run" / "results.json", results)
    with pytest.raises(LcaError, match=r"results\.json"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["labels", "1/b/prediction"])
def test_predictions_that_do_not_fit_the_results_are_refused(tmp_path, name):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "predictions.safetensors"
    tensors = load_tensors(path)
    for damaged in ({name: tensors[name][1:]}, {name: tensors[name].new_full(tensors[name].shape, 5)}, {}):
        save_tensors(path, {key: each for key, each in tensors.items() if key != name} | damaged)
        with pytest.raises(LcaError, match=r"predictions\.safetensors"):
            read_run(tmp_path / "run")


# Cats and dogs in ink, then in oil: 2, 1, 1 and 2 test images.
DOMAINS = {"class_order": ["cat", "dog"], "task_sizes": [2, 2], "domains": ["ink", "oil"]}
IMAGES = {"labels": torch.tensor([0, 0, 1, 0, 1, 1]).int(), "tasks": torch.tensor([0, 0, 0, 1, 1, 1]).int()}
ANSWERS = [
    {
        "b/prediction": torch.tensor([0, 0, 1]).int(),
        "b/confidence": torch.ones(3),
        "next task": torch.tensor([0, 1, 0]).int(),
        "next task, pretrained": torch.tensor([1, 1, 0]).int(),
    },
    {"b/prediction": torch.tensor([0, 1, 0, 0, 1, 0]).int(), "b/confidence": torch.ones(6)},
]


def test_domains_by_hand():
    stored = StoredAnswers.of_branch("b", DOMAINS, IMAGES, ANSWERS)
    assert stored.fits()
    assert (stored.record().correct, stored.record().total) == ([[2, 1], [1, 0, 1, 1]], [2, 1, 1, 2])
    metrics = metrics_of(stored)
    ink, oil = 100 / 3, 200 / 3
    assert metrics["matrix"] == [[100.0], pytest.approx([ink, oil])]
    assert metrics["by_domain"] == {
        "last": {"ink": pytest.approx(ink), "oil": pytest.approx(oil)},
        "forgetting": {"ink": pytest.approx(100 - ink), "oil": 0.0},
        "mean": pytest.approx(50),
        "worst": pytest.approx(ink),
    }
    # in oil there are a cat and two dogs
    assert metrics["forward_transfer"]["reached"] == pytest.approx([oil])
    assert metrics["forward_transfer"]["pretrained"] == pytest.approx([ink])
    assert stored.confusion().tolist() == [[2, 1], [2, 1]], "by class, whatever the domain"
    assert stored.outcomes().classes == ["ink/cat", "ink/dog", "oil/cat", "oil/dog"]
    assert stored.outcomes().record() == stored.record()
    assert metrics_of(answers())["by_domain"] is None


def test_the_counts_of_a_class_are_put_together_over_domains():
    stored = StoredAnswers.of_branch("b", DOMAINS, IMAGES, ANSWERS)
    found = classes_of([(stored.classes, stored.record())])
    assert {name: (row["right"], row["images"]) for name, row in found.items()} == {"cat": (2, 3), "dog": (1, 3)}


@pytest.mark.parametrize(
    "damaged", [{}, {"tasks": IMAGES["tasks"][1:]}, {"tasks": IMAGES["tasks"] + 1}, {"tasks": IMAGES["tasks"] * 0}]
)
def test_domains_that_do_not_fit_the_results_are_refused(tmp_path, damaged):
    results = {"format": 1, "data": DOMAINS, "branches": {"b": {}}}
    tensors = {f"{task}/{key}": each for task, part in enumerate(ANSWERS) for key, each in part.items()}
    tmp_path.joinpath("run").mkdir()
    write_json(tmp_path / "run" / "results.json", results)
    save_tensors(tmp_path / "run" / "predictions.safetensors", IMAGES | tensors)
    assert read_run(tmp_path / "run")[1]["b"].record().total == [2, 1, 1, 2]
    images = {"labels": IMAGES["labels"], **damaged}
    save_tensors(tmp_path / "run" / "predictions.safetensors", images | tensors)
    with pytest.raises(LcaError, match="do not fit together"):
        read_run(tmp_path / "run")
