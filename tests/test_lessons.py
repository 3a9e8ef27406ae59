"""Instant and thorough lessons: what each does, when the second is tried, and when it is kept."""

import json
from dataclasses import asdict, replace
from math import sqrt

import pytest
import torch

import tiny
from lca import ContinualClassifier, LcaError
from lca.history import Change, Improvement, Lesson, OldClasses
from lca.lessons import PAYS_ABOVE, SAMPLES, Worth, changes, compared, parts_of, samples_of_each
from lca.methods import methods
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

GOOD = {"lr": 0.01, "epochs": 4}
HARMFUL = {"lr": 30.0, "epochs": 1}
FIRST, SECOND = {"3": 16, "7": 14, "1": 15}, {"0": 14, "8": 15}


def build(training=GOOD, **method):
    return tiny.classifier(tiny.recipe(training=training, method={"name": "im", **method}))


def answers(model):
    return model.logits(model.features(tiny.images(dict.fromkeys(model.classes, 5), skip=40)))


def content(model):
    """All of a model but the clock's part of its history."""
    state = model.state()
    return {f"{part}/{name}": each for part, tensors in state.parts.items() for name, each in tensors.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def timeless(lesson):
    return replace(lesson, when=None, seconds=None)


def test_an_instant_lesson_trains_nothing():
    model = build()
    before = model.extractor.tensors()
    lesson = model.learn(tiny.images(FIRST), effort="instant")
    assert (lesson.effort, lesson.improvement) == ("instant", None)
    assert_same(before, model.extractor.tensors())
    assert (model.method.merge.count, model.method.training.state()[0]) == (0, {})
    assert model.evaluate([(image, "3") for image in tiny.images({"3": 9}, skip=40).pixels.canvas]).accuracy > 60


def test_a_thorough_lesson_trains_and_compares_with_nothing():
    model = build()
    before = model.extractor.tensors()
    lesson = model.learn(tiny.images(FIRST), effort="thorough")
    assert (lesson.effort, lesson.improvement, model.method.merge.count) == ("thorough", None, 1)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.extractor.tensors().items())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"3": PAYS_ABOVE, "7": PAYS_ABOVE}, ("instant",)),
        ({"3": PAYS_ABOVE + 1, "7": PAYS_ABOVE}, ("instant", "thorough")),
        ({"3": 2, "7": 2 * PAYS_ABOVE - 2}, ("instant",)),
        ({"3": 40}, ("instant",)),  # a single class has nothing to be trained on
    ],
)
def test_more_than_ten_images_a_class_are_worth_training(counts, expected):
    task, method = tiny.task(0, counts), build().method
    assert parts_of("auto", method, task) == expected
    assert parts_of("instant", method, task) == ("instant",)
    assert parts_of("thorough", method, task) == (("thorough",) if len(counts) > 1 else ("instant",))
    assert parts_of("improve", method, task) == (("instant", "thorough") if len(counts) > 1 else ("instant",))


def test_few_images_are_taught_instantly_and_no_more():
    model = build()
    given = list(model.lessons(tiny.images({"3": 10, "7": 10})))
    assert [each.effort for each in given] == ["instant"]
    assert [each.improvement for each in given] == [None]


def test_an_improvement_that_is_kept_is_the_thorough_lesson():
    model, thorough, instant = build(), build(), build()
    for each in (model, thorough, instant):
        each.learn(tiny.images(FIRST), effort="instant")
    lessons = model.lessons(tiny.images(SECOND), effort="improve")
    first = next(lessons)
    instant.learn(tiny.images(SECOND), effort="instant")
    assert_same(content(model), content(instant))
    (second,) = lessons
    alone = thorough.learn(tiny.images(SECOND), effort="thorough")
    assert second.improvement.kept
    assert timeless(replace(second, improvement=None)) == timeless(alone)
    assert_same(content(model), content(thorough))
    assert model.history == [model.history[0], second]
    assert (first.effort, second.effort) == ("instant", "thorough")
    tried = second.improvement
    assert (tried.measured_on, tried.instant, tried.thorough) == ("held out", first.accuracy, second.accuracy)
    assert tried.thorough >= tried.instant
    assert tried.known_thorough >= tried.known_instant - tried.margin


