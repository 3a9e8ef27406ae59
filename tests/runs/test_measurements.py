"""What a run stores beside its predictions: answers within the task, OOD images, and the next task's nearest means."""

import pytest
import torch
from safetensors.torch import load_file
from sklearn.neighbors import KNeighborsClassifier

import tiny
from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.features import extract
from lca.files import read_json
from lca.progress import Progress
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run

PLAIN = tiny.recipe(
    method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]},
    training={"epochs": 1},
    keep_models="all",
)
MEASURED = tiny.recipe(PLAIN.dump(), ood=True, forward_transfer=True)
ENDS = [3, 4, 6, 10]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One finished run with all measurements, for reading only."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    with tiny.tiny_backbone():
        run(MEASURED, folder)
    return folder


@pytest.fixture(scope="module")
def models(measured):
    with tiny.tiny_backbone():
        return [ContinualClassifier.load(measured / "models" / f"task-{task:02d}") for task in range(4)]


@pytest.fixture(scope="module")
def source():
    return load_source(PLAIN.data, 5, 16, Progress())


def test_measuring_changes_nothing_else(tmp_path, measured):
    run(PLAIN, tmp_path / "run")
    plain, more = (load_file(folder / "predictions.safetensors") for folder in (tmp_path / "run", measured))
    assert all(torch.equal(plain[name], more[name]) for name in plain)
    assert set(more) - set(plain) == {
        f"{task}/{name}" for task in range(3) for name in ("best/ood", "next task", "next task, pretrained")
    }
    plain, more = (read_json(folder / "results.json")["branches"] for folder in (tmp_path / "run", measured))
    for branch in ("none", "best"):
        first, second = plain[branch]["metrics"], more[branch]["metrics"]
        assert (first.pop("unknown_detection"), first.pop("forward_transfer")) == (None, None)
        assert (second.pop("unknown_detection") is None) == (branch == "none"), "`none` keeps no class statistics"
        assert second.pop("forward_transfer")["mean"] is not None
        assert first == second


@pytest.mark.parametrize("option", ["ood", "forward_transfer"])
def test_each_can_be_asked_alone(tmp_path, option):
    results = run(tiny.recipe(PLAIN.dump(), {option: True}, data={"tasks": 2}), tmp_path / "run")
    metrics = results["branches"]["best"]["metrics"]
    assert (metrics["unknown_detection"] is not None) == (option == "ood")
    assert (metrics["forward_transfer"] is not None) == (option == "forward_transfer")


def test_ood_images_are_the_images_of_later_tasks(measured, models, source):
    data = load_file(measured / "predictions.safetensors")
    order = read_json(measured / "results.json")["data"]["class_order"]
    for task, end in enumerate(ENDS[:-1]):
        later = source.test.of_classes(order[end:])
        scores = models[task].method.unknown_scores(models[task].features(later))["best"]
        assert scores == pytest.approx(data[f"{task}/best/ood"], rel=1e-4)


def test_answers_within_the_task(measured, models, source):
    data = load_file(measured / "predictions.safetensors")
    starts = [0, *ENDS[:-1]]
    for task, model in enumerate(models):
        test = source.test.of_classes(model.classes)
        logits = model.logits(model.features(test), "best")
        expected = []
        for row, label in zip(logits, test.labels, strict=True):
            start, end = next((s, e) for s, e in zip(starts, ENDS, strict=True) if s <= label < e)
            expected.append(start + int(row[start:end].argmax()))
        assert data[f"{task}/best/prediction within task"].tolist() == expected


def test_the_next_task_by_nearest_means(measured, models, source):
    from lca.data.streams import Stream

    data, stream = load_file(measured / "predictions.safetensors"), Stream(source, MEASURED.data, MEASURED.seed)
    for task, model in enumerate(models[:-1]):
        test = stream.test_of(task + 1)
        pretrained = model.extractor.pretrained
        with stream.open(task + 1) as following:
            for name, embed in (("next task", None), ("next task, pretrained", pretrained)):
                train, asked = (
                    extract(model.extractor, each, Progress(), "", embed=embed) for each in (following.train, test)
                )
                labels = following.train.labels
                means = torch.stack([train[labels == label].mean(0) for label in range(len(following.classes))])
                nearest = KNeighborsClassifier(1, metric="cosine").fit(means, range(len(means)))
                assert data[f"{task}/{name}"].tolist() == nearest.predict(asked).tolist()


def test_classes_that_come_back_are_not_asked_for(tmp_path):
    data = {"tasks": [4, 3, 3], "returning": 1.0}
    run(tiny.recipe(method="simplecil", data=data, forward_transfer=True), tmp_path / "run")
    predictions = load_file(tmp_path / "run" / "predictions.safetensors")
    for task in (0, 1):
        assert set(predictions[f"{task}/next task"].tolist()) == {0, 1, 2}


def test_an_interrupted_run_measures_the_same(tmp_path, measured):
    while True:
        try:
            run(MEASURED, tmp_path / "sliced", budget=Budget(0), trunks=tmp_path / "trunks")
            break
        except BudgetSpent:
            pass
    assert tiny.outcome(tmp_path / "sliced") == tiny.outcome(measured)


def test_measuring_shares_the_trunk(tmp_path, measured):
    run(PLAIN, tmp_path / "plain", trunks=tmp_path / "trunks")
    run(MEASURED, tmp_path / "measured", trunks=tmp_path / "trunks")
    assert len(list((tmp_path / "trunks").iterdir())) == 1
    assert tiny.outcome(tmp_path / "measured") == tiny.outcome(measured)


@pytest.mark.parametrize("name", ["joint", "finetune", "simplecil"])
def test_methods_without_ood_or_transfer(tmp_path, name):
    metrics = run(tiny.recipe(method=name, ood=True, forward_transfer=True), tmp_path / "run")["branches"]
    metrics = metrics["none" if name == "joint" else "default"]["metrics"]
    assert metrics["unknown_detection"] is None
    if name == "joint":
        assert metrics["forward_transfer"] is None, "it has learnt all classes"
    elif name == "simplecil":
        assert metrics["forward_transfer"]["mean"] == 0, "its features are those of the pre-trained backbone"
    else:
        assert metrics["forward_transfer"]["mean"] != 0
        assert [each is None for each in metrics["forward_transfer"]["reached"]] == [True, False, False]
