"""What a user holds, on the embedded backbone."""

import json
import random
import warnings
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from scipy.stats import binomtest

import lca.classifier
from lca import ContinualClassifier, LcaError
from lca.backbones import EMBEDDED, BackboneOptions, load_backbone
from lca.classifier import HELD_OUT
from lca.data.decoding import decode
from lca.data.images import Pixels
from lca.data.sources import read_card
from lca.data.views import AugmentOptions, ViewOptions
from lca.files import load_state, load_tensors, read_manifest, tensor_bytes
from lca.instruments.robustness import labelled_images
from lca.progress import Progress
from lca.recipe import validate_recipe

FAST = {
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.01},
    "tuning": {"name": "lora", "rank": 2},
    "method": {"align": ["none", {"preset": "balanced", "samples": 16, "epochs": 1}, "best"]},
    "device": "cpu",
}
COLOURS = {"red": (200, 30, 30), "green": (30, 190, 40), "blue": (40, 50, 200), "grey": (120, 120, 120)}


def photo(name, number=0):
    noise = torch.randn(48, 40, 3, generator=torch.Generator().manual_seed(number + 1000 * len(name)))
    pixels = (torch.tensor(COLOURS[name]) + 20 * noise).clamp(0, 255).to(torch.uint8)
    return Image.fromarray(pixels.numpy())


def pairs(*names, count=4):
    return [(photo(name, number), name) for name in names for number in range(count)]


def folders(root, *names, count=4):
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(count):
            photo(name, number).save(root / name / f"{number}.png")
    return root


def build(**changes):
    return ContinualClassifier(validate_recipe({**FAST, **changes}))


def pixels_of(images):
    return Pixels.of([decode(image, 73) for image in images])


def logits(model, branch=None):
    return model.logits(model.features(pixels_of([photo(name, 50) for name in COLOURS])), branch)


@pytest.fixture(scope="module")
def taught():
    """Two tasks; tests must not teach it further."""
    model = build()
    model.learn(pairs("green", "red"), effort="thorough")
    model.learn(pairs("blue", "grey"), effort="thorough")
    return model


def test_it_learns_and_predicts(taught):
    answers = taught.predict([photo(name, 99) for name in COLOURS])
    assert taught.classes == ["green", "red", "blue", "grey"]
    assert [answer.label for answer in answers] == list(COLOURS)
    for answer in answers:
        assert list(answer.probabilities) == taught.classes
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert answer.probability == max(answer.probabilities.values()) == answer.probabilities[answer.label]


def test_folders_and_pairs_teach_the_same(tmp_path, taught):
    model = build()
    model.learn(folders(tmp_path / "first", "red", "green"), effort="thorough")
    model.learn(str(folders(tmp_path / "second", "blue", "grey")), effort="thorough")
    assert model.classes == taught.classes
    torch.testing.assert_close(logits(model), logits(taught), rtol=0, atol=1e-5)


def test_files_paths_and_images_are_predicted_alike(tmp_path, taught):
    path = tmp_path / "a.png"
    photo("blue", 7).save(path)
    one, two, three = taught.predict([str(path), path, photo("blue", 7)])
    assert one.label == "blue"
    assert one.probability == pytest.approx(two.probability, abs=1e-5) == pytest.approx(three.probability, abs=1e-5)
    assert taught.predict([]) == []


def test_save_and_load_give_equal_logits(tmp_path, taught):
    taught.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model")
    assert loaded.classes == taught.classes
    assert loaded.recipe == taught.recipe
    for branch in ("none", "best"):
        assert torch.equal(logits(loaded, branch), logits(taught, branch))
    assert not torch.equal(logits(loaded, "none"), logits(loaded, "best"))


def test_a_loaded_model_learns_on_as_if_it_had_never_been_saved(tmp_path):
    model = build()
    model.learn(pairs("red", "green"))
    model.save(tmp_path)
    loaded = ContinualClassifier.load(tmp_path)
    for each in (model, loaded):
        each.learn(pairs("blue", "grey"))
    assert torch.equal(logits(model), logits(loaded))


def test_the_memory_is_what_lies_on_disk(tmp_path, taught):
    taught.save(tmp_path, keep=0)
    on_disk = {}
    for part, name in _parts(tmp_path).items():
        size = sum(tensor.nbytes for tensor in load_tensors(tmp_path / name).values())
        if size:
            on_disk[part] = size
    assert taught.memory() == on_disk
    assert {"base", "vector", "heads", "gaussians/best"} <= set(on_disk)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.2 * sum(on_disk.values()) + 20_000


def _parts(folder):
    from lca.files import read_json

    return read_json(folder / "state.json")["parts"]


@pytest.fixture(scope="module")
def untroubled():
    """The state after a first task, and the logits after a second one that nothing disturbed."""
    model = build()
    model.learn(pairs("red", "green"), effort="thorough")
    state = model.state()
    model.learn(pairs("blue", "grey"), effort="thorough")
    return state, logits(model)


