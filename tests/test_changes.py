"""Undo, rename, merge and forget: what a model is afterwards, in memory and in its folder."""

import json

import pytest
import torch

import tiny
from lca import ContinualClassifier, LcaError
from lca.data.images import ImageSet
from lca.data.streams import Task
from lca.earlier import KEEP, ROOM, Earlier, bounded, bytes_kept, earlier_in, leading_back, save_with
from lca.files import State, load_state, load_tensors, read_json, read_kept, read_manifest, tensor_bytes
from lca.history import Lesson, described, images_learnt

COUNTS = {"3": 6, "7": 5, "1": 4}


def frozen(*branches):
    return {"method": {"name": "frozen", "align": list(branches)}, "tuning": {"name": "none"}}


FROZEN = frozen("lda", "best")


def build(**changes):
    return tiny.classifier(tiny.recipe({**FROZEN, **changes}))


def logits(model):
    features = model.features(tiny.images({"3": 5, "7": 5, "1": 5, "9": 5}, skip=20))
    return {branch: model.logits(features, branch) for branch in model.method.branches()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def equal_states(one, two):
    assert json.dumps(one.meta) == json.dumps(two.meta)
    return list(one.parts) == list(two.parts) and all(same(one.parts[name], two.parts[name]) for name in one.parts)


@pytest.fixture
def model():
    return tiny.taught(build(), [COUNTS, {"9": 6}])


@pytest.fixture
def loaded(model, tmp_path):
    """The same, which knows its earlier states from its folder only."""
    model.save(tmp_path / "model")
    return load(tmp_path / "model")


def load(folder):
    with tiny.tiny_backbone():
        return ContinualClassifier.load(folder)


# Rename


def test_a_renamed_class_answers_as_before_by_its_new_name(model):
    before, images = logits(model), tiny.images({"7": 3}, skip=20)
    answers = model.predict(images.pixels.canvas)
    model.rename("7", "siebe\u0301n")
    assert model.classes == ["3", "sieb\u00e9n", "1", "9"], "as names of folders are kept"
    assert same(logits(model), before)
    again = model.predict(images.pixels.canvas)
    assert [each.probability for each in again] == [each.probability for each in answers]
    assert [each.label for each in again] == ["sieb\u00e9n" if each.label == "7" else each.label for each in answers]
    assert images_learnt(model.history) == {"3": 6, "1": 4, "9": 6, "sieb\u00e9n": 5}
    assert model.learn(tiny.task(2, {"7": 3})).new == ["7"], "the old name is free"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("6", "x", "no class '6' to rename; known: 1, 3, 7, 9"),
        ("3", "7", "there is a class '7' already; to make two classes one, merge them"),
        ("3", "3", "there is a class '3' already"),
        ("3", " ", "a class cannot be called ' '"),
    ],
)
def test_names_that_cannot_be(model, old, new, message):
    with pytest.raises(LcaError, match=message):
        model.rename(old, new)
    assert len(model.history) == 2


# Merge


def taught_as(section, names):
    """A model that was taught 3, 7, 1 and 9, each under the name given."""
    model = tiny.classifier(tiny.recipe(section))
    images = tiny.images({**COUNTS, "9": 6})
    labels = list(dict.fromkeys(names))
    own = torch.tensor([labels.index(name) for name in names])[images.labels]
    model.learn(Task(0, tuple(labels), ImageSet(images.pixels, own, tuple(labels))))
    return model


CLOSED = {
    "LDA and quadratic": FROZEN,
    "shared covariance": frozen({"preset": "lda", "covariance": {"kind": "shared"}}),
    "diagonal": frozen({"preset": "best", "covariance": {"kind": "diagonal"}}),
    "class means": {"method": {"name": "simplecil"}, "tuning": {"name": "none"}},
    "two class means": {"method": {"name": "aper"}, "tuning": {"name": "none"}},
    "covariances": {"method": {"name": "fecam"}, "tuning": {"name": "none"}},
    "sums": {"method": {"name": "ranpac", "projection": 64, "ridges": [1.0]}, "tuning": {"name": "none"}},
    "subspaces": {"method": {"name": "ease"}, "tuning": {"name": "none"}},
}