def test_an_improvement_that_harms_leaves_the_instant_lesson():
    model, instant = build(HARMFUL), build(HARMFUL)
    for each in (model, instant):
        each.learn(tiny.images(FIRST), effort="instant")
    lesson = model.learn(tiny.images(SECOND))  # auto
    alone = instant.learn(tiny.images(SECOND), effort="instant")
    assert not lesson.improvement.kept
    assert timeless(replace(lesson, improvement=None)) == timeless(alone)
    assert model.history[1:] == [lesson]
    assert_same(content(model), content(instant))
    assert lesson.improvement.thorough < lesson.improvement.instant or (
        lesson.improvement.known_thorough < lesson.improvement.known_instant - lesson.improvement.margin
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, LcaError("the loss is no number")])
@pytest.mark.parametrize("phase", ["finetune", "statistics"])
def test_an_improvement_that_fails_leaves_the_instant_lesson(monkeypatch, phase, error):
    model, instant = build(), build()
    for each in (model, instant):
        each.learn(tiny.images(FIRST), effort="thorough")
    steps = model.method.steps

    def broken(task, labels):
        for step in steps(task, labels):
            yield step
            if step.phase == phase:
                raise error

    monkeypatch.setattr(model.method, "steps", broken)
    with pytest.raises(error if isinstance(error, type) else LcaError):
        model.learn(tiny.images(SECOND))
    alone = instant.learn(tiny.images(SECOND), effort="instant")
    assert_same(content(model), content(instant))
    assert timeless(model.history[-1]) == timeless(alone)
    assert (len(model.history), model.classes, model.tasks) == (2, instant.classes, instant.tasks)
    monkeypatch.undo()
    assert_same({"logits": answers(model)}, {"logits": answers(instant)})


def test_between_the_parts_the_model_can_be_saved(tmp_path):
    model = build()
    lessons = model.lessons(tiny.images(FIRST))
    first = next(lessons)
    model.save(tmp_path)
    (_,) = lessons
    with tiny.tiny_backbone():
        loaded = ContinualClassifier.load(tmp_path)
    assert loaded.history == [first]
    instant = build()
    instant.learn(tiny.images(FIRST), effort="instant")
    assert_same(content(loaded), content(instant))


def test_where_nothing_is_held_out_every_image_is_left_out_once():
    model = build()
    lesson = model.learn(tiny.images(FIRST), held_out=0, effort="improve")
    tried = lesson.improvement
    assert (lesson.held_out, lesson.left_one_out) == (0, sum(FIRST.values()))
    assert (tried.measured_on, tried.known_instant, tried.margin) == ("left one out", None, None)
    assert lesson.left_one_out_accuracy == (tried.thorough if tried.kept else tried.instant)


def test_leaving_one_out_agrees_with_teaching_without_it():
    """The formula against the plain way: a model for every image, taught without it."""
    everything = tiny.images({"3": 6, "7": 6, "1": 6})
    right = 0
    for row in range(len(everything)):
        others = build()
        others.learn(everything.subset(torch.arange(len(everything)) != row), held_out=0, effort="instant")
        asked = others.logits(others.features(everything.subset(torch.tensor([row]))))
        right += int(asked.argmax(1)) == others.classes.index(everything.classes[int(everything.labels[row])])
    lesson = build().learn(everything, held_out=0, effort="instant")
    assert abs(lesson.left_one_out_right - right) <= 1  # the covariance that all classes share stays as it was
    assert lesson.left_one_out == len(everything)