@pytest.mark.parametrize("failing", ["observe", "finetune", "merge", "statistics", "align balanced"])
def test_a_failing_phase_leaves_the_model_as_it_was(monkeypatch, untroubled, failing):
    model = build()
    model.load_state(untroubled[0])
    before, state = logits(model), model.state()
    steps = model.method.steps

    def broken(task, labels):
        for step in steps(task, labels):
            if step.phase == failing:

                def run_and_fail(step=step):
                    step.run()
                    raise KeyboardInterrupt

                yield replace(step, run=run_and_fail)
            else:
                yield step

    monkeypatch.setattr(model.method, "steps", broken)
    with pytest.raises(KeyboardInterrupt):
        model.learn(pairs("blue", "grey"), effort="thorough")
    monkeypatch.undo()
    after = model.state()
    assert model.classes == ["green", "red"]
    assert torch.equal(logits(model), before)
    assert after.meta == state.meta
    for part, tensors in state.parts.items():
        assert all(torch.equal(after.parts[part][name], tensor) for name, tensor in tensors.items()), part
    model.learn(pairs("blue", "grey"), effort="thorough")
    assert torch.equal(logits(model), untroubled[1])


def test_the_steps_of_a_lesson_can_be_done_from_outside_and_resumed(untroubled):
    """Each in a classifier of its own, which has the state from after the step before."""
    state, done = untroubled[0], []
    while True:
        model = build()
        model.load_state(state)
        step = next(
            (step for number, step in enumerate(model.steps(pairs("blue", "grey"))) if number == len(done)), None
        )
        if step is None:  # all were passed over, and the lesson was ended
            break
        done.append((step.phase, step.number, step.trunk, step.ends_trunk, sorted(step.run())))
        state = model.state()
        assert model.tasks == len(model.history) == 1
    assert done == [
        ("observe", 0, True, False, []),
        ("finetune", 0, True, False, ["accuracy", "loss"]),
        ("merge", 0, True, True, []),
        ("statistics", 0, False, False, []),
        ("align balanced", 0, False, False, ["kept", "loss"]),
    ]
    assert (model.classes, model.tasks) == (["green", "red", "blue", "grey"], 2)
    assert model.history[-1].new == ["blue", "grey"]
    assert torch.equal(logits(model), untroubled[1])


def test_a_state_between_two_steps_is_left_to_the_caller(untroubled):
    model = build()
    model.load_state(untroubled[0])
    before, state = logits(model), model.state()
    for step in model.steps(pairs("blue", "grey")):
        step.run()
        if step.ends_trunk:
            break
    assert model.classes == ["green", "red", "blue", "grey"]
    assert len(model.history) == 1
    model.load_state(state)
    assert torch.equal(logits(model), before)


def test_a_class_can_be_learnt_twice(taught, tmp_path):
    taught.save(tmp_path)
    model = ContinualClassifier.load(tmp_path)
    model.learn(pairs("red", count=3))
    model.learn([(photo("red", 8), "red"), (photo("green", 8), "green")])
    assert model.classes == taught.classes
    assert logits(model).shape == (4, 4)
    assert model.tasks == 4
    memory = model.method.branch_set.memories["best"]
    assert {name: memory.classes[label].count for label, name in enumerate(model.classes)} == {
        "green": 5,
        "red": 8,
        "blue": 4,
        "grey": 4,
    }


def test_what_needs_all_data_warns_of_a_second_lesson():
    model = build(method="joint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(pairs("red", "green"))
    with pytest.warns(UserWarning, match="this lesson undoes the others"):
        model.learn(pairs("blue", "grey"))


def test_one_class_after_another():
    model = build()
    for name in COLOURS:
        model.learn(pairs(name))
    assert [answer.label for answer in model.predict([photo(name, 99) for name in COLOURS])] == list(COLOURS)


def test_a_broken_image_file_among_good_ones_is_left_out(tmp_path):
    folders(tmp_path / "data", "red", "green")
    (tmp_path / "data" / "red" / "0.png").write_text("broken")
    model = build()
    model.learn(tmp_path / "data")
    assert model.method.branch_set.memories["best"].classes[model.classes.index("red")].count == 3


def test_what_was_read_ahead_teaches_the_same_and_says_what_came_of_it(tmp_path):
    folders(tmp_path / "data", "red", "green")
    (tmp_path / "data" / "red" / "0.png").write_text("broken")
    one, two = build(tuning="none"), build(tuning="none")
    read = one.read(tmp_path / "data")
    assert [Path(each.what).name for each in read.report.left_out] == ["0.png"]
    lessons = one.learn(read), two.learn(tmp_path / "data")
    assert [(each.left_out, each.images) for each in lessons] == [(1, {"green": 4, "red": 3})] * 2
    assert torch.equal(logits(one), logits(two))
    evaluation = one.evaluate(read)
    assert evaluation == two.evaluate(tmp_path / "data")
    paths = [tmp_path / "data" / name / f"{number}.png" for name in ("green", "red") for number in range(4)]
    assert [each.path for each in evaluation.answers] == [
        str(path) for path in paths if path.parts[-2:] != ("red", "0.png")
    ]
    assert [Path(each.path).parent.name for each in evaluation.answers] == [each.truth for each in evaluation.answers]


def test_the_recipe_says_what_of_a_photo_is_seen():
    assert build(tuning="none").view == ViewOptions()
    changed = build(tuning="none", data={"view": {"centre_crop": 0.5, "flip": False}})
    assert changed.view == ViewOptions(augment=AugmentOptions(flip=False), centre_crop=0.5)
    assert changed.extractor.centre_crop == 0.5
    assert ViewOptions() == ViewOptions.model_validate(read_card("folder")["view"])


@pytest.mark.parametrize("case", ["nothing", "no folder", "no file", "no image"])
def test_mistakes_are_readable_and_change_nothing(tmp_path, case):
    model = build()
    (tmp_path / "text.png").write_text("no image")
    data = {
        "nothing": [],
        "no folder": tmp_path / "missing",
        "no file": [(tmp_path / "missing.png", "red")],
        "no image": [(str(tmp_path / "text.png"), "red"), (tmp_path / "missing.png", "green")],
    }[case]
    with pytest.raises(LcaError):
        model.learn(data)
    assert model.classes == []
    with pytest.raises(LcaError, match="not learnt any class"):
        model.predict([photo("red")])


def test_predicting_what_is_no_image(tmp_path, taught):
    with pytest.raises(LcaError, match=r"missing\.png"):
        taught.predict([tmp_path / "missing.png"])


def test_unreadable_images_among_readable_ones(tmp_path, taught):
    (tmp_path / "empty.png").touch()
    images = [photo("red", 5), tmp_path / "empty.png", photo("blue", 5)]
    with pytest.raises(LcaError, match=r"1 of 3 images could not be read:\n.*empty\.png is empty"):
        taught.predict(images)
    first, second, third = taught.try_predict(images)
    assert (first.label, third.label) == ("red", "blue")
    assert "is empty" in second.reason


def test_a_model_that_carries_its_backbone_does_not_tell_where_the_weights_lay(tmp_path, taught):
    weights = tmp_path / "secret place" / "vit.safetensors"
    weights.parent.mkdir()
    weights.write_bytes((EMBEDDED / "vit_pico_patch8_64.safetensors").read_bytes())
    model = build(backbone={"weights": str(weights)}, tuning="none")
    model.learn(pairs("red", "blue"))
    model.save(tmp_path / "plain")
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "plain").iterdir())
    assert "vit.safetensors" in (tmp_path / "plain" / "README.md").read_text()
    model.bundle = True
    model.save(tmp_path / "carrying")
    assert "secret" not in "".join(path.read_text() for path in (tmp_path / "carrying").glob("*.[jm][sd]*"))
    assert torch.equal(logits(ContinualClassifier.load(tmp_path / "carrying")), logits(model))


