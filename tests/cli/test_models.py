"""learn, predict, evaluate, info and what changes a model without photos, as a person or a script uses them."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import tiny
from lca import ContinualClassifier
from lca.files import hold, read_manifest

FAST = ("--set", "training={epochs: 1, batch_size: 8, lr: 0.05}", "--set", "tuning={name: lora, rank: 2}")
FAST += ("--set", "method.align=[none, best]", "--set", "device=cpu", "--quiet")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Every command runs in an empty folder, with the tiny transformer."""
    monkeypatch.chdir(tmp_path)
    with tiny.tiny_backbone():
        yield


def digits(folder, counts, skip=0):
    """Handwritten digits as class folders of PNG files."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(tiny.images({name: count}, skip).pixels.canvas):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of two lessons, made by the command once."""
    place = tmp_path_factory.mktemp("made")
    with tiny.tiny_backbone():
        method = tiny.method_section("im")
        recipe = tiny.recipe(training={"epochs": 1}, method=method)
        model = ContinualClassifier(recipe, backbone=tiny.load_tiny_backbone())
        model.learn(digits(place / "first", {"0": 12, "1": 12}))
        model.learn(digits(place / "second", {"2": 12}))
        model.save(place / "model")
    return place


@pytest.fixture
def model(made, tmp_path):
    shutil.copytree(made / "model", tmp_path / "model")
    shutil.copytree(made / "first", tmp_path / "images")
    return tmp_path / "model"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def test_learn_makes_a_model_and_teaches_it_on(lca, tmp_path):
    digits(tmp_path / "a", {"0": 10, "1": 10})
    code, out, _ = lca("learn", "m", "a", *FAST)
    assert code == 0
    assert "learnt 2 new classes from 18 images (2 more held out)" in out
    assert " called unknown)" in out
    assert "among all 2 classes" in out
    digits(tmp_path / "b", {"1": 5, "2": 5})
    code, out, _ = lca("learn", "m", "b", "--quiet", "--json")
    assert code == 0
    lesson = json.loads(out)
    assert lesson["new"] == ["2"]
    assert lesson["images"] == {"1": 5, "2": 5}
    assert (lesson["held_out"], lesson["accuracy"]) == (0, None)
    assert lesson["classes"] == ["0", "1", "2"]
    loaded = ContinualClassifier.load("m")
    assert [entry.kind for entry in loaded.history] == ["learn", "learn"]
    assert loaded.recipe.training.epochs == 1
    assert loaded.history[0].held_out == 2


def test_nothing_held_out_is_said(lca, tmp_path):
    digits(tmp_path / "a", {"0": 10, "1": 10})
    code, out, _ = lca("learn", "m", "a", "--held-out", "0", *FAST)
    assert code == 0
    assert "from 20 images (0 more held out)" in out
    assert "accuracy is not measured" in out
    assert "not calibrated" not in out, "closed-form heads leave out one image after another"
    assert "nothing will be called unknown" not in out
    for branch, calibrated in (("best", True), ("none", False)):
        row = json.loads(lca("predict", "m", "a/0/0.png", "--branch", branch, "--json")[1])[0]
        assert row["calibrated"] is calibrated


def test_one_image_of_a_class_says_that_nothing_is_unknown(lca, tmp_path):
    digits(tmp_path / "a", {"0": 1, "1": 1})
    code, out, _ = lca("learn", "m", "a", *FAST)
    assert code == 0
    assert "probabilities are not calibrated yet" in out
    assert "nothing will be called unknown" in out


def test_all_data_at_once_is_taught_once(lca, tmp_path):
    digits(tmp_path / "a", {"0": 4, "1": 4})
    joint = [word for word in FAST if not word.startswith("method.align")]
    joint = [word for place, word in enumerate(joint) if joint[place : place + 2] != ["--set", "--set"]]
    assert lca("learn", "m", "a", "--set", "method=joint", *joint)[0] == 0
    before = content(tmp_path / "m")
    code, _, err = lca("learn", "m", "a")
    assert code == 2
    assert "'joint' of m needs all data at once" in err
    assert content(tmp_path / "m") == before


