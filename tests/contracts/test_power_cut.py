"""A power cut while a model folder learns, forgets or takes back: afterwards it holds the model from before or the new
one, whole, and with what it was before.

The verbs of the command line run in child processes that are killed without any chance to clean up.
"""

import itertools
import shutil
import signal
from dataclasses import replace
from unittest import mock

import pytest
import torch
from PIL import Image

import tiny
from lca.classifier import ContinualClassifier
from lca.cli.changes import forget_command, undo_command
from lca.cli.models import learn_command
from lca.errors import LcaError
from lca.files import has_state, read_json, read_kept
from lca.lessons import compared
from tiny import Kill

KILLED = -signal.SIGKILL
SETTINGS = [
    "training.epochs=2",
    "training.batch_size=8",
    "training.lr=0.05",
    "tuning={name: lora, rank: 2}",
    "method.align=[none, best]",
]
EARLIER, LATER = {"3": 8, "7": 8}, {"1": 8, "4": 3, "3": 2}


def training_is_kept(*arguments):
    """It is not always with a handful of images; here both saves of a lesson are to be seen."""
    return replace(compared(*arguments), kept=True)


def child(verb, model, data, kill):
    """What a child process does."""
    torch.set_num_threads(1)
    if kill is not None:
        tiny.arm(kill, model.parent)
    with tiny.tiny_backbone(), mock.patch("lca.classifier.compared", training_is_kept):
        if verb in {"forget", "purge"}:
            forget_command(model, ["7"], purge=verb == "purge", quiet=True)
        elif verb == "undo":
            undo_command(model, quiet=True)
        else:
            new = not has_state(model)
            learn_command(
                model,
                data,
                overrides=SETTINGS if new else [],
                device="cpu" if new else None,
                instant=verb == "instant",
                improve=verb == "improve",
                thorough=verb in {"learn", "new"},
                quiet=True,
            )


def start(verb, model, data, kill=None):
    """Run a verb in a child process; its exit code."""
    process = tiny.started(child, verb, model, data, kill)
    process.join()
    code = process.exitcode
    process.close()
    return code


def write_images(folder, counts, skip):
    images = tiny.images(counts, skip)
    for number, (pixels, label) in enumerate(zip(images.pixels.canvas, images.labels.tolist(), strict=True)):
        path = folder / images.classes[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)


def answers(model):
    """Classes, logits of every branch, percentiles and temperatures of a model folder, and what it was before."""
    with tiny.tiny_backbone():
        loaded = ContinualClassifier.load(model)
    features = loaded.features(tiny.images(dict.fromkeys("0123456789", 2), skip=40))
    branches = loaded.method.branches()
    logits = {branch: loaded.logits(features, branch).tolist() for branch in branches}
    far = {branch: loaded.method.percentiles(features, branch) for branch in branches}
    far = {branch: each.tolist() for branch, each in far.items() if each is not None}
    earlier = [each.state() for each in loaded._earlier]  # whole: every part is checked
    before = [(each.meta["classes"], len(each.parts)) for each in earlier]
    history = [(each.kind, each.new) for each in loaded.history]
    return loaded.classes, logits, far, loaded.temperatures, history, before


class Setup:
    """Images, a model folder to start from, and what each verb makes of it if it is left alone."""

    def __init__(self, root):
        self.root, self.earlier, self.later = root, root / "earlier", root / "later"
        write_images(self.earlier, EARLIER, skip=0)
        write_images(self.later, LATER, skip=20)
        self.model = root / "undisturbed" / "model"
        assert start("new", self.model, self.earlier) == 0
        before = answers(self.model)
        self.states = {"new": {"after": before}}
        self.bases = {}
        for verb in ("instant", "learn", "improve", "forget", "purge", "undo"):
            folder = root / verb / "model"
            self.bases[verb] = root / "learn" / "model" if verb == "undo" else self.model
            shutil.copytree(self.bases[verb], folder)
            earlier = self.states["learn"]["after"] if verb == "undo" else before
            assert start(verb, folder, self.later) == 0
            self.states[verb] = {"before": earlier, "after": answers(folder)}
            assert self.states[verb]["after"][:2] != earlier[:2]
            assert len(self.states[verb]["after"][-1]) == {"purge": 0, "undo": 1}.get(verb, 2), "what can be taken back"
        assert self.states["undo"]["after"] == before, "to the last bit"
        self.states["improve"]["instant"] = self.states["instant"]["after"]
        assert self.states["improve"]["after"] != self.states["instant"]["after"]

    def cut(self, verb, folder, kill):
        """Cut the power; whether it was cut, and which state the folder is in."""
        data = self.earlier if verb == "new" else self.later
        if verb != "new":
            shutil.copytree(self.bases[verb], folder)
        code = start(verb, folder, data, kill)
        assert code in {0, KILLED}, kill
        if verb == "new" and not has_state(folder):
            assert code == KILLED
            with pytest.raises(LcaError, match=r"does not exist|is no model"):
                ContinualClassifier.load(folder)
            state = "before"
        else:
            found = answers(folder)
            states = [name for name, whole in self.states[verb].items() if found == whole]
            assert len(states) == 1, f"{verb}, {kill}: no whole state"
            (state,) = states
        self.go_on(verb, folder, data, state)
        return code == KILLED, state

    def go_on(self, verb, folder, data, state):
        if state == "before":
            assert start(verb, folder, data) == 0, "the step can be done again"
            assert answers(folder) == self.states[verb]["after"], "and ends as if nothing had happened"
        else:
            assert start("learn", folder, self.later) == 0, "it learns on"
        parts = read_json(folder / "state.json")["parts"].values()
        kept = {path.name for files, _ in read_kept(folder) for path in files.values()}
        names = {path.name for path in folder.iterdir()}
        assert names == {"state.json", "README.md", ".lock", *parts, *kept}, "what was half written is gone"


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("power"))