def test_an_unknown_branch_is_named(taught):
    with pytest.raises(LcaError, match=r"no branch 'lca'; there are \['none', 'balanced', 'best'\]"):
        taught.predict([photo("red")], branch="lca")


def test_other_weights_are_refused(tmp_path, taught):
    from safetensors.torch import save_file

    taught.save(tmp_path / "model")
    vit = {key: each.clone() for key, each in build(tuning="none").backbone.vit.state_dict().items()}
    vit["norm.bias"] += 1
    save_file(vit, tmp_path / "other.safetensors")
    other = build(backbone={"weights": str(tmp_path / "other.safetensors")})
    with pytest.raises(LcaError, match="taught on other weights"):
        other.load_state(taught.state())


def test_loading_what_is_no_model(tmp_path):
    with pytest.raises(LcaError, match=r"is no model: it holds no state\.json"):
        ContinualClassifier.load(tmp_path)


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_other_methods_are_held_the_same_way(tmp_path, method):
    model = build(method=method)
    model.learn(pairs("red", "green"))
    model.learn(pairs("blue"))
    model.save(tmp_path)
    assert torch.equal(logits(ContinualClassifier.load(tmp_path)), logits(model))


def test_a_model_can_be_loaded_for_another_device_and_weights_file(tmp_path, taught):
    taught.save(tmp_path / "model")
    weights = EMBEDDED / "vit_pico_patch8_64.safetensors"
    moved = ContinualClassifier.load(tmp_path / "model", device="cpu", weights=weights)
    assert moved.recipe.device == "cpu"
    assert moved.recipe.backbone.weights == weights
    assert torch.equal(logits(moved), logits(taught))
    with pytest.raises(LcaError, match="unknown device 'tpu'"):
        ContinualClassifier.load(tmp_path / "model", device="tpu")


# Held-out images, the history and the temperature


@pytest.fixture(scope="module")
def measured():
    """Classes with enough images to hold some out, on a backbone that stays as it is; tests must not teach it more."""
    model = build(tuning="none")
    model.learn([*pairs("green", count=25), *pairs("red", count=12)])
    model.learn([*pairs("blue", count=6), *pairs("grey", count=5), *pairs("red", count=3)])
    return model


def held_out_of(model, labelled, share=HELD_OUT):
    """The images a call of `learn` keeps back, found by another call for the same task."""
    task, _ = model._as_task(labelled, share)
    return task.validation