def test_a_broken_file_is_named_and_the_rest_is_learnt(lca, tmp_path):
    digits(tmp_path / "a", {"0": 4, "1": 4})
    (tmp_path / "a" / "0" / "broken.png").write_text("no image")
    code, out, err = lca("learn", "m", "a", *FAST[:-1])
    assert code == 0
    assert "1 file left out" in out
    assert "broken.png" in err
    code, out, err = lca("learn", "m", "a", "--quiet", "--json")
    assert "broken.png" in err  # also when quiet
    assert json.loads(out)["reading"]["left_out"][0]["what"] == "a/0/broken.png"
    code, out, err = lca("evaluate", "m", "a", "--quiet", "--json")
    assert code == 1
    assert "broken.png" in err
    assert json.loads(out)["reading"]["left_out"][0]["what"] == "a/0/broken.png"


def test_the_view_and_the_recipe_can_be_chosen(lca, tmp_path):
    digits(tmp_path / "a", {"0": 4, "1": 4})
    changes = ("--set", "data.view.centre_crop=0.6", "--recipe", "paper")
    assert lca("learn", "m", "a", *changes, *FAST)[0] == 0
    loaded = ContinualClassifier.load("m", allow_download=True)
    assert loaded.view.centre_crop == 0.6
    assert loaded.recipe.method.merge.operator == "max_abs"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("learn", "model", "nowhere"), "there is no folder or file nowhere"),
        (("learn", "model", "images", "--backbone", "vit"), "--backbone can only be chosen for a new model"),
        (("learn", "model", "images", "--recipe", "best"), "--recipe can only be chosen for a new model"),
        (("learn", "model", "images", "--set", "seed=1"), "can no longer be changed with --set"),
        (("learn", "model", "images", "--held-out", "1"), "Invalid value for '--held-out'"),
        (("learn", "images", "images"), "images exists and is no model"),
        (("learn", "images/0/0.png", "images"), "images/0/0.png is a file"),
        (("learn", "new", "images", "--recipe", "bst"), "did you mean 'best'"),
        (("predict", "nowhere", "x.png"), "nowhere does not exist"),
        (("predict", "images", "x.png"), "images is no model"),
        (("predict", "model", "x.png"), "x.png does not exist"),
        (("predict", "model", "*.gif"), "*.gif does not exist"),
        (("predict", "model", "empty"), "no images found in empty"),
        (("predict", "model", "images", "--json", "--csv"), "exclude each other"),
        (("predict", "model", "images", "--branch", "x"), "no branch 'x'"),
        (("evaluate", "model", "nowhere"), "there is no folder or file nowhere"),
        (("info", "images"), "images is no model"),
        (("forget", "model", "3"), "there is no class '3' to forget"),
        (("forget", "model", "0", "3"), "there is no class '3' to forget"),
        (("rename", "model", "0", "1"), "there is a class '1' already"),
        (("rename", "model", "3", "x"), "there is no class '3' to rename"),
        (("merge-classes", "model", "0", "3"), "there is no class '3' to merge"),
        (("merge-classes", "model", "0", "1", "--as", "2"), "there is a class '2' already"),
        (("forget", "nowhere", "3"), "nowhere does not exist"),
    ],
)
def test_mistakes_are_named_and_change_nothing(lca, model, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    before = content(model)
    code, _, err = lca(*words)
    assert code == 2
    assert message in err
    assert content(model) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "images", "model"]


def test_a_model_that_is_being_changed_is_left_alone(lca, model, tmp_path):
    with hold(model, ""):
        code, _, err = lca("learn", "model", "images")
    assert code == 2
    assert "another process is changing model" in err


@pytest.mark.parametrize("name", ["model", "new"])
def test_an_interrupt_leaves_the_model_as_it_was(lca, model, tmp_path, monkeypatch, name):
    before = content(model)
    monkeypatch.setattr("lca.training.loop.FineTuning.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = lca("learn", name, "images", "--thorough", *(FAST if name == "new" else ()))
    assert code == 130
    assert ("is as it was" if name == "model" else "was not made") in err
    assert content(model) == before
    assert not (tmp_path / "new").exists()


def test_a_folder_with_the_remains_of_a_killed_save_is_taken_over(lca, tmp_path):
    digits(tmp_path / "a", {"0": 4, "1": 4})
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "base-0123456789abcdef.safetensors").write_text("half")
    assert lca("learn", "m", "a", *FAST)[0] == 0
    assert not (tmp_path / "m" / "base-0123456789abcdef.safetensors").exists()


