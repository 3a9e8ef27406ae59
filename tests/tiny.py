"""Whole runs in a fraction of a second: a tiny transformer, tiny recipes, and child processes that can be killed."""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sklearn.datasets
import torch
from timm.layers import PatchEmbed
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from typer.testing import CliRunner

import lca.classifier
import lca.runs.experiment
from lca.backbones import Backbone
from lca.classifier import ContinualClassifier
from lca.cli import app
from lca.data.images import ImageSet
from lca.files import read_json
from lca.heads.alignment import AlignBranch
from lca.heads.growing import heads
from lca.merging.operators import operators
from lca.methods import methods
from lca.methods._second_pass import second_passes
from lca.recipe import Recipe, validate_recipe
from lca.runs.budget import Budget
from lca.statistics.drift import drifts
from lca.testing.parts import RECIPE, build_backbone, classifier, images, recipe, task  # noqa: F401  # tests use them
from lca.tuning import tuners

sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)  # reading the file takes a tenth of a run

QUICK = {"samples": 16, "epochs": 2, "per_class": 4, "batch_size": 16}
BRANCHES = [
    "none",
    {"preset": "ca", **QUICK},
    {"preset": "lca", **QUICK},
    "lda",
    {"preset": "balanced", **QUICK},
    "best",
]
SMALL_METHOD: dict[str, dict[str, Any]] = {
    "im": {"align": BRANCHES},
    "ranpac": {"projection": 64},
    "coda_prompt": {"components": 2, "tokens": 2, "layers": (0, 1)},
    "l2p": {"pool_size": 4, "top_k": 2, "tokens": 2},
    "dualprompt": {"tokens": 2, "general_layers": (0,), "expert_layers": (1,)},
    "mos": {"align": ["none", {"preset": "mos", **QUICK}]},
    "slca": {"align": [{"preset": "slca", "samples": 16, "epochs": 2, "batch_size": 16}]},
    "sldc": {"align": [{"preset": "balanced", "name": "best", **QUICK}]},
    "tuna": {"align": ["none", {"preset": "tuna", **QUICK}]},
}
"""Options that make a method quick; a method that is not here is tested with its defaults."""
SMALL_TUNING: dict[str, dict[str, Any]] = {
    "lora": {"rank": 2, "alpha": 4.0, "dropout": 0.1},
    "adapter": {"bottleneck": 4, "scale": 1.0},
    "vpt": {"tokens": 2},
    "prefix": {"tokens": 2, "layers": [0, 0.5]},
    "prompt": {"tokens": 2, "pool": "prompts", "position": "class"},
    "peft:ia3": {"options": {"target_modules": ["qkv"], "feedforward_modules": []}},
}
TUNERS = [*tuners, "peft:ia3"]
"""All registered, and one of the peft library's for all of them."""


def method_section(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, **SMALL_METHOD.get(name, {}), **changes}


def variants() -> dict[str, dict[str, Any]]:
    """Recipe changes by a readable name: every method, and with it every tuner, head, merge operator, drift model and
    second pass.

    They are read from the registries: what is registered is tested. Every tuner is tested with `im`, which also merges;
    the other methods know tuned tensors by name only, so two tuners beside LoRA are enough for them. Every head is
    tested with `im`, which also aligns, and `finetune`; of the others' heads the one that is replaced by class means. A
    method that is a case of another one (SLCA of incremental merging) shares its code, so its options are tested there.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in methods:
        options = methods[name].Options
        special = any(issubclass(options, methods[other].Options) for other in methods if other != name)
        fields = {} if special else options.model_fields
        found[name] = {"method": method_section(name)}
        for tuner in TUNERS if name == "im" else ("full", "none"):
            tuning = {"name": tuner, **SMALL_TUNING.get(tuner, {}), "feature_norm": True}
            found[f"{name}, {tuner}"] = {"method": method_section(name), "tuning": tuning}
        kinds = heads if name in {"im", "finetune"} else ("prototype",)
        for head in kinds if "head" in fields else ():
            found[f"{name}, {head} head"] = {"method": method_section(name, head={"name": head, **biased(head)})}
        for operator in operators if "merge" in fields else ():
            start = "base" if operator == "sum" else "previous"
            merge = {"merge": {"operator": operator}, "init_from": start}
            found[f"{name}, {operator}"] = {"method": method_section(name, **merge)}
        for drift in drifts if "align" in fields else ():
            branch = {"name": "a", "drift": {"model": drift}, **QUICK}
            found[f"{name}, drift {drift}"] = {"method": method_section(name, align=[branch])}
        for second in sorted(set(second_passes) - {"none", name}) if "second_pass" in fields else ():
            found[f"{name}, second pass {second}"] = {"method": method_section(name, second_pass=second)}
    return found


def biased(head: str) -> dict[str, bool]:
    """The option of a bias, where the head has one."""
    return {"bias": True} if "bias" in heads[head].Options.model_fields else {}


def branch(name: str, **changes: Any) -> dict[str, Any]:
    """A quick branch for a recipe."""
    return AlignBranch(name=name, **{**QUICK, **changes}).model_dump(mode="json")


def load_tiny_backbone(options: Any = None, weights: Any = None, **shape: Any) -> Backbone:
    """In the place of what `load_backbone` gives."""
    return build_backbone(**shape)


def taught(model: ContinualClassifier, tasks: Iterable[Mapping[str, int]]) -> ContinualClassifier:
    """The model, after it has learnt tasks of so many images a class."""
    for number, counts in enumerate(tasks):
        model.learn(task(number, counts))
    return model


def features_in(model: ContinualClassifier, subspace: str, of: ImageSet) -> torch.Tensor:
    """Features in a subspace that a model keeps, from an extractor of its own that holds its tensors."""
    twin = classifier(model.recipe).extractor.eval()
    views = twin.evaluation_views(of.pixels)
    with torch.no_grad():
        if subspace == "pretrained":
            vit = load_tiny_backbone().vit
            return vit.forward_head(vit.forward_features(views), pre_logits=True)
        twin.load(model.state().parts[subspace])
        return twin(views)


def lca_command(*words: object) -> tuple[str, str]:
    """Run a command line in this process; gives standard output and standard error."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@contextmanager
