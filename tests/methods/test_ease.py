"""EASE: against a plain computation class by class, frozen subspaces, and every image through a subspace once."""

import math

import pytest
import torch
from torch.nn import functional

import tiny
from lca.data.streams import Task
from lca.methods.ease import subspace_weights, synthesise
from lca.models import export as shipping
from lca.runs.experiment import run

ADAPTER = {"tuning": {"name": "adapter", **tiny.SMALL_TUNING["adapter"]}}
TASKS = ({"3": 6, "7": 5, "1": 4}, {"9": 5}, {"4": 6, "8": 3}, {"0": 5, "2": 4, "5": 6})
TEST = dict.fromkeys("371948025", 3)


def make(*changes, **options):
    return tiny.classifier(tiny.recipe(ADAPTER, *changes, method={"name": "ease", **options}))


def taught(tasks=TASKS, *changes, **options):
    return tiny.taught(make(*changes, **options), tasks)


def unseen():
    return tiny.images(TEST, skip=20)


def cosine(one, two):
    return float(torch.dot(one, two) / (one.norm() * two.norm()))


def plain(model, tasks, homes, test, alpha=0.1, beta=None):
    """Prototypes and logits with loops over class pairs, from the images; `homes` gives each class's subspace."""
    parts = model.method.feature_parts()
    known = {}  # (class, subspace) -> mean feature
    for counts, home in zip(tasks, homes, strict=True):
        for number in range(home + 1):
            for name, count in counts.items():
                known[name, number] = tiny.features_in(model, parts[number], tiny.images({name: count})).mean(0)
    home_of = {name: home for counts, home in zip(tasks, homes, strict=True) for name in counts}
    prototypes = dict(known)
    for old, home in home_of.items():
        for later in range(home + 1, len(parts)):
            newer = [name for name in home_of if home_of[name] >= later]
            scores = [math.exp(cosine(known[old, home], known[name, home])) for name in newer]
            mixed = torch.zeros(24)
            for name, score in zip(newer, scores, strict=True):
                mixed += score / sum(scores) * known[name, later]
            prototypes[old, later] = mixed
    features = [tiny.features_in(model, part, test) for part in parts]
    logits = torch.zeros(len(test), len(home_of))
    for row in range(len(test)):
        for column, (name, home) in enumerate(home_of.items()):
            others = [n for n in range(len(parts)) if n != home and not (beta is not None and n == 0)]
            for number in range(len(parts)):
                weight = 1.0 if number == home else alpha / len(others) if number in others else beta
                logits[row, column] += weight * cosine(features[number][row], prototypes[name, number])
    return prototypes, logits


