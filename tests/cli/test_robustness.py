"""`lca robustness`: a taught model on damaged images."""

import json
import re
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

import tiny
from lca.errors import LcaError
from lca.progress import Progress
from lca.results.robustness import RobustnessScores


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model of three digits, and their pictures in folders: of one size in `photos`, of several in `ragged`."""
    monkeypatch.chdir(tmp_path)
    with tiny.tiny_backbone():
        learner = tiny.classifier(tiny.recipe(method={"name": "simplecil"}, tuning="none"))
        learner.learn(tiny.task(0, {"3": 20, "7": 20, "1": 20}))
        learner.save(tmp_path / "model")
        pictures = tiny.images({"3": 4, "7": 4, "1": 4}, skip=20)
        for number, (picture, label) in enumerate(zip(pictures.pixels.canvas, pictures.labels.tolist(), strict=True)):
            for kind in ("photos", "ragged"):
                folder = tmp_path / kind / pictures.classes[label]
                folder.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(picture.permute(1, 2, 0).numpy())
                image = image.resize((32, 32 + (number % 3 if kind == "ragged" else 0)), Image.NEAREST)
                image.save(folder / f"{number:02}.png")
        yield tmp_path


def facts(lca, *words):
    code, out, err = lca("robustness", "model", *words, "--json", "-q")
    assert code == 0, err
    return json.loads(out)


def test_all_kinds_of_damage(lca, model):
    found = facts(lca, "photos")
    assert len(found["corrupted"]) == 19
    assert all(list(each) == ["1", "2", "3", "4", "5"] for each in found["corrupted"].values())
    assert len(found["perturbed"]) == 10
    assert found["generated"] is True
    assert found["images"] == 12
    assert found["clean"] > 60
    assert found["score"] == pytest.approx((found["accuracy_c"] + found["accuracy_p"]) / 2)
    assert len({value for each in found["corrupted"].values() for value in each.values()}) > 3


def test_progress_counts_what_the_model_is_asked(lca, model, monkeypatch):
    """A sequence is as many answers as it has frames; the batches have no bars of their own."""
    told = {}

    class Told(Progress):
        @contextmanager
        def task(self, what, total):
            told[what] = [total, 0]
            yield lambda units: told[what].__setitem__(1, told[what][1] + units)

    monkeypatch.setattr("lca.cli.robustness.choose_progress", lambda quiet=False: Progress() if quiet else Told())
    words = ("photos", "--only", "fog", "--severity", "1", "--only", "tilt", "--only", "translate")
    assert lca("robustness", "model", *words)[0] == 0
    assert told["robustness"] == [1 + 1 + 31 + 16] * 2
    assert "features" not in told


def test_options(lca, model):
    some = facts(lca, "photos", "--kind", "c", "--only", "fog", "--only", "contrast", "--severity", "5")
    assert {name: list(each) for name, each in some["corrupted"].items()} == {"fog": ["5"], "contrast": ["5"]}
    assert some["perturbed"] == {}
    assert some["score"] is None
    assert facts(lca, "photos", "--only", "tilt")["corrupted"] == {}
    assert facts(lca, "photos", "--kind", "p", "--only", "tilt", "--limit", "5")["images"] == 5
    noise = ("photos", "--kind", "c", "--only", "impulse_noise", "--severity", "5")
    assert facts(lca, *noise) == facts(lca, *noise)
    assert len({json.dumps(facts(lca, *noise, "--seed", str(seed))["corrupted"]) for seed in range(6)}) > 1


def test_images_of_different_sizes_are_damaged_as_the_model_sees_them(lca, model):
    found = facts(lca, "ragged", "--kind", "c", "--only", "fog")
    assert found["images"] == 12
    assert found["clean"] > 60


def test_a_table_a_file_and_a_radar(lca, model):
    words = ("photos", "--only", "fog", "--only", "snow", "--only", "tilt", "--severity", "1", "--severity", "5")
    code, out, _ = lca("robustness", "model", *words, "--out", "one.json", "-q")
    assert code == 0
    assert "fog" in out
    assert "by severity" in out
    assert "12 images, generated" in out
    code, out, _ = lca("robustness", "model", *words, "--against", "one.json", "--radar", "radar.png", "-q")
    assert code == 0
    assert "other" in out
    assert "+0.0" in out
    err = lca("robustness", "model", *words, "--against", "one.json", "--seed", "3", "-q")[2]
    assert "not measured alike: seed differ" in err
    err = lca("robustness", "model", *words[:-2], "--against", "one.json", "-q")[2]
    assert "not measured alike: kinds of damage or severities differ" in err
    err = lca("robustness", "model", *words, "--against", "one.json", "-q")[2]
    assert "alike" not in err
    assert re.search(r"mFR +(100\.0 %|- \(the other never flips: tilt\))", out)
    with Image.open(model / "radar.png") as picture:
        assert picture.size == (1200, 900)


@pytest.fixture
def drawn(monkeypatch):
    """The radars that were drawn, as figures."""
    figures = []
    monkeypatch.setattr("lca.report.robustness.save", lambda figure, path: figures.append(figure))
    return figures


def test_the_radar_shows_both_models_and_where_the_damage_is_from(lca, model, drawn):
    """Also where the file is named after the model."""
    words = ("photos", "--only", "fog", "--only", "pixelate", "--only", "frost", "--severity", "5", "-q")
    theirs = facts(lca, *words, "--out", "model.json")
    theirs["corrupted"] = {name: {"5": 10.0} for name in theirs["corrupted"]}
    (model / "model.json").write_text(json.dumps(theirs))
    assert lca("robustness", "model", *words, "--against", "model.json", "--radar", "radar.png")[0] == 0
    (model / "model.json").write_text(json.dumps({**theirs, "generated": False}))
    assert lca("robustness", "model", *words, "--against", "model.json", "--radar", "radar.png")[0] == 0
    alike, unlike = (figure.axes[0] for figure in drawn)
    assert alike.get_title() == "accuracy on damaged images (%), generated"
    assert unlike.get_title() == "accuracy on damaged images (%), generated against published files"
    ours, other = alike.lines
    assert [ours.get_label(), other.get_label()] == ["model", "model.json"]
    assert list(other.get_ydata()) == [10.0] * 4
    assert min(ours.get_ydata()) > 10
    assert alike.figure.legends[0].get_title().get_text() == "model relative to model.json"
    assert all("%" in label.get_text() for label in alike.get_xticklabels())


def test_the_radar_names_a_model_that_is_the_current_folder(lca, model, drawn, monkeypatch):
    monkeypatch.chdir(model / "model")
    words = ("../photos", "--only", "fog", "--only", "pixelate", "--only", "frost", "--severity", "5", "-q")
    assert lca("robustness", ".", *words, "--radar", "../radar.png")[0] == 0
    assert drawn[0].axes[0].lines[0].get_label() == "model"


def test_what_only_one_model_was_asked_is_not_in_the_radar(lca, model, drawn):
    kinds = [word for name in ("fog", "pixelate", "frost", "contrast") for word in ("--only", name)]
    facts(lca, "photos", *kinds, "--only", "tilt", "--severity", "5", "--out", "one.json")
    words = ("photos", *kinds, "--only", "brightness", "--kind", "c", "--severity", "5")
    code, _, err = lca("robustness", "model", *words, "--against", "one.json", "--radar", "radar.png", "-q")
    assert code == 0
    assert "the radar leaves out what only one of the two was asked: brightness, tilt, frames\n" in err
    assert len(drawn[0].axes[0].get_xticklabels()) == 4


@pytest.fixture
def unasked(monkeypatch):
    """Asking a model anything is a failure."""
    monkeypatch.setattr("lca.classifier.ContinualClassifier.features", lambda *_: pytest.fail("measured in vain"))


def test_an_output_that_cannot_be_written_is_refused_before_measuring(lca, model, unasked):
    (model / "other.json").write_text(json.dumps(RobustnessScores(50.0, 12, True, {"fog": {5: 40.0}}).as_json()))
    three = ("--only", "fog", "--only", "pixelate", "--only", "tilt")
    for words, message in (
        ((*three, "--out", "other.json/one.json"), "other.json/one.json cannot be written"),
        ((*three, "--out", "photos"), "photos cannot be written"),
        ((*three, "--radar", "other.json/radar.png"), "other.json/radar.png cannot be written"),
        ((*three, "--radar", "radar.xyz"), "--radar takes a name that ends with .png, .svg or .pdf; got radar.xyz"),
        (
            ("--only", "fog", "--only", "pixelate", "--radar", "r.png"),
            "three kinds of damage or more; here fog, pixelate",
        ),
        (("--only", "tilt", "--against", "other.json", "--radar", "r.png"), "three kinds of damage or more; here none"),
    ):
        code, _, err = lca("robustness", "model", "photos", *words, "-q")
        assert code == 2, words
        assert message in err
    assert not list(model.glob("r*.png"))


def test_numbers_are_printed_though_they_cannot_be_stored_or_drawn(lca, model, monkeypatch):
    def full(*_, **__):
        raise LcaError("no room")

    monkeypatch.setattr("lca.files.write_atomic", full)
    monkeypatch.setattr("lca.report.robustness.save", full)
    words = ("photos", "--only", "fog", "--only", "pixelate", "--only", "frost", "--severity", "5", "-q")
    for output in (("--out", "one.json"), ("--radar", "radar.png")):
        code, out, err = lca("robustness", "model", *words, *output)
        assert code == 2
        assert "no room" in err
        assert "accuracy c" in out


def test_folders_of_outputs_are_made(lca, model):
    words = ("photos", "--only", "fog", "--only", "pixelate", "--only", "frost", "--severity", "5", "-q")
    assert lca("robustness", "model", *words, "--out", "new/a/one.json", "--radar", "new/b/radar.svg")[0] == 0
    assert (model / "new/a/one.json").exists()
    assert "generated" in (model / "new/b/radar.svg").read_text()


def test_flips_beside_another_model(lca, model):
    """Its flips are the unit; in noise sequences both kinds of flips are told."""
    words = ("photos", "--only", "gaussian_noise", "--only", "rotate", "--kind", "p")
    ours = facts(lca, *words, "--out", "one.json")
    theirs = {**ours, "perturbed": {name: {**each, "flips": 50.0} for name, each in ours["perturbed"].items()}}
    (model / "other.json").write_text(json.dumps(theirs))
    found = facts(lca, *words, "--against", "other.json")
    flips = {name: each["flips"] for name, each in ours["perturbed"].items()}
    assert found["flip_ratios"] == pytest.approx({name: 2 * each for name, each in flips.items()})
    assert found["mean_flip_ratio"] == pytest.approx(2 * ours["flip_rate"])
    assert found["against"] == "other.json"
    out = lca("robustness", "model", *words, "--against", "other.json", "-q")[1]
    noise = ours["perturbed"]["gaussian_noise"]
    assert f"flips {noise['flips']:.1f} % (from frame to frame {noise['flips_previous']:.1f} %)" in out
    assert f"{'mFR':<24}{2 * ours['flip_rate']:5.1f} %" in out
    theirs["perturbed"]["rotate"]["flips"] = 0.0
    (model / "other.json").write_text(json.dumps(theirs))
    out = lca("robustness", "model", *words, "--against", "other.json", "-q")[1]
    assert f"{'mFR':<24}    - (the other never flips: rotate)" in out


def test_published_files(lca, model):
    """Arrays that hold the pictures themselves: nothing is lost; in another order, nearly everything is."""
    files = model / "published"
    files.mkdir()
    names = sorted(path.name for path in (model / "photos").iterdir())
    pictures = [np.array(Image.open(path)) for name in names for path in sorted((model / "photos" / name).iterdir())]
    labels = [number for number, name in enumerate(names) for _ in (model / "photos" / name).iterdir()]
    np.save(files / "labels.npy", np.tile(labels, 5))
    np.save(files / "fog.npy", np.concatenate([np.stack(pictures)] * 4 + [np.stack(pictures[::-1])]))
    np.save(files / "tilt.npy", np.stack([np.stack(pictures)] * 3, axis=1))
    sequences = model / "sequences"
    sequences.mkdir()
    (files / "tilt.npy").rename(sequences / "tilt.npy")
    code, _, err = lca("robustness", "model", "photos", "--files", "published", "-q")
    assert code == 0
    assert "missing corruptions: gaussian_noise, " in err
    assert "every mean is over the others" in err
    assert "sequences" not in err
    code, _, err = lca("robustness", "model", "photos", "--files", "sequences", "--kind", "p", "-q")
    assert code == 0
    assert "missing sequences: gaussian_noise, shot_noise, " in err
    assert "tilt" not in err
    both = ("photos", "--files", "published", "--files", "sequences", "-q")
    assert "missing" not in lca("robustness", "model", *both, "--only", "fog", "--only", "tilt")[2]
    err = lca("robustness", "model", *both, "--only", "fog", "--only", "rotate")[2]
    assert "missing sequences: rotate; " in err
    assert "missing corruptions" not in err
    found = facts(lca, "photos", "--files", "published", "--files", "sequences")
    assert found["generated"] is False
    assert [found["corrupted"]["fog"][each] for each in "1234"] == [found["clean"]] * 4
    assert found["corrupted"]["fog"]["5"] < found["clean"]
    assert found["perturbed"]["tilt"] == {"accuracy": found["clean"], "flips": 0.0, "flips_previous": 0.0}


def test_several_classifiers_of_a_model_share_the_work(lca, model):
    method = {"name": "im", "align": ["none", "lca"]}
    with tiny.tiny_backbone():
        learner = tiny.classifier(tiny.recipe(method=method))
        learner.learn(tiny.task(0, {"3": 20, "7": 20}))
        learner.learn(tiny.task(1, {"1": 20}))
        learner.save(model / "model")
    few = ("photos", "--only", "fog", "--only", "tilt")
    code, out, err = lca("robustness", "model", *few, "--branch", "none", "--branch", "lca", "--out", "both.json", "-q")
    assert code == 0, err
    assert re.findall(r"branch (\w+)", out) == ["none", "lca"]
    both = [json.loads((model / f"both-{name}.json").read_text()) for name in ("none", "lca")]
    assert both == [facts(lca, *few, "--branch", name) for name in ("none", "lca")]
    assert both[0]["corrupted"] != both[1]["corrupted"]
    assert lca("robustness", "model", *few, "--branch", "all", "--out", "all.json", "-q")[0] == 0
    assert both == [json.loads((model / f"all-{name}.json").read_text()) for name in ("none", "lca")]
    with patch("lca.files.write_atomic", side_effect=LcaError("no room")):
        code, out, err = lca("robustness", "model", *few, "--branch", "all", "--out", "full.json", "-q")
    assert code == 2
    assert "no room" in err
    assert re.findall(r"branch (\w+)", out) == ["none", "lca"], "what was measured is shown though it cannot be stored"
    for words in (("none", "--branch", "lca"), ("all",)):
        code, _, err = lca("robustness", "model", *few, "--branch", *words, "--json", "-q")
        assert code == 2
        assert "take one --branch" in err


def test_mistakes(lca, model):
    (model / "other.json").write_text('{"clean": 3}')
    for words, message in (
        (("photos", "--kind", "x"), "--kind takes c, p or cp"),
        (("photos", "--only", "rain"), "'rain' is no corruption"),
        (("nowhere",), "there is no folder or file nowhere"),
        (("photos", "--files", "photos"), "there is no photos/labels.npy"),
        (("photos", "--files", "nowhere"), "there is no folder nowhere"),
        (("photos", "--kind", "p", "--only", "fog"), "no corruption and no sequence to measure"),
        (("photos", "--only", "fog", "--against", "other.json"), "this is another file"),
        (("photos", "--files", "photos", "--limit", "3"), "do not go together"),
        (("photos", "--branch", "best", "--only", "fog"), "there is no branch 'best'"),
    ):
        code, _, err = lca("robustness", "model", *words, "-q")
        assert code == 2, words
        assert message in err
    (model / "photos" / "elephant").mkdir()
    Image.new("RGB", (32, 32)).save(model / "photos" / "elephant" / "1.png")
    code, _, err = lca("robustness", "model", "photos", "-q")
    assert code == 2
    assert "never learnt 'elephant'" in err