def tiny_backbone() -> Iterator[None]:
    """Runs and loaded models use the tiny transformer."""
    places = (lca.classifier, lca.runs.experiment)
    before = [place.load_backbone for place in places]
    for place in places:
        place.load_backbone = load_tiny_backbone
    try:
        yield
    finally:
        for place, old in zip(places, before, strict=True):
            place.load_backbone = old


def outcome(folder: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on interruptions: results without times, and the bytes of files."""
    results = read_json(folder / "results.json")
    del results["seconds"]
    files = [folder / "predictions.safetensors", *sorted((folder / "models").rglob("*"))]
    content = {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}
    return {"results": results, "files": content}


@contextmanager
def counted_passes(training: bool = False) -> Iterator[Counter[str]]:
    """Counts what goes through a transformer within: its `calls`, and `images`. Without the passes of training unless
    they are asked for."""
    found: Counter[str] = Counter()

    def count(module: torch.nn.Module, arguments: Any, _: Any) -> None:
        if isinstance(module, PatchEmbed) and (training or not module.training):  # every pass begins there
            found.update(calls=1, images=len(arguments[0]))

    handle = register_module_forward_hook(count)
    try:
        yield found
    finally:
        handle.remove()


# Killing


@dataclass(frozen=True)
class Kill:
    """When a child process is killed, without any chance to clean up.

    `files`: just before it opens a file for writing, renames, makes or removes something whose path contains `path`,
    for the `count`-th time; a file that was about to be renamed is then half written. `steps`: after `count` optimiser
    steps. `batches`: after `count` batches of features. `seconds`: from outside, after that time.
    """

    kind: str
    count: float
    path: str = ""


def arm(kill: Kill, folder: Path) -> None:
    """Install a kill in this process."""
    left = kill.count

    def once(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def file_event(event: str, arguments: tuple[Any, ...]) -> None:
        if not _changes_files(event, arguments, kill.path, folder):
            return
        named = str(arguments[0])
        if left <= 1 and event == "os.rename" and os.path.isfile(named):
            os.truncate(named, os.path.getsize(named) // 2)
        once()

    def extracted(module: torch.nn.Module, *_: Any) -> None:
        if isinstance(module, PatchEmbed) and not module.training:  # every pass of a transformer begins there
            once()

    hooks: dict[str, Callable[[], object]] = {
        "files": lambda: sys.addaudithook(file_event),
        "steps": lambda: register_optimizer_step_post_hook(once),
        "batches": lambda: register_module_forward_hook(extracted),
        "seconds": lambda: None,
    }
    hooks[kill.kind]()


def _changes_files(event: str, arguments: tuple[Any, ...], path: str, folder: Path) -> bool:
    """Whether an audit event is about to change a file whose path contains `path`, or any file in the folder."""
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if not writes and event not in {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}:
        return False
    of_rmtree = event in {"os.remove", "os.rmdir"} and arguments[1] != -1  # it names files relative to a folder
    named = str(arguments[0])
    if of_rmtree if path else not (of_rmtree or named.startswith(str(folder))):
        return False
    return path in named


def child_run(
    content: dict[str, Any], folder: Path, trunks: Path | None, every: float, budget: float | None, kill: Kill | None
) -> None:
    """What a child process does."""
    torch.set_num_threads(1)
    if kill is not None:
        arm(kill, folder.parent)
    with tiny_backbone():
        lca.runs.experiment.run(
            validate_recipe(content), folder, trunks=trunks, checkpoint_every=every, budget=Budget(budget)
        )


def started(target: Callable[..., None], *arguments: Any, daemon: bool = False) -> BaseProcess:
    """A child process at work. It is forked from one that has imported what all need, since that takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    process = context.Process(target=target, args=arguments, daemon=daemon)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with patch.dict(os.environ, {"PYTHONPATH": path}):  # so that the fork server finds it
        process.start()
    return process


def start(
    chosen: Recipe,
    folder: Path,
    *,
    trunks: Path | None = None,
    every: float = 0.0,
    budget: float | None = None,
    kill: Kill | None = None,
) -> int:
    """Run a recipe in a child process; its exit code, which is -SIGKILL if it was killed."""
    process = started(child_run, chosen.dump(), folder, trunks, every, budget, kill)
    if kill is not None and kill.kind == "seconds":
        time.sleep(kill.count)
        process.kill()
    process.join()
    code = process.exitcode
    process.close()
    assert code is not None
    return code
