"""Incremental merging: what a task does, and that every option changes a number."""

import pytest
import torch

from lca.data.looks import LookOptions
from lca.data.views import AugmentOptions
from lca.features import extract
from lca.files import State, load_state, save_state
from lca.heads.alignment import AlignBranch
from lca.heads.branch import BranchOptions, kinds
from lca.heads.growing import heads
from lca.heads.lda import LdaBranch
from lca.heads.quadratic import QuadraticBranch
from lca.merging.operators import operators
from lca.methods import methods
from lca.methods.im import ImOptions, IncrementalMerging
from lca.options import options_of
from lca.progress import Progress
from lca.statistics.drift import drifts
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from lca.training.options import TrainingOptions
from lca.tuning.lora import LoraOptions

ALIGN = {"name": "a", "samples": 24, "epochs": 2, "per_class": 6, "batch_size": 16, "lr": 0.05}
TASKS = (("a", "b"), ("c", "d"), ("e", "f"))


def learn(method, task, classes):
    classes += [name for name in task.classes if name not in classes]
    for step in method.steps(task, [classes.index(name) for name in task.classes]):
        step.run()
    method.finish_task()


@pytest.fixture
def run(make_setting, make_task, make_images):
    """Learn tasks; gives the method and its logits for test images of all classes, per branch."""

    def go(options, tasks=TASKS, per_class=5, **setting):
        method = IncrementalMerging(make_setting(**setting), ImOptions(**options))
        classes = []
        for index, names in enumerate(tasks):
            learn(method, make_task(index, names, per_class), classes)
        images = make_images(tuple(classes), 3, seed=77)
        features = method.features(images, "test")
        logits = {branch: method.logits(features, branch) for branch in method.branches()}
        for each in logits.values():
            assert each.shape == (3 * len(classes), len(classes))
            assert each.isfinite().all()
        return method, logits

    return go


@pytest.fixture(scope="module")
def known():
    """Logits by what was asked for: most options are compared with the same run."""
    return {}


@pytest.fixture
def logits_of(run, known):
    """The logits of branch `a` after a run, which is not done twice."""

    def get(options, **setting):
        asked = repr((options, setting))
        if asked not in known:
            known[asked] = run(options, **setting)[1]["a"]
        return known[asked]

    return get


def options(align=None, **changes):
    return {"align": [{**ALIGN, **(align or {})}], **changes}


def differ(one, two):
    return not torch.allclose(one, two, rtol=0, atol=1e-6)


# Every option changes a number: (base, change) of the option sections

