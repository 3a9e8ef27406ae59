"""A model as a file for others: the same answers, whatever it was tuned with."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import tiny
from lca import ContinualClassifier, LcaError
from lca.data.decoding import decode
from lca.data.images import Pixels
from lca.data.views import ViewOptions, evaluation_view
from lca.models import export as shipping
from lca.recipe import validate_recipe
from lca.statistics.quantiles import KEPT
from parts import VITS, build_backbone, build_model_backbone, build_task

QUICK = {"training": {"epochs": 1}, "method": {"align": [{"preset": "balanced", "name": "best", **tiny.QUICK}]}}
TUNINGS = {name: {"name": name, **tiny.SMALL_TUNING.get(name, {})} for name in tiny.TUNERS}


def small(**changes):
    """A tiny model that has learnt two tasks."""
    model = tiny.classifier(tiny.recipe(QUICK, changes))
    model.learn(tiny.task(0, {"0": 6, "1": 6}))
    model.learn(tiny.task(1, {"2": 6, "3": 6}))
    model.temperatures = dict.fromkeys(model.method.branches(), 1.7)
    return model


def noise(size, count=5):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def ours(model, images):
    """What the model itself answers for images in [0, 1]."""
    scaling = model.backbone.preprocessing
    mean, std = (torch.tensor(each)[:, None, None] for each in (scaling.mean, scaling.std))
    with torch.no_grad():
        features = model.extractor.eval()((images - mean) / std)
    percentiles = model.method.percentiles(features, model.branch)
    answers = [model.probabilities(features), model.logits(features)]
    return answers if percentiles is None else [*answers, (far := percentiles.amin(1)), far >= 98]


def assert_same(answers, expected, tolerance=1e-4):
    assert len(answers) == len(expected)
    for answer, wanted in zip(answers, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(answer), wanted, rtol=1e-4, atol=tolerance)


def state_bytes(model):
    parts = model.state().parts
    return {(part, name): tensor.clone() for part, tensors in parts.items() for name, tensor in tensors.items()}


@pytest.mark.parametrize("tuning", TUNINGS)
def test_the_module_answers_as_the_model_and_leaves_it_alone(tuning):
    model = small(tuning={**TUNINGS[tuning], "feature_norm": True})
    modules, before, weights = list(model.extractor.modules()), state_bytes(model), dict(model.extractor.state_dict())
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    expected = ours(model, noise(16))
    module = shipping.deployed(model)
    assert_same(module(noise(16)), expected)
    assert module.outputs == ["probabilities", "logits", "distance", "unknown"]
    for one, two in zip(ours(model, noise(16)), expected, strict=True):
        assert torch.equal(one, two)
    assert list(model.extractor.modules()) == modules
    assert all(torch.equal(tensor, before[key]) for key, tensor in state_bytes(model).items())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.extractor.state_dict().items())


@pytest.mark.parametrize("tuning", ["lora", "ssf", "full"])
def test_folded_tuning_leaves_the_plain_transformer(tuning):
    module = shipping.deployed(small(tuning=TUNINGS[tuning]))
    assert set(module.extractor.vit.state_dict()) <= {*tiny.load_tiny_backbone().vit.state_dict()}
    assert not module.extractor.tuner.parameters()


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_methods_without_class_statistics_have_no_distance(method):
    model = small(method=method)
    module = shipping.deployed(model)
    assert module.outputs == ["probabilities", "logits"]
    assert_same(module(noise(16)), ours(model, noise(16)))


def test_a_branch_can_be_chosen():
    model = small(method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]})
    plain = shipping.deployed(model, "none")
    assert plain.outputs == ["probabilities", "logits"]
    expected = model.logits(torch.ones(1, 24), "none")
    assert torch.equal(plain._method.logits(torch.ones(1, 24), "none"), expected)
    assert not torch.allclose(shipping.deployed(model)(noise(16))[1], plain(noise(16))[1])
    with pytest.raises(LcaError, match="no branch 'lda'"):
        shipping.deployed(model, "lda")


@pytest.mark.parametrize("many", [False, True])
def test_the_distance_in_the_graph_is_the_percentile_anywhere(many):
    """Near and far from a class, in the middle, towards the background, and at the end of the scale."""
    model = small()
    memory, known = model.method.statistics(model.branch)
    random = torch.Generator().manual_seed(0)
    if many:  # kept are quantiles
        s, j = (known._values[0][row][-1] * torch.rand(5 * KEPT, generator=random) for row in (0, 2))
        known.observe(0, torch.stack([s, torch.zeros(5 * KEPT), j]))
    direction = memory.root().float() @ torch.nn.functional.normalize(torch.ones(24), dim=0)
    shares = torch.cat([torch.linspace(0, 8, 200), torch.tensor([1e2, 1e3])])[:, None]
    means, background = memory.means(), known.background
    towards = [means[0] + torch.linspace(0, 1, 50)[:, None] * (each - means[0]) for each in background]
    features = torch.cat([means[:1] + shares * direction, *towards])
    expected = known.percentiles(memory, features).amin(1)
    nearest = shipping.NearestClass(memory, known)
    torch.testing.assert_close(nearest(features), expected, rtol=0, atol=0.05)
    assert nearest(features)[201] == expected[201] < 100, "a limit of 100 calls nothing unknown"
    assert expected.min() < 60


def test_a_model_that_knows_nothing_has_nothing_to_export(tmp_path):
    with pytest.raises(LcaError, match="nothing to export"):
        shipping.export_torch(tiny.classifier(tiny.recipe()), tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


def run_onnx(path, images):
    return onnxruntime.InferenceSession(path).run(None, {"images": np.asarray(images, dtype=np.float32)})


@pytest.mark.parametrize("tuning", ["lora", "ssf", "vpt", "adapter"])
def test_onnxruntime_answers_as_the_model(tmp_path, tuning):
    model = small(tuning={**TUNINGS[tuning], "feature_norm": True})
    shipping.export_onnx(model, tmp_path / "model.onnx")
    for count in (1, 5):
        assert_same(run_onnx(tmp_path / "model.onnx", noise(16, count)), ours(model, noise(16, count)))


def test_torch_export_answers_as_the_model(tmp_path):
    model = small()
    sidecar = shipping.export_torch(model, tmp_path / "model.pt2")
    inside = {"lca.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=inside)
    for count in (1, 5):
        assert_same(program.module()(noise(16, count)), ours(model, noise(16, count)))
    assert json.loads(inside["lca.json"]) == json.loads(sidecar.read_text())
    assert not [name for name in program.state_dict if "lora" in name or "down" in name]


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [name for name in TUNINGS if name not in ("lora", "ssf", "vpt", "adapter")])
def test_onnxruntime_answers_as_the_model_for_every_other_tuner(tmp_path, tuning):
    test_onnxruntime_answers_as_the_model(tmp_path, tuning)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VITS)
def test_other_kinds_of_transformers(tmp_path, kind):
    recipe = tiny.recipe(QUICK)
    model = ContinualClassifier(recipe, ViewOptions(), backbone=build_backbone(kind))
    model.learn(build_task(0, ("a", "b")))
    shipping.export_onnx(model, tmp_path / "model.onnx")
    assert_same(run_onnx(tmp_path / "model.onnx", noise(32)), ours(model, noise(32)))


@pytest.mark.parametrize(("name", "tuning"), [("test_convnext.r160_in1k", "full"), ("test_resnet.r160_in1k", "none")])
def test_other_backbones_than_transformers(tmp_path, name, tuning):
    model = ContinualClassifier(tiny.recipe(QUICK, tuning=tuning), ViewOptions(), backbone=build_model_backbone(name))
    model.learn(build_task(0, ("a", "b")))
    shipping.export_onnx(model, tmp_path / "model.onnx")
    assert_same(run_onnx(tmp_path / "model.onnx", noise(32)), ours(model, noise(32)))


# The embedded backbone, photographs, and the code in the documentation


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """100 pieces of two photographs, of many sizes and shapes, as files."""
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    files = []
    for number in range(100):
        whole = load_sample_images().images[number % 2]
        height, width = random.integers(20, (427, 640))
        top, left = random.integers(0, (428 - height, 641 - width))
        piece = Image.fromarray(whole[top : top + height, left : left + width][:, : 2 * height][: 2 * width])
        files.append(folder / f"{number:03}.{'png' if number % 3 else 'jpg'}")
        piece.save(files[-1])
    return files


@pytest.fixture(scope="module")
def taught(photographs):
    content = {
        "training": {"epochs": 2, "batch_size": 8, "lr": 0.01},
        "tuning": {"name": "lora", "rank": 2},
        "method": {"align": ["best"]},
        "device": "cpu",
    }
    # the whole square: with the usual 0.875, what is left of a large photograph already has the backbone's size, and
    # nothing would be seen of the last resize
    model = ContinualClassifier(validate_recipe(content), ViewOptions(centre_crop=1.0))
    model.learn([(path, "temple" if number % 2 == 0 else "flower") for number, path in enumerate(photographs[:32])])
    return model


@pytest.fixture(scope="module")
def exported(taught, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "flowers.onnx"
    shipping.export_onnx(taught, path)
    return path


@pytest.fixture(scope="module")
def code():
    """The program that docs/shipping.md gives to users."""
    text = (Path(__file__).parents[2] / "docs" / "shipping.md").read_text(encoding="utf-8")
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def prepare" in block]
    return program


def functions(program):
    names = {"__name__": "documented"}
    exec(program, names)
    return names


@pytest.fixture(scope="module")
def documented(code):
    return functions(code)


def unscaled_view(model, paths, centre_crop, interpolation):
    """Our view of images, in [0, 1]."""
    scaling = replace(model.backbone.preprocessing, interpolation=interpolation)
    mean, std = (torch.tensor(each)[:, None, None] for each in (scaling.mean, scaling.std))
    pixels = Pixels.of([decode(path, model.working_size) for path in paths])
    return evaluation_view(pixels, scaling, centre_crop) * std + mean


def test_onnx_equals_ours_on_a_hundred_photographs(taught, exported, photographs):
    features = taught.features(Pixels.of([decode(path, taught.working_size) for path in photographs]))
    images = unscaled_view(taught, photographs, 1.0, "bicubic")
    probabilities, logits, distance, unknown = run_onnx(exported, images)
    assert len(probabilities) == 100
    assert np.abs(probabilities - taught.probabilities(features).numpy()).max() < 1e-3
    assert np.abs(logits - taught.logits(features).numpy()).max() < 1e-3
    far = taught.method.percentiles(features, taught.branch).amin(1).numpy()
    assert np.abs(distance - far).max() < 0.05
    assert unknown.dtype == bool
    assert (unknown == (distance >= 98)).all()


@pytest.mark.parametrize("centre_crop", [1.0, 0.875, 0.8])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_documented_preparation_is_our_view(taught, exported, photographs, documented, centre_crop, interpolation):
    about = json.loads(Path(f"{exported}.json").read_text())
    about["input"] |= {"centre_crop": centre_crop, "interpolation": interpolation}
    views = unscaled_view(taught, photographs[::4], centre_crop, interpolation)
    for path, view in zip(photographs[::4], views, strict=True):
        assert np.abs(documented["prepare"](path, about) - view.numpy()).max() < 1e-5


def test_what_rounding_to_bytes_costs(exported, photographs, documented, code):
    """docs/shipping.md states these limits. Nearly every image must see a difference, else they would mean little."""
    about = json.loads(Path(f"{exported}.json").read_text())
    rounded = functions(code.replace('band.convert("F")', "band"))
    pairs = [(documented["prepare"](path, about), rounded["prepare"](path, about)) for path in photographs]
    assert sum(np.abs(exact - shortcut).max() > 1e-3 for exact, shortcut in pairs) == 99  # one has 64 pixels already
    exact, shortcut = (run_onnx(exported, np.stack(images)) for images in zip(*pairs, strict=True))
    assert 1e-3 < np.abs(exact[0] - shortcut[0]).max() < 0.05
    assert 1 < np.abs(exact[2] - shortcut[2]).max() < 10


def test_the_documented_preparation_equals_ours(taught, exported, photographs, documented):
    about = json.loads(Path(f"{exported}.json").read_text())
    answers = documented["answer"](onnxruntime.InferenceSession(exported), about, photographs)
    for (label, probability, unknown), expected in zip(answers, taught.predict(photographs), strict=True):
        assert (label, unknown) == (expected.label, expected.unknown)
        assert abs(probability - expected.probability) < 1e-3


def test_transparent_turned_and_large_images_are_prepared_alike(taught, exported, documented, tmp_path):
    about = json.loads(Path(f"{exported}.json").read_text())
    photo = Image.fromarray(load_sample_images().images[0])
    clear = photo.crop((0, 0, 200, 150)).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(tmp_path / "clear.png")
    photo.convert("L").save(tmp_path / "grey.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "turned.jpg", exif=exif)
    paths = sorted(tmp_path.iterdir())
    for path in paths:
        view = unscaled_view(taught, [path], 1.0, "bicubic")[0]
        assert np.abs(documented["prepare"](path, about) - view.numpy()).max() < 1e-5, path.name
    assert len(paths) == 3


def test_the_file_carries_its_class_names(exported, taught):
    about = json.loads(Path(f"{exported}.json").read_text())
    assert about["classes"] == taught.classes
    assert about["backbone"] == {
        "name": taught.backbone.name,
        "sha256": taught.backbone.fingerprint,
        "licence": taught.backbone.licence,
    }
    assert about["unknown_at"] == 98
    session = onnxruntime.InferenceSession(exported)
    inside = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert inside == about
    assert session.get_inputs()[0].shape[1:] == [3, 64, 64]
    assert [each.name for each in session.get_outputs()] == about["outputs"]
    graph = onnx.load(exported).graph
    assert not [each.name for each in graph.initializer if "lora" in each.name or "down" in each.name]
    assert [path.name for path in exported.parent.iterdir() if path.name.startswith(".")] == []


# Files


def test_an_export_is_written_over_an_earlier_one_only(tmp_path):
    model, path = small(method="finetune"), tmp_path / "model.pt2"
    shipping.export_torch(model, path)
    shipping.export_torch(model, path)
    foreign = tmp_path / "other.pt2"
    foreign.write_text("mine")
    with pytest.raises(LcaError, match=r"other\.pt2 exists and was not made by lca export"):
        shipping.export_torch(model, foreign)
    assert foreign.read_text() == "mine"
    (tmp_path / "new.pt2.json").write_text("[]")
    with pytest.raises(LcaError, match=r"new\.pt2\.json exists"):
        shipping.export_torch(model, tmp_path / "new.pt2")
    shipping.export_torch(model, foreign, overwrite=True)
    torch.export.load(foreign)
    with pytest.raises(LcaError, match=r"must be named \*\.pt2"):
        shipping.export_torch(model, tmp_path / "model.onnx")


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    model, path = small(method="finetune"), tmp_path / "model.pt2"
    shipping.export_torch(model, path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    def full(program, file, extra_files):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.export, "save", full)
    with pytest.raises(LcaError, match=r"could not write .*No space left"):
        shipping.export_torch(model, path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(LcaError, match="pip install onnx onnxscript"):
        shipping.export_onnx(small(method="finetune"), tmp_path / "a.onnx")


def test_what_is_too_large_for_onnx_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "ONNX_LIMIT", 10_000)
    with pytest.raises(LcaError, match="one ONNX file holds 2; export with --torch"):
        shipping.export_onnx(small(method="finetune"), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_one_image_a_class_gives_no_distance():
    model = tiny.classifier(tiny.recipe(QUICK))
    model.learn(tiny.task(0, {"0": 1, "1": 1}))
    module = shipping.deployed(model)
    assert module.outputs == ["probabilities", "logits"]
    assert_same(module(noise(16)), ours(model, noise(16)))


# Adapters


@pytest.mark.parametrize("tuning", ["lora", "peft:ia3"])
def test_the_peft_library_loads_the_adapter(tmp_path, tuning):
    peft = pytest.importorskip("peft")
    model = small(tuning=TUNINGS[tuning])
    sidecar = shipping.export_peft(model, tmp_path / "adapter")
    shipping.export_peft(model, tmp_path / "adapter")
    adapted = peft.PeftModel.from_pretrained(tiny.load_tiny_backbone().vit, tmp_path / "adapter").eval()
    with torch.no_grad():
        theirs = adapted.forward_head(adapted.forward_features(noise(16)), pre_logits=True)
        ours = model.extractor.eval()(noise(16))
        plain = tiny.load_tiny_backbone().vit(noise(16))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
    assert not torch.allclose(ours, plain, atol=1e-4)
    assert json.loads(sidecar.read_text())["classes"] == model.classes


def test_only_what_peft_knows_becomes_an_adapter(tmp_path):
    with pytest.raises(LcaError, match=r"'ssf', which the peft library does not know.*--onnx and --torch"):
        shipping.export_peft(small(tuning="ssf", method="finetune"), tmp_path / "adapter")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(LcaError, match="was not made by lca export"):
        shipping.export_peft(small(method="finetune"), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


OTHERWISE = ["simplecil", "aper", "ranpac", "fecam", "ease", "coda_prompt", "dualprompt", "l2p", "mos", "tuna"]


@pytest.mark.parametrize("method", OTHERWISE)
@pytest.mark.parametrize("tuner", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_methods_that_make_their_features_otherwise(tmp_path, method, tuner):
    model, scaled, expected = taught_otherwise(method, tuner)
    shipping.export_torch(model, tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2").module()
    torch.testing.assert_close(loaded(scaled)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", OTHERWISE)
@pytest.mark.parametrize("tuner", ["lora", "full"])
def test_modules_of_methods_that_make_their_features_otherwise(method, tuner):
    """What is exported is this module."""
    model, scaled, expected = taught_otherwise(method, tuner)
    torch.testing.assert_close(shipping.deployed(model)(scaled)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "second", "file"),
    [("im", "mirror", True), ("im", "frozen", True), ("im", "frozen", False), ("frozen", "mirror", False)],
)
def test_answers_of_two_passes(tmp_path, method, second, file):
    """Probabilities and logits are of both, the distance is by the first one."""
    section = {"name": method, "second_pass": second, "align": ["quadratic"]}
    model = tiny.classifier(tiny.recipe(method=section, training={"epochs": 1}))
    for number, counts in enumerate(({"3": 6, "7": 5}, {"1": 4, "0": 4})):
        model.learn(tiny.task(number, counts))
    model.temperatures = {"quadratic": 1.7}
    images = tiny.images(dict.fromkeys("3710", 3), skip=20)
    scaled = (model.extractor.evaluation_views(images.pixels) * 0.5 + 0.5).contiguous()
    features = model.features(images)
    far = model.method.percentiles(features, "quadratic").amin(1)
    if file:
        shipping.export_onnx(model, tmp_path / "m.onnx")
        answers = run_onnx(tmp_path / "m.onnx", scaled)
    else:
        answers = shipping.deployed(model)(scaled)
    expected = [model.probabilities(features), model.logits(features), far, far >= 98]
    assert_same(answers, expected, tolerance=2e-3)
    one = model.logits(features[:, : model.extractor.width])
    assert not torch.allclose(torch.as_tensor(answers[1]), one, atol=0.1)


def taught_otherwise(method, tuner):
    """A model, images as others prepare them, and what it answers for them."""
    model = tiny.classifier(
        tiny.recipe(method=tiny.method_section(method), tuning={"name": tuner}, training={"epochs": 1})
    )
    model.learn(tiny.task(0, {"3": 6, "7": 5}))
    model.learn(tiny.task(1, {"1": 4, "0": 4}))
    images = tiny.images(dict.fromkeys("3710", 3), skip=20)
    views = model.extractor.evaluation_views(images.pixels)
    scaled = (views * 0.5 + 0.5).contiguous()  # the tiny transformer's mean and deviation are 0.5
    return model, scaled, model.probabilities(model.features(images))


@pytest.mark.parametrize("method", ["aper", {"name": "im", "second_pass": "frozen"}], ids=["aper", "second pass"])
def test_an_adapter_cannot_stand_for_a_method_of_several_passes(tmp_path, method):
    model = tiny.classifier(tiny.recipe(method=method, training={"epochs": 1}))
    model.learn(tiny.task(0, {"3": 6, "7": 5}))
    with pytest.raises(LcaError, match=f"'{model.recipe.method.name}' makes its features of several passes"):
        shipping.export_peft(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
