"""TUNA: against plain computations with loops, subspaces that never change, and every alignment on one training."""

import math

import pytest
import torch
from torch.nn import functional

import tiny
from lca.data.streams import Task
from lca.methods.tuna import TunaOptions, merged
from lca.runs.experiment import run

ADAPTER = {"tuning": {"name": "adapter", **tiny.SMALL_TUNING["adapter"]}}
TASKS = ({"3": 6, "7": 5, "1": 4}, {"9": 5}, {"4": 6, "8": 3}, {"0": 5, "2": 4, "5": 6})
TEST = dict.fromkeys("371948025", 4)
ALIGN = {name: {"preset": name, **tiny.QUICK, "lr": 0.05} for name in ("ca", "lca", "tuna")}


def make(*changes, **options):
    return tiny.classifier(tiny.recipe(ADAPTER, *changes, method={"name": "tuna", "align": [ALIGN["tuna"]], **options}))


def taught(tasks=TASKS, *changes, **options):
    return tiny.taught(make(*changes, **options), tasks)


def unseen():
    return tiny.images(TEST, skip=20)


def plain_merge(tensors):
    """Entry by entry."""
    found = torch.zeros_like(tensors[0]).flatten()
    for place in range(found.numel()):
        entries = [float(each.flatten()[place]) for each in tensors]
        mean = sum(entries) / len(entries)
        if mean:
            found[place] = math.copysign(max(abs(e) for e in entries if e * mean > 0), mean)
    return found.reshape(tensors[0].shape)


def test_the_universal_entry_is_the_largest_of_those_that_agree_with_the_mean():
    rows = torch.tensor([[1.0, -3.0, 0.0, 2.0, -1.0], [2.0, 1.0, 0.0, -2.0, -4.0], [-5.0, 1.0, 0.0, 0.0, 2.0]])
    assert merged(rows).tolist() == [-5.0, -3.0, 0.0, 0.0, -4.0]
    assert merged(rows[:2]).tolist() == [2.0, -3.0, 0.0, 0.0, -4.0]
    drawn = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(merged(list(drawn)), plain_merge(list(drawn)))


# The answer


def plain_logits(model, branch, test):
    """Every image with a loop over the subspaces; also which subspaces were the surest."""
    method, names = model.method, list(model.method.subspaces)
    tuned = [model.state().parts[name] for name in names if name != "pretrained"]
    features = [tiny.features_in(model, name, test) for name in names]
    if tuned:
        twin = tiny.classifier(model.recipe).extractor.eval()
        twin.load({name: plain_merge([each[name] for each in tuned]) for name in tuned[0]})
        with torch.no_grad():
            features.append(twin(twin.evaluation_views(test.pixels)))
    else:
        features.append(features[-1])
    heads = method.branch_set.heads.get(branch, method.heads)
    rows, surest = [], set()
    for row in range(len(test)):
        answers = [heads(each[row : row + 1])[0].softmax(0) for each in features]
        entropies = [-sum(p * math.log(p) for p in each.tolist() if p > 0) for each in answers[:-1]]
        best = entropies.index(min(entropies))
        surest.add(best)
        rows.append((answers[best] + answers[-1]) / 2)
    return torch.stack(rows), surest