CASES = {
    "as published": (TASKS, (0, 0, 1, 2), {}),
    "one class first": (({"9": 5}, *TASKS[:1], *TASKS[2:]), (0, 1, 2, 3), {}),
    "one class first and last": (({"9": 5}, {"3": 4}, TASKS[2], {"0": 3}), (0, 0, 1, 1), {}),
    "with the pre-trained branch": (TASKS, (1, 1, 2, 3), {"beta": 0.7}),
    "one class first, with the branch": (({"9": 5}, *TASKS[2:]), (0, 1, 2), {"beta": 0.7}),
    "one task": (TASKS[:1], (0,), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_prototypes_and_logits_are_those_of_loops_over_class_pairs(case):
    tasks, homes, options = CASES[case]
    model, test = taught(tasks, alpha=0.3, **options), unseen()
    expected, logits = plain(model, tasks, homes, test, alpha=0.3, beta=options.get("beta"))
    method = model.method
    found = synthesise(method.means, method.counts > 0, torch.tensor(method.homes))
    names = model.classes
    assert found.shape == (len(names), len(method.feature_parts()), 24)
    wanted = torch.stack([torch.stack([expected[name, n] for n in range(found.shape[1])]) for name in names])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.logits(model.features(test)), logits, rtol=0, atol=1e-5)
    if case == "as published":
        assert method.feature_parts() == ["subspace 0", "subspace 1", "subspace 2"]
        assert method.homes == [0, 0, 0, 0, 1, 1, 2, 2, 2]
        assert {"subspace 0", "subspace 1", "subspace 2", "means"} == set(model.memory())
    if case.startswith("one class first"):
        assert method.feature_parts()[0] == "pretrained"


def test_the_weights_of_the_published_tasks():
    """α / t, where the first task is t = 0; the pre-trained branch counts β beside them."""
    alone = subspace_weights(torch.tensor([0, 0]), 1, 0.1, None)
    assert alone.tolist() == [[1.0], [1.0]]
    three = subspace_weights(torch.tensor([0, 1, 2]), 3, 0.1, None)
    torch.testing.assert_close(three, torch.eye(3) + 0.05 * (1 - torch.eye(3)))
    branch = subspace_weights(torch.tensor([1, 2]), 3, 0.1, 0.7)
    torch.testing.assert_close(branch, torch.tensor([[0.7, 1.0, 0.1], [0.7, 0.1, 1.0]]))


def test_every_option_changes_the_answers():
    test = unseen()

    def logits(**options):
        model = taught(TASKS[:3], **options)
        return model.logits(model.features(test))

    usual, branch = logits(), logits(beta=1.0)
    assert not torch.allclose(usual, logits(alpha=0.5), atol=1e-3)
    assert not torch.allclose(usual, logits(head={"name": "cosine", "scale": 20.0}), atol=1e-5)
    assert not torch.allclose(usual, branch, atol=1e-3)
    assert not torch.allclose(branch, logits(beta=0.2), atol=1e-3)


def test_subspaces_start_from_the_initial_values_and_stay_frozen():
    model = make({"training": {"lr": 1e-12, "weight_decay": 0.0}})
    base = model.extractor.tensors()
    for number in (0, 2):
        model.learn(tiny.task(number, TASKS[number]))
    for part in model.method.subspaces.values():
        assert all(torch.allclose(part[name], each, atol=1e-6) for name, each in base.items())
    model, seen = make(), {}
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        features = dict.fromkeys(model.method.feature_parts())
        for part in features:
            features[part] = model.method.features(unseen(), "test", [part])
            if part in seen:
                assert torch.equal(features[part], seen[part])
        seen = features
    assert len(seen) == 3
    assert not torch.allclose(seen["subspace 0"], seen["subspace 1"], atol=1e-4)


@pytest.mark.parametrize("branch", [False, True])
def test_no_image_goes_through_a_subspace_twice(tmp_path, branch):
    recipe = tiny.recipe(ADAPTER, method={"name": "ease", "beta": 1.0 if branch else None}, keep_models="none")
    with tiny.tiny_backbone(), tiny.counted_passes() as passes:
        data = run(recipe, tmp_path / "run")["data"]
    assert data["task_sizes"] == [3, 1, 2, 4]
    subspaces = [number + branch for number in (1, 1, 2, 3)]  # when each task's images come
    train = torch.tensor(data["train_images"]).split(data["task_sizes"])
    expected = sum(int(counts.sum()) * each for counts, each in zip(train, subspaces, strict=True))
    assert passes["images"] == expected + subspaces[-1] * sum(data["test_images"])


def test_a_class_that_returns_stays_at_home_and_its_means_combine():
    model = taught(TASKS[:3])
    before, parts = model.method.means.clone(), model.method.feature_parts()
    more = tiny.images({"3": 4}, skip=12)
    model.learn(Task(3, ("3", "0"), tiny.images({"3": 4, "0": 5}, skip=12)))
    method = model.method
    assert model.classes == list("3719480")
    assert method.homes == [0, 0, 0, 0, 1, 1, 2]
    assert method.counts[0].tolist() == [10, 4, 4]
    assert method.counts[1].tolist() == [5, 0, 0]
    old = tiny.features_in(model, parts[0], tiny.images({"3": 6}))
    first = torch.cat([old, tiny.features_in(model, parts[0], more)]).mean(0)
    torch.testing.assert_close(method.means[0, 0], first, rtol=0, atol=1e-5)
    for number, part in enumerate(method.feature_parts()[1:], 1):
        torch.testing.assert_close(
            method.means[0, number], tiny.features_in(model, part, more).mean(0), rtol=0, atol=1e-5
        )
    assert torch.equal(method.means[1:6, :2], before[1:])
    found = synthesise(method.means, method.counts > 0, torch.tensor(method.homes))
    assert torch.equal(found[0], method.means[0]), "where it was seen, nothing is synthesised"
    shares = torch.tensor([cosine(method.means[1, 0], method.means[c, 0]) for c in (0, 6)]).softmax(0)
    torch.testing.assert_close(found[1, 2], shares @ method.means[[0, 6], 2], rtol=0, atol=1e-5)


def test_a_task_of_known_classes_only_adds_a_subspace():
    model = taught(({"3": 6, "7": 5}, {"1": 4, "4": 4}, {"3": 3, "7": 3}))
    assert model.method.homes == [0, 0, 1, 1]
    assert model.method.feature_parts() == ["subspace 0", "subspace 1", "subspace 2"]
    assert model.method.counts[:, 2].tolist() == [3, 3, 0, 0]
    for name in ("3", "7"):  # then nobody is left who was seen in the last subspace
        model.forget(name)
    logits = model.logits(model.features(unseen()))
    assert logits.shape == (27, 2)
    assert logits.isfinite().all()
    assert not synthesise(model.method.means, model.method.counts > 0, torch.tensor([1, 1]))[:, 2].any()


def test_a_forgotten_class_leaves_nothing_behind():
    model, test = taught(), unseen()
    features = model.features(test)
    for name in ("7", "4", "8"):  # one of the first group, all of the second
        model.forget(name)
    method = model.method
    assert method.homes == [0, 0, 0, 2, 2, 2]
    kept = [{name: count for name, count in counts.items() if name not in "748"} for counts in TASKS]
    _, expected = plain(model, kept, (0, 0, 1, 2), test)
    torch.testing.assert_close(model.logits(features), expected, rtol=0, atol=1e-5)
    for name in list(model.classes):
        model.forget(name)
    assert model.logits(features).shape == (27, 0)
    model.learn(tiny.task(4, {"6": 5, "7": 5}))
    assert model.logits(model.features(test)).isfinite().all()


def test_without_tensors_to_tune_it_is_the_cosine_to_pretrained_means():
    model, test = taught(TASKS, {"tuning": {"name": "none"}}), unseen()
    assert model.method.feature_parts() == ["pretrained"]
    features = model.features(test)
    images = [tiny.images({name: count}) for counts in TASKS for name, count in counts.items()]
    means = torch.stack([tiny.features_in(model, "pretrained", each).mean(0) for each in images])
    expected = functional.cosine_similarity(features[:, None], means[None], dim=2)
    torch.testing.assert_close(model.logits(features), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("tuning", "branch"), [("adapter", False), ("adapter", True), ("lora", True), ("full", False), ("vpt", True)]
)
def test_exported_it_answers_as_the_model(tmp_path, tuning, branch):
    tuned = {"tuning": {"name": tuning, **tiny.SMALL_TUNING.get(tuning, {}), "feature_norm": True}}
    model = tiny.classifier(tiny.recipe(tuned, method={"name": "ease", "beta": 1.0 if branch else None}))
    for number in range(3):
        model.learn(tiny.task(number, TASKS[number]))
    model.temperatures = {"default": 0.1}
    scaling, images = model.backbone.preprocessing, torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(each)[:, None, None] for each in (scaling.mean, scaling.std))
    with torch.no_grad():
        views = (images - mean) / std
        parts = [model.method.embed(views, part) for part in model.method.feature_parts()]
        expected = model.probabilities(torch.cat(parts, dim=1))
        torch.testing.assert_close(shipping.deployed(model)(images)[0], expected, rtol=0, atol=1e-5)
    shipping.export_torch(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for rows in (1, 5):
        torch.testing.assert_close(program(images[:rows])[0], expected[:rows], rtol=0, atol=1e-5)
