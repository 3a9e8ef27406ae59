"""MOS: against plain computations with loops, subspaces that never change, and every alignment on one training."""

import pytest
import torch
from torch.nn import functional

import tiny
from lca.data.streams import Task
from lca.methods._branched import presets
from lca.methods.mos import MosOptions, orthogonality
from lca.runs.experiment import run

ADAPTER = {"tuning": {"name": "adapter", **tiny.SMALL_TUNING["adapter"]}}
TASKS = ({"3": 6, "7": 5, "1": 4}, {"9": 5}, {"4": 6, "8": 3}, {"0": 5, "2": 4, "5": 6})
TEST = dict.fromkeys("371948025", 4)
ALIGN = {name: {"preset": name, **tiny.QUICK, "lr": 0.05} for name in ("ca", "lca", "mos")}


def make(*changes, **options):
    return tiny.classifier(tiny.recipe(ADAPTER, *changes, method={"name": "mos", "align": [ALIGN["mos"]], **options}))


def taught(tasks=TASKS, *changes, **options):
    return tiny.taught(make(*changes, **options), tasks)


def unseen():
    return tiny.images(TEST, skip=20)


# The training


def test_orthogonality_is_the_cross_entropy_of_every_row_with_itself():
    draws = torch.Generator().manual_seed(0)
    means, features = torch.randn(3, 5, generator=draws), torch.randn(4, 5, generator=draws)

    def plain(rows):
        terms = []
        for number, row in enumerate(rows):
            scores = [torch.dot(row, other) / 0.8 for other in rows]
            terms.append(torch.stack(scores).exp().sum().log() - scores[number])
        return sum(terms) / len(terms)

    torch.testing.assert_close(orthogonality(means, features), plain([*means, *features]))
    torch.testing.assert_close(orthogonality(torch.zeros(0, 0), features), plain(list(features)))


def one_step(model, task, repeated, momentum=0.3, weight=0.2):
    """The tuned tensors after a task of one step, with a merge per block written out."""
    method, twin = model.method, tiny.classifier(model.recipe).extractor
    earlier = list(method.subspaces.values())
    average = {name: sum(each[name] for each in earlier) / len(earlier) for name in earlier[0]}
    values = dict(earlier[-1])

    def merge():
        for name in values:
            values[name] = (1 - momentum) * values[name] + momentum * average[name]

    seen = dict(values)
    for block in range(2 if repeated else 0):
        merge()
        seen |= {name: each for name, each in values.items() if name.startswith(f"blocks.{block}.")}
    twin.load(seen)
    head = method.heads.new_head(len(task.classes), method.setting.generator("head", task.index))
    (index,) = method.training.batches(task, 0)
    views = method.training.inputs(task)
    views.draw(0)
    features = twin.train()(views(index))
    loss = functional.cross_entropy(head(features), task.train.labels[index])
    means = torch.stack([each.mean for _, each in sorted(method.branch_set.memory("mos").classes.items())])
    (loss + weight * orthogonality(means, features)).backward()
    for name, parameter in twin.tuned_parameters().items():
        values[name] = values[name] - 0.5 * parameter.grad
    merge()
    return values


