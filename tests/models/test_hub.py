"""Push and pull through the real client, against a small hub that keeps its repositories in a folder."""

import json
import shutil
import socket

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image

import tiny
from hubs import Hub
from lca import ContinualClassifier, LcaError
from lca.files import read_json, read_kept, read_manifest, sealed
from lca.models.hub import pull, push
from lca.progress import Progress


@pytest.fixture(scope="module")
def model():
    model = tiny.classifier(
        tiny.recipe(training={"epochs": 1}, method={"align": [{"preset": "balanced", "name": "best", **tiny.QUICK}]})
    )
    model.learn(tiny.task(0, {"0": 6, "1": 6}))
    return model


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "mine")
    return tmp_path / "mine"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def head(tmp_path, repo="anna/digits"):
    return tmp_path / "hub" / repo / (tmp_path / "hub" / repo / "main").read_text()


def test_what_is_pushed_is_pulled(hub, folder, tmp_path, model):
    url = push(folder, "anna/digits", message="First", endpoint=hub)
    assert url.startswith(f"{hub}/anna/digits/commit/")
    (tmp_path / "theirs").mkdir()  # an empty folder is as good as none
    pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    model.save(folder, keep=0)
    mine, theirs = content(folder), content(tmp_path / "theirs")
    card = {each.pop("README.md").decode().partition("\n---\n")[2].strip() for each in (mine, theirs)}
    assert mine == theirs
    assert len(card) == 1, "the hub's card has more above its title"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "mine", "theirs"]
    with tiny.tiny_backbone():
        loaded = ContinualClassifier.load(tmp_path / "theirs")
    images = tiny.images({"0": 3, "1": 3}).pixels
    assert torch.equal(loaded.probabilities(loaded.features(images)), model.probabilities(model.features(images)))


def test_only_the_models_files_go_up_and_stale_parts_go(hub, folder, tmp_path, model):
    own = {path.name for path in read_manifest(folder)[0].values()} | {"state.json", "README.md"}
    assert own < set(content(folder)), "there is a state from before"
    (folder / ".lock").touch()
    (folder / "notes.txt").write_text("mine")
    (folder / f"old-{'0' * 16}.safetensors").write_text("stale")
    push(folder, "digits", endpoint=hub)
    assert set(content(head(tmp_path))) == {*own, "config.json", ".gitattributes"}
    first = head(tmp_path).name
    assert (tmp_path / "hub" / "anna" / "digits" / "visibility").read_text() == "private"

    again = ContinualClassifier(model.recipe, model.view, backbone=tiny.load_tiny_backbone())
    again.load_state(model.state())
    again.learn(tiny.task(1, {"2": 6, "3": 6}))
    again.save(folder)
    push(folder, "anna/digits", endpoint=hub)
    assert {path.name for path in read_manifest(folder)[0].values()} | {
        "README.md",
        "state.json",
        "config.json",
        ".gitattributes",
    } == (set(content(head(tmp_path))))
    pull("anna/digits", tmp_path / "old", revision=first, endpoint=hub)
    assert read_manifest(tmp_path / "old")[1]["classes"] == ["0", "1"]
    with pytest.raises(LcaError, match="holds a model already"):
        pull("anna/digits", tmp_path / "old", endpoint=hub)
    (tmp_path / "old" / "notes.txt").write_text("mine")
    pull("anna/digits", tmp_path / "old", overwrite=True, endpoint=hub)
    assert read_manifest(tmp_path / "old")[1]["classes"] == ["0", "1", "2", "3"]
    files = {path.name for path in read_manifest(tmp_path / "old")[0].values()}
    assert set(content(tmp_path / "old")) == {*files, "state.json", "README.md", "notes.txt", ".lock"}


