"""Whatever is given to the Python API by mistake ends in one clear message, as on the command line, and changes
nothing."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from lca import ContinualClassifier, LcaError, Recipe, load_recipe
from lca.training.options import TrainingOptions

IMAGE = Image.new("RGB", (16, 16), "red")
FLOATS = np.full((16, 16, 3), 0.5)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A model of two classes, saved as `flowers` where the tests are."""
    place = tmp_path_factory.mktemp("place")
    with tiny.tiny_backbone():
        recipe = tiny.recipe(method={"name": "im", "align": ["none", "best"]}, training={"epochs": 1})
        model = ContinualClassifier(recipe, backbone=tiny.load_tiny_backbone())
        model.learn(
            tiny.images({"0": 4, "1": 4}).relabelled(torch.tensor([0] * 4 + [1] * 4), ("daisy", "rose")),
            effort="instant",
        )
        model.save(place / "flowers")
    (place / "photos" / "daisy").mkdir(parents=True)
    IMAGE.save(place / "photos" / "daisy" / "1.png")
    (place / "empty").mkdir()
    (place / "file.txt").write_text("text")
    return model, place


@pytest.fixture
def model(taught, monkeypatch):
    monkeypatch.chdir(taught[1])
    return taught[0]


class Strange:
    """An object whose representation fails."""

    def __repr__(self):
        raise RuntimeError