def test_the_history_says_what_was_learnt_and_held_out(measured):
    first, second = measured.history
    assert (first.kind, first.new, first.images) == ("learn", ["green", "red"], {"green": 23, "red": 11})
    assert (first.held_out, first.left_out) == (2 + 1, 0)
    assert second.images == {"blue": 5, "grey": 5, "red": 3}
    assert second.new == ["blue", "grey"]
    assert second.held_out == 1, "only `blue` has six images"
    memory = measured.method.branch_set.memories["best"]
    assert [memory.classes[label].count for label in range(4)] == [23, 14, 5, 5]
    for lesson in (first, second):
        assert lesson.seconds > 0
        assert datetime.fromisoformat(lesson.when).tzinfo is not None
        assert lesson.accuracy == 100 * lesson.right / lesson.held_out


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.1, 5, 0), (0.1, 6, 1), (0.1, 15, 2), (0.1, 25, 2), (0.3, 10, 3), (0.95, 6, 5), (0.99, 40, 39), (0.0, 40, 0)],
)
def test_the_share_that_is_held_out(share, count, expected):
    held_out = held_out_of(build(tuning="none"), [*pairs("red", count=count), *pairs("blue", count=10)], share)
    assert int((held_out.labels == held_out.classes.index("red")).sum()) == expected


def test_held_out_images_are_not_learnt():
    labelled = [*pairs("red", count=10), *pairs("blue", count=20)]
    task, _ = build()._as_task(labelled, 0.2)
    learnt, kept = (
        {tuple(row.flatten().tolist()) for row in each.pixels.canvas} for each in (task.train, task.validation)
    )
    assert (len(learnt), len(kept), len(learnt & kept)) == (24, 6, 0)


def test_nothing_is_held_out_if_so_asked():
    """Then heads in closed form are calibrated by leaving out one image after another, and no other ones."""
    model = build(tuning="none")
    lesson = model.learn(pairs("red", "blue", count=10), held_out=0)
    assert (lesson.held_out, lesson.accuracy, lesson.images) == (0, None, {"blue": 10, "red": 10})
    assert set(model.temperatures) == {"best"}


def test_one_image_a_class_leaves_the_temperature():
    model = build(tuning="none")
    model.learn(pairs("red", "blue", count=1))
    assert model.temperatures == {}


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    model = build(tuning="none")
    with pytest.raises(LcaError, match="held-out share must be "):
        model.learn(pairs("red", "blue"), held_out=share)
    assert (model.classes, model.history) == ([], [])


def test_the_accuracy_in_the_history_is_that_of_the_held_out_images():
    """With labels drawn at random some answers are wrong, so that the number means something."""
    draw = random.Random(3)
    labelled = [(photo(name, number), draw.choice("xyz")) for name in COLOURS for number in range(12)]
    model = build(tuning="none")
    held_out = held_out_of(model, labelled, 0.3)
    lesson = model.learn(labelled, held_out=0.3)
    images = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in held_out.pixels.canvas]
    truths = [held_out.classes[label] for label in held_out.labels.tolist()]
    answers = model.predict(images)
    assert lesson.held_out == len(truths) > 10
    assert lesson.right == sum(answer.label == truth for answer, truth in zip(answers, truths, strict=True))
    assert 0 < lesson.right < lesson.held_out
    assert lesson.called_unknown == sum(answer.unknown for answer in answers)


def test_a_task_of_a_benchmark_has_no_time_and_is_not_measured():
    model = build(tuning="none")
    task, _ = model._as_task(pairs("red", "blue", count=10), 0.2)
    lesson = model.learn(task)
    assert (lesson.when, lesson.seconds, lesson.held_out) == (None, None, 0)
    assert model.temperatures == {}
    assert model.history == [lesson]


def test_the_temperature_changes_probabilities_and_no_label(measured):
    images = [photo(name, 60 + number) for name in COLOURS for number in range(3)]
    features = measured.features(pixels_of(images))
    temperature = measured.temperatures["none"]
    assert temperature != 1
    expected = (measured.logits(features, "none") / temperature).softmax(1)
    torch.testing.assert_close(measured.probabilities(features, "none"), expected)
    answers = measured.predict(images, "none")
    for answer, row in zip(answers, expected, strict=True):
        assert list(answer.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-5)
    try:
        measured.temperatures["none"] = 5 * temperature
        softer = measured.predict(images, "none")
    finally:
        measured.temperatures["none"] = temperature
    assert [answer.label for answer in softer] == [answer.label for answer in answers]
    assert all(two.probability < one.probability for one, two in zip(answers, softer, strict=True))


def test_every_branch_has_a_temperature_of_its_own(measured):
    assert set(measured.temperatures) == {"none", "balanced", "best"}
    assert len(set(measured.temperatures.values())) == 3
    features = measured.features(pixels_of([photo("red", 80)]))
    expected = (measured.logits(features, "none") / measured.temperatures["none"]).softmax(1)
    torch.testing.assert_close(measured.probabilities(features, "none"), expected)


def test_top(measured):
    answer = measured.predict(photo("green", 61), "none")[0]
    assert answer.top(2) == sorted(answer.probabilities.items(), key=lambda item: item[1])[:-3:-1]
    assert answer.top(1) == [(answer.label, answer.probability)]
    assert len(answer.top()) == len(answer.top(99)) == 4


# Unknown things


def digit(number):
    from sklearn.datasets import load_digits

    return np.kron(load_digits().images[number] / 16, np.ones((6, 6)))


def colour_noise(number):
    return np.random.default_rng(number).integers(0, 256, (48, 40, 3), dtype=np.uint8)


