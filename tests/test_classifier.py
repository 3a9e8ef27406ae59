"""What a user holds, on the embedded backbone."""

import pytest
import torch
from PIL import Image

from lca import ContinualClassifier, LcaError
from lca.backbones import EMBEDDED
from lca.config import validate_recipe
from lca.files import load_tensors

FAST = {
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.01},
    "tuning": {"name": "lora", "rank": 2},
    "method": {"align": ["none", {"preset": "best", "samples": 32, "epochs": 2}]},
    "device": "cpu",
}
COLOURS = {"red": (200, 30, 30), "green": (30, 190, 40), "blue": (40, 50, 200), "grey": (120, 120, 120)}


def photo(name, number=0):
    noise = torch.randn(48, 40, 3, generator=torch.Generator().manual_seed(number + 1000 * len(name)))
    pixels = (torch.tensor(COLOURS[name]) + 20 * noise).clamp(0, 255).to(torch.uint8)
    return Image.fromarray(pixels.numpy())


def pairs(*names, count=4):
    return [(photo(name, number), name) for name in names for number in range(count)]


def folders(root, *names, count=4):
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(count):
            photo(name, number).save(root / name / f"{number}.png")
    return root


def build(**changes):
    return ContinualClassifier(validate_recipe({**FAST, **changes}))


def logits(model, branch=None):
    from lca.data.decoding import decode
    from lca.data.images import Pixels

    pixels = Pixels.of([decode(photo(name, 50), 73) for name in COLOURS])
    return model.logits(model.features(pixels), branch)


@pytest.fixture(scope="module")
def taught():
    """Two tasks; tests must not teach it further."""
    model = build()
    model.learn(pairs("green", "red"))
    model.learn(pairs("blue", "grey"))
    return model


def test_it_learns_and_predicts(taught):
    answers = taught.predict([photo(name, 99) for name in COLOURS])
    assert taught.classes == ["green", "red", "blue", "grey"]
    assert [answer.label for answer in answers] == list(COLOURS)
    for answer in answers:
        assert list(answer.probabilities) == taught.classes
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert answer.probability == max(answer.probabilities.values()) == answer.probabilities[answer.label]


def test_folders_and_pairs_teach_the_same(tmp_path, taught):
    model = build()
    model.learn(folders(tmp_path / "first", "red", "green"))
    model.learn(str(folders(tmp_path / "second", "blue", "grey")))
    assert model.classes == taught.classes
    torch.testing.assert_close(logits(model), logits(taught), rtol=0, atol=1e-5)


def test_files_paths_and_images_are_predicted_alike(tmp_path, taught):
    path = tmp_path / "a.png"
    photo("blue", 7).save(path)
    one, two, three = taught.predict([str(path), path, photo("blue", 7)])
    assert one.label == "blue"
    assert one.probability == pytest.approx(two.probability, abs=1e-5) == pytest.approx(three.probability, abs=1e-5)
    assert taught.predict([]) == []


def test_save_and_load_give_equal_logits(tmp_path, taught):
    taught.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model")
    assert loaded.classes == taught.classes
    assert loaded.recipe == taught.recipe
    for branch in ("none", "best"):
        assert torch.equal(logits(loaded, branch), logits(taught, branch))
    assert not torch.equal(logits(loaded, "none"), logits(loaded, "best"))


def test_a_loaded_model_learns_on_as_if_it_had_never_been_saved(tmp_path):
    model = build()
    model.learn(pairs("red", "green"))
    model.save(tmp_path)
    loaded = ContinualClassifier.load(tmp_path)
    for each in (model, loaded):
        each.learn(pairs("blue", "grey"))
    assert torch.equal(logits(model), logits(loaded))


def test_the_memory_is_what_lies_on_disk(tmp_path, taught):
    taught.save(tmp_path)
    on_disk = {}
    for part, name in _parts(tmp_path).items():
        size = sum(tensor.nbytes for tensor in load_tensors(tmp_path / name).values())
        if size:
            on_disk[part] = size
    assert taught.memory() == on_disk
    assert {"base", "vector", "heads", "gaussians/best"} <= set(on_disk)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.2 * sum(on_disk.values()) + 20_000


def _parts(folder):
    from lca.files import read_json

    return read_json(folder / "state.json")["parts"]


