"""FeTrIL: moved features against a loop, and old classes that are still told apart."""

import math

import pytest
import torch
from torch.nn import functional

import tiny
from lca.data.streams import Task
from lca.files import load_state, save_state
from lca.methods.fetril import TranslatedFeatures
from lca.optimisation import cosine
from lca.randomness import generator

QUICK = {"samples": 16, "epochs": 3}
TASKS = ({"3": 6, "7": 5}, {"1": 4}, {"4": 6, "8": 3})
TEST = dict.fromkeys("37148", 4)


def make(*changes, **options):
    return tiny.classifier(tiny.recipe(*changes, method={"name": "fetril", **QUICK, **options}))


def taught(tasks=TASKS, *changes, **options):
    return tiny.taught(make(*changes, **options), tasks)


def unseen():
    return tiny.images(TEST, skip=20)


def all_rows(method):
    return torch.cat([torch.cat([head.weight, head.bias[:, None]], dim=1) for head in method.heads.tasks])


# The moved features

COUNTS = {2: 7, 4: 1, 5: 3}
"""Classes of the task among six, with so many images."""


def translated(seed=0):
    """Means of six classes, the labels and features of the task's images in mixed order, and the source."""
    draws = torch.Generator().manual_seed(seed)
    means = torch.randn(6, 5, generator=draws)
    means[1] = 30 * means[4]  # by cosine like 4, by distance like none of them
    labels = torch.tensor([label for label, count in COUNTS.items() for _ in range(count)])
    labels = labels[torch.randperm(len(labels), generator=draws)]
    features = torch.randn(len(labels), 5, generator=draws)
    return means, labels, features, TranslatedFeatures(means, labels, features)


def angle(one, two):
    return math.acos(max(-1.0, min(1.0, float(one @ two / (one.norm() * two.norm())))))


def donor_of(label, means):
    return label if label in COUNTS else min(COUNTS, key=lambda other: angle(means[label], means[other]))


@pytest.mark.parametrize("seed", range(3))
def test_samples_are_features_of_the_donor_moved_to_the_mean(seed):
    means, labels, features, source = translated(seed)
    samples, own = source.sample(40, torch.Generator().manual_seed(1))
    assert samples.shape == (6, 40, 5)
    assert own.tolist() == [[label] * 40 for label in range(6)]
    for label in range(6):
        donor = donor_of(label, means)
        allowed = [
            row + means[label] - means[donor] for row, of in zip(features, labels.tolist(), strict=True) if of == donor
        ]
        assert len(allowed) == COUNTS[donor]
        drawn = set()
        for sample in samples[label]:
            gaps = [float((sample - row).abs().max()) for row in allowed]
            assert min(gaps) < 1e-6, f"class {label} from {donor}"
            drawn.add(gaps.index(min(gaps)))
        assert len(drawn) == len(allowed), "in 40 draws every image of at most seven is there"
    assert donor_of(1, means) == 4
    assert torch.equal(source.means(), means)


def test_a_class_of_the_task_stays_its_own_even_where_another_mean_has_the_same_direction():
    means = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    features = torch.tensor([[10.0, 1.0], [20.0, 2.0]])
    source = TranslatedFeatures(means, torch.tensor([1, 0]), features)
    samples, _ = source.sample(3, torch.Generator().manual_seed(0))
    assert samples[0].tolist() == [[20.0, 2.0]] * 3
    assert samples[1].tolist() == [[10.0, 1.0]] * 3