def test_what_was_never_seen_is_called_unknown_and_known_things_are_not(measured):
    known = measured.predict([photo(name, 200 + number) for name in COLOURS for number in range(10)])
    strange = measured.predict([*map(digit, range(8)), *map(colour_noise, range(8))])
    assert sum(answer.unknown for answer in known) <= 3
    assert all(answer.unknown for answer in strange)
    for answer in [*known, *strange]:
        assert list(answer.distances) == measured.classes
        assert answer.distance == min(answer.distances.values())
        assert all(0 <= distance <= 100 for distance in answer.distances.values())
        assert answer.unknown == (answer.distance >= 98)
    nearest = [min(answer.distances, key=answer.distances.get) for answer in known]
    assert nearest == [name for name in COLOURS for _ in range(10)]


def test_the_limit_of_the_unknown_can_be_chosen(measured):
    images = [photo(name, 300 + number) for name in COLOURS for number in range(10)] + [digit(1)]
    counts = {at: sum(answer.unknown for answer in measured.predict(images, unknown_at=at)) for at in (0, 50, 98)}
    assert counts[0] == 41
    assert 10 < counts[50] < 35
    assert 1 <= counts[98] <= 4


def test_a_branch_without_statistics_calls_nothing_unknown(measured):
    answer = measured.predict(digit(0), branch="none")[0]
    assert (answer.distance, answer.distances, answer.unknown) == (None, None, False)


def test_two_images_of_one_class_are_nothing_to_measure_with():
    model = build()
    model.learn(pairs("green", count=2))
    answer = model.predict(photo("green", 9))[0]
    assert (answer.label, answer.distance, answer.unknown) == ("green", None, False)


# What can be asked and taught


def test_one_image_of_any_kind_is_one_question(tmp_path, taught):
    photo("blue", 7).save(tmp_path / "a.png")
    array = np.asarray(photo("blue", 7))
    tensor = torch.tensor(array).permute(2, 0, 1)
    kinds = [tmp_path / "a.png", str(tmp_path / "a.png"), photo("blue", 7), array, tensor, array / 255, tensor / 255]
    alone = [taught.predict(image) for image in kinds]
    assert [len(answers) for answers in alone] == [1] * len(kinds)
    together = taught.predict(kinds)
    for answers, answer in zip(alone, together, strict=True):
        assert answers[0].label == answer.label == "blue"
        assert answers[0].probability == pytest.approx(answer.probability, abs=1e-5)
        assert answer.probability == pytest.approx(together[0].probability, abs=1e-4)
    grey = taught.predict(np.asarray(photo("grey", 7).convert("L")))
    assert [answer.label for answer in grey] == ["grey"]
    stacked = taught.predict(torch.stack([tensor, tensor.flip(0)]))
    assert [answer.label for answer in stacked] == ["blue", "red"]


class Labelled:
    """A data set as torch knows it: pairs by number, names of the labels in `classes`."""

    classes = ("red", "green", "never")

    def __init__(self, label):
        self.label = label

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return photo(self.classes[number % 2], number), self.label(number % 2)


@pytest.mark.parametrize("label", [int, np.int64, np.array, torch.tensor, lambda number: Labelled.classes[number]])
def test_labels_of_a_data_set_are_named_by_its_classes(label):
    model = build(tuning="none")
    model.learn(Labelled(label))
    assert model.classes == ["green", "red"]


@pytest.mark.parametrize("label", [None, 1.5, "", ("red",)])
def test_labels_that_name_nothing_are_refused(label):
    with pytest.raises(LcaError, match=r"a label is .* expected the name of a class"):
        build(tuning="none").learn([(photo("red"), "red"), (photo("blue"), label)])


def test_torchvision_data_sets_teach_the_same_as_folders(tmp_path):
    from torch.utils.data import Subset
    from torchvision.datasets import FakeData, ImageFolder

    folders(tmp_path, "red", "blue")
    one, two = build(tuning="none"), build(tuning="none")
    one.learn(tmp_path)
    two.learn(ImageFolder(str(tmp_path)))
    assert one.classes == two.classes == ["blue", "red"]
    assert torch.equal(logits(one), logits(two))
    part = build(tuning="none")
    part.learn(Subset(ImageFolder(str(tmp_path)), [0, 1, 4, 5]))
    assert part.classes == ["blue", "red"]
    fake = build(tuning="none")
    fake.learn(FakeData(size=12, image_size=(3, 20, 20), num_classes=3))
    assert set(fake.classes) <= {"0", "1", "2"}


def test_an_image_set_teaches_the_same_as_pairs_and_needs_no_image_of_every_class():
    from lca.data.folders import image_set

    decoded = Pixels.of([decode(image, 73) for image, _ in pairs("red", "blue")])
    kept = [(number, name) for number, (_, name) in enumerate(pairs("red", "blue"))]
    expected = build(tuning="none")
    expected.learn(pairs("red", "blue"))
    for classes in (["blue", "red"], ["blue", "green", "red"]):
        model = build(tuning="none")
        model.learn(image_set(decoded, kept, classes))
        assert model.classes == ["blue", "red"]
        assert model.predict(photo("red", 5))[0].label == "red"
        if len(classes) == 2:  # without the empty class, the images come in another order
            torch.testing.assert_close(logits(model), logits(expected), rtol=0, atol=1e-5)
    with pytest.raises(LcaError, match="is empty"):
        build(tuning="none").learn(image_set(Pixels.of([]), [], ["red"]))


