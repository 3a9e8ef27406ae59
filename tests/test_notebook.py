"""How a model, a lesson, an evaluation and answers look, printed and in a notebook; and what may be asked about."""

import base64
import io
import pickle
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import tiny
from lca import ContinualClassifier, LcaError
from lca.classifier import _READ_AT_ONCE
from lca.data.folders import image_set
from lca.history import Lesson

WILD = '<script>alert("1")</script>'
NAMES = ("daisy", WILD)


@pytest.fixture(scope="module")
def model():
    recipe = tiny.recipe(method={"name": "im", "align": ["best"]}, training={"epochs": 1})
    made = ContinualClassifier(recipe, backbone=tiny.load_tiny_backbone())
    digits = tiny.images({"0": 10, "1": 10})
    made.learn(image_set(digits.pixels, [(number, NAMES[number // 10]) for number in range(20)], NAMES))
    return made


@pytest.fixture
def files(tmp_path):
    """A folder of folders with three photos, and another file."""
    found = []
    for number, image in enumerate(tiny.images({"0": 2, "1": 1}, 30).pixels.canvas):
        path = tmp_path / "photos" / str(number) / f"{number}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
        found.append(path)
    (tmp_path / "photos" / "notes.txt").write_text("x")
    return found


class Whole(HTMLParser):
    """Every tag is closed, and none is another than ours."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.pictures = [], set(), []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "img":
            self.pictures.append(dict(attributes))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


OURS = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "img"}


def test_everything_shows_itself_safely(model, files):
    evaluation = model.evaluate([(path, WILD) for path in files] + [(files[0].read_bytes(), "other & <b>")])
    answers = model.predict(files)
    for shown in (model, model.history[0], evaluation, answers, answers[0], Lesson("forget", None, {}, [WILD])):
        page = Whole(shown._repr_html_())
        assert page.tags <= OURS
        assert "&lt;script&gt;alert(&quot;1&quot;)" in shown._repr_html_()
        assert len(repr(shown)) < 1000


def test_a_model_says_what_it_knows(model):
    assert re.fullmatch(
        r"ContinualClassifier\(2 classes: daisy, <script>.*; 1 lesson; method im, tuning lora, backbone .*\)",
        repr(model),
    )
    assert "9</div>" in model._repr_html_(), "a bar with the images each class was learnt from"
    empty = ContinualClassifier(tiny.recipe(), backbone=tiny.load_tiny_backbone())
    assert repr(empty).startswith("ContinualClassifier(no class yet; 0 lessons; ")
    assert "0 classes" in empty._repr_html_()


def test_a_lesson_says_what_came_of_it(model):
    lesson = model.history[0]
    right = f"{lesson.accuracy:.1f} % of 2 held-out images right; {lesson.seconds} s"
    assert repr(lesson) == f"Lesson(2 new: daisy, {WILD}; 18 images; {right})"
    assert repr(Lesson("learn", None, {"a": 3, "b": 2}, ["b"])) == (
        "Lesson(1 new: b; known: a; 5 images; nothing held out)"
    )


def test_an_answer_names_its_image_and_the_nearest_classes(model, files):
    answers = model.predict(files[0])
    (answer,) = answers
    assert answer.image == str(files[0])
    first, second = (f"{name!r} {100 * value:.1f} %" for name, value in answer.top())
    unknown = "unknown, nearest to " * answer.unknown
    assert repr(answer) == f"Prediction({unknown}{first}, {second}; distance {answer.distance:.1f} %; {files[0]})"
    assert pickle.loads(pickle.dumps(answer)) == answer


def test_pictures_are_small_and_made_when_they_are_shown(model, files):
    whole = Image.open(files[0])
    large = np.asarray(whole.resize((700, 500)))
    answers = model.predict([files[0], large])
    for picture in Whole(answers._repr_html_()).pictures:
        content = base64.b64decode(picture["src"].removeprefix("data:image/jpeg;base64,"))
        small = Image.open(io.BytesIO(content))
        assert min(small.size) <= 96
        middle = small.convert("L").resize((8, 8))
        assert np.abs(np.asarray(middle, float) - np.asarray(whole.convert("L").resize((8, 8)), float)).mean() < 40
    assert [each.get("alt") for each in Whole(answers._repr_html_()).pictures] == [str(files[0]), "image 2"]
    files[0].unlink()
    assert len(Whole(answers._repr_html_()).pictures) == 1
    assert str(files[0]) in answers._repr_html_()


def test_all_kinds_of_one_image_get_one_answer(model, files, tmp_path):
    content = files[0].read_bytes()
    wound = io.BytesIO()
    Image.open(files[0]).save(wound, "PNG")  # stands at its end
    with files[0].open("rb") as opened:
        kinds = [content, bytearray(content), memoryview(content), io.BytesIO(content), wound, opened]
        answers = [model.predict(kind) for kind in kinds] + [[each] for each in model.predict(kinds)]
    assert [len(each) for each in answers] == [1] * 12
    probabilities = [each[0].probability for each in answers]
    assert probabilities == pytest.approx([answers[0][0].probability] * 12, abs=1e-5)
    assert answers[0][0].image == "image 1"
    assert model.predict(iter(files))[2].image == str(files[2])


def test_a_folder_stands_for_the_images_below_it(model, files):
    answers = model.predict(files[0].parent.parent)
    assert [each.image for each in answers] == [str(path) for path in files]
    assert [each.label for each in answers] == [each.label for each in model.predict(str(files[0].parents[1]))]


def test_many_images_are_answered_a_part_at_a_time(model, files):
    images = [files[0]] * (_READ_AT_ONCE + 1) + [b"no image"]
    answers = model.try_predict(images)
    assert len(answers) == len(images)
    assert answers[-1].what == f"image {len(images)}"
    assert answers[-2].image == str(files[0])
    assert answers[-2].probability == pytest.approx(answers[0].probability, abs=1e-5)


def test_tables_for_pandas(model, files, monkeypatch):
    answers = model.predict(files)
    frame = answers.to_frame()
    assert list(frame.columns) == [
        "image", "label", "probability", "distance", "unknown", *(f"probability of {name}" for name in model.classes),
    ]  # fmt: skip
    assert frame["image"].tolist() == [str(path) for path in files]
    assert frame["probability"].tolist() == [each.probability for each in answers]
    evaluation = model.evaluate([(files[0], "daisy"), (files[2], "other")])
    frame = evaluation.to_frame()
    assert frame["truth"].tolist() == ["daisy", "other"]
    assert frame["known"].tolist() == [True, False]
    assert frame["right"].tolist() == [evaluation.answers[0].label == "daisy", False]
    monkeypatch.setitem(sys.modules, "pandas", None)
    for each in (answers, evaluation):
        with pytest.raises(LcaError, match="pip install pandas"):
            each.to_frame()