# predict


def answers(model, paths):
    return ContinualClassifier.load(model).predict(paths)


def test_predict_prints_what_python_says(lca, model, tmp_path):
    paths = sorted((tmp_path / "images").rglob("*.png"))[:3]
    expected = answers(model, paths)
    code, out, _ = lca("predict", "model", *paths, "--json", "--top", "2")
    assert code == 0
    for path, each, row in zip(paths, expected, json.loads(out), strict=True):
        assert row["image"] == str(path)
        assert row["label"] == each.label
        assert row["probability"] == pytest.approx(each.probability, abs=2e-6)
        assert row["distance"] == pytest.approx(each.distance, abs=1e-3)
        assert row["unknown"] is each.unknown
        assert [entry["label"] for entry in row["top"]] == [name for name, _ in each.top(2)]
    code, out, _ = lca("predict", "model", *paths)
    for path, each, line in zip(paths, expected, out.splitlines(), strict=True):
        assert line.startswith(str(path)[:40])
        assert f"{each.label} {100 * each.probability:.1f} %" in line


def test_predict_as_csv(lca, model, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    code, out, err = lca("predict", "model", "images/0/0.png", "bad.png", "--csv", "--top", "5")
    assert code == 1
    assert "1 could not be read" in err
    first, second = csv.DictReader(io.StringIO(out))
    assert first["label"] in {"0", "1", "2"}
    assert float(first["probability"]) >= float(first["probability_2"]) >= float(first["probability_3"])
    assert first["label_4"] == first["error"] == ""
    assert first["unknown"] in {"true", "false"}
    assert second["image"] == "bad.png"
    assert second["label"] == ""
    assert "image" in second["error"]


def test_predict_finds_folders_patterns_and_lists(lca, model, tmp_path, monkeypatch):
    def asked(*words):
        code, out, _ = lca("predict", "model", *words, "--json")
        assert code == 0
        return [row["image"] for row in json.loads(out)]

    assert len(asked("images")) == 24
    assert asked("images/*/3.png") == ["images/0/3.png", "images/1/3.png"]
    assert asked("images/**/11.png") == ["images/0/11.png", "images/1/11.png"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("images/1/2.png\n\nimages/0/1.png\n"))
    assert asked("-") == ["images/1/2.png", "images/0/1.png"]
    shutil.copy(tmp_path / "images" / "0" / "0.png", tmp_path / "odd[1].png")
    assert asked("odd[1].png") == ["odd[1].png"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("odd[1].png\nimages/0\n"))
    assert len(asked("-")) == 13


def test_one_name_that_leads_nowhere_does_not_end_a_list(lca, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("images/1/2.png\nno[1].png\n"))
    code, out, err = lca("predict", "model", "-", "--json")
    assert code == 1
    assert [row.get("error") for row in json.loads(out)] == [None, "does not exist"]
    assert "1 could not be read" in err


def test_a_pattern_that_matches_a_dangling_link(lca, model, tmp_path):
    (tmp_path / "images" / "d*x.png").symlink_to("nowhere")
    code, out, _ = lca("predict", "model", "images/*", "--json")
    assert code == 1
    assert sum("error" in row for row in json.loads(out)) == 1


def test_names_that_are_no_text_are_printed_safely(lca, model, tmp_path):
    import os

    source = (tmp_path / "images" / "0" / "0.png").read_bytes()
    for name in (b"odd/bad\xff.png", b"odd/two\nlines.png"):
        os.makedirs("odd", exist_ok=True)
        with open(name, "wb") as file:
            file.write(source)
    for words in (("--json",), ("--csv",), ()):
        code, out, _ = lca("predict", "model", "odd", *words)
        assert code == 0
        assert out.encode().decode() == out
        assert len([line for line in out.splitlines() if "odd/" in line]) == 2
    assert len(json.loads(lca("predict", "model", "odd", "--json")[1])) == 2


def test_more_images_than_fit_at_once_are_answered_in_parts(lca, model, monkeypatch):
    whole = json.loads(lca("predict", "model", "images", "--json")[1])
    monkeypatch.setattr("lca.cli.models.CHUNK", 5)
    parts = json.loads(lca("predict", "model", "images", "--json")[1])
    assert [row["label"] for row in parts] == [row["label"] for row in whole]
    assert [row["probability"] for row in parts] == pytest.approx([row["probability"] for row in whole], abs=1e-5)


def test_the_limit_of_unknown_things(lca, model):
    rows = json.loads(lca("predict", "model", "images", "--json")[1])
    middle = sorted(row["distance"] for row in rows)[-4] - 0.01
    strict = json.loads(lca("predict", "model", "images", "--json", "--unknown-at", str(middle))[1])
    assert [row["unknown"] for row in strict] == [row["distance"] >= middle for row in rows]
    assert any(row["unknown"] for row in strict)
    assert not all(row["unknown"] for row in strict)
    assert "unknown, nearest to" in lca("predict", "model", "images/0/0.png", "--unknown-at", "0")[1]


def test_a_branch_without_statistics_gives_no_distance(lca, model):
    out = lca("predict", "model", "images/0/0.png", "--branch", "none")[1]
    assert "distance" not in out
    rows = json.loads(lca("predict", "model", "images/0/0.png", "--branch", "none", "--json")[1])
    assert rows[0]["distance"] is None
    assert rows[0]["unknown"] is False


# evaluate, info, forget


def test_evaluate(lca, model, tmp_path):
    test = digits(tmp_path / "test", {"0": 5, "1": 5, "7": 4}, skip=20)
    facts = json.loads(lca("evaluate", "model", test, "--json", "--quiet")[1])
    paths = [path for name in ("0", "1") for path in sorted((test / name).iterdir())]
    right = sum(path.parent.name == answer.label for path, answer in zip(paths, answers(model, paths), strict=True))
    assert (facts["images"], facts["right"], facts["ood"]) == (10, right, 4)
    code, out, _ = lca("evaluate", "model", test)
    assert code == 0
    assert f"({right} of 10)" in out
    assert "4 images of classes it never learnt" in out
    named = {str(path): path.parent.name for path in paths}
    of_paths = dict(zip(named, answers(model, paths), strict=True))
    wrong = {path: answer for path, answer in of_paths.items() if answer.label != named[path]}
    assert {each["path"]: each["answer"] for each in facts["wrong"]} == {
        path: answer.label for path, answer in wrong.items()
    }
    for path, answer in wrong.items():
        assert f"  {path}  {named[path]} taken for {answer.label} ({100 * answer.probability:.1f} %" in out
    lines = list(csv.DictReader(io.StringIO(lca("evaluate", "model", test, "--csv", "--quiet")[1])))
    assert [(line["path"], line["truth"], line["answer"]) for line in lines[:10]] == [
        (path, named[path], answer.label) for path, answer in of_paths.items()
    ]
    assert [float(line["probability"]) for line in lines[:10]] == pytest.approx(
        [answer.probability for answer in of_paths.values()], abs=1e-4
    )
    assert [line["unknown"] for line in lines[:10]] == [str(each.unknown).lower() for each in of_paths.values()]
    assert [line["truth"] for line in lines[10:]] == ["7"] * 4, "right, wrong, and of other classes"
    assert "exclude each other" in lca("evaluate", "model", test, "--csv", "--json")[2]


def test_evaluate_names_so_many_wrong_photos(lca, model, tmp_path):
    (tmp_path / "test").mkdir()
    shutil.copytree(tmp_path / "images" / "0", tmp_path / "test" / "1")
    shutil.copytree(tmp_path / "images" / "1", tmp_path / "test" / "0")
    out = lca("evaluate", "model", "test")[1]
    wrong = json.loads(lca("evaluate", "model", "test", "--json", "-q")[1])["wrong"]
    named = out.partition("wrong, the surest first")[2]
    assert len(wrong) > 20, "labels are exchanged"
    assert named.count(" taken for ") == 20
    assert f"and {len(wrong) - 20} more; --csv names all" in named


def test_evaluate_ood_images_only(lca, model, tmp_path):
    test = digits(tmp_path / "test", {"7": 4})
    code, out, _ = lca("evaluate", "model", test)
    assert code == 0
    assert "accuracy" not in out
    assert "called unknown" in out


def test_info(lca, model):
    facts = json.loads(lca("info", "model", "--json")[1])
    loaded = ContinualClassifier.load("model")
    assert facts["classes"] == {"0": 11, "1": 11, "2": 11}
    assert facts["bytes"] == loaded.memory()
    assert facts["temperatures"] == pytest.approx(loaded.temperatures)
    assert facts["backbone"]["bundled"] is False
    code, out, _ = lca("info", "model")
    assert code == 0
    assert "3 classes, method im, tuning lora" in out
    assert f"{sum(loaded.memory().values()):,}" in out


def test_forget(lca, model):
    code, out, _ = lca("forget", "model", "1")
    assert code == 0
    assert "model has forgotten 1; it knows 2 classes" in out
    assert ContinualClassifier.load("model").classes == ["0", "2"]
    rows = json.loads(lca("predict", "model", "images/1", "--json")[1])
    assert {row["label"] for row in rows} <= {"0", "2"}
    assert "forgot 1" in lca("info", "model")[1]
    assert "\n| 1 |" not in (model / "README.md").read_text()
    assert "\n| 2 |" in (model / "README.md").read_text()
    help_text = " ".join(lca("forget", "--help")[1].split())
    assert "backbone is NOT unlearnt" in help_text


def test_forget_several_and_purge(lca, model):
    assert "model has forgotten 1, 0; it knows 1 class\n" in lca("forget", "model", "1", "0")[1]
    assert ContinualClassifier.load("model").undoable == 3
    assert lca("undo", "model")[0] == 0
    code, out, _ = lca("forget", "model", "1", "0", "--purge")
    assert code == 0
    assert "undo" not in out
    code, _, err = lca("undo", "model")
    assert code == 2
    assert "nothing can be taken back" in err
    assert "can take back: 0, kept in 0 bytes more" in lca("info", "model")[1]


def test_a_walk_and_back(lca, model, tmp_path):
    """learn, rename, merge, forget, each told, each taken back to the same parts; card and info say what happened."""
    digits(tmp_path / "more", {"5": 6})
    said = [
        (("learn", "model", "more", "--instant", "--quiet"), "learnt 1 new class from 5 images"),
        (("rename", "model", "5", "five"), "model: 5 is now called five\n"),
        (("merge-classes", "model", "1", "five"), "model: 1 and five are one class now, 1; it knows 3 classes"),
        (("merge-classes", "model", "0", "1", "--as", "round"), "0 and 1 are one class now, round; it knows 2 classes"),
        (("forget", "model", "round"), "an earlier state still holds what went: `lca undo model` brings it back"),
    ]
    states = [_state()]
    for words, line in said:
        code, out, err = lca(*words, "--keep", "7")
        assert (code, line in out) == (0, True), out + err
        states.append(_state())
    card, info = (model / "README.md").read_text(), lca("info", "model")[1]
    for line in ("renamed 5 to five", "made 1 and five one class, 1", "made 0 and 1 one class, round", "forgot round"):
        assert line in card
        assert line in info
    facts = json.loads(lca("info", "model", "--json")[1])
    assert facts["classes"] == {"2": 11}
    size = sum(path.stat().st_size for path in model.glob("*.safetensors") if path.name not in _state()[0].values())
    assert facts["earlier"] == {"states": 7, "bytes": size}
    assert f"can take back: 7, kept in {size:,} bytes more" in info
    undone = ["forgot round", "made 0 and 1 one class, round", "made 1 and five one class, 1", "renamed 5 to five"]
    for left, line in zip((6, 5, 4, 3, 2), [*undone, "learnt (1 new: 5)"], strict=True):
        states.pop()
        code, out, _ = lca("undo", "model")
        assert code == 0
        assert f"model is as it was before it {line}; it knows" in out
        assert f"{left} more changes can be taken back" in out
        assert _state() == states[-1]
    assert lca("rename", "model", "0", "zero", "--keep", "1")[0] == 0
    assert ContinualClassifier.load("model").undoable == 1


def _state():
    parts, meta = read_manifest(Path("model"))
    return {part: path.name for part, path in parts.items()}, meta


def test_a_model_without_classes_asks_to_be_taught(lca, model):
    for name in "012":
        assert lca("forget", "model", name)[0] == 0
    code, _, err = lca("predict", "model", "images")
    assert code == 2
    assert "teach it one with `lca learn model FOLDER`" in err
    assert lca("info", "model")[0] == 0
    assert lca("learn", "model", "images", "--quiet")[0] == 0
    assert ContinualClassifier.load("model").classes == ["0", "1"]


def test_bundle(lca, model, tmp_path):
    assert lca("learn", "model", "images", "--bundle", "--quiet")[0] == 0
    assert len(list(model.glob("backbone-*.safetensors"))) == 1
    assert json.loads(lca("info", "model", "--json")[1])["backbone"]["bundled"] is True
    assert "backbone" not in json.loads(lca("info", "model", "--json")[1])["bytes"]
    assert lca("learn", "model", "images", "--quiet")[0] == 0
    assert list(model.glob("backbone-*.safetensors"))
    assert lca("learn", "model", "images", "--no-bundle", "--quiet")[0] == 0
    assert not list(model.glob("backbone-*.safetensors"))


def test_the_same_pixels_get_the_same_answer_in_every_format(lca, model, tmp_path):
    pixels = tiny.images({"0": 1}).pixels.canvas[0].permute(1, 2, 0).numpy()
    for name in ("a.png", "b.bmp", "c.tiff"):
        Image.fromarray(pixels).save(tmp_path / name)
    rows = json.loads(lca("predict", "model", "a.png", "b.bmp", "c.tiff", "--json")[1])
    assert len({row["label"] for row in rows}) == 1
    assert torch.tensor([row["probability"] for row in rows]).std() < 1e-5


def test_a_folder_with_train_and_test_is_taught_and_measured(lca, tmp_path):
    digits(tmp_path / "photos" / "train", {"0": 8, "1": 8})
    digits(tmp_path / "photos" / "test", {"0": 3, "1": 4}, skip=20)
    code, out, err = lca("learn", "m", "photos", *FAST)
    assert code == 0
    assert "photos has parts: train is taught, test is measured on afterwards" in err  # also when quiet
    lesson = ContinualClassifier.load("m").history[-1]
    assert (sorted(lesson.images), lesson.tested) == (["0", "1"], 7)
    assert f"accuracy on the test part: {lesson.test_accuracy:.1f} % ({lesson.tested_right} of 7)" in out
    facts = json.loads(lca("evaluate", "m", "photos", "--json", "-q")[1])
    assert (facts["images"], facts["right"]) == (7, lesson.tested_right)
    assert facts["reading"]["notes"] == ["photos has parts: test is measured on"]
    (tmp_path / "photos" / "other").mkdir()
    for verb in ("learn", "evaluate"):
        code, _, err = lca(verb, "m", "photos")
        assert code == 2
        assert "are these parts of a data set, or classes? Say it with --layout parts" in err
        assert lca(verb, "m", "photos", "--layout", "parts", "-q")[0] == 0
    code, out, _ = lca("learn", "m", "photos", "--layout", "parts", "--json", "-q")
    assert json.loads(out)["test_accuracy"] is not None
    assert json.loads(out)["reading"]["test"]["read"] == 7
    assert lca("learn", "n", "photos", "--layout", "classes", *FAST)[0] == 0
    assert ContinualClassifier.load("n").classes == ["test", "train"]


def test_a_list_in_a_file_and_an_archive_are_taught(lca, tmp_path):
    digits(tmp_path / "a", {"0": 4, "1": 4})
    paths = sorted((tmp_path / "a").rglob("*.png"))
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in paths]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    shutil.make_archive("photos", "zip", tmp_path / "a")
    models = {}
    for model, photos in {"folder": "a", "list": "labels.csv", "zip": "photos.zip"}.items():
        assert lca("learn", model, photos, *FAST)[0] == 0
        models[model] = ContinualClassifier.load(model)
    answers = {name: model.predict(paths) for name, model in models.items()}
    assert answers["folder"] == answers["list"] == answers["zip"]
    (tmp_path / "labels.csv").write_text(lines[0] + "\n0\n")
    code, _, err = lca("learn", "new", "labels.csv")
    assert code == 2
    assert "labels.csv, line 2: 1 columns where the first line has 2" in err
    assert not (tmp_path / "new").exists()
