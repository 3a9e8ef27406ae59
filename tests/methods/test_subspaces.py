"""What MOS and TUNA share: subspaces with a head per task, and branches that align the heads."""

import numpy as np
import onnxruntime
import pytest
import torch

import tiny
from lca.models import export as shipping

TASKS = ({"3": 6, "7": 5, "1": 4}, {"9": 5}, {"4": 6, "8": 3}, {"0": 5, "2": 4, "5": 6})
NAMES = ["mos", "tuna"]


def alignment(name):
    return {"preset": name, **tiny.QUICK, "lr": 0.05}


def make(name, **options):
    tuning = {"name": "adapter", **tiny.SMALL_TUNING["adapter"]}
    return tiny.classifier(tiny.recipe(tuning=tuning, method={"name": name, "align": [alignment(name)], **options}))


def taught(name, tasks=TASKS, **options):
    model = make(name, **options)
    for number, counts in enumerate(tasks):
        model.learn(tiny.task(number, counts))
    return model


def unseen():
    return tiny.images(dict.fromkeys("371948025", 4), skip=20)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_the_own_subspace(name):
    model = taught(name)
    memory = model.method.branch_set.memory(name)
    for number, counts in enumerate(TASKS):
        for digit, count in counts.items():
            part, label = f"subspace {(0, 0, 1, 2)[number]}", model.classes.index(digit)
            expected = tiny.features_in(model, part, tiny.images({digit: count})).mean(0)
            torch.testing.assert_close(memory.classes[label].mean, expected, rtol=0, atol=1e-5)
            if name == "mos":
                torch.testing.assert_close(model.method.means.means[label], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_alignments_beside_each_other_are_those_alone(name):
    branches = {"none": "none", **{each: alignment(each) for each in ("ca", "lca", name)}}
    together = taught(name, TASKS[:3], align=list(branches.values()))
    assert together.method.branches() == list(branches)
    features = together.features(unseen())
    logits = {branch: together.logits(features, branch) for branch in branches}
    for branch, spec in branches.items():
        alone = taught(name, TASKS[:3], align=[spec])
        assert torch.equal(alone.features(unseen()), features)
        assert torch.equal(alone.logits(features), logits[branch])
        for other, each in logits.items():
            assert other == branch or not torch.allclose(each, logits[branch], rtol=0, atol=1e-4), (branch, other)
    assert len(together.method.branch_set.memories) == 1, "all of them stand on the same statistics"


@pytest.mark.parametrize(("name", "options"), [("mos", {"repeated_ema": True}), ("tuna", {})])
def test_a_state_from_the_middle_of_a_task_goes_on_as_if_nothing_had_been(name, options):
    def steps(model):
        return list(model.method.steps(tiny.task(2, TASKS[2]), [4, 5]))

    whole = taught(name, TASKS[:3], **options)
    for done in range(6):  # two epochs, freeze, statistics, align
        first, second = taught(name, TASKS[:2], **options), make(name, **options)
        assert len(steps(first)) == 5
        for step in steps(first)[:done]:
            step.run()
        second.method.load_state(first.method.state())
        for step in steps(second)[done:]:
            step.run()
        second.method.finish_task()
        features = second.method.features(unseen(), "test")
        assert torch.equal(features, whole.features(unseen())), done
        assert torch.equal(second.method.logits(features, name), whole.logits(features)), done


@pytest.mark.parametrize(
    ("name", "tuning"),
    [
        ("mos", "adapter"),
        ("tuna", "vpt"),
        pytest.param("mos", "vpt", marks=pytest.mark.slow),
        pytest.param("tuna", "adapter", marks=pytest.mark.slow),
    ],
)
def test_exported_it_answers_as_the_model(tmp_path, name, tuning):
    changes = {"tuning": {"name": tuning, **tiny.SMALL_TUNING.get(tuning, {}), "feature_norm": True}}
    model = tiny.classifier(tiny.recipe(changes, method=tiny.method_section(name)))
    for number, counts in enumerate((TASKS[0], TASKS[2])):
        model.learn(tiny.task(number, counts))
    images = unseen()
    scaled = (model.extractor.evaluation_views(images.pixels) * 0.5 + 0.5).contiguous()
    expected = model.probabilities(model.features(images))
    shipping.export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, len(images)):
        found = session.run(None, {"images": np.asarray(scaled[:rows])})[0]
        torch.testing.assert_close(torch.as_tensor(found), expected[:rows], rtol=0, atol=1e-4)