POINTS = {
    "in the middle of the first epoch": ("learn", Kill("steps", 1), "before"),
    "in the last epoch": ("learn", Kill("steps", 4), "before"),
    "while features are taken": ("learn", Kill("batches", 2), "before"),
    "while it measures": ("learn", Kill("batches", 4), "before"),
    "before the first part": ("learn", Kill("files", 1, ".safetensors"), "before"),
    "with half of a part": ("learn", Kill("files", 2, ".safetensors"), "before"),
    "with half of the last part": ("learn", Kill("files", 10, ".safetensors"), "before"),
    "before the commit": ("learn", Kill("files", 1, ".state.json"), "before"),
    "with half of the commit": ("learn", Kill("files", 2, ".state.json"), "before"),
    "after the commit, with old parts": ("improve", Kill("files", 1, "/gaussians"), "after"),
    "after the commit, before the card": ("learn", Kill("files", 1, "README.md"), "after"),
    "with half of the card": ("learn", Kill("files", 2, "README.md"), "after"),
    "before an instant lesson is there": ("improve", Kill("files", 2, ".state.json"), "before"),
    "while an instant lesson is improved": ("improve", Kill("steps", 3), "instant"),
    "with half of a part of the improved lesson": ("improve", Kill("files", 12, ".safetensors"), "instant"),
    "with half of the commit of the improved lesson": ("improve", Kill("files", 4, ".state.json"), "instant"),
    "before the card of the improved lesson": ("improve", Kill("files", 3, "README.md"), "after"),
    "while it forgets": ("forget", Kill("files", 2, ".safetensors"), "before"),
    "with half of a forgetting commit": ("forget", Kill("files", 2, ".state.json"), "before"),
    "after it forgot": ("forget", Kill("files", 1, "README.md"), "after"),
    "with half of a purging commit": ("purge", Kill("files", 2, ".state.json"), "before"),
    "after it forgot, with earlier states": ("purge", Kill("files", 2, "/gaussians"), "after"),
    "with half of the commit that takes back": ("undo", Kill("files", 2, ".state.json"), "before"),
    "after it took back, with parts of what is gone": ("undo", Kill("files", 1, "/vector-"), "after"),
    "after it took back, before the card": ("undo", Kill("files", 1, "README.md"), "after"),
    "while a new folder is made": ("new", Kill("files", 1, "model"), "before"),
    "while a new folder is locked": ("new", Kill("files", 1, ".lock"), "before"),
    "while a new model learns": ("new", Kill("steps", 2), "before"),
    "with half of a new model's part": ("new", Kill("files", 4, ".safetensors"), "before"),
    "with half of a new model's commit": ("new", Kill("files", 2, ".state.json"), "before"),
    "before a new model's card": ("new", Kill("files", 1, "README.md"), "after"),
}


@pytest.mark.parametrize("point", POINTS)
def test_the_power_is_cut(tmp_path, setup, point):
    verb, kill, state = POINTS[point]
    assert setup.cut(verb, tmp_path / "model", kill) == (True, state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "steps", "batches"])
@pytest.mark.parametrize("verb", ["learn", "improve", "forget", "purge", "undo", "new"])
def test_the_power_is_cut_at_every_moment(tmp_path, setup, verb, kind):
    """Before every change on disk, after every optimiser step and after every batch of features."""
    found = []
    for count in itertools.count(1):
        cut, state = setup.cut(verb, tmp_path / str(count) / "model", Kill(kind, count))
        found.append(["before", "instant", "after"].index(state))
        if not cut:
            break
    assert found == sorted(found), "once it is committed it stays"
    assert found[-1] == 2
    if kind == "files":
        assert len(found) >= 15
        assert sum(found) > 2, "also after the commit"
