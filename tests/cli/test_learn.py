"""lca learn: an instant answer that is saved, and what comes after it."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import tiny
from lca import ContinualClassifier, LcaError

FAST = ("--set", "training={epochs: 1, batch_size: 8, lr: 0.01}", "--set", "tuning={name: lora, rank: 2}")
FAST += ("--set", "device=cpu")
HARMFUL = (*FAST, "--set", "training.lr=2")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Every command runs in an empty folder, with the tiny transformer and photos of digits beside it."""
    monkeypatch.chdir(tmp_path)
    for folder, counts in {"few": {"0": 8, "1": 8}, "many": {"2": 14, "3": 14}, "one": {"4": 14}}.items():
        for name, count in counts.items():
            (tmp_path / folder / name).mkdir(parents=True)
            for number, image in enumerate(tiny.images({name: count}).pixels.canvas):
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / folder / name / f"{number}.png")
    with tiny.tiny_backbone():
        yield


def efforts(model="m"):
    return [lesson.effort for lesson in ContinualClassifier.load(model).history]


def test_few_photos_are_taught_instantly(lca):
    code, out, err = lca("learn", "m", "few", *FAST)
    assert code == 0
    assert "learnt 2 new classes from 14 images (2 more held out), nothing trained" in out
    assert "training" not in out + err
    assert efforts() == ["instant"]
    assert ContinualClassifier.load("m").history[0].improvement is None
    row = next(line for line in lca("info", "m")[1].splitlines() if "2 new: 0, 1" in line)
    assert row.split()[-3] == "instant"


def test_with_many_photos_training_is_tried_and_told(lca):
    assert lca("learn", "m", "few", *FAST, "-q")[0] == 0
    code, out, err = lca("learn", "m", "many")
    assert code == 0
    assert (
        out.index("nothing trained") < out.index("m has learnt 2, 3; it knows 4 classes") < out.index("training took")
    )
    assert out.endswith("m has learnt 2, 3; it knows 4 classes\n"), "it ends with what was just learnt"
    told = err.splitlines()
    assert told[:2] == ["teaching m what is in many", "lesson 2: 26 images of 2 classes"]
    assert told[2].startswith("training on the same images; the instant lesson stands until that proves better")
    assert told[3] == "lesson 2, training: 26 images of 2 classes"
    lesson = ContinualClassifier.load("m").history[-1]
    tried = lesson.improvement
    assert f"on the held-out images: {tried.instant:.1f} % and {tried.thorough:.1f} %" in out
    assert f"known before: {tried.known_instant:.1f} % and {tried.known_thorough:.1f} %" in out
    assert ("and is kept" in out) == tried.kept == (lesson.effort == "thorough")
    for text in (lca("info", "m")[1], Path("m/README.md").read_text()):
        assert f"{lesson.effort} (training: {tried.instant:.1f} to {tried.thorough:.1f} %, known classes" in text


def test_training_that_harms_is_not_kept(lca):
    for model in ("m", "n"):
        assert lca("learn", model, "few", *HARMFUL, "-q")[0] == 0
    code, out, _ = lca("learn", "m", "many", "-q")
    assert code == 0
    assert "and is not kept: the instant lesson stays" in out
    assert efforts() == ["instant", "instant"]
    lesson = json.loads(lca("learn", "n", "many", "--json", "-q")[1])
    assert (lesson["effort"], lesson["improvement"]["kept"]) == ("instant", False)


def test_a_lesson_that_hurts_an_old_class_says_so(lca, tmp_path):
    assert "hurts" not in lca("learn", "m", "few", *FAST, "-q")[1], "there were no old classes"
    (tmp_path / "alike").mkdir()
    shutil.copytree(tmp_path / "few" / "0", tmp_path / "alike" / "like 0")
    code, out, _ = lca("learn", "m", "alike", "-q")
    assert code == 0
    hurt = ContinualClassifier.load("m").history[-1].old_classes.hurt["0"]
    assert "CHECK: this lesson hurts old classes" in out
    told = (
        f"  0: {hurt.before:.0f} % named rightly before, {hurt.after:.0f} % after, now often taken for {hurt.taken_for}"
    )
    assert told in out


def test_the_effort_can_be_chosen(lca):
    assert lca("learn", "m", "few", "--thorough", *FAST)[0] == 0
    code, out, _ = lca("learn", "m", "many", "--instant")
    assert (code, "training" in out) == (0, False)
    assert efforts() == ["thorough", "instant"]
    lesson = json.loads(lca("learn", "n", "few", "--improve", "--json", "-q", *FAST)[1])
    assert lesson["improvement"]["measured_on"] == "held out"
    code, out, _ = lca("learn", "n", "one", "--improve")
    assert (code, "training was not tried: there is nothing to train on" in out) == (0, True)


@pytest.mark.parametrize(
    "asked", [("--instant", "--thorough"), ("--improve", "--instant"), ("--improve", "--thorough")]
)
def test_one_effort_at_a_time(lca, tmp_path, asked):
    code, _, err = lca("learn", "m", "few", *asked, *FAST)
    assert code == 2
    assert all(each in err for each in asked)
    assert "exclude" in err
    assert not (tmp_path / "m").exists()


def test_a_method_that_has_to_train_says_so(lca, tmp_path):
    code, _, err = lca("learn", "m", "few", "--instant", "--set", "method=finetune", *FAST)
    assert code == 2
    assert "without training" in err
    assert "--thorough" in err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt, 130), (LcaError("the loss is no number"), 2)], ids=["interrupt", "error"]
)
def test_what_ends_training_leaves_the_instant_lesson(lca, monkeypatch, error, code):
    def ended(*_, **__):
        assert efforts() == ["instant"]  # on the disk before anything is trained
        raise error

    monkeypatch.setattr("lca.training.loop.FineTuning.epoch", ended)
    ended_with, out, err = lca("learn", "m", "many", *FAST)
    assert ended_with == code
    assert "learnt 2 new classes" in out
    assert "the instant lesson stands, and m holds it" in err
    assert ("the loss is no number" in err) == (code == 2)
    assert efforts() == ["instant"]
    assert lca("predict", "m", "many/2/0.png")[0] == 0


def test_where_nothing_is_held_out_images_are_left_out_one_by_one(lca):
    code, out, _ = lca("learn", "m", "few", "--held-out", "0", *FAST)
    assert code == 0
    lesson = ContinualClassifier.load("m").history[0]
    assert lesson.left_one_out == 16
    assert f"named rightly ({lesson.left_one_out_right} of 16)" in out