@pytest.mark.parametrize("section", CLOSED)
def test_two_classes_made_one_are_as_if_taught_as_one(section):
    """From 7 and 9 to 7, which is neither the first nor the last."""
    merged, union = taught_as(CLOSED[section], "3719"), taught_as(CLOSED[section], "3717")
    assert not same(logits(merged), logits(union))
    merged.merge_classes("7", "9")
    assert merged.classes == union.classes == ["3", "7", "1"]
    for branch, expected in logits(union).items():
        scale = float(expected.abs().max())
        torch.testing.assert_close(logits(merged)[branch] / scale, expected / scale, rtol=0, atol=2e-5)
    assert images_learnt(merged.history) == images_learnt(union.history) | {"7": 11}


def test_a_merged_class_has_either_name_or_a_new_one(model):
    state = model.state()
    for a, b, name, expected in [
        ("9", "3", None, ["7", "1", "9"]),
        ("3", "9", "9", ["9", "7", "1"]),
        ("7", "3", "odd", ["odd", "1", "9"]),
    ]:
        model.load_state(state)
        model.merge_classes(a, b, name)
        assert model.classes == expected
        assert set(images_learnt(model.history)) == set(expected)
        assert model.predict(tiny.images({"1": 1}).pixels.canvas)[0].label == "1"
        assert described(model.history[-1]) == f"made {a} and {b} one class, {name or a}"


def test_percentiles_after_a_merge_count_the_images_of_both(model):
    _, known = model.method.statistics("best")
    before = {label: known._counts[label] for label in range(4)}
    model.merge_classes("3", "9")
    _, known = model.method.statistics("best")
    assert known._counts == {0: before[0] + before[3], 1: before[1], 2: before[2]}
    near = model.method.percentiles(model.features(tiny.images({"3": 6, "9": 6})), "best").amin(1)
    assert near.median() < 90, "images that were learnt lie near"
    far = model.method.percentiles(model.features(tiny.images({"3": 3})) * 10, "best").amin(1)
    assert far.min() > 99


@pytest.mark.parametrize("method", ["finetune", "linear_probe", "l2p"])
def test_a_method_without_statistics_refuses_to_merge(method):
    model = tiny.taught(
        tiny.classifier(tiny.recipe(method=tiny.method_section(method), training={"epochs": 1})), [COUNTS]
    )
    with pytest.raises(
        LcaError, match=f"{method}.*keeps no class statistics.*forget both and teach their images again"
    ):
        model.merge_classes("3", "7")
    assert (model.classes, len(model.history)) == (list(COUNTS), 1)
    model.undo()
    assert model.classes == []


def test_classes_that_cannot_be_merged(model):
    with pytest.raises(LcaError, match="no class 'x' to merge; known"):
        model.merge_classes("3", "x")
    with pytest.raises(LcaError, match="'3' cannot be merged with itself"):
        model.merge_classes("3", "3")
    with pytest.raises(LcaError, match="there is a class '1' already"):
        model.merge_classes("3", "7", "1")


# Forget several


def test_several_are_forgotten_at_once_and_aligned_once(monkeypatch):
    method = tiny.method_section("im", align=[tiny.branch("a", first_task=True)])
    model = tiny.taught(tiny.classifier(tiny.recipe(method=method, training={"epochs": 1})), [COUNTS, {"9": 4}])
    aligned, align = [], model.method.branch_set.align
    monkeypatch.setattr(model.method.branch_set, "align", lambda *a, **k: (aligned.append(a), align(*a, **k))[1])
    model.forget("9", "3", "9")
    assert len(aligned) == 1
    assert model.classes == ["7", "1"]
    assert described(model.history[-1]) == "forgot 9, 3"
    with pytest.raises(LcaError, match="no class '2' to forget"):
        model.forget("7", "2")
    assert model.classes == ["7", "1"], "all or nothing"
    with pytest.raises(LcaError, match="name the classes"):
        model.forget()


