"""The page of a taught model: its numbers, its photos, and nobody's markup but its own."""

import base64
import io
import re
import shutil

import pytest
from PIL import Image
from test_page import check

import tiny
from lca import ContinualClassifier, LcaError
from lca.report.model_page import ModelPage

NASTY = "a <script>alert('x')</script> & $x_1$"


def digits(folder, counts, skip=0, names=None):
    for name, count in counts.items():
        place = folder / (names or {}).get(name, name)
        place.mkdir(parents=True)
        for number, image in enumerate(tiny.images({name: count}, skip).pixels.canvas):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A model of two lessons, the second of which is about photos of a class that is known under another name."""
    place = tmp_path_factory.mktemp("taught")
    with tiny.tiny_backbone():
        model = tiny.classifier(tiny.recipe(method={"name": "im"}))
        model.learn(digits(place / "first", {"0": 12, "1": 12, "3": 12}), effort="instant")
        model.learn(digits(place / "second", {"3": 24}, 12, names={"3": "like 3"}), effort="instant")
        model.save(place / "model")
    test = digits(place / "test", {"0": 6, "1": 6, "3": 6, "7": 3}, skip=20)
    shutil.copy(test / "0" / "0.png", test / "1" / "misplaced.png")
    shutil.copy(test / "0" / "1.png", test / "0" / "copy.png")
    return place


@pytest.fixture(autouse=True)
def _here(taught, monkeypatch):
    monkeypatch.chdir(taught)
    with tiny.tiny_backbone():
        yield


@pytest.fixture(scope="module")
def made(taught):
    with tiny.tiny_backbone():
        model = ContinualClassifier.load(taught / "model")
        page = ModelPage(model, model.read(taught / "test"), taught / "test", "my model")
        return model, page, page.page()


def test_the_numbers_are_those_of_the_evaluation(taught, made):
    model, _, text = made
    facts, page = model.evaluate(taught / "test").as_json(), check(text)
    texts = " ".join(" ".join(page.texts).split())
    assert f"It names {facts['right']} of {facts['images']} rightly" in texts
    assert f"{facts['accuracy']:.1f} %" in texts
    low, high = facts["accuracy_interval_95"]
    assert f"{low:.1f} to {high:.1f}" in texts
    for name, (right, asked) in facts["by_class"].items():
        assert page.row(name)[1:4] == ["11", f"{right} of {asked}", f"{100 * right / asked:.1f} %"]
    assert page.row("like 3")[1:4] == ["22", "–", "–"], "no photo of it"
    assert f"Calibration error {facts['calibration_error']:.1f} %" in texts
    for truth, answer, times in facts["confusions"][:3]:
        assert f"{truth} taken for {answer} {times} of {facts['by_class'][truth][1]}" in texts
    assert f"{facts['ood_called_unknown']:.1f} % of 3" in texts


def test_photos_are_those_of_the_answers(taught, made):
    _, page, text = made
    wrong = [each for each in page.evaluation.answers if each in page.evaluation.wrong]
    section = text[text.index('id="wrong"') : text.index('id="uncertain"')]
    assert section.count("<img") == len(wrong)
    names = [each.path.removeprefix(f"{taught}/test/") for each in page.evaluation.wrong]
    assert re.findall(r'class="file">([^<]*)<', section) == names
    first = re.search(r'src="data:image/png;base64,([^"]+)"', section)[1]
    with Image.open(io.BytesIO(base64.b64decode(first))) as shown, Image.open(page.evaluation.wrong[0].path) as file:
        assert max(shown.size) == 144
        assert list(shown.resize(file.size, Image.Resampling.NEAREST).convert("RGB").getdata()) == list(
            file.convert("RGB").getdata()
        )
    assert str(taught) not in text, "where the folder lies is nobody's business"


def test_what_is_to_do_and_what_lessons_changed(made):
    model, page, text = made
    changed = model.history[1].old_classes.hurt["3"]
    texts = " ".join(" ".join(check(text).texts).split())
    assert f"3 {changed.before:.0f} → {changed.after:.0f} %, taken for like 3" in texts
    assert page.advice
    for each in page.advice:
        assert each.text in texts
    assert any(each.text.startswith("Lesson 2 hurt 3 ") for each in page.advice)
    assert "copy.png is a copy of" in texts


def test_nobodys_markup(taught, made, tmp_path):
    model = made[0]
    test = digits(tmp_path / "test", {"0": 2, "7": 2}, names={"7": NASTY})
    text = ModelPage(model, model.read(test), test, NASTY).page()
    page = check(text)
    assert "<script>alert" not in text
    assert NASTY in "".join(page.texts)
    only = digits(tmp_path / "only", {"7": 2})
    assert "None of them is of a class that it knows" in ModelPage(model, model.read(only), only, "t").page()


def test_a_model_that_knows_nothing_has_no_page(made, taught):
    with pytest.raises(LcaError, match="knows no class"):
        ModelPage(tiny.classifier(tiny.recipe()), made[0].read(taught / "test"), taught, "t")
