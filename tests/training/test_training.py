import itertools

import pytest
import torch
from torch.nn import functional

import tiny
from lca.data.views import AugmentOptions, draw_crops, training_view
from lca.errors import LcaError
from lca.heads.growing import CosineOptions, GrowingHeads, LinearOptions
from lca.methods import methods
from lca.optimisation import cosine
from lca.progress import Progress
from lca.randomness import generator
from lca.training.loop import FineTuning, Inputs
from lca.training.options import TrainingOptions
from lca.training.setting import Given, Setting

AUGMENT = AugmentOptions(crop_scale=(0.5, 1.0))


def start(make_extractor, tuning=None, seed=3, **training):
    extractor = make_extractor(tuning)
    options = TrainingOptions(**{"epochs": 3, "batch_size": 4, "lr": 0.05, **training})
    return (
        extractor,
        GrowingHeads(24, LinearOptions()),
        FineTuning(Setting(extractor, options, AUGMENT, seed, Progress())),
    )


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_one_epoch_is_plain_sgd(make_extractor, make_task):
    """The same epoch by hand, with torch's own optimiser."""
    task = make_task(2, ("a", "b"), 5)
    extractor, heads, tuning = start(make_extractor)
    tuning.epoch(task, 1, heads)
    tuning.finish(task, heads, [0, 1])

    other = make_extractor().train()
    head = heads.new_head(2, generator(3, "head", 2))
    parameters = [*other.tuned_parameters().values(), *head.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=cosine(0.05, 1e-6, 1 / 3), momentum=0.9, weight_decay=5e-4)
    boxes, flips = draw_crops(task.train.pixels.sizes, AUGMENT, generator(3, "augment", 2, 1))
    for index in torch.randperm(10, generator=generator(3, "shuffle", 2, 1)).split(4):
        views = training_view(task.train.pixels.batch(index), boxes[index], flips[index], other.preprocessing)
        loss = functional.cross_entropy(head(other(views)), task.train.labels[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert equal(extractor.tensors(), other.tensors())
    assert torch.equal(heads.tasks[0].weight, head.weight)


def test_an_epoch_with_the_lca_loss(make_extractor, make_task):
    """The same epoch by hand, class by class and pair by pair."""
    task = make_task(2, ("a", "b"), 5)
    extractor, heads, tuning = start(make_extractor, loss="lca", robustness=0.7, momentum=0.0, weight_decay=0.0)
    measured = tuning.epoch(task, 0, heads)
    tuning.finish(task, heads, [0, 1])

    other = make_extractor().train()
    head = heads.new_head(2, generator(3, "head", 2))
    parameters = [*other.tuned_parameters().values(), *head.parameters()]
    boxes, flips = draw_crops(task.train.pixels.sizes, AUGMENT, generator(3, "augment", 2, 0))
    total = 0.0
    for index in torch.randperm(10, generator=generator(3, "shuffle", 2, 0)).split(4):
        views = training_view(task.train.pixels.batch(index), boxes[index], flips[index], other.preprocessing)
        labels = task.train.labels[index]
        losses = functional.cross_entropy(head(other(views)), labels, reduction="none")
        terms = []
        for label in labels.unique():
            own = list(losses[labels == label])
            pairs = [(one - two).abs() for one, two in itertools.combinations(own, 2)]
            terms.append(sum(own) / len(own) + (0.7 * sum(pairs) / len(pairs) if pairs else 0))
        loss = sum(terms) / len(terms)
        total += len(index) * loss.item()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.05 * gradient
    assert measured["loss"] == pytest.approx(total / 10, rel=1e-5)
    torch.testing.assert_close(heads.tasks[0].weight, head.weight.detach())
    for name, tensor in extractor.tensors().items():
        torch.testing.assert_close(tensor, other.tensors()[name])


@pytest.mark.parametrize("loss", ["cross_entropy", "lca"])
def test_no_loss_waits_for_the_device(make_extractor, loss):
    """A step is captured on a GPU. Tensors without values refuse whatever would have to know them."""
    _, _, tuning = start(make_extractor, loss=loss)
    logits, labels = torch.empty(8, 3, device="meta"), torch.empty(8, dtype=torch.long, device="meta")
    for options in (LinearOptions(), CosineOptions(margin=0.3)):
        head = GrowingHeads(24, options).new_head(3, torch.Generator()).to("meta")
        assert tuning.class_loss(logits.requires_grad_(), labels, head).shape == ()
    with pytest.raises(RuntimeError):
        labels.unique()


@pytest.mark.parametrize("name", list(methods))
def test_every_method_that_trains_follows_the_loss(name):
    losses = ("cross_entropy", "lca")
    models = [
        tiny.classifier(tiny.recipe(method=tiny.method_section(name), training={"loss": loss})) for loss in losses
    ]
    trains = isinstance(getattr(models[0].method, "training", None), FineTuning)
    assert trains or name in {"frozen", "simplecil"}
    for model in models:
        model.learn(tiny.task(0, {"0": 5, "1": 3, "2": 4}))
    states = [model.state().parts for model in models]
    same = all(equal(states[0][part], states[1][part]) for part in states[0])
    assert same != trains


@pytest.mark.parametrize("name", ["finetune", "aper", "ease", "l2p", "linear_probe", "macil"])
def test_every_method_with_a_choice_of_heads_follows_their_margin(name):
    heads = ({"name": "cosine"}, {"name": "cosine", "margin": 0.5})
    models = [tiny.classifier(tiny.recipe(method=tiny.method_section(name, head=head))) for head in heads]
    for model in models:
        model.learn(tiny.task(0, {"0": 5, "1": 3, "2": 4}))
    states = [model.state().parts for model in models]
    assert not all(equal(states[0][part], states[1][part]) for part in states[0])


@pytest.mark.parametrize(
    ("size", "last_batch", "lengths"), [(4, "keep", [4, 4, 2]), (4, "drop", [4, 4]), (20, "drop", [10])]
)
def test_a_short_last_batch_is_kept_or_dropped_by_choice(make_extractor, make_task, size, last_batch, lengths):
    task = make_task(0, ("a", "b"), 5)
    _, _, tuning = start(make_extractor, batch_size=size, last_batch=last_batch)
    first, second = (tuning.batches(task, epoch) for epoch in (0, 1))
    assert [len(batch) for batch in first] == lengths
    assert len(torch.cat(list(first)).unique()) == sum(lengths)
    assert not torch.equal(torch.cat(list(first)), torch.cat(list(second)))


def test_training_learns(make_extractor, make_task):
    task = make_task(0, ("a", "b", "c"), 8)
    _, heads, tuning = start(make_extractor, epochs=6)
    measured = [tuning.epoch(task, epoch, heads) for epoch in range(6)]
    assert measured[-1]["loss"] < measured[0]["loss"]
    assert measured[-1]["accuracy"] > 0.6
    assert heads.sizes == []


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_restart_after_any_epoch_changes_nothing(make_extractor, make_task, make_tuning, optimiser):
    task = make_task(1, ("a", "b"), 5)
    tuning_options = make_tuning("lora", dropout=0.3, feature_norm=True)
    settings = {"optimiser": optimiser, "lr": 0.01}
    extractor, heads, tuning = start(make_extractor, tuning_options, **settings)
    for epoch in range(3):
        tuning.epoch(task, epoch, heads)
    expected = extractor.tensors()
    tuning.finish(task, heads, [0, 1])

    stored = {}
    for epoch in range(3):  # every epoch in a new process, as it were
        again, other_heads, resumed = start(make_extractor, tuning_options, **settings)
        resumed.load(stored)
        assert resumed.state()[0] is stored
        resumed.epoch(task, epoch, other_heads)
        stored = resumed.state()[0]
    assert equal(again.tensors(), expected)
    again, other_heads, resumed = start(make_extractor, tuning_options, **settings)
    resumed.load(stored)
    resumed.finish(task, other_heads, [0, 1])
    assert equal(again.tensors(), expected)
    assert torch.equal(other_heads.tasks[0].weight, heads.tasks[0].weight)
    assert resumed.state()[0] == {}


def test_the_state_holds_the_optimisers_memory(make_extractor, make_task):
    task = make_task(0, ("a", "b"), 3)
    _, heads, tuning = start(make_extractor)
    assert tuning.state()[0] == {}
    tuning.epoch(task, 0, heads)
    assert {name.partition(".")[0] for name in tuning.state()[0]} == {"tuned", "head", "optimiser"}
    assert all(isinstance(each, torch.Tensor) for each in tuning.state()[0].values())


def test_only_new_classes_enter_the_heads(make_extractor, make_task):
    task = make_task(0, ("a", "b", "c"), 3)
    _, heads, tuning = start(make_extractor)
    tuning.epoch(task, 0, heads)
    rows = tuning.state()[0]["head.weight"]
    tuning.finish(task, heads, [2, 0])
    assert torch.equal(heads.tasks[0].weight, rows[[2, 0]])
    tuning.epoch(task, 0, heads)
    tuning.finish(task, heads, [])
    assert heads.sizes == [2]


def test_distillation_pulls_towards_the_teacher(make_extractor, make_task):
    task = make_task(0, ("a", "b"), 5)
    distances = []
    for weight in (0.0, 5.0):
        extractor, heads, tuning = start(make_extractor, distillation=weight)
        teacher = extractor.tensors()
        views = extractor.evaluation_views(task.train.pixels)
        with torch.no_grad():
            before = extractor.eval()(views)
            for epoch in range(3):
                with torch.enable_grad():
                    tuning.epoch(task, epoch, heads, teacher)
            distances.append(float((extractor(views) - before).norm()))
    assert distances[1] < 0.7 * distances[0]


def test_the_extractor_is_left_in_evaluation_mode(make_extractor, make_task):
    extractor, heads, tuning = start(make_extractor)
    tuning.epoch(make_task(0, ("a", "b"), 2), 0, heads)
    assert not extractor.training


def test_the_schedule():
    assert cosine(0.5, 0.1, 0) == pytest.approx(0.5)
    assert cosine(0.5, 0.1, 0.5) == pytest.approx(0.3)
    assert cosine(0.5, 0.1, 1) == pytest.approx(0.1)


def test_the_tuner_may_have_a_learning_rate_of_its_own(make_extractor, make_task):
    """Without momentum and decay a first step of plain SGD is proportional to the learning rate."""
    task = make_task(0, ("a", "b"), 2)
    plain = {"momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "batch_size": 4}

    def step(**rates):
        extractor, heads, tuning = start(make_extractor, **plain, **rates)
        before = extractor.tensors()
        tuning.epoch(task, 0, heads)
        tuning.finish(task, heads, [0, 1])
        change = {name: each - before[name] for name, each in extractor.tensors().items() if name.endswith("lora_B")}
        return change, heads.tasks[0].weight

    usual, head = step(lr=0.1)
    slow, same_head = step(lr=0.1, tuner_lr=0.001)
    assert torch.equal(head, same_head)
    for name, change in usual.items():
        assert change.abs().max() > 0
        torch.testing.assert_close(slow[name] * 100, change, rtol=1e-3, atol=1e-6)
    assert usual
    scaled, scaled_head = step(lr=0.01, tuner_lr=0.0001, rate_scale=10)
    torch.testing.assert_close(scaled, slow)
    torch.testing.assert_close(scaled_head, head)


def test_schedules():
    cosine_rates = TrainingOptions(epochs=4, lr=0.1, final_lr=0.02)
    assert cosine_rates.rate(0.1, 2) == cosine(0.1, 0.02, 0.5)
    assert cosine_rates.rate(0.01, 2) == pytest.approx(cosine(0.1, 0.02, 0.5) / 10)
    assert [TrainingOptions(schedule="constant").rate(0.3, epoch) for epoch in (0, 9)] == [0.3, 0.3]
    steps = TrainingOptions(epochs=20, schedule="steps", milestones=(0.5, 0.9))
    assert [steps.rate(1.0, epoch) for epoch in (0, 9, 10, 17, 18, 19)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "steps"}, "go together"),
        ({"milestones": (0.5,)}, "go together"),
        ({"schedule": "steps", "milestones": (5,)}, "shares of the epochs"),
    ],
)
def test_schedules_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**options)