def test_without_anything_to_compare_nothing_is_tried():
    model = build(align=["none"])  # keeps no statistics
    assert [each.effort for each in model.lessons(tiny.images(FIRST), held_out=0, effort="improve")] == ["instant"]
    assert [each.effort for each in model.lessons(tiny.images(SECOND), effort="improve")] == ["instant"]


def test_a_task_of_a_stream_is_taught_thoroughly_unless_asked_otherwise():
    model = build()
    assert model.learn(tiny.task(0, FIRST)).effort == "thorough"
    lesson = model.learn(tiny.task(1, SECOND), effort="instant")
    assert (lesson.effort, lesson.when, lesson.left_one_out, model.method.merge.count) == ("instant", None, 0, 1)


@pytest.mark.parametrize("name", ["frozen", "simplecil"])
def test_what_trains_nothing_is_instant_whatever_is_asked(name):
    for effort in ("auto", "instant", "improve", "thorough"):
        model = tiny.classifier(tiny.recipe(method={"name": name}))
        lessons = list(model.lessons(tiny.images(FIRST), effort=effort))
        assert [each.effort for each in lessons] == ["instant"]
        assert_same(content(model), content(model))
        assert model.history == lessons


def test_what_cannot_do_without_training_says_so():
    model = tiny.classifier(tiny.recipe(method={"name": "finetune"}))
    for effort in ("instant", "improve"):
        with pytest.raises(LcaError, match=r"'finetune' cannot learn .* without training; .* effort='thorough'"):
            model.learn(tiny.images(FIRST), effort=effort)
        assert (model.classes, model.history) == ([], [])
    assert model.learn(tiny.images(FIRST)).effort == "thorough"


def test_what_trains_on_the_first_task_only_is_instant_later():
    model = tiny.classifier(tiny.recipe(method={"name": "fecam"}))
    with pytest.raises(LcaError, match="without training"):
        model.learn(tiny.images(FIRST), effort="instant")
    assert model.learn(tiny.images(FIRST)).effort == "thorough"
    assert model.learn(tiny.images(SECOND), effort="instant").effort == "instant"


def test_an_effort_there_is_not_is_refused():
    with pytest.raises(LcaError, match="auto, instant, improve, thorough, got 'quick'"):
        build().learn(tiny.images(FIRST), effort="quick")


def test_instant_and_thorough_lessons_may_follow_each_other(tmp_path):
    """Saved and loaded between, with drift of what was taught instantly, and a class forgotten in the end."""
    model = build()
    other = build()
    plan = [(FIRST, "instant"), (SECOND, "thorough"), ({"5": 12, "3": 6}, "instant"), ({"6": 12, "9": 12}, "thorough")]
    for number, (counts, effort) in enumerate(plan):
        for each in (model, other):
            each.learn(tiny.images(counts, skip=number), effort=effort)
        model.save(tmp_path)
        with tiny.tiny_backbone():
            model = ContinualClassifier.load(tmp_path)
        assert_same(content(model), content(other))
    assert [each.effort for each in model.history] == [effort for _, effort in plan]
    right = answers(model).argmax(1).cpu() == torch.arange(len(model.classes)).repeat_interleave(5)
    assert right.float().mean() > 0.3  # one of eight by chance
    for each in (model, other):
        each.forget("7")
    assert "7" not in model.classes
    assert_same(content(model), content(other))
    model.learn(tiny.images({"7": 12}), effort="instant")
    assert model.classes[-1] == "7"


def test_statistics_of_an_instant_lesson_follow_the_backbone():
    model = build(training={"lr": 0.05, "epochs": 6})
    images = tiny.images(FIRST)
    model.learn(images, held_out=0, effort="instant")
    before = model.method.statistics(model.branch)[0].means()
    model.learn(tiny.images({"0": 40, "8": 40, "9": 40}), held_out=0, effort="thorough")
    after = model.method.statistics(model.branch)[0].means()[: len(before)]
    features = model.features(images).cpu()
    true = torch.stack([features[images.labels == label].mean(0) for label in range(len(before))])
    order = [images.classes.index(name) for name in model.classes[: len(before)]]
    assert (after - true[order]).norm() < 0.8 * (before - true[order]).norm()