@pytest.mark.parametrize("failing", ["observe", "finetune", "merge", "statistics", "align best"])
def test_a_failing_phase_leaves_the_model_as_it_was(monkeypatch, failing):
    model = build()
    model.learn(pairs("red", "green"))
    before, state = logits(model), model.state()
    phases = model.method.phases

    def broken(task, labels):
        for phase in phases(task, labels):
            if phase.name == failing:

                def run_and_fail(step, phase=phase):
                    phase.run(step)
                    raise KeyboardInterrupt

                yield type(phase)(phase.name, run_and_fail, phase.steps, phase.trunk)
            else:
                yield phase

    monkeypatch.setattr(model.method, "phases", broken)
    with pytest.raises(KeyboardInterrupt):
        model.learn(pairs("blue", "grey"))
    monkeypatch.undo()
    after = model.state()
    assert model.classes == ["green", "red"]
    assert torch.equal(logits(model), before)
    assert after.meta == state.meta
    for part, tensors in state.parts.items():
        assert all(torch.equal(after.parts[part][name], tensor) for name, tensor in tensors.items()), part
    model.learn(pairs("blue", "grey"))
    untroubled = build()
    untroubled.learn(pairs("red", "green"))
    untroubled.learn(pairs("blue", "grey"))
    assert torch.equal(logits(model), logits(untroubled))


def test_a_class_can_be_learnt_twice(taught, tmp_path):
    taught.save(tmp_path)
    model = ContinualClassifier.load(tmp_path)
    model.learn(pairs("red", count=3))
    model.learn([(photo("red", 8), "red"), (photo("green", 8), "green")])
    assert model.classes == taught.classes
    assert logits(model).shape == (4, 4)
    assert model.tasks == 4
    memory = model.method.branch_set.memories["best"]
    assert {name: memory.classes[label].count for label, name in enumerate(model.classes)} == {
        "green": 5,
        "red": 8,
        "blue": 4,
        "grey": 4,
    }


def test_one_class_after_another():
    model = build()
    for name in COLOURS:
        model.learn(pairs(name))
    assert [answer.label for answer in model.predict([photo(name, 99) for name in COLOURS])] == list(COLOURS)


def test_a_broken_image_file_among_good_ones_is_left_out(tmp_path):
    folders(tmp_path / "data", "red", "green")
    (tmp_path / "data" / "red" / "0.png").write_text("broken")
    model = build()
    model.learn(tmp_path / "data")
    assert model.method.branch_set.memories["best"].classes[model.classes.index("red")].count == 3


@pytest.mark.parametrize("case", ["nothing", "no folder", "no file", "no image"])
def test_mistakes_are_readable_and_change_nothing(tmp_path, case):
    model = build()
    (tmp_path / "text.png").write_text("no image")
    data = {
        "nothing": [],
        "no folder": tmp_path / "missing",
        "no file": [(tmp_path / "missing.png", "red")],
        "no image": [(str(tmp_path / "text.png"), "red"), (tmp_path / "missing.png", "green")],
    }[case]
    with pytest.raises(LcaError):
        model.learn(data)
    assert model.classes == []
    with pytest.raises(LcaError, match="not learnt any class"):
        model.predict([photo("red")])


def test_predicting_what_is_no_image(tmp_path, taught):
    with pytest.raises(LcaError, match=r"missing\.png"):
        taught.predict([tmp_path / "missing.png"])


def test_an_unknown_branch_is_named(taught):
    with pytest.raises(LcaError, match=r"no branch 'lca'; there are \['none', 'best'\]"):
        taught.predict([photo("red")], branch="lca")


def test_other_weights_are_refused(tmp_path, taught):
    from safetensors.torch import save_file

    taught.save(tmp_path / "model")
    vit = {key: each.clone() for key, each in build(tuning="none").backbone.vit.state_dict().items()}
    vit["norm.bias"] += 1
    save_file(vit, tmp_path / "other.safetensors")
    other = build(backbone={"weights": str(tmp_path / "other.safetensors")})
    with pytest.raises(LcaError, match="taught on other weights"):
        other.load_state(taught.state())


def test_loading_what_is_no_model(tmp_path):
    with pytest.raises(LcaError, match="there is no file"):
        ContinualClassifier.load(tmp_path)


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_other_methods_are_held_the_same_way(tmp_path, method):
    model = build(method=method)
    model.learn(pairs("red", "green"))
    model.learn(pairs("blue"))
    model.save(tmp_path)
    assert torch.equal(logits(ContinualClassifier.load(tmp_path)), logits(model))


def test_a_model_can_be_loaded_for_another_device_and_weights_file(tmp_path, taught):
    taught.save(tmp_path / "model")
    weights = EMBEDDED / "vit_pico_patch8_64.safetensors"
    moved = ContinualClassifier.load(tmp_path / "model", device="cpu", weights=weights)
    assert moved.recipe.device == "cpu"
    assert moved.recipe.backbone.weights == weights
    assert torch.equal(logits(moved), logits(taught))
    with pytest.raises(LcaError, match="unknown device 'tpu'"):
        ContinualClassifier.load(tmp_path / "model", device="tpu")