MAKING = [
    (lambda _: ContinualClassifier("bst"), "did you mean 'best'"),
    (lambda _: ContinualClassifier(""), "there is no recipe ''"),
    (lambda _: ContinualClassifier("mine.yaml"), "there is no recipe file mine.yaml"),
    (lambda _: ContinualClassifier(Path("flowers")), "there is no recipe 'flowers'"),
    (lambda _: ContinualClassifier(3), r"recipe must be a Recipe, or the name of one .* got 3 \(int\)"),
    (lambda _: ContinualClassifier({"method": "im"}), "recipe must be a Recipe, or the name of one"),
    (lambda _: ContinualClassifier(Recipe), "recipe must be a Recipe"),
    (lambda _: ContinualClassifier(["best"]), "recipe must be a Recipe"),
    (lambda _: ContinualClassifier(view="wide"), r"view must be a ViewOptions, got 'wide' \(str\)"),
    (lambda _: ContinualClassifier(backbone=3), r"backbone must be a Backbone or the name of one .* got 3"),
    (lambda _: ContinualClassifier(backbone="deit_tiny_patch16_224"), "does not say which weights"),
    (lambda _: ContinualClassifier(backbone="deit_tinny_patch16_224.fb_in1k"), "did you mean 'deit_tiny_patch16_224'"),
    (lambda _: ContinualClassifier(progress="bars"), "progress must be a Progress, True or False, got 'bars'"),
    (lambda _: ContinualClassifier(given={}), r"given must be a Given, got \{\}"),
    (lambda _: Recipe(trainning=1), "unknown key 'trainning'; did you mean 'training'"),
    (lambda _: Recipe("best"), r"takes its keys by name, as in Recipe\(key=value\); got 'best'"),
    (lambda _: Recipe(training={"epoch": 1}), r"training: unknown key 'epoch'; did you mean 'epochs'"),
    (lambda _: Recipe(training=3), "training: .*got 3"),
    (lambda _: Recipe(method="imm"), "method: unknown method 'imm'; did you mean 'im'"),
    (lambda _: Recipe(method={"name": "im", "merge": "agre"}), "did you mean 'agree'"),
    (lambda _: Recipe(method=3), "method: expected a name"),
    (lambda _: Recipe(tuning="lorra"), "did you mean 'lora'"),
    (lambda _: Recipe(seed=-1), "seed: .*got -1"),
    (lambda _: Recipe(seed="x"), "seed: .*got 'x'"),
    (lambda _: Recipe(precision="fp8"), "precision: .*got 'fp8'"),
    (lambda _: TrainingOptions(epochs=-1), "TrainingOptions: 1 mistake"),
    (lambda _: TrainingOptions(epohcs=1), "did you mean 'epochs'"),
    (lambda _: ContinualClassifier(Recipe(device="gpu")), "unknown device 'gpu'; expected auto, cpu"),
    (lambda _: load_recipe("bst"), "did you mean 'best'"),
    (lambda _: load_recipe(None), r"a recipe must be a name .* got None"),
    (lambda _: load_recipe(3), "a recipe must be a name"),
    (lambda _: load_recipe("best", "training.lr=1"), "overrides are a list of texts"),
    (lambda _: load_recipe("best", [3]), "an override must be a text"),
    (lambda _: load_recipe("best", ["training.lr"]), "takes key=value"),
    (lambda _: load_recipe("best", changes=[1]), "changes must be a mapping"),
    (lambda _: load_recipe("best", changes={"sed": 1}), "did you mean 'seed'"),
]
LOADING = [
    (lambda _: ContinualClassifier.load("nomodel"), "nomodel does not exist; `lca learn nomodel FOLDER` makes one"),
    (lambda _: ContinualClassifier.load("flower"), "flower does not exist; did you mean 'flowers'"),
    (lambda _: ContinualClassifier.load("photos"), "photos is no model: it holds no state.json"),
    (lambda _: ContinualClassifier.load("file.txt"), "file.txt is a file; a model must be a folder"),
    (lambda _: ContinualClassifier.load("file.txt/model"), "file.txt is a file"),
    (lambda _: ContinualClassifier.load(""), "a model must be the path of a folder, got ''"),
    (lambda _: ContinualClassifier.load("a\0b"), "a model must be the path of a folder"),
    (lambda _: ContinualClassifier.load(None), "a model must be the path of a folder, got None"),
    (lambda _: ContinualClassifier.load(3), r"a model must be the path of a folder, got 3 \(int\)"),
    (lambda model: ContinualClassifier.load(model), "a model must be the path of a folder"),
    (lambda _: ContinualClassifier.load("flowers", device=0), "device must be auto, cpu, cuda or cuda:1, got 0"),
    (lambda _: ContinualClassifier.load("flowers", device="cpuu"), "unknown device 'cpuu'"),
    (lambda _: ContinualClassifier.load("flowers", weights=3), "weights must be the path of a safetensors file"),
    (lambda _: ContinualClassifier.load("flowers", progress=1), "progress must be a Progress, True or False"),
    (lambda model: model.save(None), "a model must be the path of a folder, got None"),
    (lambda model: model.save(3), "a model must be the path of a folder, got 3"),
    (lambda model: model.save(""), "a model must be the path of a folder"),
    (lambda model: model.save(" "), "a model must be the path of a folder"),
    (lambda model: model.save("file.txt"), "file.txt is a file; a model must be a folder"),
    (lambda model: model.save("file.txt/inside"), "file.txt is a file"),
    (lambda model: model.save(io.BytesIO()), "a model must be the path of a folder"),
]
LABELLED = [
    (None, "expected a folder with one folder of images per class, .* got None"),
    (3, r"got 3 \(int\)"),
    (3.5, "got 3.5"),
    (Strange(), r"got an object \(Strange\)"),
    ({}, r"got \{\}"),
    ({"daisy": [IMAGE]}, r"\(dict\)"),
    ({"a", "b"}, r"\(set\)"),
    (iter([(IMAGE, "daisy")]), "make a list of it first"),
    (b"bytes", r"\(bytes\)"),
    (IMAGE, r"expected a folder .* \(Image\)"),
    (len, "expected a folder"),
    ([], "the list of .* pairs is empty"),
    ("photo", r"there is no folder or file photo; did you mean 'photos'"),
    ("https://example.org/photos", "is an address on the web, and nothing is fetched"),
    (Path("https://example.org/photos"), "is an address on the web"),
    ("file.txt", "file.txt is a file; expected a folder with one folder of images per class"),
    ("empty", "holds 0 images and no class folders"),
    (["ab", "cd"], r"entry 1 is 'ab' \(str\); expected an \(image, label\) pair"),
    ([IMAGE], r"entry 1 is .*expected an \(image, label\) pair"),
    ([(IMAGE, "daisy"), (IMAGE,)], r"entry 2 is .*expected an \(image, label\) pair"),
    ([(IMAGE, "daisy", 1)], "expected an .* pair"),
    ([(IMAGE, None)], "a label is None; expected the name of a class"),
    ([(IMAGE, "")], "a label is ''"),
    ([(IMAGE, ["daisy"])], r"a label is \['daisy'\]"),
    ([(None, "daisy")], "image 1 is of type NoneType; expected a path"),
    ([("missing.png", "daisy")], "missing.png does not exist"),
    (np.zeros((4, 16, 16, 3), np.uint8), "images alone do not tell their classes"),
    (torch.zeros(4, 3, 16, 16), "images alone do not tell their classes"),
]
IMAGES = [
    (None, "expected a file, a folder of images, bytes, .* got None"),
    (3, r"got 3 \(int\)"),
    (True, r"got True \(bool\)"),
    (Strange(), r"got an object \(Strange\)"),
    ({"image": IMAGE}, r"\(dict\)"),
    (len, "expected a file"),
    (np.array(3), "got a single number"),
    ([None], "image 1 is of type NoneType"),
    ([IMAGE, 3], "1 of 2 images could not be read:\n  image 2 is of type int"),
    ([[IMAGE]], "image 1 is of type list"),
    ([Strange()], "image 1 is of type Strange"),
    (np.full((16, 16, 3), math.nan), "has floats from nan to nan"),
    (torch.full((3, 16, 16), math.inf), "has floats from inf to inf"),
    (FLOATS * 300, "has floats from 150 to 150; expected"),
    (np.zeros((16, 16, 5), np.uint8), r"has the shape \(16, 16, 5\)"),
    (np.zeros((0, 16, 3), np.uint8), r"has the shape \(0, 16, 3\)"),
    (np.zeros((2, 2, 16, 16, 3), np.uint8), r"has the shape \(2, 16, 16, 3\)"),
    (torch.zeros(16, 16, 3, dtype=torch.uint8), r"has the shape \(16, 16, 3\)"),
    (np.zeros((16, 16, 3), np.int64), "holds int64"),
    (np.zeros((16, 16, 3), np.complex64), "holds complex64"),
    (np.array(["a.png"]), "a.png does not exist"),
    ("missing.png", "missing.png does not exist"),
    ("", "expected a file, .* got an empty path"),
    ("a\0.png", "cannot be opened: embedded null"),
    ("https://example.org/cat.jpg", "is an address on the web, .* give the file or its bytes"),
    (["HTTP://example.org/cat.jpg"], "is an address on the web"),
    (Path("https://example.org/cat.jpg"), "is an address on the web"),
    ("data:image/png;base64,AAAA", "is an address on the web"),
    ("file.txt", "file.txt is no image of a known format"),
    (["photos"], "photos is a folder; expected an image file, or a folder that is asked alone"),
    ("empty", "no images found in empty"),
    (b"", "image 1 is empty"),
    (b"no image", "image 1 is no image of a known format"),
    (io.BytesIO(b"no image"), "image 1 is no image"),
    (io.StringIO("text"), r"image 1 is open as text; open it for reading bytes: open\(path, 'rb'\)"),
]
ASKING = [
    (lambda model: model.predict(IMAGE, branch=3), "there is no branch 3"),
    (lambda model: model.predict(IMAGE, branch="bst"), r"no branch 'bst'; there are \[.*\]; did you mean 'best'"),
    (lambda model: model.predict(IMAGE, branch=["best"]), "there is no branch"),
    (lambda model: model.predict(IMAGE, branch=""), "there is no branch ''"),
    (lambda model: model.predict(IMAGE, unknown_at=-1), "unknown_at must be a number from 0 to 100"),
    (lambda model: model.predict(IMAGE, unknown_at=101), "unknown_at must be a number from 0 to 100"),
    (lambda model: model.predict(IMAGE, unknown_at=math.nan), r"got nan \(float\)"),
    (lambda model: model.predict(IMAGE, unknown_at="99"), r"got '99' \(str\)"),
    (lambda model: model.predict(IMAGE, unknown_at=None), "got None"),
    (lambda model: model.predict([], unknown_at="99"), "unknown_at must be a number"),
    (lambda model: model.evaluate("photos", branch=3), "there is no branch 3"),
    (lambda model: model.evaluate("photos", unknown_at=True), r"got True \(bool\)"),
    (lambda model: model.learn("photos", held_out="x"), "held-out share must be a number from 0 to 1, got 'x'"),
    (lambda model: model.learn("photos", held_out=None), "held-out share must be a number"),
    (lambda model: model.learn("photos", held_out=True), "held-out share must be a number"),
    (lambda model: model.learn("photos", held_out=1), "held-out share must be less than 1"),
    (lambda model: model.learn("photos", effort="thorogh"), "effort must be one of .*did you mean 'thorough'"),
    (lambda model: model.learn("photos", effort=3), r"effort must be one of .* got 3 \(int\)"),
    (lambda model: model.learn("photos", effort=None), "effort must be one of"),
    (lambda model: next(model.steps("photos", effort="auto")), "effort must be one of instant, thorough, got 'auto'"),
    (lambda model: next(model.lessons(3)), r"got 3 \(int\)"),
    (lambda model: model.read(None), "got None"),
    (lambda model: model.forget("dasy"), "no class 'dasy' to forget; did you mean 'daisy'"),
    (lambda model: model.forget(3), r"the name of a class must be a text, got 3 \(int\)"),
    (lambda model: model.forget(None), "the name of a class must be a text"),
    (lambda model: model.forget(Strange()), r"got an object \(Strange\)"),
    (lambda model: model.features(IMAGE), "images must be an ImageSet or Pixels; `predict` takes files"),
    (lambda model: model.logits("x"), "features must be a tensor"),
    (lambda model: model.logits(torch.zeros(3)), r"features must be floats of the shape \(n, \d+\).* got \(3,\)"),
    (lambda model: model.logits(torch.zeros(1, 3)), r"got \(1, 3\)"),
    (lambda model: model.probabilities(torch.zeros(1, model.extractor.width, dtype=torch.long)), "int64"),
    (lambda model: model.logits(torch.zeros(1, model.extractor.width), branch="bst"), "did you mean 'best'"),
]
CASES = [
    *MAKING,
    *LOADING,
    *ASKING,
    *((lambda model, data=data: model.learn(data), message) for data, message in LABELLED),
    *((lambda model, data=data: model.evaluate(data), message) for data, message in LABELLED),
    *((lambda model, images=images: model.predict(images), message) for images, message in IMAGES),
]