# Undo


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_every_change_is_taken_back_one_after_the_other(tmp_path, where):
    """Each in its own step, in memory or by a model that is loaded anew for each."""
    model, folder = build(), tmp_path / "model"
    changes = [
        lambda: model.learn(tiny.images({"3": 8, "7": 8})),
        lambda: model.learn(tiny.task(1, {"1": 4, "9": 4, "3": 2})),
        lambda: model.rename("1", "one"),
        lambda: model.merge_classes("3", "9"),
        lambda: model.forget("one", "7"),
    ]
    states, manifests = [model.state()], []
    for change in changes:
        change()
        states.append(model.state())
        if where == "folder":
            model.save(folder)
            manifests.append({**read_json(folder / "state.json"), "kept": None})
            model = load(folder)
    kinds = []
    while model.undoable:
        assert equal_states(model.state(), states.pop())
        kinds.append(model.undo().kind)
        if where == "folder":
            manifests.pop()
            model.save(folder)
            if manifests:
                assert {**read_json(folder / "state.json"), "kept": None} == manifests[-1], "the same parts, by hash"
            model = load(folder)
    assert kinds == ["forget", "merge", "rename", "learn", "learn"]
    assert equal_states(model.state(), states.pop())
    assert (model.classes, model.history, states) == ([], [], [])
    with pytest.raises(LcaError, match="nothing can be taken back: no earlier state is kept"):
        model.undo()


def test_a_lesson_is_taken_back_also_when_it_was_improved(tmp_path):
    model = tiny.classifier(tiny.recipe(training={"epochs": 1}))
    model.learn(tiny.images({"3": 8, "7": 8}), effort="instant")
    before = model.state()
    lessons = model.lessons(tiny.images({"1": 8, "4": 8}), effort="improve")
    next(lessons)
    model.save(tmp_path)
    assert next(lessons).improvement is not None
    model.save(tmp_path)
    for each in (model, load(tmp_path)):
        assert each.undoable == 2
        assert each.undo().new == ["1", "4"]
        assert equal_states(each.state(), before)


def test_a_change_that_fails_is_none(model, monkeypatch):
    monkeypatch.setattr(model.method, "refit", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.forget("3")
    monkeypatch.undo()
    assert model.undoable == 2
    assert model.undo().new == ["9"]


def test_steps_cannot_be_undone(model):
    for step in model.steps(tiny.task(2, {"4": 3})):
        step.run()
    assert model.undoable == 0


def test_an_earlier_state_that_does_not_lead_back_is_not_used(model):
    state = model.state()
    model.undo()
    model.load_state(state)  # somebody else's doing
    assert model.undoable == 0


def test_no_more_states_are_kept_than_asked_for(tmp_path, model):
    for number in range(6):
        model.rename("3" if number == 0 else f"name {number - 1}", f"name {number}")
    assert model.undoable == KEEP == 5
    model.save(tmp_path)
    assert len(earlier_in(tmp_path)) == 5
    model.save(tmp_path, keep=2)
    assert load(tmp_path).undoable == 2
    model.keep = 1
    model.rename("name 5", "3")
    assert model.undoable == 1
    model.save(tmp_path, keep=0)
    assert load(tmp_path).undoable == 0
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "state.json", *_files(tmp_path)}
    with pytest.raises(LcaError, match="keep must be 0 or more earlier states, got -1"):
        model.save(tmp_path, keep=-1)


def _files(folder):
    return {path.name for path in read_manifest(folder)[0].values()}