ALIGNMENT = {
    "robustness": ({}, {"robustness": 1.0}),
    "entropy": ({}, {"entropy": 1.0}),
    "logit_norm": ({}, {"logit_norm": 0.1}),
    "nearest_mean_filter": ({}, {"nearest_mean_filter": True}),
    "average": ({"batches": "random"}, {"average": "samples", "batches": "random"}),
    "samples": ({}, {"samples": 30}),
    "redraw": ({}, {"redraw": True}),
    "mean_decay": ({}, {"mean_decay": 0.3}),
    "epochs": ({}, {"epochs": 3}),
    "batches": ({}, {"batches": "random"}),
    "per_class": ({}, {"per_class": 4}),
    "batch_size": ({"batches": "random"}, {"batches": "random", "batch_size": 8}),
    "lr": ({}, {"lr": 0.02}),
    "classes_at_lr": ({}, {"classes_at_lr": 4}),
    "momentum": ({}, {"momentum": 0.5}),
    "weight_decay": ({}, {"weight_decay": 0.1}),
    "start": ({}, {"start": "restart"}),
    "train_heads": ({}, {"train_heads": (-1,)}),
    "first_task": ({}, {"first_task": True}),
    "shrinkage": ({"start": "lda"}, {"start": "lda", "shrinkage": 0.9}),
    "statistics": ({}, {"statistics": "before"}),
    "covariance": ({}, {"covariance": {"kind": "diagonal"}}),
    "drift": ({}, {"drift": {"model": "affine"}}),
}
COVARIANCE = {
    "kind": ({}, {"kind": "shared"}),
    "ridge": ({}, {"ridge": 0.5}),
    "unbiased": ({}, {"unbiased": False}),
    "rank": ({}, {"rank": 2}),
    "energy": ({}, {"energy": 0.5}),
}
DRIFT = {
    "model": ({}, {"model": "mean_shift"}),
    "strength": ({"model": "affine"}, {"model": "affine", "strength": 3.0}),
    "residual": ({"model": "affine"}, {"model": "affine", "residual": True}),
    "temperature": ({"model": "local"}, {"model": "local", "temperature": 1.0}),
    "share": ({"model": "local"}, {"model": "local", "share": 0.3}),
    "bandwidth": ({"model": "mean_shift"}, {"model": "mean_shift", "bandwidth": 0.1}),
}
MERGE = {
    "operator": ({}, {"operator": "max_abs"}),
    "alpha": ({}, {"alpha": 0.5}),
    "step": ({"operator": "slow"}, {"operator": "slow", "step": 0.6}),
    "budget": ({"operator": "budget"}, {"operator": "budget", "budget": 0.1}),
    "keep": ({"operator": "ties"}, {"operator": "ties", "keep": 0.9}),
}
HEAD = {
    "name": ({}, {"name": "cosine"}),
    "bias": ({}, {"bias": True}),
    "hidden": ({"name": "mlp"}, {"name": "mlp", "hidden": 7}),
    "scale": ({"name": "cosine"}, {"name": "cosine", "scale": 5.0}),
    "train_scale": ({"name": "cosine"}, {"name": "cosine", "train_scale": False}),
    "margin": ({"name": "cosine"}, {"name": "cosine", "margin": 0.3}),
    "init": ({"init": "normal"}, {"init": "uniform"}),
}
TRAINING = {
    "epochs": ({}, {"epochs": 3}),
    "batch_size": ({}, {"batch_size": 3}),
    "last_batch": ({"batch_size": 3}, {"batch_size": 3, "last_batch": "drop"}),
    "optimiser": ({}, {"optimiser": "adamw"}),
    "lr": ({}, {"lr": 0.02}),
    "tuner_lr": ({}, {"tuner_lr": 0.005}),
    "rate_scale": ({}, {"rate_scale": 2.0}),
    "schedule": ({}, {"schedule": "constant"}),
    "milestones": (
        {"schedule": "steps", "milestones": (0.9,)},
        {"schedule": "steps", "milestones": (0.4,)},
    ),
    "final_lr": ({}, {"final_lr": 0.04}),
    "momentum": ({}, {"momentum": 0.5}),
    "weight_decay": ({}, {"weight_decay": 0.1}),
    "loss": ({}, {"loss": "lca"}),
    "robustness": ({"loss": "lca"}, {"loss": "lca", "robustness": 2.0}),
    "distillation": ({}, {"distillation": 2.0}),
}
AUGMENT = {
    "crop_scale": ({}, {"crop_scale": (0.1, 0.3)}),
    "crop_ratio": ({}, {"crop_ratio": (1.0, 1.0)}),
    "flip": ({}, {"flip": False}),
}
LORA = {
    "targets": ({}, {"targets": ("fc1",)}),
    "rank": ({}, {"rank": 2}),
    "alpha": ({}, {"alpha": 2.0}),
    "dropout": ({}, {"dropout": 0.5}),
    "feature_norm": ({}, {"feature_norm": True}),
}
METHOD = {
    "merge": ({}, {"merge": {"operator": "mean"}}),
    "init_from": ({}, {"init_from": "previous"}),
    "head": ({}, {"head": {"name": "mlp"}}),
    "align": ({}, {"align": [{"name": "a", "kind": "none"}]}),
    "looks": ({}, {"looks": {"mirror_up_to": 9}}),
    "second_pass": ({}, {"second_pass": {"of": "mirror"}}),
}
QUADRATIC = {
    "shrinkage": ({}, {"shrinkage": 0.9}),
    "means": ({}, {"means": "plain"}),
    "share": ({}, {"share": 0.6}),
    "rank": ({"share": 0.6}, {"share": 0.6, "rank": 1}),
}
LDA = {"shrinkage": ({}, {"shrinkage": 0.9}), "means": ({}, {"means": "bayes"})}
LOOKS = {
    "mirror_up_to": ({}, {"mirror_up_to": 5}),
    "crops": ({"crops_up_to": 5}, {"crops_up_to": 5, "crops": 2}),
    "crops_up_to": ({}, {"crops_up_to": 5}),
    "anchors": ({}, {"anchors": 1}),
}