def test_there_are_many():
    assert len(CASES) >= 80


@pytest.mark.parametrize(("call", "message"), CASES, ids=[str(number) for number in range(len(CASES))])
def test_odd_arguments_end_in_a_clear_word(model, call, message):
    before = (list(model.classes), list(model.history), sorted(Path().rglob("*")))
    with pytest.raises(LcaError, match=message) as caught:
        call(model)
    assert len(str(caught.value)) < 1500
    assert (model.classes, model.history, sorted(Path().rglob("*"))) == before


def test_a_label_that_the_data_set_does_not_name(model):
    class Data(list):
        classes = ("daisy",)

    with pytest.raises(LcaError, match="a label is 1, but the data set names 1 classes: 0 to 0"):
        model.learn(Data([(IMAGE, 1)]))


def test_what_is_not_taught_yet_says_so():
    model = ContinualClassifier(tiny.recipe(), backbone=tiny.load_tiny_backbone())
    for call in (lambda: model.predict([]), lambda: model.logits(torch.zeros(1, model.extractor.width))):
        with pytest.raises(LcaError, match="has not learnt any class yet; call learn first"):
            call()


def test_a_wrong_option_is_a_value_error_as_well():
    with pytest.raises(ValueError, match="did you mean 'training'"):
        Recipe(trainning=1)