def test_what_a_change_left_alone_is_there_once(tmp_path, loaded):
    """In a folder by file, in memory by tensor."""
    folder = tmp_path / "model"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    kept = bytes_kept(folder, _files(folder))
    loaded.rename("3", "three")
    loaded.save(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")} == before
    assert bytes_kept(folder, _files(folder)) == kept
    loaded.learn(tiny.task(2, {"4": 3}))
    state, earlier = loaded.state(), loaded._earlier[-1]
    for name, part in earlier.parts.items():
        if name.startswith("gaussians"):
            assert all(tensor is state.parts[name][key] for key, tensor in part.items())


def test_a_copy_carries_what_was_done_here_but_no_states_of_the_other_folder(tmp_path, loaded):
    loaded.rename("3", "three")
    loaded.save(tmp_path / "copy")
    assert load(tmp_path / "copy").undoable == 1
    assert load(tmp_path / "model").undoable == 2


def test_a_purged_class_is_in_no_state_on_disk_or_in_memory(tmp_path, model):
    label, memory = model.classes.index("7"), model.method.branch_set.memories["lda"]
    mean = memory.classes[label].mean.tolist()
    folder = tmp_path / "model"

    def known():
        parts = map(load_tensors, folder.glob("gaussians*"))
        return any(mean == tensor.tolist() for part in parts for tensor in part.values())

    model.save(folder)
    model.forget("7")
    model.save(folder)
    assert known(), "an earlier state still holds it"
    model.undo()
    model.forget("7", purge=True)
    assert model.undoable == 0
    model.save(folder)
    assert not known()
    assert "kept" not in read_json(folder / "state.json")
    assert {path.name for path in folder.iterdir()} == {"README.md", "state.json", *_files(folder)}


def test_a_bundle_keeps_no_earlier_states(tmp_path, loaded):
    folder = tmp_path / "model"
    loaded.bundle = True
    loaded.save(folder)
    assert "kept" not in read_json(folder / "state.json")
    assert load(folder).undoable == 0


# Where earlier states lie


def state(changes, **parts):
    return State({name: {"x": torch.full((25,), value)} for name, value in parts.items()}, {"history": [0] * changes})


def test_states_that_lead_back_one_by_one():
    earlier = [Earlier.of(state(changes)) for changes in (0, 1, 3, 4)]
    assert leading_back(earlier, 5, 9) == earlier[2:]
    assert leading_back(earlier, 5, 1) == earlier[3:]
    assert leading_back(earlier, 5, 0) == leading_back(earlier, 6, 9) == []


def test_memory_is_bounded_by_what_only_earlier_states_hold():
    """100 bytes a tensor; b is the present one's, and c two earlier ones'."""
    first, second, third = state(0, a=1.0), state(1, a=2.0), state(2, a=3.0)
    third.parts["c"] = second.parts["c"] = {"x": torch.zeros(25)}
    present = state(3, a=4.0)
    present.parts["b"] = first.parts["b"] = third.parts["b"] = {"x": torch.ones(25)}
    earlier = [Earlier.of(each) for each in (first, second, third)]
    for room, kept in [(400, 3), (399, 2), (300, 2), (299, 1), (200, 1), (199, 0)]:
        assert bounded(earlier, present, room) == earlier[3 - kept :], room


def test_a_folder_is_bounded_by_what_only_earlier_states_need(tmp_path):
    earlier = [Earlier.of(state(0, a=1.0, b=9.0)), Earlier.of(state(1, a=2.0, b=9.0))]
    present = state(2, a=3.0, b=9.0)
    save_with(tmp_path, present, earlier, ROOM)
    more = bytes_kept(tmp_path, _files(tmp_path))
    parts = [path for path in tmp_path.glob("a-*") if path.name not in _files(tmp_path)]
    assert more == sum(path.stat().st_size for path in parts) > sum(tensor_bytes(path) for path in parts) == 200
    for states in (earlier_in(tmp_path), [Earlier.of(each.state()) for each in earlier]):
        for room, kept in [(more, 2), (more - 1, 1), (more // 2, 1), (more // 2 - 1, 0)]:
            folder = tmp_path if states[0].parts is None else tmp_path / str(room)
            save_with(folder, present, states, room)
            assert len(earlier_in(folder)) == kept, room
            assert len(list(folder.glob("*.safetensors"))) == 2 + kept
            save_with(tmp_path, present, earlier, ROOM)  # all again


def test_a_damaged_earlier_state_is_named_and_the_model_stays(tmp_path, loaded):
    folder = tmp_path / "model"
    before = loaded.state()
    part = read_kept(folder)[-1][0]["gaussians/lda"]
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(LcaError, match=f"{part.name} does not match the hash"):
        loaded.undo()
    assert equal_states(loaded.state(), before)
    assert load_state(folder).meta["classes"] == ["3", "7", "1", "9"], "and loads"


@pytest.mark.parametrize("kept", [3, [3], [{"parts": {"a": "../x"}, "meta": {}}], [{"parts": {}}]])
def test_a_damaged_list_of_earlier_states_is_refused(tmp_path, model, kept):
    model.save(tmp_path)
    manifest = {**read_json(tmp_path / "state.json"), "kept": kept}
    (tmp_path / "state.json").write_text(json.dumps(manifest))
    with pytest.raises(LcaError, match=r"state\.json was changed or damaged"):
        load(tmp_path)


def test_a_history_of_before_is_read():
    entry = {"kind": "forget", "when": None, "images": {}, "new": ["a"]}
    assert Lesson.read(entry).name is None
    assert described(Lesson("rename", None, {}, ["a"], name="b")) == "renamed a to b"