@pytest.mark.parametrize("repeated", [False, True])
def test_a_step_is_the_update_and_the_merges_written_out(repeated):
    training = {"epochs": 1, "batch_size": 30, "tuner_lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    changes = {"training": training, "tuning": {"dropout": 0.0}}
    options = {"momentum": 0.3, "orthogonality": 0.2, "repeated_ema": repeated}
    model = taught(({"3": 6, "7": 5}, {"9": 5, "1": 4}), changes, **options)
    task = tiny.task(2, {"4": 6, "8": 5})
    expected = one_step(model, task, repeated)
    other = one_step(model, task, not repeated)
    model.learn(task)
    found = model.method.subspaces["subspace 2"]
    assert found.keys() == expected.keys()
    for name, each in found.items():
        torch.testing.assert_close(each, expected[name], rtol=0, atol=1e-6)
    assert any(not torch.allclose(each, other[name], rtol=0, atol=1e-4) for name, each in found.items())


def test_every_option_changes_the_answers():
    test = unseen()

    def logits(**options):
        model = taught(TASKS[:3], **options)
        return model.logits(model.features(test))

    changes = {
        "orthogonality": {"orthogonality": 1.0},
        "momentum": {"momentum": 0.5},
        "repeated_ema": {"repeated_ema": True},
        "align": {"align": ["none"]},
    }
    assert {*changes, "name"} == set(MosOptions.model_fields)
    usual = logits()
    for change in changes.values():
        assert not torch.allclose(usual, logits(**change), rtol=0, atol=1e-5), change


def test_the_tuner_goes_on_from_the_last_task_and_the_first_one_merges_nothing():
    still = {"training": {"tuner_lr": 1e-12, "weight_decay": 0.0}}
    model = make(still, momentum=0.5)
    base = model.extractor.tensors()
    model.learn(tiny.task(0, TASKS[0]))
    subspace = model.method.subspaces["subspace 0"]
    assert all(torch.allclose(subspace[name], each, atol=1e-6) for name, each in base.items())
    moved = {name: each + 1.0 for name, each in subspace.items()}
    model.method.subspaces["subspace 1"] = moved
    model.learn(tiny.task(1, TASKS[2]))
    steps = 2 * 2  # epochs of two batches
    found = model.method.subspaces["subspace 2"]
    for name, each in base.items():
        torch.testing.assert_close(found[name], each + 0.5 + 0.5 * 0.5**steps, rtol=0, atol=1e-5)


def test_subspaces_stay_frozen():
    model, seen = make(repeated_ema=True), {}
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        features = {part: model.method.features(unseen(), "test", [part]) for part in model.method.feature_parts()}
        for part, each in seen.items():
            assert torch.equal(features[part], each)
        seen = features
    assert list(seen) == ["subspace 0", "subspace 1", "subspace 2"]
    assert not torch.allclose(seen["subspace 0"], seen["subspace 1"], atol=1e-4)


# The answer


def plain_logits(model, branch, tasks, test, first="subspace 0"):
    """Class means from the images, then every image with a loop of its own; also how often the subspaces changed."""
    method, names = model.method, list(model.method.subspaces)
    means = {
        name: tiny.features_in(model, first, tiny.images({name: count})).mean(0)
        for counts in tasks
        for name, count in counts.items()
        if name in model.classes
    }
    features = {name: tiny.features_in(model, name, test) for name in names}
    heads, rows, changes = method.branch_set.heads.get(branch, method.heads), [], 0
    for row in range(len(test)):
        own = functional.normalize(features[first][row], dim=0)
        cosines = torch.stack([own @ functional.normalize(means[name], dim=0) for name in model.classes])
        subspace = method.homes[int(cosines.argmax())]
        for _ in range(4):
            logits = heads(features[names[subspace]][row : row + 1])[0]
            following = method.homes[int(logits.argmax())]
            if following == subspace:
                break
            changes += 1
            subspace = following
        rows.append((logits.softmax(0) + (len(tasks) * cosines).softmax(0)) / 2)
    return torch.stack(rows).log(), changes


CASES = {
    "as published": (TASKS, "subspace 0", [0, 0, 0, 0, 1, 1, 2, 2, 2]),
    "one class first": (({"9": 5}, *TASKS[:1], *TASKS[2:]), "pretrained", [0, 1, 1, 1, 2, 2, 3, 3, 3]),
    "only single classes": (({"9": 5}, {"3": 4}, {"0": 3}), "pretrained", [0, 0, 0]),
    "one task": (TASKS[:1], "subspace 0", [0, 0, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_a_loop_over_images(case):
    tasks, first, homes = CASES[case]
    model, test = taught(tasks, align=["none", ALIGN["mos"]]), unseen()
    assert model.method.homes == homes
    features, changed = model.features(test), 0
    for branch in ("none", "mos"):
        expected, changes = plain_logits(model, branch, tasks, test, first)
        found = model.logits(features, branch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.softmax(1), expected.exp(), rtol=0, atol=1e-5)
        changed += changes
    assert changed > 0 or len(set(homes)) == 1, "no image was refined, so nothing was tested"


def test_four_rounds_and_no_more():
    """Heads that send every image round in a circle of subspaces: after four rounds the fourth one answers."""
    model = taught(({"3": 4, "7": 4}, {"1": 4, "9": 4}, {"4": 4, "8": 4}), align=["none"])
    method = model.method
    assert method.homes == [0, 0, 1, 1, 2, 2]
    circle = {0: 1, 1: 2, 2: 0}
    for head in method.heads.tasks:
        head.weight.data.zero_()
        head.bias.data.zero_()
    for home, following in circle.items():
        method.heads.tasks[following].weight.data[0, home] = 10.0
    parts = torch.zeros(1, 3, 24)
    parts[0, range(3), range(3)] = 1.0
    method.prototypes.means = torch.zeros(6, 24)
    method.prototypes.means[0, 0] = 1.0  # the cosine says class 0: it starts in subspace 0
    refined = torch.zeros(6)
    refined[2] = 10.0  # asked are 0, 1, 2 and 0 again, which answers with the first class of 1
    cosines = torch.tensor([[1.0, 0, 0, 0, 0, 0]])
    expected = (refined.softmax(0) + (3 * cosines[0]).softmax(0)) / 2
    torch.testing.assert_close(model.logits(parts.flatten(1)).softmax(1)[0], expected)


# Alignments


def test_the_preset_is_the_published_alignment():
    chosen = MosOptions().align
    assert [each.name for each in chosen] == ["mos"]
    (preset,) = chosen
    assert (preset.kind, preset.robustness, preset.average, preset.logit_norm) == ("align", 0.0, "samples", None)
    assert (preset.samples, preset.redraw, preset.epochs, preset.batches, preset.batch_size) == (
        240, True, 30, "random", 240,
    )  # fmt: skip
    assert (preset.lr, preset.weight_decay, preset.start, preset.first_task) == (0.005, 5e-4, "cumulative", False)
    assert "mos" in presets


def test_the_first_task_is_aligned_only_where_a_branch_says_so():
    too = {**ALIGN["mos"], "name": "first too", "first_task": True}
    model, test = taught(TASKS[:1], align=["none", ALIGN["mos"], too]), unseen()
    none, mos, first = (model.logits(model.features(test), branch) for branch in model.method.branches())
    assert torch.equal(none, mos)
    assert not torch.allclose(none, first, rtol=0, atol=1e-4)


def test_runs_with_other_alignments_share_one_training(tmp_path):
    results, passes = {}, {}
    for name in ("mos", "lca"):
        recipe = tiny.recipe(ADAPTER, method={"name": "mos", "align": ["none", ALIGN[name]]})
        with tiny.tiny_backbone(), tiny.counted_passes(training=True) as counted:
            results[name] = run(recipe, tmp_path / name, trunks=tmp_path / "trunks")["branches"]
        passes[name] = counted["calls"]
    assert passes["mos"] > 0
    assert passes["lca"] == 0, "the second run takes all of its features from the first"
    assert results["mos"]["none"]["correct"] == results["lca"]["none"]["correct"]


# Lessons of all kinds


def test_a_class_that_returns_stays_at_home():
    model = taught(TASKS[:3])
    more = tiny.images({"3": 4}, skip=12)
    model.learn(Task(3, ("0", "3"), tiny.images({"0": 5, "3": 4}, skip=12)))
    method = model.method
    assert model.classes == list("3719480")
    assert method.homes == [0, 0, 0, 0, 1, 1, 2]
    both = torch.cat([tiny.features_in(model, "subspace 0", each) for each in (tiny.images({"3": 6}), more)])
    for means in (method.means, method.prototypes):
        torch.testing.assert_close(means.means[0], both.mean(0), rtol=0, atol=1e-5)
    gaussian = method.branch_set.memory("mos").classes[0]
    torch.testing.assert_close(gaussian.mean, both.mean(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(gaussian.factor.T @ gaussian.factor / 9, both.T.cov(), rtol=0, atol=1e-4)
    assert method.heads.sizes == [3, 1, 2, 1]


def test_a_forgotten_class_leaves_nothing_behind():
    model, test = taught(align=["none"]), unseen()
    features = model.features(test)
    for name in ("7", "4", "8"):  # one of the first group, all of the second
        model.forget(name)
    assert model.method.homes == [0, 0, 0, 2, 2, 2]
    kept = [tiny.features_in(model, "subspace 0", tiny.images({name: TASKS[0][name]})).mean(0) for name in "31"]
    torch.testing.assert_close(model.method.means.means[:2], torch.stack(kept), rtol=0, atol=1e-5)
    assert len(model.method.means.means) == 6
    expected, _ = plain_logits(model, "none", TASKS, test)
    torch.testing.assert_close(model.logits(features), expected, rtol=0, atol=1e-4)
    for name in list(model.classes):
        model.forget(name)
    assert model.logits(features).shape == (36, 0)
    model.learn(tiny.task(4, {"6": 5, "7": 5}))
    assert model.logits(model.features(test)).isfinite().all()


def test_without_tensors_to_tune_heads_are_trained_on_pretrained_features():
    model, test = taught(TASKS, {"tuning": {"name": "none"}}), unseen()
    assert model.method.feature_parts() == ["pretrained"]
    assert model.method.heads.sizes == [3, 1, 2, 3]
    expected, _ = plain_logits(model, "mos", TASKS, test, "pretrained")
    torch.testing.assert_close(model.logits(model.features(test)), expected, rtol=0, atol=1e-4)


def test_no_test_image_goes_through_a_subspace_twice(tmp_path):
    recipe = tiny.recipe(ADAPTER, method={"name": "mos", "align": ["none"]}, keep_models="none")
    with tiny.tiny_backbone(), tiny.counted_passes() as passes:
        data = run(recipe, tmp_path / "run")["data"]
    assert data["task_sizes"] == [3, 1, 2, 4]
    train = [int(each.sum()) for each in torch.tensor(data["train_images"]).split(data["task_sizes"])]
    expected = train[0] + train[1] + 2 * (train[2] + train[3])  # at home, and in the first subspace
    assert passes["images"] == expected + 3 * sum(data["test_images"])
