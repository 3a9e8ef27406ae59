"""`lca report` of a model."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

import tiny
from lca import ContinualClassifier
from lca.report.model_page import ModelPage


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    place = tmp_path_factory.mktemp("taught")
    for folder, skip in (("photos", 0), ("test", 20)):
        for name in ("0", "1"):
            (place / folder / name).mkdir(parents=True)
            for number, image in enumerate(tiny.images({name: 6}, skip).pixels.canvas):
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / folder / name / f"{number}.png")
    shutil.copy(place / "test" / "0" / "0.png", place / "test" / "1" / "misplaced.png")
    with tiny.tiny_backbone():
        model = tiny.classifier(tiny.recipe(method={"name": "im"}))
        model.learn(place / "photos", effort="instant")
        model.save(place / "model")
    return place


@pytest.fixture(autouse=True)
def _here(taught, monkeypatch):
    monkeypatch.chdir(taught)
    with tiny.tiny_backbone():
        yield


def test_the_page_goes_beside_the_model(lca, taught):
    code, out, _ = lca("report", "model", "--photos", "test", "-q", "--title", "my model")
    assert code == 0
    assert out.splitlines()[0] == "the report is model-report.html"
    model = ContinualClassifier.load("model")
    page = ModelPage(model, model.read("test"), Path("test"), "my model")
    assert (taught / "model-report.html").read_text(encoding="utf-8") == page.page()
    assert out.splitlines()[1:] == [f"  {each.text}" for each in page.advice[:5]]
    assert lca("report", "model", "--photos", "test", "-q", "--out", "other.html")[0] == 0
    assert "<h1>model</h1>" in (taught / "other.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "give --photos FOLDER"),
        (
            ["model", "--photos", "test", "--markdown", "--draws", "20"],
            "--markdown and --draws belong to the report of",
        ),
        (["photos", "--photos", "test"], "photos is no model"),
        (["model", "photos", "--photos", "test"], "belong to the report of one model"),
        (["model", "--photos", "test", "--device", "cuda:99"], "cuda"),
    ],
)
def test_what_does_not_go_together_is_refused(lca, words, message):
    code, _, err = lca("report", *words)
    assert code == 2
    assert message in err