# the comparison


def worth(accuracy, known=None, samples=0, measured_on="held out"):
    return Worth(measured_on, accuracy, known, samples)


@pytest.mark.parametrize(
    ("instant", "thorough", "kept"),
    [
        (worth(80.0), worth(80.0), True),
        (worth(80.0), worth(79.9), False),
        (worth(80.0, 90.0, 400), worth(90.0, 90.0, 400), True),
        (worth(80.0, 90.0, 400), worth(79.0, 95.0, 400), False),
        (worth(80.0, 90.0, 400), worth(90.0, 88.0, 400), True),  # one standard error is 2.2
        (worth(80.0, 90.0, 400), worth(90.0, 87.5, 400), False),
        (worth(80.0, 90.0, 40), worth(90.0, 87.5, 40), True),
    ],
)
def test_neither_number_may_fall(instant, thorough, kept):
    tried = compared(instant, thorough, 2.5)
    assert tried.kept == kept
    assert (tried.instant, tried.thorough, tried.seconds) == (instant.accuracy, thorough.accuracy, 2.5)
    assert (tried.known_instant, tried.known_thorough) == (instant.known, thorough.known)
    if instant.known is not None:
        shares = [each.known / 100 for each in (instant, thorough)]
        assert tried.margin == pytest.approx(100 * sqrt(sum(p * (1 - p) / instant.samples for p in shares)))


def gaussians(apart, count=3):
    draws = torch.Generator().manual_seed(1)
    memory = GaussianMemory(CovarianceOptions())
    for label in range(count):
        features = torch.randn(30, 4, generator=draws)
        memory.observe(label, features + apart * torch.eye(4)[label])
    return memory


def lesson(**more):
    return Lesson("learn", None, {"a": 3}, ["a"], **more)


def estimate(memory, known, answer=None):
    nearest = answer or (lambda features: -torch.cdist(features, memory.means()))
    found = Worth.of(lesson(held_out=4, right=3), known, memory, nearest, torch.Generator().manual_seed(0))
    assert (found.measured_on, found.accuracy) == ("held out", 75.0)
    return found