def test_states_from_before_never_travel(hub, folder, tmp_path, model):
    """Neither with a push, nor, from who pushes them otherwise, with a pull; a pulled model also takes the place of
    those of the one it replaces."""
    earlier = {path.name for files, _ in read_kept(folder) for path in files.values()}
    earlier -= {path.name for path in read_manifest(folder)[0].values()}
    assert earlier
    push(folder, "anna/digits", endpoint=hub)
    there = head(tmp_path)
    assert not earlier & set(content(there))
    assert "kept" not in read_json(there / "state.json")
    shutil.copy(folder / "state.json", there / "state.json")
    pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    pull("anna/digits", folder, overwrite=True, endpoint=hub)
    for place in (tmp_path / "theirs", folder):
        assert read_kept(place) == []
        assert not earlier & set(content(place))
        with tiny.tiny_backbone():
            assert ContinualClassifier.load(place).undoable == 0


def test_a_damaged_download_leaves_nothing(hub, folder, tmp_path):
    push(folder, "anna/digits", endpoint=hub)
    part = next(path for path in head(tmp_path).iterdir() if path.name.startswith("heads"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(LcaError, match=r"anna/digits was changed or damaged: heads.* does not match the hash"):
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    part.unlink()
    with pytest.raises(LcaError, match="anna/digits is not whole: there is no file heads"):
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    before = content(folder)
    with pytest.raises(LcaError, match="anna/digits is not whole: there is no file heads"):
        pull("anna/digits", folder, overwrite=True, endpoint=hub)
    assert {**before, ".lock": b""} == content(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "mine"]


@pytest.mark.parametrize("name", ["../other-0123456789abcdef.safetensors", "/etc/passwd", "notes.txt"])
def test_a_manifest_cannot_name_files_elsewhere(hub, folder, tmp_path, name):
    push(folder, "anna/digits", endpoint=hub)
    state = json.loads((head(tmp_path) / "state.json").read_text())
    state["parts"]["heads"] = name
    (head(tmp_path) / "state.json").write_text(json.dumps(sealed({"parts": state["parts"], "meta": state["meta"]})))
    with pytest.raises(LcaError, match=r"no part of a model.* damaged"):
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    assert not (tmp_path / "theirs").exists()


def test_mistakes_are_one_line_with_the_remedy(hub, folder, tmp_path, monkeypatch):
    def message(action, *arguments, **options):
        with pytest.raises(LcaError) as caught:
            action(*arguments, endpoint=hub, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "is no model: there is no state.json" in message(push, tmp_path, "anna/digits")
    assert "there is no repository anna/other" in message(pull, "anna/other", tmp_path / "a")
    assert "expected NAME or OWNER/NAME" in message(pull, "anna/other/more", tmp_path / "a")
    assert "hf auth login" in message(push, folder, "anna/digits", token="wrong")
    assert "refuses access to bob/digits (403)" in message(push, folder, "bob/digits")
    push(folder, "anna/digits", endpoint=hub)
    assert "no revision 'v2'" in message(pull, "anna/digits", tmp_path / "a", revision="v2")
    (head(tmp_path) / "state.json").unlink()
    assert "holds no model of lca" in message(pull, "anna/digits", tmp_path / "a")
    assert "exists and is no model" in message(pull, "anna/digits", tmp_path / "hub")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    assert "who you are: log in" in message(push, folder, "anna/digits")
    assert not (tmp_path / "a").exists()


def test_without_a_network(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "right")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LcaError, match="the hub cannot be reached"):
            push(folder, "anna/digits", endpoint=endpoint)
        with pytest.raises(LcaError, match="the hub cannot be reached"):
            pull("anna/digits", tmp_path / "theirs", endpoint=endpoint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_a_network_that_goes_away_leaves_nothing(hub, folder, tmp_path, monkeypatch):
    push(folder, "anna/digits", endpoint=hub)
    send = Hub._send

    def cut(self, body, headers, status=200):
        if "heads" in self.path and self.command == "GET":
            self.close_connection = True
            self.connection.close()
        else:
            send(self, body, headers, status)

    monkeypatch.setattr(Hub, "_send", cut)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(LcaError, match="the hub cannot be reached"):
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "mine"]


def test_weights_that_stay_behind_are_mentioned(hub, folder):
    class Lines(Progress):
        def __init__(self):
            self.lines = []

        def line(self, text):
            self.lines.append(text)

    heard = Lines()
    push(folder, "anna/digits", endpoint=hub, progress=heard)
    assert not [line for line in heard.lines if "CHECK" in line]
    state = json.loads((folder / "state.json").read_text())
    state["meta"]["recipe"]["backbone"]["weights"] = "vit.safetensors"
    (folder / "state.json").write_text(json.dumps(sealed({"parts": state["parts"], "meta": state["meta"]})))
    push(folder, "anna/digits", endpoint=hub, progress=heard)
    assert [line for line in heard.lines if "vit.safetensors" in line and "bundle" in line]


def test_the_hub_gets_results_and_a_file_to_count_by(hub, folder, tmp_path, model, monkeypatch):
    asked = []
    monkeypatch.setattr(Hub, "do_HEAD", lambda self: (asked.append(self.path), self.do_GET())[1])
    push(folder, "anna/digits", endpoint=hub)
    config = json.loads((head(tmp_path) / "config.json").read_text())
    assert (config["id2label"], config["method"], config["image_size"]) == ({"0": "0", "1": "1"}, "im", 16)
    card = ModelCard((head(tmp_path) / "README.md").read_text())
    assert card.data.library_name == "lca"
    assert card.data.eval_results is None, "the lesson of a stream holds nothing out"
    pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    assert [path for path in asked if path.endswith("/config.json")], "the hub counts who asks for it"

    again = ContinualClassifier(model.recipe, model.view, backbone=tiny.load_tiny_backbone())
    again.load_state(model.state())
    again.learn(tiny.images({"2": 20, "3": 20}))
    again.save(folder)
    push(folder, "anna/digits", endpoint=hub)
    lesson = again.history[-1]
    results = ModelCard((head(tmp_path) / "README.md").read_text()).data.eval_results
    assert [(each.metric_type, each.dataset_config) for each in results] == [
        ("accuracy", "lesson 2"),
        ("expected_calibration_error", "lesson 2"),
    ]
    assert results[0].metric_value == pytest.approx(lesson.right / lesson.held_out, abs=1e-4)
    assert results[1].metric_value == pytest.approx(lesson.calibration_error / 100, abs=1e-4)
    assert "(4 images)" in results[0].dataset_name
    model_index = yaml.safe_load((head(tmp_path) / "README.md").read_text().split("---")[1])["model-index"]
    assert model_index[0]["name"] == "digits"


def test_examples_are_shown_without_what_a_camera_notes(hub, folder, tmp_path, model):
    photo = Image.fromarray(tiny.images({"1": 1}).image(0).permute(1, 2, 0).numpy()).resize((600, 900))
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    photo.save(tmp_path / "private name.jpg", exif=exif)
    with tiny.tiny_backbone():
        push(folder, "anna/digits", endpoint=hub, examples=[tmp_path / "private name.jpg"] * 2)
        shown = Image.open(head(tmp_path) / "example-1.jpg")
        (expected,) = ContinualClassifier.load(folder).predict([shown])
        with pytest.raises(LcaError, match="does not exist"):
            push(folder, "anna/digits", endpoint=hub, examples=[tmp_path / "none.jpg"])
    assert (shown.size, dict(shown.getexif())) == ((384, 576), {})
    text = (head(tmp_path) / "README.md").read_text()
    widget = yaml.safe_load(text.split("---")[1])["widget"]
    assert "private" not in text
    assert [each["src"] for each in widget] == ["example-1.jpg", "example-2.jpg"]
    assert widget[0]["output"][0] == {"label": expected.label, "score": pytest.approx(expected.probability, abs=1e-4)}
    push(folder, "anna/digits", endpoint=hub)
    assert not [name for name in content(head(tmp_path)) if name.startswith("example-")]
    assert "widget" not in (head(tmp_path) / "README.md").read_text()