def test_the_donor_is_the_most_similar_by_cosine():
    """Neither the nearest one nor the one with the largest product."""
    means = torch.tensor([[10.0, 0.0], [1.0, 0.1], [8.0, 6.0]])
    source = TranslatedFeatures(means, torch.tensor([1, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    samples, _ = source.sample(2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(samples[0], torch.tensor([[10.0, 1.9]] * 2))


def test_every_image_of_the_donor_is_drawn_as_often():
    _, labels, features, source = translated()
    samples, _ = source.sample(7000, torch.Generator().manual_seed(0))
    shares = torch.stack([(samples[2] == row).all(1).float().mean() for row in features[labels == 2]])
    torch.testing.assert_close(shares, torch.full((7,), 1 / 7), rtol=0, atol=0.02)


def test_the_draws_are_the_generators():
    _, _, _, source = translated()
    once, again, other = (source.sample(9, torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


# The classifier


def plain_rows(features, labels, means, rows, task, samples=16, epochs=3, lr=0.01):
    """The classifier (weights and a bias) after a task: torch's SGD on as many moved features of every class."""
    draws = generator(5, "samples", task, 0)
    inputs = TranslatedFeatures(means, labels, features).sample(samples, draws)[0]
    rows = rows.clone().requires_grad_()
    optimiser = torch.optim.SGD([rows], lr=lr, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = cosine(lr, 0.0, epoch / epochs)
        order = torch.rand(len(means), samples, generator=generator(5, "batches", task, epoch)).argsort(1)
        for columns in order.split(8, dim=1):
            batch = torch.cat([inputs[label, columns[label]] for label in range(len(means))])
            truth = torch.arange(len(means)).repeat_interleave(columns.shape[1])
            loss = functional.cross_entropy(functional.linear(batch, rows[:, :-1], rows[:, -1]), truth)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return rows.detach()


@pytest.mark.parametrize("options", [{}, {"samples": 30, "epochs": 5, "lr": 0.04}])
def test_the_classifier_is_plain_sgd_on_the_moved_features(options):
    model, rows = make(**options), torch.zeros(0, 25)
    seen, labels = [], []
    for number, counts in enumerate(TASKS):
        model.learn(tiny.task(number, counts))
        images = tiny.images(counts)
        seen.append(tiny.features_in(model, "tuned", images))
        labels.append(images.labels + len(rows))
        means = torch.stack(
            [torch.cat(seen)[torch.cat(labels) == label].mean(0) for label in range(len(rows) + len(counts))]
        )
        length = rows[:, :-1].norm(dim=1).mean() if len(rows) else 1.0
        fresh = length * functional.normalize(means[len(rows) :])
        rows = torch.cat([rows, functional.pad(fresh, (0, 1))])
        rows = plain_rows(seen[-1], labels[-1], means, rows, number, **{**QUICK, **options})
        torch.testing.assert_close(model.method.means.means, means, rtol=0, atol=1e-5)
        torch.testing.assert_close(all_rows(model.method), rows, rtol=0, atol=1e-4)
    test = tiny.features_in(model, "tuned", unseen())
    torch.testing.assert_close(model.features(unseen()), test, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        model.logits(test), functional.linear(test, rows[:, :-1], rows[:, -1]), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("change", [{"samples": 20}, {"epochs": 5}, {"lr": 0.05}, {"head": {"name": "linear"}}])
def test_every_option_changes_the_classifier(change):
    usual, other = (all_rows(taught(**each).method) for each in ({}, change))
    assert not torch.allclose(usual, other, rtol=0, atol=1e-5)


def test_the_backbone_is_tuned_on_the_first_task_only():
    model = make()
    base = model.extractor.tensors()
    model.learn(tiny.task(0, TASKS[0]))
    tuned = model.extractor.tensors()
    assert any(not torch.equal(tuned[name], base[name]) for name in base)
    for number, counts in enumerate(TASKS[1:], 1):
        model.learn(tiny.task(number, counts))
    assert all(torch.equal(model.extractor.tensors()[name], each) for name, each in tuned.items())
    assert set(model.memory()) == {"tuned", "means", "heads"}


def test_old_classes_are_still_recognised():
    """On the same features, heads that never saw each other's classes prefer the later ones."""
    tasks = [dict.fromkeys(names, 20) for names in ("37", "14", "90", "26")]
    test, old = tiny.images(dict.fromkeys("37149026", 25), skip=60), slice(0, 150)
    alike = {"tuning": {"name": "none"}, "training": {"epochs": 20}}
    right = {}
    for name, options in {"fetril": {"lr": 0.05}, "linear_probe": {}}.items():
        model = tiny.classifier(tiny.recipe(alike, method={"name": name, **options}))
        for number, counts in enumerate(tasks):
            model.learn(tiny.task(number, counts))
        answers = model.logits(model.features(test)).argmax(1)
        right[name] = (answers == test.labels)[old].float().mean()
    assert right["fetril"] > 0.45, right
    assert right["fetril"] > right["linear_probe"] + 0.25, right


# The kinds of tasks and the state


def test_a_first_task_of_one_class():
    model = make()
    base = model.extractor.tensors()
    model.learn(tiny.task(0, {"1": 4}))
    mean = tiny.features_in(model, "pretrained", tiny.images({"1": 4})).mean(0)
    expected = functional.pad(functional.normalize(mean, dim=0), (0, 1))[None]
    torch.testing.assert_close(all_rows(model.method), expected, rtol=0, atol=1e-5)
    model.learn(tiny.task(1, TASKS[0]))
    assert all(torch.equal(model.extractor.tensors()[name], each) for name, each in base.items())
    logits = model.logits(model.features(unseen()))
    assert logits.shape == (20, 3)
    assert logits.isfinite().all()


def test_a_class_that_returns_is_learnt_further():
    model = taught(TASKS[:2])
    method, before = model.method, all_rows(model.method)
    old = method.means.means.clone()
    more = tiny.images({"7": 3, "0": 4}, skip=12)
    model.learn(Task(2, ("7", "0"), more))
    assert model.classes == list("3710")
    assert method.heads.sizes == [2, 1, 1]
    assert method.means.counts.tolist() == [6, 8, 4, 4]
    features = tiny.features_in(model, "tuned", more)
    torch.testing.assert_close(method.means.means[1], (5 * old[1] + features[:3].sum(0)) / 8, rtol=0, atol=1e-5)
    assert torch.equal(method.means.means[[0, 2]], old[[0, 2]])
    length = before[:, :-1].norm(dim=1).mean()
    fresh = functional.pad(length * functional.normalize(features[3:].mean(0), dim=0), (0, 1))
    expected = plain_rows(
        features, torch.tensor([1] * 3 + [3] * 4), method.means.means, torch.cat([before, fresh[None]]), 2, **QUICK
    )
    torch.testing.assert_close(all_rows(method), expected, rtol=0, atol=1e-4)
    model.learn(Task(3, ("3",), tiny.images({"3": 2}, skip=12)))
    assert method.heads.sizes == [2, 1, 1]
    assert method.means.counts.tolist() == [8, 8, 4, 4]


def test_a_forgotten_class_leaves_nothing_behind():
    model = taught()
    features = model.features(unseen())
    rows, means = all_rows(model.method), model.method.means.means.clone()
    model.forget("7")
    kept = [0, 2, 3, 4]
    assert torch.equal(all_rows(model.method), rows[kept])
    assert torch.equal(model.method.means.means, means[kept])
    assert model.logits(features).shape == (20, 4)
    model.learn(Task(3, ("0", "7"), tiny.images({"0": 4, "7": 4}, skip=12)))
    assert model.classes == list("314807")
    assert model.method.means.counts.tolist() == [6, 4, 6, 3, 4, 4]
    assert model.logits(model.features(unseen())).shape == (20, 6)
    for name in list(model.classes):
        model.forget(name)
    model.learn(tiny.task(4, {"9": 4}))
    assert model.logits(model.features(unseen())).shape == (20, 1)


def test_the_state_can_be_taken_up_after_every_step(tmp_path):
    expected, stored, classes = taught(), None, []

    def restored():
        method = make().method
        if stored is not None:
            method.load_state(stored)
        return method

    for number, counts in enumerate(TASKS):
        task = tiny.task(number, counts)
        classes += counts
        labels = [classes.index(name) for name in counts]
        count = len(list(restored().steps(task, labels)))
        assert count == (4 if number == 0 else 1)
        for number in range(count):
            method = restored()
            list(method.steps(task, labels))[number].run()
            save_state(tmp_path, method.state())
            stored = load_state(tmp_path)
        method = restored()
        method.finish_task()
        stored = method.state()
    assert torch.equal(all_rows(method), all_rows(expected.method))
    assert torch.equal(method.means.means, expected.method.means.means)
    one, two = expected.method.setting.extractor.tensors(), method.setting.extractor.tensors()
    assert all(torch.equal(two[name], each) for name, each in one.items())
