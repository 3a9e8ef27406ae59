"""Export, push and pull on the command line."""

import json

import pytest
from PIL import Image

import tiny
from lca import ContinualClassifier


@pytest.fixture(scope="module")
def saved():
    model = tiny.classifier(tiny.recipe(training={"epochs": 1}, method={"align": ["none", {"preset": "lda"}]}))
    model.learn(tiny.task(0, {"0": 6, "1": 6}))
    return model


@pytest.fixture
def folder(saved, tmp_path, monkeypatch):
    """A model `digits` in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    saved.save(tmp_path / "digits")
    with tiny.tiny_backbone():
        yield tmp_path


def test_export_names_files_after_the_model(lca, folder):
    code, out, err = lca("export", "digits", "--torch", "--peft")
    assert code == 0
    assert out.splitlines() == [
        "digits.pt2: 2 classes; digits.pt2.json says how to use it",
        "digits-peft: 2 classes; digits-peft/lca.json says how to use it",
    ]
    assert "writing digits.pt2" in err
    assert json.loads((folder / "digits.pt2.json").read_text())["branch"] == "lda"
    assert (folder / "digits-peft" / "adapter_config.json").is_file()


def test_export_to_a_path_of_ones_own(lca, folder):
    code, out, err = lca("export", "digits", "--onnx", "out/flowers.onnx", "--branch", "none", "--quiet")
    assert (code, err) == (0, "")
    assert "out/flowers.onnx.json" in out
    assert json.loads((folder / "out" / "flowers.onnx.json").read_text())["branch"] == "none"
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["flowers.onnx", "flowers.onnx.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits"], "say what to export: --onnx, --torch, --peft or --timm"),
        (["digits", "x.onnx", "--onnx", "--torch"], "x.onnx can be one file only"),
        (["nothing", "--onnx"], "nothing does not exist; `lca learn nothing FOLDER` makes one"),
        (["digits", "mine.onnx", "--onnx"], "mine.onnx exists and was not made by lca export"),
        (["digits", "x.bin", "--onnx"], "must be named *.onnx"),
        (["digits", "--timm"], "timm has no model 'tiny', so nobody else could load it"),
        (["digits", "--timm", "--branch", "none"], "keeps no class Gaussians for branch 'none'"),
        (["digits", "--torch", "--branch", "best"], "there is no branch 'best'"),
    ],
)
def test_mistakes_end_with_2_and_change_nothing(lca, folder, words, message):
    (folder / "mine.onnx").write_text("mine")
    before = sorted(folder.iterdir())
    code, out, err = lca("export", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(folder.iterdir()) == before


def test_push_and_pull(lca, folder, hub, monkeypatch, saved):
    monkeypatch.setenv("HF_ENDPOINT", hub)
    code, out, err = lca("push", "digits", "anna/digits", "--public", "-m", "First")
    assert code == 0
    assert out.startswith(f"{hub}/anna/digits/commit/")
    assert "uploading" in err
    assert (folder / "hub" / "anna" / "digits" / "visibility").read_text() == "public"
    code, out, _ = lca("pull", "anna/digits", "theirs")
    assert code == 0
    assert "lca predict theirs" in out
    assert ContinualClassifier.load("theirs").classes == saved.classes
    code, _, err = lca("pull", "anna/digits", "theirs")
    assert code == 2
    assert "use --force to replace it" in err
    assert lca("pull", "anna/digits", "theirs", "--force", "--quiet")[0] == 0
    Image.new("RGB", (9, 9)).save("black.png")
    assert lca("push", "digits", "anna/digits", "--example", "black.png", "--quiet")[0] == 0
    assert len([*(folder / "hub" / "anna" / "digits").glob("*/example-1.jpg")]) == 1
    code, _, err = lca("push", "nothing", "anna/digits")
    assert code == 2
    assert "nothing does not exist; `lca learn nothing FOLDER` makes one" in err
    code, _, err = lca("pull", "anna/none", "other")
    assert code == 2
    assert err.startswith("error: there is no repository anna/none")


def test_an_interrupt_ends_with_130(lca, folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lca.models.export.export_torch", interrupted)
    code, _, err = lca("export", "digits", "--torch")
    assert code == 130
    assert "interrupted" in err