def test_a_folder_may_mix_known_and_new_classes(tmp_path):
    model = build(tuning="none")
    model.learn(folders(tmp_path / "one", "red", "blue"))
    lesson = model.learn(folders(tmp_path / "two", "green", "red", count=7))
    assert model.classes == ["blue", "red", "green"]
    assert (lesson.new, lesson.images, lesson.held_out) == (["green"], {"green": 6, "red": 6}, 2)
    assert logits(model).shape == (4, 3)
    answers = model.predict([photo(name, 99) for name in ("red", "green", "blue")])
    assert [answer.label for answer in answers] == ["red", "green", "blue"]


def test_evaluation_with_ood_images_by_hand(measured):
    known = [(photo(name, 400 + number), name) for name in ("red", "grey") for number in range(3)]
    wrong = [(photo("blue", 400), "red"), (photo("green", 401), "red"), (photo("green", 402), "red")]
    ood = [(digit(number), "digit") for number in range(4)] + [(photo("green", 403), "lawn")]
    data = known + wrong + ood
    answers = dict(zip(range(14), measured.predict([image for image, _ in data]), strict=True))
    found = measured.evaluate(data).as_json()
    of_known = [answers[number] for number in range(9)]
    assert [answer.label for answer in of_known] == [*["red"] * 3, *["grey"] * 3, "blue", "green", "green"]
    assert (found["images"], found["right"], found["accuracy"]) == (9, 6, pytest.approx(600 / 9))
    interval = binomtest(6, 9).proportion_ci(method="wilson")
    assert found["accuracy_interval_95"] == pytest.approx([100 * interval.low, 100 * interval.high], abs=0.01)
    assert found["mean_probability"] == pytest.approx(100 * sum(a.probability for a in of_known) / 9, abs=1e-3)
    assert 0 <= found["calibration_error"] <= 100
    assert found["called_unknown"] == pytest.approx(100 * sum(a.unknown for a in of_known) / 9)
    assert found["ood"] == 5
    assert found["ood_called_unknown"] == pytest.approx(100 * sum(answers[n].unknown for n in range(9, 14)) / 5)
    assert found["ood_called_unknown"] >= 80
    assert found["by_class"] == {"red": [3, 6], "grey": [3, 3]}
    assert found["confusions"] == [["red", "green", 2], ["red", "blue", 1]]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    surest = sorted(of_known[6:], key=lambda answer: -answer.probability)
    assert [(each["answer"], each["probability"]) for each in found["wrong"]] == [
        (answer.label, pytest.approx(answer.probability, abs=1e-6)) for answer in surest
    ]
    assert [each["path"] for each in found["wrong"]] == [None] * 3, "they have no files"


def test_the_nearest_class_is_the_one_with_the_smallest_distance(measured):
    for answer in measured.predict([photo("blue", 400), photo("grey", 401)]):
        assert answer.distances[answer.nearest] == answer.distance
    far = replace(answer, distances=dict.fromkeys(measured.classes, 100.0))
    assert far.nearest == answer.label, "of classes that are equally far, the answer"
    assert replace(answer, distances=None).nearest is None


def test_an_evaluation_of_ood_images_only(measured):
    found = measured.evaluate([(digit(1), "digit")], unknown_at=50).as_json()
    assert (found["images"], found["accuracy"], found["accuracy_interval_95"]) == (0, None, None)
    assert (found["ood"], found["ood_called_unknown"]) == (1, 100)


# Forgetting


def copy_of(model, folder):
    model.save(folder)
    return ContinualClassifier.load(folder)


@pytest.mark.parametrize("name", ["green", "red", "grey"])
def test_a_forgotten_class_is_gone_and_the_others_stay_in_order(tmp_path, taught, name):
    model = copy_of(taught, tmp_path)
    before = logits(model, "none")
    model.forget(name)
    rest = [each for each in taught.classes if each != name]
    assert model.classes == rest
    assert logits(model).shape == (4, 3)
    kept = [taught.classes.index(each) for each in rest]
    torch.testing.assert_close(logits(model, "none"), before[:, kept], rtol=0, atol=1e-5)
    answers = model.predict([photo(each, 99) for each in rest])
    assert [answer.label for answer in answers] == rest
    assert all(list(answer.distances) == list(answer.probabilities) == rest for answer in answers)
    assert (model.history[-1].kind, model.history[-1].new, model.history[-1].images) == ("forget", [name], {})
    again = copy_of(model, tmp_path)
    assert again.classes == rest
    assert torch.equal(logits(again), logits(model))
    assert again.history == model.history


def test_nothing_of_a_forgotten_class_is_in_the_state(taught, tmp_path):
    model = copy_of(taught, tmp_path / "model")
    label = model.classes.index("red")
    branches = model.method.branch_set
    own = [heads.tasks[0].weight[label] for heads in (model.method.heads, branches.heads["balanced"])]
    for name in ("balanced", "best"):
        gaussian = branches.memories[name].classes[label]
        s, _, j = branches.distances[name].state()[0][str(label)]
        own += [gaussian.mean, *gaussian.factor, s, j]
    rows = {tuple(tensor.flatten().tolist()) for tensor in own if tensor.abs().sum() > 0}

    def found(state):
        tensors = [tensor for part in state.parts.values() for tensor in part.values()]
        flat = [row for t in tensors for row in (t.reshape(len(t), -1) if t.ndim > 1 else t[None])]
        return {tuple(row.flatten().tolist()) for row in flat} & rows

    assert len(found(model.state())) >= len(rows) - 1
    model.forget("red")
    assert found(model.state()) == set()
    state = model.state()
    assert sum(entry["classes"] for entry in state.meta["method"]["heads"]["heads"]) == 3
    assert set(state.parts["distances/best"]) == {"0", "1", "2", "families", "spoilt"}
    names = {name.partition(".")[0] for name in state.parts["gaussians/best"]}
    assert names == {"0", "1", "2", "residual"}
    model.save(tmp_path / "model")
    assert found(load_state(tmp_path / "model")) == set(), "nor in what lies on disk"