def test_known_classes_are_asked_by_samples_of_their_gaussians():
    assert estimate(gaussians(20), 2).known == 100
    near = estimate(gaussians(1), 2)
    assert 45 < near.known < 80
    assert near.samples == SAMPLES
    first = torch.tensor([1.0, 0, 0])
    assert estimate(gaussians(20), 2, lambda features: first.expand(len(features), 3)).known == 50
    assert estimate(gaussians(20), 3).samples == 3 * -(-SAMPLES // 3)


def test_what_a_move_left_unexplained_counts():
    memory = gaussians(6)
    assert estimate(memory, 3).known > 99
    memory.residual = 3 * sqrt(3 * 29) * torch.eye(4)  # a standard deviation of 3
    assert estimate(memory, 3).known < 90
    samples = memory.with_residual(torch.zeros(3, 5000, 4), torch.Generator().manual_seed(0))
    assert samples.flatten(0, 1).std(0).tolist() == pytest.approx([3.0] * 4, rel=0.03)


def test_without_measure_or_statistics_there_is_no_worth():
    draws, memory = torch.Generator(), gaussians(5)
    assert Worth.of(lesson(), 0, memory, memory.mahalanobis, draws) is None
    assert Worth.of(lesson(held_out=2, right=1), 2, None, memory.mahalanobis, draws) is None
    assert Worth.of(lesson(held_out=2, right=1), 0, None, memory.mahalanobis, draws) == worth(50.0)
    alone = Worth.of(lesson(left_one_out=4, left_one_out_right=1), 0, None, memory.mahalanobis, draws)
    assert alone == worth(25.0, measured_on="left one out")


# its record


def test_a_lesson_is_read_from_its_json():
    tried = Improvement(True, "held out", 50.0, 75.0, 90.0, 89.5, 1.0, 3.5)
    for each in (lesson(), lesson(effort="thorough", improvement=tried)):
        assert Lesson.read(asdict(each)) == each
    old = {"kind": "learn", "when": None, "images": {"a": 3}, "new": ["a"], "held_out": 1, "right": 1}
    assert (Lesson.read(old).effort, Lesson.read(old).improvement) == (None, None)


@pytest.mark.parametrize("name", methods)
def test_a_method_that_has_instant_steps_says_so(name):
    own = [each for each in methods[name].__mro__ if "instant_steps" in vars(each)]
    assert methods[name].instant == (own[0].__name__ != "Method")


# what becomes of old classes


def test_changes_of_old_classes_by_hand():
    names = ["a", "b", "c", "d", "new"]
    before = torch.tensor([[0] * 20, [1] * 20, [2] * 20, [3] * 20])
    after = torch.tensor([[0] * 10 + [4] * 6 + [1] * 4, [1] * 19 + [0], [0] * 20, [3] * 20])
    found = changes(names, before, after, {"c", "new"})
    assert found == OldClasses(100.0, pytest.approx(100 * (0.5 + 0.95 + 1) / 3), 20, {"a": Change(100.0, 50.0, "new")})
    assert list(found.hurt) == ["a"], "one of twenty is chance, and c was taught again"
    back = changes(names, after, before, {"c"})
    assert (back.changed, back.hurt) == ({"a": Change(50.0, 100.0, None)}, {})
    assert changes(names, before, after, names) is None


def test_a_change_has_to_be_more_than_chance_and_worth_telling():
    def fall(count, lost):
        before = torch.zeros(1, count, dtype=torch.long)
        after = before.clone()
        after[0, :lost] = 1
        return bool(changes(["a", "b"], before, after, ()).hurt)

    # 2 sqrt(q (1 - q) / n) of 20: 9.7 points for one, 13.4 for two, 16.0 for three, 17.9 for four, which are 20
    assert [fall(20, lost) for lost in (1, 2, 3, 4)] == [False, False, False, True]
    assert [fall(2000, lost) for lost in (99, 101)] == [False, True], "five points"


def test_a_class_that_looks_like_an_old_one_hurts_it():
    """The new class's photos are of the old one's kind: much of what the old one is asked now gets the new name."""
    model = build()
    model.learn(tiny.images({"3": 8, "7": 8, "1": 8}), held_out=0, effort="instant")
    assert model.history[0].old_classes is None
    more = tiny.images({"3": 20}, skip=8)
    lesson = model.learn([(image, "like 3") for image in more.pixels.canvas], held_out=0, effort="instant")
    old = lesson.old_classes
    assert next(iter(old.hurt)) == "3", "the most hurt first"
    change = old.hurt["3"]
    assert change.before > 85
    assert change.after < change.before - 15
    assert change.taken_for == "like 3"
    assert old.after < old.before
    assert old.samples == samples_of_each(3) == 200
    assert Lesson.read(json.loads(json.dumps(asdict(lesson)))) == lesson
    harmless = model.learn(tiny.images({"3": 12}, skip=20), effort="instant").old_classes
    assert "3" not in harmless.changed, "what is taught again is measured on its own photos"


def test_without_statistics_or_in_a_stream_nothing_is_told_of_old_classes():
    model = build(align=["none"])
    for counts in (FIRST, SECOND):
        assert model.learn(tiny.images(counts), effort="instant").old_classes is None
    model = build()
    for number, counts in enumerate((FIRST, SECOND)):
        assert model.learn(tiny.task(number, counts)).old_classes is None


@pytest.mark.parametrize(("known", "count"), [(1, 200), (100, 200), (400, 50), (5000, 20)])
def test_samples_of_each_class(known, count):
    assert samples_of_each(known) == count