def test_what_is_trained_on_which_batches_and_how_can_be_replaced(make_extractor, make_task):
    """A prompt method trains other tensors with another loss."""
    task = make_task(0, ("a", "b"), 4)
    scale = torch.nn.Parameter(torch.ones(24))
    seen = []

    class Scaled(FineTuning):
        def parameters(self):
            return {"scale": scale}

        def loss(self, views, labels, head, teacher):
            seen.append(labels.tolist())
            with torch.no_grad():
                features = self._extractor(views)
            logits = head(features * scale)
            return functional.cross_entropy(logits, labels) + scale.square().mean(), logits

        def batches(self, task, number):
            return [torch.tensor([0, 4]), torch.tensor([7])]

    extractor = make_extractor()
    before = extractor.tensors()
    options = TrainingOptions(epochs=1, lr=0.1)
    tuning = Scaled(Setting(extractor, options, AUGMENT, 3, Progress()))
    measured = tuning.epoch(task, 0, GrowingHeads(24, LinearOptions()))
    assert seen == [[0, 1], [1]]
    assert equal(extractor.tensors(), before)
    assert not torch.equal(scale, torch.ones(24))
    assert measured["loss"] > 0.5


def test_initial_tensors_and_batches_can_be_given(make_extractor, make_task):
    """Step by step beside another implementation: one epoch of one given batch, from given values, on centre crops."""
    centre = AugmentOptions(crop_scale=(1, 1), crop_ratio=(1, 1), flip=False)
    task, options = make_task(0, ("a", "b"), 4), TrainingOptions(epochs=2, lr=0.1, weight_decay=0)
    own = {name: torch.full_like(each, 0.01) for name, each in make_extractor().tensors().items()}
    rows = torch.linspace(-1, 1, 48).reshape(2, 24)
    given = Given(
        {f"tuner.{name}": each for name, each in own.items()} | {"head.0.weight": rows},
        {(0, 0): [torch.tensor([1, 6, 2])]},
    )
    extractor, heads = make_extractor(), GrowingHeads(24, LinearOptions())
    training = FineTuning(Setting(extractor, options, centre, 3, Progress(), given))
    assert equal(extractor.tensors(), own)
    measured = training.epoch(task, 0, heads)

    other = make_extractor()
    other.load(own)
    weight, index = rows.clone().requires_grad_(), torch.tensor([1, 6, 2])
    centres, unmirrored = draw_crops(task.train.pixels.sizes[index], centre, torch.Generator())
    views = training_view(task.train.pixels.batch(index), centres, unmirrored, other.preprocessing)
    loss = functional.cross_entropy(other(views) @ weight.T, task.train.labels[index])
    loss.backward()
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(training.state()[0]["head.weight"], rows - 0.1 * weight.grad)
    for name, parameter in other.tuned_parameters().items():
        torch.testing.assert_close(training.state()[0][f"tuned.{name}"], own[name] - 0.1 * parameter.grad)
    with pytest.raises(LcaError, match="shape"):
        Setting(make_extractor(), options, centre, 3, Progress(), Given({f"tuner.{next(iter(own))}": torch.zeros(1)}))
    with pytest.raises(LcaError, match=r"tuner\.nothing"):
        Setting(make_extractor(), options, centre, 3, Progress(), Given({"tuner.nothing": torch.zeros(1)}))
    with pytest.raises(LcaError, match="can be called 'weights'"):
        Given({"weights": torch.zeros(1)})


def test_training_on_something_else_than_views(make_extractor, make_task):
    task, drawn = make_task(0, ("a", "b"), 4), []

    class Rows(Inputs):
        rows = torch.randn(8, 24, generator=torch.Generator().manual_seed(0))

        def draw(self, epoch):
            drawn.append(epoch)

        def __call__(self, index):
            return self.rows[index]

    class OnRows(FineTuning):
        def inputs(self, task):
            return Rows()

        def loss(self, views, labels, head, teacher):
            logits = head(views)
            return functional.cross_entropy(logits, labels), logits

    training = OnRows(Setting(make_extractor(), TrainingOptions(epochs=30, lr=1.0), AUGMENT, 3, Progress()))
    heads = GrowingHeads(24, LinearOptions())
    losses = [training.epoch(task, epoch, heads)["loss"] for epoch in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    assert drawn == list(range(30))