@pytest.mark.parametrize(
    ("model", "cases", "besides"),
    [
        (AlignBranch, ALIGNMENT, {"name", "kind"}),
        (CovarianceOptions, COVARIANCE, set()),
        (TrainingOptions, TRAINING, set()),
        (AugmentOptions, AUGMENT, set()),
        (LoraOptions, LORA, {"name"}),
        (LookOptions, LOOKS, set()),
        (QuadraticBranch, QUADRATIC, {*BranchOptions.model_fields}),
        (LdaBranch, LDA, {*BranchOptions.model_fields}),
        (ImOptions, METHOD, {"name"}),
    ],
)
def test_no_option_is_forgotten(model, cases, besides):
    assert set(cases) | besides == set(model.model_fields)


@pytest.mark.parametrize(("table", "cases"), [(drifts, DRIFT), (operators, MERGE), (heads, HEAD)])
def test_no_option_of_what_is_registered_is_forgotten(table, cases):
    assert set(cases) == {key for name in table for key in options_of(table[name]).model_fields}


@pytest.mark.parametrize("key", ALIGNMENT)
def test_every_alignment_option_changes_a_number(logits_of, key):
    base, change = ALIGNMENT[key]
    tight = {"covariance": {"ridge": 1.0}} if key == "nearest_mean_filter" else {}
    one, two = (logits_of(options({**tight, **each})) for each in (base, change))
    assert differ(one, two)


def test_which_heads_are_aligned_changes_a_number(run):
    choices = ("all", "oldest", "newest", "random")
    branches = [{**ALIGN, "name": choice, "train_heads": choice} for choice in choices]
    logits = run({"align": branches}, TASKS, seed=4)[1]
    assert all(differ(logits[one], logits[two]) for number, one in enumerate(choices) for two in choices[:number])


def test_the_kind_of_a_branch_changes_a_number(logits_of):
    chosen = [ALIGN, *({"name": "a", "kind": kind} for kind in ("lda", "quadratic", "none"))]
    logits = [logits_of({"align": [each]}) for each in chosen]
    assert all(differ(one, two) for number, one in enumerate(logits) for two in logits[:number])
    assert {*kinds} == {"align", "lda", "quadratic", "none"}


@pytest.mark.parametrize(
    ("kind", "key"), [("lda", key) for key in LDA] + [("quadratic", key) for key in QUADRATIC], ids=str
)
def test_every_option_of_a_closed_form_changes_a_number(logits_of, kind, key):
    cases = (LDA if kind == "lda" else QUADRATIC)[key]
    one, two = (logits_of({"align": [{"name": "a", "kind": kind, **each}]}) for each in cases)
    assert differ(one, two)


