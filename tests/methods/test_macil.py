"""MACIL: the calibration term against loops over pairs, the moved means, and a restart in the middle of a task."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from lca.data.streams import Task
from lca.features import extract
from lca.files import load_state, save_state
from lca.methods.im import ImOptions, IncrementalMerging
from lca.methods.macil import Macil, MacilOptions, whitening
from lca.progress import Progress
from lca.statistics.drift import MeanShift
from lca.training.options import TrainingOptions

ALIGN = {"preset": "slca", "name": "macil", "samples": 16, "epochs": 2, "batch_size": 16}
MOVING = {**ALIGN, "drift": {"model": "mean_shift"}}
TASKS = (("a", "b"), ("c", "d", "e"))
LAST, FIXED = {"operator": "last"}, {"name": "cosine", "train_scale": False}


def learn(method, task, classes):
    classes += [name for name in task.classes if name not in classes]
    steps = method.steps(task, [classes.index(name) for name in task.classes])
    measured = [(step.phase, step.run()) for step in steps]
    method.finish_task()
    return measured


@pytest.fixture
def make(make_setting):
    return lambda align=MOVING, setting=None, **options: Macil(
        make_setting(**(setting or {})), MacilOptions(align=[align], **options)
    )


@pytest.fixture
def run(make, make_task, make_images):
    """Learn tasks; gives the method, the features of test images and its logits for them."""

    def go(tasks=TASKS, per_class=5, **options):
        method, classes = make(**options), []
        for index, names in enumerate(tasks):
            counts = per_class[: len(names)] if isinstance(per_class, list) else per_class
            learn(method, make_task(index, names, counts), classes)
        features = extract(method.setting.extractor, make_images(tuple(classes), 3, seed=77), Progress(), "test")
        logits = method.logits(features, "macil")
        assert logits.shape == (3 * len(classes), len(classes))
        assert logits.isfinite().all()
        return method, features, logits

    return go


def under_way(method, task, labels):
    """The second task after its first epoch: what `loss` needs is there, and the backbone has moved."""
    observe, first_epoch, *_ = method.steps(task, labels)
    assert (observe.phase, first_epoch.phase) == ("observe", "finetune")
    observe.run()
    first_epoch.run()


def covariances(method, task, shrinkage):
    """The shrunk covariances of the classes of a task under the backbone before it, in numpy."""
    features = extract(method.setting.extractor, task.train, Progress(), "x").double().numpy()
    found = []
    for place in range(len(task.classes)):
        rows = features[task.train.labels.numpy() == place]
        covariance = np.cov(rows, rowvar=False)
        found.append(covariance + shrinkage * np.trace(covariance) / len(covariance) * np.eye(len(covariance)))
    return found


def plain_calibration(old, new, labels, shrunk):
    """Mean over ordered pairs of one class of how much their Mahalanobis distance changed."""
    total, pairs = 0.0, 0
    for i in range(len(labels)):
        for j in range(len(labels)):
            if i != j and labels[i] == labels[j]:
                inverse = np.linalg.inv(shrunk[labels[i]])
                before, now = old[i] - old[j], new[i] - new[j]
                total += abs(np.sqrt(now @ inverse @ now) - np.sqrt(before @ inverse @ before))
                pairs += 1
    return total / max(pairs, 1)


# The calibration


@pytest.mark.parametrize("shrinkage", [0.1, 10.0])
@pytest.mark.parametrize(("rows", "width"), [(40, 6), (3, 8)])
def test_the_whitening_is_a_root_of_the_inverse(shrinkage, rows, width):
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(rows, width, generator=draws) @ torch.randn(width, width, generator=draws) + 5
    covariance = torch.cov(features.double().T)
    shrunk = covariance + shrinkage * covariance.trace() / width * torch.eye(width)
    found = whitening(features, shrinkage)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().T @ found.double(), torch.linalg.inv(shrunk), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.T @ found, np.linalg.inv(shrunk.numpy()), rtol=1e-4, atol=1e-6)


def test_the_whitening_of_a_single_image_is_finite():
    found = whitening(torch.full((1, 4), 3.0), 10.0)
    assert found.isfinite().all()
    assert torch.equal(found, found.diagonal().diag())


@pytest.mark.parametrize(("calibration", "shrinkage"), [(1.0, 10.0), (3.0, 0.5)])
def test_the_calibration_is_a_loop_over_pairs(run, make_task, calibration, shrinkage):
    method, _, _ = run(TASKS[:1], calibration=calibration, shrinkage=shrinkage)
    task = make_task(1, TASKS[1], [6, 4, 5])
    shrunk = covariances(method, task, shrinkage)
    teacher, training, extractor = method.merge.parameters(), method.training, method.setting.extractor
    under_way(method, task, [2, 3, 4])
    views = extractor.evaluation_views(task.train.pixels)
    head = method.heads.new_head(3, torch.Generator().manual_seed(0))
    index = torch.tensor([0, 7, 2, 12, 8, 1, 5, 13, 10])  # of the classes 4, 2 and 3
    labels = task.train.labels[index]
    assert torch.bincount(labels).tolist() == [4, 2, 3]
    extractor.train()
    loss, logits = training.loss(views[index], labels, head, teacher)
    with torch.no_grad():
        new = extractor.eval()(views[index])
        moved = extractor.tensors()
        extractor.load(teacher)
        old = extractor(views[index])
        extractor.load(moved)
    expected = plain_calibration(old.double().numpy(), new.double().numpy(), labels.tolist(), shrunk)
    assert expected > 1e-3
    torch.testing.assert_close(logits, head(new), rtol=0, atol=1e-5)
    own = functional.cross_entropy(head(new), labels)
    torch.testing.assert_close(loss.item(), own.item() + calibration * expected, rtol=1e-3, atol=1e-5)
    without, _ = training.loss(views[index], labels, head, None)
    torch.testing.assert_close(without, own, rtol=0, atol=1e-5)


def test_a_batch_without_pairs_has_no_calibration(run, make_task):
    method, _, _ = run(TASKS[:1])
    task = make_task(1, TASKS[1], 5)
    teacher, extractor = method.merge.parameters(), method.setting.extractor
    under_way(method, task, [2, 3, 4])
    views, labels = extractor.evaluation_views(task.train.pixels)[[0, 5, 10]], torch.arange(3)
    head = method.heads.new_head(3, torch.Generator().manual_seed(0))
    loss, logits = method.training.loss(views, labels, head, teacher)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, labels))
    gradients = torch.autograd.grad(loss, list(extractor.tuned_parameters().values()))
    assert all(each.isfinite().all() for each in gradients)


def test_the_calibration_holds_the_distances(make, make_task):
    """The distances within the classes, in the old measure, change less with the term. Its gradient does not get
    smaller near the goal: a weight or a rate that is too large shakes the features instead of holding them."""
    training = TrainingOptions(epochs=12, batch_size=20, lr=0.01)
    changes = {0.0: 0.0, 3.0: 0.0}
    for calibration, seed in itertools.product(changes, (1, 2, 3)):
        method = make(calibration=calibration, setting={"training": training, "seed": seed})
        learn(method, make_task(0, TASKS[0]), [])
        task = make_task(1, TASKS[1])
        shrunk = covariances(method, task, 10.0)
        old = extract(method.setting.extractor, task.train, Progress(), "x").double().numpy()
        learn(method, task, ["a", "b"])
        new = extract(method.setting.extractor, task.train, Progress(), "x").double().numpy()
        changes[calibration] += plain_calibration(old, new, task.train.labels.tolist(), shrunk)
    assert changes[3.0] < 0.6 * changes[0.0]


def test_the_first_task_is_not_calibrated(run):
    tensors = [run(TASKS[:1], **each)[0].setting.extractor.tensors() for each in ({}, {"calibration": 9.0})]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


@pytest.mark.parametrize("change", [{"calibration": 0.0}, {"calibration": 4.0}, {"shrinkage": 0.5}])
def test_every_option_changes_what_the_second_task_tunes(run, change):
    usual, other = run()[0].merge.vector, run(**change)[0].merge.vector
    assert any(not torch.allclose(usual[name], other[name], rtol=0, atol=1e-6) for name in usual)


def test_other_looks_at_the_images_change_nothing_of_what_is_tuned(run):
    """They are for statistics; the calibration compares images as they are."""
    plain, looked = (run(looks=looks)[0].setting.extractor.tensors() for looks in ({}, {"mirror_up_to": 9}))
    assert all(torch.equal(plain[name], each) for name, each in looked.items())


def test_without_calibration_it_is_plain_fine_tuning(run, make_setting, make_task):
    """And then the shrinkage, which only measures, changes nothing."""
    plain, classes = IncrementalMerging(make_setting(), ImOptions(align=["none"], merge=LAST, head=FIXED)), []
    for index, names in enumerate(TASKS):
        learn(plain, make_task(index, names, 5), classes)
    for shrinkage in (10.0, 0.1):
        vector = run(calibration=0.0, shrinkage=shrinkage)[0].merge.vector
        assert all(torch.equal(vector[name], each) for name, each in plain.merge.vector.items())


# The means and the heads


def test_the_old_means_move_as_the_new_images_around_them_did(make, make_task):
    method = make(align=MOVING)
    learn(method, make_task(0, TASKS[0]), classes := [])
    task, memory = make_task(1, TASKS[1]), method.branch_set.memories["macil"]
    old = {label: (each.mean, each.factor) for label, each in memory.classes.items()}
    before = extract(method.setting.extractor, task.train, Progress(), "x")
    learn(method, task, classes)
    after = extract(method.setting.extractor, task.train, Progress(), "x")
    transport = MeanShift().fit(before, after, torch.zeros(len(before)))
    for label, (mean, factor) in old.items():
        torch.testing.assert_close(memory.classes[label].mean, transport.means(mean[None])[0])
        assert not torch.allclose(memory.classes[label].mean, mean, rtol=0, atol=1e-3)
        assert torch.equal(memory.classes[label].factor, factor)


def test_by_default_the_means_are_shifted_and_the_scale_is_fixed():
    options = MacilOptions()
    assert [(each.name, each.drift.model, each.epochs) for each in options.align] == [("macil", "mean_shift", 5)]
    assert (options.head.name, options.head.train_scale) == ("cosine", False)


def test_the_scale_of_the_cosine_is_the_same_in_all_heads(run):
    method, features, logits = run()
    heads = method.branch_set.heads["macil"]
    assert [float(each.scale) for each in (*method.heads.tasks, *heads.tasks)] == [20.0] * 4
    assert not any("scale" in name for name in method.state().parts["heads"])
    rows = torch.cat([head.weight for head in heads.tasks])
    expected = 20 * functional.cosine_similarity(features[:, None], rows[None], dim=2)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


# The kinds of tasks and the state


@pytest.mark.parametrize("counts", [[5, 1, 1], [1, 5, 4], [1, 1, 1]])
def test_a_class_with_a_single_image(run, counts):
    method, _, _ = run(per_class=counts)
    assert [method.branch_set.memories["macil"].classes[label].count for label in (2, 3, 4)] == counts
    assert all(each.isfinite().all() for each in method.merge.vector.values())


def test_tasks_of_one_class_and_classes_that_return(run, make_task):
    method, _, _ = run((("a",), ("b", "c"), ("d",)))
    vector = {name: each.clone() for name, each in method.merge.vector.items()}
    learn(method, make_task(3, ("c", "x", "a")), ["a", "b", "c", "d"])
    assert method.heads.sizes == [1, 2, 1, 1]
    assert any(not torch.equal(method.merge.vector[name], each) for name, each in vector.items())


def test_the_state_can_be_taken_up_in_the_middle_of_a_task(run, make, make_task, tmp_path):
    """Every step in a method of its own, through files: the whitening is made anew from the observed features."""
    expected, features, logits = run(calibration=3.0)
    stored, classes = None, []

    def restored():
        method = make(calibration=3.0)
        if stored is not None:
            method.load_state(stored)
        return method

    for index, names in enumerate(TASKS):
        task = make_task(index, names, 5)
        classes += names
        labels = [classes.index(name) for name in names]
        count = len(list(restored().steps(task, labels)))
        assert count == 6
        for number in range(count):
            method = restored()
            list(method.steps(task, labels))[number].run()
            save_state(tmp_path, method.state())
            stored = load_state(tmp_path)
        method = restored()
        method.finish_task()
        stored = method.state()
    assert all(torch.equal(method.merge.vector[name], each) for name, each in expected.merge.vector.items())
    assert torch.equal(method.logits(features, "macil"), logits)
    assert not method.observed, "the features are for the task only"


def test_a_restart_measures_with_the_features_of_before_the_task(make, make_task):
    """Not with those of the backbone that the epochs so far have moved."""
    method = make(calibration=3.0)
    learn(method, make_task(0, TASKS[0]), [])
    task = make_task(1, TASKS[1], 5)
    shrunk = covariances(method, task, 10.0)
    under_way(method, task, [2, 3, 4])
    twin = make(calibration=3.0)
    twin.load_state(method.state())
    for each in (method, twin):
        _, _, second_epoch, *_ = each.steps(task, [2, 3, 4])
        second_epoch.run()
    for place, covariance in enumerate(shrunk):
        found = twin.training._whitening[place].double().numpy()
        np.testing.assert_allclose(found.T @ found, np.linalg.inv(covariance), rtol=1e-3, atol=1e-5)
    (one, _), (two, _) = method.training.state(), twin.training.state()
    assert one.keys() == two.keys()
    assert all(torch.equal(two[name], each) for name, each in one.items())


@pytest.mark.parametrize("start", ["merged", "base"])
def test_every_task_measures_with_its_own_classes_under_the_backbone_before_it(run, make_task, start):
    """In whichever order their images come, and wherever fine-tuning starts."""
    method, _, _ = run(init_from=start)
    task = make_task(2, ("f", "g", "h"), [6, 4, 5])
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    shrunk = covariances(method, task, 10.0)
    under_way(method, Task(2, task.classes, task.train.subset(order)), [5, 6, 7])
    for place, covariance in enumerate(shrunk):
        found = method.training._whitening[place].double().numpy()
        np.testing.assert_allclose(found.T @ found, np.linalg.inv(covariance), rtol=1e-3, atol=1e-5)