def test_a_forgotten_class_can_be_taught_again(taught, tmp_path):
    model = copy_of(taught, tmp_path)
    model.forget("red")
    lesson = model.learn(pairs("red", count=5))
    assert lesson.new == ["red"]
    assert model.classes == ["green", "blue", "grey", "red"]
    assert [answer.label for answer in model.predict([photo(name, 99) for name in COLOURS])] == list(COLOURS)
    memory = model.method.branch_set.memories["best"]
    assert [memory.classes[label].count for label in range(4)] == [4, 4, 4, 5]


@pytest.mark.parametrize("method", ["im", "finetune", "joint"])
def test_after_every_class_is_forgotten_it_learns_again(tmp_path, method):
    model = build(**({} if method == "im" else {"method": method}))
    model.learn(pairs("red", "green"))
    model.learn(pairs("blue"))
    before = logits(model, model.method.branches()[0])
    model.forget("green")
    torch.testing.assert_close(logits(model, model.method.branches()[0]), before[:, 1:], rtol=0, atol=1e-5)
    model = copy_of(model, tmp_path)
    model.forget("blue")
    model.forget("red")
    assert model.classes == []
    model = copy_of(model, tmp_path)
    with pytest.raises(LcaError, match="not learnt any class"):
        model.predict(photo("red"))
    with pytest.raises(LcaError, match="no class 'red' to forget; there are none"):
        model.forget("red")
    model.learn(pairs("grey", "red"))
    assert model.classes == ["grey", "red"]
    assert [answer.label for answer in model.predict([photo("grey", 9), photo("red", 9)])] == ["grey", "red"]
    assert [(lesson.kind, lesson.new) for lesson in model.history] == [
        ("learn", ["green", "red"]),
        ("learn", ["blue"]),
        ("forget", ["green"]),
        ("forget", ["blue"]),
        ("forget", ["red"]),
        ("learn", ["grey", "red"]),
    ]


def test_forgetting_what_is_not_known_suggests_the_nearest(taught):
    with pytest.raises(LcaError, match="no class 'gren' to forget; did you mean 'green'"):
        taught.forget("gren")
    assert "green" in taught.classes


@pytest.mark.parametrize("error", [LcaError("the alignment diverged"), KeyboardInterrupt()])
def test_a_failing_forget_leaves_the_model_as_it_was(monkeypatch, taught, tmp_path, error):
    model = copy_of(taught, tmp_path)
    before, state = logits(model), model.state()

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(model.method.branch_set, "align", fail)
    with pytest.raises(type(error)):
        model.forget("green")
    monkeypatch.undo()
    assert torch.equal(logits(model), before)
    after = model.state()
    assert after.meta == state.meta
    assert all(torch.equal(after.parts[p][n], t) for p, part in state.parts.items() for n, t in part.items())
    model.forget("green")
    assert model.classes == ["red", "blue", "grey"]


# Carrying the backbone along


def no_other_weights(monkeypatch):
    """Neither downloads nor the weights that come with the package."""
    create, embedded = timm.create_model, EMBEDDED / "vit_pico_patch8_64.safetensors"

    def untrained(*arguments, pretrained=False, **options):
        assert not pretrained, "something was downloaded"
        return create(*arguments, **options)

    def load(path):
        assert Path(path).resolve() != embedded.resolve(), "the embedded weights were read"
        return load_tensors(path)

    monkeypatch.setattr(timm, "create_model", untrained)
    monkeypatch.setattr("lca.backbones.load_tensors", load)


@pytest.mark.parametrize("tuning", [{"name": "lora", "rank": 2}, {"name": "full"}, {"name": "none"}])
def test_a_model_that_carries_its_backbone_needs_no_other_weights(monkeypatch, tmp_path, tuning):
    model = build(tuning=tuning)
    plain = model.backbone.fingerprint
    model.learn(pairs("red", "green"))
    model.bundle = True
    model.save(tmp_path / "a")
    no_other_weights(monkeypatch)
    with pytest.raises(AssertionError, match="embedded weights were read"):
        build()
    loaded = ContinualClassifier.load(tmp_path / "a")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.backbone.fingerprint == plain
    loaded.learn(pairs("blue", "grey"))
    loaded.save(tmp_path / "b")
    again = ContinualClassifier.load(tmp_path / "b")
    assert again.bundle
    assert torch.equal(logits(again), logits(loaded))
    stored = load_tensors(tmp_path / "b" / _parts(tmp_path / "b")["backbone"])
    original = load_tensors(EMBEDDED / "vit_pico_patch8_64.safetensors")
    assert all(torch.equal(tensor, original[name].float()) for name, tensor in stored.items()), "they were tuned"
    assert _parts(tmp_path / "a")["backbone"] == _parts(tmp_path / "b")["backbone"]
    assert "backbone" not in loaded.memory()
    loaded.bundle = False
    loaded.save(tmp_path / "b")
    assert "backbone" not in _parts(tmp_path / "b")
    assert not list((tmp_path / "b").glob("backbone-*"))