CASES = {
    "as published": (TASKS, [0, 0, 0, 0, 1, 1, 2, 2, 2]),
    "one class first": (({"9": 5}, *TASKS[:1], *TASKS[2:]), [0, 1, 1, 1, 2, 2, 3, 3, 3]),
    "one class first, then one task": (({"9": 5}, *TASKS[:1]), [0, 1, 1, 1]),
    "only single classes": (({"9": 5}, {"3": 4}, {"0": 3}), [0, 0, 0]),
    "one task": (TASKS[:1], [0, 0, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_a_loop_over_images(case):
    tasks, homes = CASES[case]
    model, test = taught(tasks, align=["none", ALIGN["tuna"]]), unseen()
    assert model.method.homes == homes
    features, used = model.features(test), set()
    for branch in ("none", "tuna"):
        expected, surest = plain_logits(model, branch, test)
        found = model.logits(features, branch)
        torch.testing.assert_close(found.softmax(1), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(found, expected.log(), rtol=0, atol=1e-3)
        used |= surest
    assert len(used) > 1 or case != "one class first", "one subspace was always the surest, so nothing was chosen"
    tuned = len(set(homes)) - ("pretrained" in model.method.subspaces)
    assert model.method.feature_parts()[-1] == ("" if tuned > 1 else list(model.method.subspaces)[-1])


# The training


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_a_step_is_that_of_cosface_written_out(margin):
    training = {"epochs": 1, "batch_size": 30, "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    model = make({"training": training, "tuning": {"dropout": 0.0}}, margin=margin, scale=7.0)
    method, task = model.method, tiny.task(0, {"3": 6, "7": 5, "1": 4})
    twin = tiny.classifier(model.recipe).extractor
    rows = method.heads.new_head(3, method.setting.generator("head", 0)).weight.detach().clone().requires_grad_()
    (index,) = method.training.batches(task, 0)
    views = method.training.inputs(task)
    views.draw(0)
    features = twin.train()(views(index))
    terms = []
    for row, label in zip(features, task.train.labels[index].tolist(), strict=True):
        cosines = [row @ each / (row.norm() * each.norm()) for each in rows]
        scores = torch.stack([7.0 * (each - margin * (number == label)) for number, each in enumerate(cosines)])
        terms.append(scores.exp().sum().log() - scores[label])
    (sum(terms) / len(terms)).backward()
    model.learn(task)
    for name, parameter in twin.tuned_parameters().items():
        expected = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(method.subspaces["subspace 0"][name], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(method.heads.tasks[0].weight, rows.detach() - 0.5 * rows.grad, rtol=0, atol=1e-5)


def test_heads_are_cosines_times_a_scale_that_stays():
    model = taught(TASKS, align=["none", {**ALIGN["tuna"], "lr": 0.5}])
    features = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    for heads in (model.method.heads, *model.method.branch_set.heads.values()):
        rows = torch.cat([head.weight for head in heads.tasks])
        cosines = functional.cosine_similarity(features[:, None], rows[None], dim=2)
        torch.testing.assert_close(heads(features), 20 * cosines, rtol=0, atol=1e-4)
        assert {name for head in heads.tasks for name, _ in head.named_parameters()} == {"weight"}
    assert not torch.equal(model.method.heads(features), model.method.branch_set.heads["tuna"](features))


def test_every_option_changes_the_answers():
    test = unseen()

    def logits(**options):
        model = taught(TASKS[:3], **options)
        return model.logits(model.features(test))

    changes = {"margin": {"margin": 0.3}, "scale": {"scale": 5.0}, "align": {"align": ["none"]}}
    assert {*changes, "name"} == set(TunaOptions.model_fields)
    usual = logits()
    for change in changes.values():
        assert not torch.allclose(usual, logits(**change), rtol=0, atol=1e-4), change


def test_subspaces_start_from_the_initial_values_and_stay_frozen():
    model = make({"training": {"lr": 1e-12, "final_lr": 0.0, "weight_decay": 0.0}})
    base = model.extractor.tensors()
    for number in (0, 2):
        model.learn(tiny.task(number, TASKS[number]))
    for part in (*model.method.subspaces.values(), model.method.universal):
        assert all(torch.allclose(part[name], each, atol=1e-6) for name, each in base.items())
    model, seen, universal = make(), {}, []
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        features = {part: model.method.features(unseen(), "test", [part]) for part in model.method.feature_parts()}
        for part, each in seen.items():
            assert not part or torch.equal(features[part], each)
        seen = features
        universal.append(features.get(""))
    assert list(seen) == ["subspace 0", "subspace 1", "subspace 2", ""]
    assert universal[0] is universal[1] is None
    assert not torch.allclose(universal[2], universal[3], atol=1e-4)


# Alignments


def test_the_preset_is_the_published_alignment():
    (preset,) = TunaOptions().align
    assert preset.name == "tuna"
    assert (preset.kind, preset.robustness, preset.average, preset.mean_decay) == ("align", 0.0, "samples", 0.0)
    assert (preset.samples, preset.redraw, preset.epochs, preset.lr) == (80, True, 30, 0.005)
    assert (preset.start, preset.first_task) == ("cumulative", False)


# Lessons of all kinds


def test_a_class_that_returns_stays_at_home_and_a_known_task_enters_the_universal_subspace():
    model = taught(TASKS[:3])
    model.learn(Task(3, ("3", "7"), tiny.images({"3": 4, "7": 3}, skip=12)))
    method = model.method
    assert model.classes == list("371948")
    assert method.homes == [0, 0, 0, 0, 1, 1]
    assert method.heads.sizes == [3, 1, 2]
    assert method.feature_parts() == ["subspace 0", "subspace 1", "subspace 2", ""]
    for name, each in method.universal.items():
        expected = plain_merge([part[name] for part in method.subspaces.values()])
        torch.testing.assert_close(each, expected)
    images = tiny.images({"3": 6}), tiny.images({"3": 4}, skip=12)
    both = torch.cat([tiny.features_in(model, "subspace 0", each) for each in images])
    mean = method.branch_set.memory("tuna").classes[0].mean
    torch.testing.assert_close(mean, both.mean(0), rtol=0, atol=1e-5)


def test_a_forgotten_class_leaves_nothing_behind():
    model, test = taught(align=["none"]), unseen()
    features = model.features(test)
    for name in ("7", "4", "8"):  # one of the first group, all of the second
        model.forget(name)
    assert model.method.homes == [0, 0, 0, 2, 2, 2]
    expected, _ = plain_logits(model, "none", test)
    torch.testing.assert_close(model.logits(features).softmax(1), expected, rtol=0, atol=1e-5)
    for name in list(model.classes):
        model.forget(name)
    assert model.logits(features).shape == (36, 0)
    model.learn(tiny.task(4, {"6": 5, "7": 5}))
    assert model.logits(model.features(test)).isfinite().all()


def test_no_test_image_goes_through_a_tasks_subspace_twice(tmp_path):
    recipe = tiny.recipe(ADAPTER, method={"name": "tuna", "align": ["none"]}, keep_models="none")
    with tiny.tiny_backbone(), tiny.counted_passes() as passes:
        data = run(recipe, tmp_path / "run")["data"]
    assert data["task_sizes"] == [3, 1, 2, 4]
    test = [int(each.sum()) for each in torch.tensor(data["test_images"]).split(data["task_sizes"])]
    universal = sum(test[:3]) + sum(test)  # it is new after the third task, and after the fourth
    assert passes["images"] == sum(data["train_images"]) + 3 * sum(test) + universal