@pytest.mark.parametrize("key", LOOKS)
def test_every_option_of_looks_changes_a_number(logits_of, key):
    quadratic = {"name": "a", "kind": "quadratic", "drift": {"model": "affine"}}
    one, two = (logits_of({"align": [quadratic], "looks": each}) for each in LOOKS[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", COVARIANCE)
def test_every_covariance_option_changes_a_number(logits_of, key):
    one, two = (logits_of(options({"covariance": each})) for each in COVARIANCE[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", DRIFT)
def test_every_drift_option_changes_a_number(logits_of, key):
    one, two = (logits_of({"align": [{"name": "a", "kind": "quadratic", "drift": each}]}) for each in DRIFT[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", MERGE)
def test_every_merge_option_changes_a_number(logits_of, key):
    one, two = (logits_of(options(merge=each)) for each in MERGE[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", HEAD)
def test_every_head_option_changes_a_number(logits_of, key):
    one, two = (logits_of(options(head=each)) for each in HEAD[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", TRAINING)
def test_every_training_option_changes_a_number(logits_of, key):
    base = {"epochs": 2, "batch_size": 4, "lr": 0.05}
    one, two = (logits_of(options(), training=TrainingOptions(**{**base, **each})) for each in TRAINING[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", AUGMENT)
def test_every_augmentation_option_changes_a_number(logits_of, key):
    base = {"crop_scale": (0.5, 1.0)}
    one, two = (logits_of(options(), augment=AugmentOptions(**{**base, **each})) for each in AUGMENT[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", LORA)
def test_every_lora_option_changes_a_number(logits_of, make_tuning, key):
    one, two = (logits_of(options(), tuning=make_tuning("lora", **each)) for each in LORA[key])
    assert differ(one, two)


@pytest.mark.parametrize("key", METHOD)
def test_every_option_of_the_method_changes_a_number(logits_of, key):
    one, two = (logits_of({**options(), **each}) for each in METHOD[key])
    assert differ(one, two)


def test_the_seed_changes_numbers_and_nothing_else_does(run):
    once, again, other = (run(options(), seed=seed)[1]["a"] for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert differ(once, other)


# Operators and starts


@pytest.mark.parametrize("start", ["merged", "previous", "base"])
def test_fine_tuning_starts_where_it_should(run, start, make_task):
    """With the operator `last`, the learnt vector is the last task's own; `first` shows the others' influence."""
    method, _ = run(options(init_from=start, merge={"operator": "first"}))
    began = []
    task = make_task(3, ("g", "h"))
    original = method.training.epoch

    def spy(*arguments, **named):
        began.append(method.setting.extractor.tensors())
        return original(*arguments, **named)

    method.training.epoch = spy
    previous, merged, base = method.previous, method.merge.parameters(), method.merge.base
    learn(method, task, list("abcdef"))
    expected = {"merged": merged, "previous": previous, "base": base}[start]
    assert all(torch.equal(began[0][name], expected[name]) for name in began[0])
    assert bool(method.previous) == (start == "previous")


def test_the_backbone_after_a_task_is_the_merge(run):
    method, _ = run(options(merge={"operator": "mean", "alpha": 0.7}))
    tensors, merged = method.setting.extractor.tensors(), method.merge.parameters()
    assert method.merge.count == 3
    assert all(torch.equal(tensors[name], merged[name]) for name in tensors)


def test_two_vectors_are_stored_however_many_tasks(run):
    sizes = [run(options(), tasks=TASKS[:count])[0].storage() for count in (1, 3)]
    for part in ("base", "vector"):
        assert sizes[0][part] == sizes[1][part]
    assert "previous" not in sizes[1]
    assert "features" not in sizes[1]
    assert "training" not in sizes[1]


# The kinds of tasks


def test_a_first_task_of_one_class(run):
    method, logits = run(options(), tasks=(("a",), ("b", "c")))
    assert method.merge.count == 1
    assert logits["a"].shape[1] == 3


def test_a_later_task_of_one_class_leaves_the_backbone(run, make_task):
    method, _ = run(options(), tasks=TASKS[:2])
    before = method.setting.extractor.tensors()
    learn(method, make_task(2, ("z",)), list("abcd"))
    after = method.setting.extractor.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert method.heads.sizes == [2, 2, 1]
    lengths = torch.cat([head.weight.norm(dim=1) for head in method.heads.tasks[:2]])
    torch.testing.assert_close(method.heads.tasks[2].weight.norm(dim=1), lengths.mean()[None])


def test_a_task_of_known_and_new_classes(run, make_task):
    method, _ = run(options(), tasks=TASKS[:2])
    old = method.heads.state()[0]
    learn(method, make_task(2, ("b", "x", "d", "y"), 4), list("abcd"))
    assert method.heads.sizes == [2, 2, 2]
    assert all(torch.equal(method.heads.state()[0][name], tensor) for name, tensor in old.items())
    counts = {label: each.count for label, each in method.branch_set.memories["a"].classes.items()}
    assert counts == {0: 5, 1: 9, 2: 5, 3: 9, 4: 4, 5: 4}


@pytest.mark.parametrize("head", ["linear", "mlp", "cosine", "prototype"])
def test_a_task_of_known_classes_only(run, make_task, head):
    method, _ = run(options(head={"name": head}), tasks=TASKS[:2])
    learn(method, make_task(2, ("c", "a"), 4), list("abcd"))
    learn(method, make_task(3, ("d",), 2), list("abcd"))
    assert method.heads.sizes == [2, 2]
    counts = {label: each.count for label, each in method.branch_set.memories["a"].classes.items()}
    assert counts == {0: 9, 1: 5, 2: 9, 3: 7}
    assert method.merge.count == 3


@pytest.mark.parametrize("kind", ["full", "shared", "diagonal"])
def test_a_class_with_one_image(run, kind):
    _, logits = run(
        {
            "align": [
                {**ALIGN, "covariance": {"kind": kind}},
                {"name": "l", "kind": "lda", "covariance": {"kind": kind}},
                {"name": "q", "kind": "quadratic", "covariance": {"kind": kind}},
            ]
        },
        tasks=TASKS[:2],
        per_class=[5, 1],
    )
    assert set(logits) == {"a", "l", "q"}


@pytest.mark.parametrize("tasks", [(("a", "b"), ("c", "d")), (("a",), ("b",), ("c",))])
@pytest.mark.parametrize("align", ["none", "ca", "lca", "lda", "balanced", "best"])
def test_one_image_of_every_class(run, tasks, align):
    run({"align": align}, tasks=tasks, per_class=1)


@pytest.mark.parametrize("head", ["linear", "mlp", "cosine", "prototype"])
def test_every_head_with_every_kind_of_task(run, head):
    method, logits = run(
        {"align": ["none", {**ALIGN, "name": "a"}, "lda", "best"], "head": {"name": head}},
        tasks=(("a", "b"), ("c",), ("d", "e")),
    )
    assert method.heads.sizes == [2, 1, 2]
    assert all(each.shape[1] == 5 for each in logits.values())


def test_prototypes_are_the_class_means(run, make_task):
    method, _ = run(options(head={"name": "prototype"}), tasks=TASKS[:1])
    features = extract(method.setting.extractor, make_task(0, ("a", "b"), 5).train, Progress(), "x")
    means = torch.stack([features[:5].mean(0), features[5:].mean(0)])
    torch.testing.assert_close(method.heads.tasks[0].weight, torch.nn.functional.normalize(means))


@pytest.mark.parametrize("name", ["lora", "full", "none"])
@pytest.mark.parametrize("kind", ["plain", "distilled", "registers_average", "attention_pool"])
def test_every_tuner_on_every_transformer(run, make_tuning, name, kind):
    method, _ = run(options(), tasks=TASKS[:2], tuning=make_tuning(name), kind=kind)
    assert method.merge.count == 2


# Branches


def test_branches_do_not_influence_each_other_or_the_trunk(run):
    many, logits = run({"align": ["none", {**ALIGN, "name": "a"}, {**ALIGN, "name": "b", "robustness": 2.0}, "lda"]})
    alone, own = run({"align": [{**ALIGN, "name": "b", "robustness": 2.0}]})
    assert torch.equal(logits["b"], own["b"])
    assert differ(logits["a"], logits["b"])
    assert all(torch.equal(many.merge.vector[name], each) for name, each in alone.merge.vector.items())


def test_branches_with_equal_statistics_share_them(run):
    align = [
        {**ALIGN, "name": "a"},
        {**ALIGN, "name": "b", "robustness": 2.0},
        {**ALIGN, "name": "c", "statistics": "before"},
    ]
    method, _ = run({"align": align}, tasks=TASKS[:2])
    assert set(method.branch_set.memories) == {"a", "c"}
    assert method.branch_set.memory(method.options.align[1].name) is method.branch_set.memories["a"]


def test_the_first_task_is_not_aligned_unless_asked(run):
    align = [
        {"name": "none", "kind": "none"},
        {**ALIGN, "name": "later"},
        {**ALIGN, "name": "first", "first_task": True},
    ]
    _, logits = run({"align": align}, tasks=TASKS[:1])
    assert torch.equal(logits["none"], logits["later"])
    assert differ(logits["none"], logits["first"])


def test_the_statistics_are_those_of_the_features(run, make_task):
    """Under the merged backbone for `after`; of all tasks only the last one's can still be computed."""
    method, _ = run(options(), tasks=TASKS[:2])
    features = extract(method.setting.extractor, make_task(1, ("c", "d"), 5).train, Progress(), "x")
    expected = GaussianMemory(CovarianceOptions())
    expected.observe(2, features[:5])
    torch.testing.assert_close(method.branch_set.memories["a"].classes[2].mean, expected.classes[2].mean)
    torch.testing.assert_close(method.branch_set.memories["a"].classes[2].factor, expected.classes[2].factor)


@pytest.mark.parametrize(
    ("model", "more"), [*((model, {}) for model in drifts), ("affine", {"strength": "chosen"})], ids=str
)
def test_old_gaussians_move_as_the_new_images_did(run, make_task, model, more):
    method, _ = run(options({"drift": {"model": model, **more}}), tasks=TASKS[:1])
    task, memory = make_task(1, ("c", "d", "e"), 5), method.branch_set.memories["a"]
    old = dict(memory.classes)
    before = extract(method.setting.extractor, task.train, Progress(), "x")
    learn(method, task, ["a", "b"])
    after = extract(method.setting.extractor, task.train, Progress(), "x")
    transport = drifts[model](**more).fit(before, after, torch.tensor([2] * 5 + [3] * 5 + [4] * 5))
    for label, gaussian in old.items():
        torch.testing.assert_close(memory.classes[label].mean, transport.means(gaussian.mean[None])[0])
        torch.testing.assert_close(memory.classes[label].factor, transport.rows(gaussian.factor))
    assert differ(before, after)
    assert differ(memory.means()[0], old[0].mean) == (model != "none")


def test_unknown_scores_are_larger_for_ood_images(run, make_images):
    method, _ = run({"align": ["none", {**ALIGN, "name": "a"}]}, tasks=TASKS[:2], per_class=10)
    images = make_images(("a", "b", "c", "d"), 5, seed=5)
    known = extract(method.setting.extractor, images, Progress(), "x")
    ood = known + 20
    assert "none" not in method.unknown_scores(known)
    assert method.unknown_scores(known)["a"].max() < method.unknown_scores(ood)["a"].min()


# The state


def test_the_state_can_be_taken_up_after_every_step(run, make_setting, make_task, make_images, tmp_path):
    """Every step in a method of its own, through files: bit-equal to the uninterrupted run."""
    chosen = {
        "align": [ALIGN, {**ALIGN, "name": "b", "covariance": {"kind": "shared"}, "drift": {"model": "affine"}}],
        "init_from": "previous",
    }
    tasks = (("a", "b"), ("c",), ("b", "d", "e"))
    _, expected = run(chosen, tasks=tasks)
    classes, stored = [], None
    for index, names in enumerate(tasks):
        task = make_task(index, names, 5)
        classes += [name for name in names if name not in classes]
        labels = [classes.index(name) for name in names]
        for number in range(len(_steps(make_setting, chosen, stored, task, labels))):
            method = _restored(make_setting, chosen, stored)
            list(method.steps(task, labels))[number].run()
            save_state(tmp_path, method.state())
            stored = load_state(tmp_path)
        method = _restored(make_setting, chosen, stored)
        method.finish_task()
        stored = method.state()
    features = extract(method.setting.extractor, make_images(tuple(classes), 3, seed=77), Progress(), "test")
    for branch, logits in expected.items():
        assert torch.equal(method.logits(features, branch), logits)


def _restored(make_setting, chosen, stored: State | None):
    method = IncrementalMerging(make_setting(), ImOptions(**chosen))
    if stored is not None:
        method.load_state(stored)
    return method


def _steps(make_setting, chosen, stored, task, labels):
    return list(_restored(make_setting, chosen, stored).steps(task, labels))


def test_the_steps_of_a_task(make_setting, make_task):
    method = IncrementalMerging(make_setting(), ImOptions(align=["none", "ca", "lda", "best"]))
    steps = list(method.steps(make_task(0, ("a", "b")), [0, 1]))
    assert [(step.phase, step.number, step.count, step.trunk) for step in steps] == [
        ("observe", 0, 1, True),
        ("finetune", 0, 2, True),
        ("finetune", 1, 2, True),
        ("merge", 0, 1, True),
        ("statistics", 0, 1, False),
        ("align ca", 0, 1, False),
        ("align lda", 0, 1, False),
    ]
    names = [step.phase for step in method.steps(make_task(0, ("a",)), [0])]
    assert names[:2] == ["observe", "head from mean"]


def test_features_from_before_are_extracted_only_where_something_can_move(run, monkeypatch):
    """In the first task there are no old Gaussians; a class alone gets its head from these features, though."""
    seen = []

    def recording(extractor, images, progress, what, **more):
        seen.append((getattr(images, "classes", None), what))
        return extract(extractor, images, progress, what, **more)

    monkeypatch.setattr("lca.methods._base.extract", recording)
    run(options(), tasks=TASKS[:2])
    assert [classes for classes, what in seen if what == "features before"] == [TASKS[1]]
    seen.clear()
    run(options(), tasks=(("a",), ("b", "c")))
    assert [classes for classes, what in seen if what == "features before"] == [("a",), ("b", "c")]


def test_old_gaussians_do_not_stay_behind_unnoticed(run):
    method, _ = run(options(), tasks=TASKS[:1])
    with pytest.raises(ValueError, match="from before"):
        method.branch_set.observe(torch.tensor([2, 2]), tuned=torch.zeros(2, 24), merged=torch.zeros(2, 24))


def test_a_trunk_serves_other_branches(run, make_setting, make_task):
    """Branches on a trunk that was loaded give what a run of their own gives."""
    whole, _ = run(options(), tasks=TASKS[:1])
    method = IncrementalMerging(make_setting(), ImOptions(**options()))
    donor = IncrementalMerging(make_setting(), ImOptions(align=["none"]))
    task = make_task(0, TASKS[0], 5)
    for step in donor.steps(task, [0, 1]):
        if step.trunk:
            step.run()
    method.load_trunk_state(donor.trunk_state())
    for step in method.steps(task, [0, 1]):
        if not step.trunk:
            step.run()
    method.finish_task()
    one, two = whole.state(), method.state()
    assert one.meta == two.meta
    for part, tensors in one.parts.items():
        assert all(torch.equal(two.parts[part][name], tensor) for name, tensor in tensors.items()), part


# Sequential fine-tuning, the baseline


@pytest.mark.parametrize("name", ["finetune", "joint"])
def test_the_baselines_learn_and_resume(make_setting, make_task, make_images, name, tmp_path):
    made = methods[name]
    method, classes = made(make_setting(), made.Options()), []
    for index, names in enumerate((("a", "b"), ("c",), ("b", "d"))):
        learn(method, make_task(index, names, 5), classes)
    images = make_images(tuple(classes), 3, seed=77)
    logits = method.logits(extract(method.setting.extractor, images, Progress(), "x"), "default")
    assert logits.shape == (12, 4)
    save_state(tmp_path, method.state())
    twin = made(make_setting(), made.Options())
    twin.load_state(load_state(tmp_path))
    assert torch.equal(twin.logits(extract(twin.setting.extractor, images, Progress(), "x"), "default"), logits)
    assert twin.storage() == method.storage()


def test_a_head_option_of_the_baseline_changes_a_number(make_setting, make_task):
    made, logits = methods["finetune"], []
    for head in ("linear", "mlp"):
        method = made(make_setting(), made.Options(head={"name": head}))
        learn(method, make_task(0, ("a", "b"), 5), [])
        logits.append(method.logits(torch.ones(2, 24), "default"))
    assert differ(*logits)