def test_the_memory_is_what_lies_on_disk_without_the_backbone(tmp_path, taught):
    model = copy_of(taught, tmp_path / "copy")
    model.bundle = True
    model.save(tmp_path / "model")
    files, _ = read_manifest(tmp_path / "model")
    sizes = {part: tensor_bytes(path) for part, path in files.items()}
    whole = load_backbone(BackboneOptions()).vit.state_dict()
    assert sizes.pop("backbone") == sum(tensor.nbytes for tensor in whole.values())
    assert model.memory() == taught.memory() == {part: size for part, size in sizes.items() if size}


def test_without_its_weights_a_model_says_what_is_missing(tmp_path):
    from safetensors.torch import save_file

    original = {
        name: tensor.float() for name, tensor in load_tensors(EMBEDDED / "vit_pico_patch8_64.safetensors").items()
    }
    save_file(original, tmp_path / "own.safetensors")
    model = build(tuning="none", backbone={"weights": str(tmp_path / "own.safetensors")})
    model.learn(pairs("red", "green"))
    model.save(tmp_path / "model")
    assert torch.equal(
        logits(ContinualClassifier.load(tmp_path / "model", weights=tmp_path / "own.safetensors")), logits(model)
    )
    (tmp_path / "own.safetensors").rename(tmp_path / "moved.safetensors")
    with pytest.raises(LcaError, match=r"from a file \('own\.safetensors'\).*--weights FILE"):
        ContinualClassifier.load(tmp_path / "model")
    with pytest.raises(LcaError, match=r"there is no file .*own\.safetensors"):
        ContinualClassifier.load(tmp_path / "model", weights=tmp_path / "own.safetensors")
    found = ContinualClassifier.load(tmp_path / "model", weights=tmp_path / "moved.safetensors")
    assert torch.equal(logits(found), logits(model))
    other = {name: tensor + 0.01 for name, tensor in original.items()}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(LcaError, match="taught on other weights of vit_pico_patch8_64"):
        ContinualClassifier.load(tmp_path / "model", weights=tmp_path / "other.safetensors")


def test_the_preprocessing_of_the_model_counts_not_that_of_the_card(monkeypatch, tmp_path, taught):
    taught.save(tmp_path)
    load = lca.classifier.load_backbone

    def another_card(*arguments):
        backbone = load(*arguments)
        return replace(backbone, preprocessing=replace(backbone.preprocessing, size=32, mean=(0.1, 0.2, 0.3)))

    monkeypatch.setattr(lca.classifier, "load_backbone", another_card)
    loaded = ContinualClassifier.load(tmp_path)
    assert loaded.extractor.preprocessing == taught.extractor.preprocessing
    assert torch.equal(logits(loaded), logits(taught))


def test_a_test_part_is_measured_on_and_decides_nothing(tmp_path):
    folders(tmp_path / "photos" / "train", "red", "green")
    folders(tmp_path / "photos" / "test", "red", "blue")
    one, two = build(tuning="none"), build(tuning="none")
    lesson, alone = one.learn(tmp_path / "photos"), two.learn(tmp_path / "photos" / "train")
    assert one.classes == ["green", "red"]
    assert (lesson.tested, lesson.tested_right, lesson.test_accuracy) == (4, 4, 100.0)  # blue was not taught
    assert (alone.tested, alone.test_accuracy) == (0, None)
    assert torch.equal(logits(one), logits(two))
    assert one.temperatures == two.temperatures
    assert one.evaluate(tmp_path / "photos") == one.evaluate(tmp_path / "photos" / "test")
    assert len(one.evaluate(tmp_path / "photos").ood) == 4
    one.save(tmp_path / "model")
    assert ContinualClassifier.load(tmp_path / "model").history[-1] == lesson


@pytest.mark.parametrize("sizes", [((9, 9),), ((9, 9), (12, 7))])
def test_training_reads_a_large_lesson_from_its_file(tmp_path, monkeypatch, sizes):
    for number, name in enumerate(("red", "green")):
        (tmp_path / name).mkdir()
        for place in range(6):
            noise = torch.randint(200, (*sizes[place % len(sizes)], 3), generator=torch.manual_seed(place))
            noise[..., number] = 255
            Image.fromarray(noise.byte().numpy()).save(tmp_path / name / f"{place}.png")
    inside = build()
    inside.learn(tmp_path, effort="thorough")
    monkeypatch.setattr("lca.data.folders.IN_MEMORY", 100)
    outside = build()
    read = outside.read(tmp_path)
    assert read.images.streamed
    outside.learn(read, effort="thorough")
    assert torch.equal(logits(inside), logits(outside))
    assert inside.temperatures == outside.temperatures


def test_damage_is_measured_on_the_test_part(tmp_path):
    folders(tmp_path / "photos" / "train", "red", "green", count=5)
    folders(tmp_path / "photos" / "test", "red", "green", count=2)
    images = labelled_images(str(tmp_path / "photos"), build(tuning="none"), None, 0, Progress())
    assert images.counts() == {"green": 2, "red": 2}
