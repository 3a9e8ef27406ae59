"""The run folder and the experiment loop."""

import importlib
import json
import logging
import multiprocessing
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import lca
import tiny
from lca.classifier import ContinualClassifier
from lca.device import sources_hash
from lca.errors import LcaError
from lca.files import has_state, load_state, read_json
from lca.progress import Progress
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run
from lca.runs.folder import RunFolder
from lca.runs.trunks import ROOMS, TrunkCache, foreign_code

QUICK_IM = tiny.recipe(
    method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]}, training={"epochs": 1}
)


def log_of(folder, event):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def steps(folder):
    return [(line["task"], line["phase"]) for line in log_of(folder, "step")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run, for reading only."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with tiny.tiny_backbone():
        run(QUICK_IM, folder)
    return folder


def test_a_finished_run(finished):
    results = read_json(finished / "results.json")
    assert {path.name for path in finished.iterdir() if not path.name.startswith(".")} == {
        *("recipe.yaml", "results.json", "predictions.safetensors", "log.jsonl", "models")
    }
    assert results["recipe"] == QUICK_IM.dump()
    assert results["data"]["task_sizes"] == [3, 1, 2, 4]
    assert sorted(results["data"]["class_order"]) == list("0123456789")
    assert results["data"]["train_images"] == [6] * 10
    assert results["data"]["near_copies"] is None, "nobody looked for them"
    assert results["data"]["as_published"] is None, "no benchmark"
    assert list(results["branches"]) == ["none", "best"]
    assert [(line["task"], line["accuracy"]) for line in log_of(finished, "evaluated")] == [
        (
            task,
            {
                name: pytest.approx(results["branches"][name]["metrics"]["after_each_task"]["sample_weighted"][task])
                for name in ("none", "best")
            },
        )
        for task in range(4)
    ]
    one_class, several = ["head from mean"], ["finetune", "merge"]
    middle = [several, one_class, several, several]
    assert steps(finished) == [
        (task, phase) for task in range(4) for phase in ["observe", *middle[task], "statistics", "align best"]
    ]


def test_a_finished_run_is_not_run_again(finished):
    before = (finished / "log.jsonl").read_bytes()
    assert run(QUICK_IM, finished) == read_json(finished / "results.json")
    assert (finished / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seed": 6}, "seed: 5 -> 6"),
        ({"training": {"lr": 0.04}}, "training.lr: 0.05 -> 0.04"),
        ({"tuning": {"name": "none"}}, "tuning.name: lora -> none"),
        ({"method": {"init_from": "base"}}, "method.init_from: merged -> base"),
        ({"data": {"tasks": 5}}, "data.tasks: [3, 1, 2, 4] -> 5"),
    ],
)
def test_another_recipe_is_refused_and_named(finished, changes, line):
    before = (finished / "recipe.yaml").read_bytes()
    with pytest.raises(LcaError, match="holds a run of another recipe") as caught:
        run(tiny.recipe(QUICK_IM.dump(), changes), finished)
    assert line in [each.strip() for each in str(caught.value).splitlines()]
    assert (finished / "recipe.yaml").read_bytes() == before


def test_another_recipe_is_refused_in_the_middle_too(tmp_path):
    with pytest.raises(BudgetSpent):
        run(QUICK_IM, tmp_path / "run", budget=Budget(0))
    with pytest.raises(LcaError, match=r"training\.epochs: 1 -> 2"):
        run(tiny.recipe(QUICK_IM.dump(), training={"epochs": 2}), tmp_path / "run")


def test_a_run_that_an_earlier_version_began_goes_on(tmp_path):
    with pytest.raises(BudgetSpent):
        run(QUICK_IM, tmp_path / "run", budget=Budget(0))
    written = tmp_path / "run" / "recipe.yaml"
    recipe = yaml.safe_load(written.read_text())
    recipe["strangers"] = recipe.pop("ood")
    recipe["method"]["merge"]["keep"] = 0.2  # the options of all operators stood in one section
    written.write_text(yaml.safe_dump(recipe))
    assert run(QUICK_IM, tmp_path / "run")["branches"]


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").write_text("mine")
    with pytest.raises(LcaError, match="exists and is no run folder"):
        run(QUICK_IM, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_an_empty_folder_is_taken(tmp_path):
    assert run(tiny.recipe(method="finetune", data={"tasks": 1}, training={"epochs": 1}), tmp_path)["format"] == 1


def _hold(path, held, release):
    with RunFolder(path).hold(QUICK_IM):
        held.set()
        release.wait(60)


def test_a_second_process_is_refused(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "run", held, release))
    process.start()
    try:
        assert held.wait(60)
        with pytest.raises(LcaError, match="another process is running in"):
            run(QUICK_IM, tmp_path / "run")
    finally:
        release.set()
        process.join()
    assert not (tmp_path / "run" / "results.json").exists()
    with RunFolder(tmp_path / "run").hold(QUICK_IM):
        pass


@pytest.mark.parametrize(("keep", "kept"), [("none", []), ("last", [3]), ("all", [0, 1, 2, 3])])
def test_models_are_kept_as_asked(tmp_path, finished, keep, kept):
    folder = tmp_path / "run"
    results = run(tiny.recipe(QUICK_IM.dump(), keep_models=keep), folder)
    assert [path.name for path in sorted(folder.glob("models/*"))] == [f"task-{task:02d}" for task in kept]
    order, sizes = results["data"]["class_order"], [3, 4, 6, 10]
    for task in kept:
        model = ContinualClassifier.load(folder / "models" / f"task-{task:02d}")
        assert model.classes == order[: sizes[task]]
        assert model.tasks == task + 1
    assert (
        load_file(folder / "predictions.safetensors").keys() == load_file(finished / "predictions.safetensors").keys()
    )


def test_a_kept_model_predicts_what_the_run_says(finished):
    model = ContinualClassifier.load(finished / "models" / "task-03")
    data = load_file(finished / "predictions.safetensors")
    from lca.data.sources import load_source

    test = load_source(QUICK_IM.data, 5, 16, Progress()).test.of_classes(model.classes)
    assert torch.equal(test.labels.int(), data["labels"])
    features = model.features(test)
    for branch in ("none", "best"):
        confidence, prediction = model.logits(features, branch).softmax(1).max(1)
        assert torch.equal(prediction.int(), data[f"3/{branch}/prediction"])
        assert torch.equal(confidence, data[f"3/{branch}/confidence"])
    unknown = model.method.unknown_scores(features)["best"]
    assert torch.equal(unknown, data["3/best/unknown"])
    assert "3/none/unknown" not in data


LCA_LOSS = {"training": {"loss": "lca"}, "method": {"align": [tiny.branch("half", train_heads="random")]}}


@pytest.mark.parametrize(("name", "changes"), [("im", {}), ("im", LCA_LOSS), ("finetune", {}), ("joint", {})])
def test_a_budget_stops_after_every_step_and_the_end_is_the_same(tmp_path, name, changes):
    chosen = tiny.recipe({"method": tiny.method_section(name)}, changes)
    run(chosen, tmp_path / "whole")
    stops = 0
    while True:
        try:
            run(chosen, tmp_path / "sliced", budget=Budget(0), trunks=tmp_path / "trunks")
            break
        except BudgetSpent:
            stops += 1
            assert has_state(tmp_path / "sliced" / "checkpoint")
            assert sum(len(log_of(tmp_path / "sliced", event)) for event in ("step", "learnt", "evaluated")) >= stops
    # one stop after every step of every phase, after every task, and after every evaluated task of a stream
    assert stops == len(steps(tmp_path / "whole")) + (1 if name == "joint" else 8)
    assert steps(tmp_path / "sliced") == steps(tmp_path / "whole")
    assert tiny.outcome(tmp_path / "sliced") == tiny.outcome(tmp_path / "whole")


def test_the_checkpoint_interval_is_kept(tmp_path):
    """Often: a state after every step. Rarely: none at all in a short run."""
    written = []
    original = RunFolder.log

    def noting(self, event, **facts):
        written.append(has_state(self.checkpoint))
        original(self, event, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log", noting)
        run(tiny.recipe(method="finetune"), tmp_path / "often", checkpoint_every=0)
        often = written.copy()
        written.clear()
        run(tiny.recipe(method="finetune"), tmp_path / "rarely", checkpoint_every=1000)
    assert often == [False, False] + [True] * (len(often) - 3) + [False]
    assert not any(written)
    assert tiny.outcome(tmp_path / "often") == tiny.outcome(tmp_path / "rarely")


def test_other_branches_on_a_stored_trunk_train_nothing(tmp_path, finished):
    first = tiny.recipe(QUICK_IM.dump(), keep_models="none")
    branches = ["none", tiny.branch("strong", robustness=1.0, drift={"model": "affine"}, first_task=True)]
    second = tiny.recipe(QUICK_IM.dump(), method={"align": branches}, keep_models="none")
    run(first, tmp_path / "first", trunks=tmp_path / "trunks")
    results = run(second, tmp_path / "second", trunks=tmp_path / "trunks")
    assert {phase for _, phase in steps(tmp_path / "second")} == {"statistics", "align strong"}
    assert [line["task"] for line in log_of(tmp_path / "second", "trunk from cache")] == [0, 1, 2, 3]
    assert "evaluate" not in results["seconds"], "the test features are not extracted again"
    one, two = (load_file(tmp_path / name / "predictions.safetensors") for name in ("first", "second"))
    for name in one:
        if "/none/" in name or name == "labels":
            assert torch.equal(one[name], two[name]), name
    run(tiny.recipe(second.dump()), tmp_path / "alone")
    assert tiny.outcome(tmp_path / "second")["results"] == tiny.outcome(tmp_path / "alone")["results"]
    assert not torch.equal(one["3/best/confidence"], two["3/strong/confidence"])


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"method": {"align": ["none"]}}, True),
        ({"name": "other", "keep_models": "all"}, True),
        ({"seed": 6}, False),
        ({"training": {"lr": 0.04}}, False),
        ({"tuning": {"rank": 3}}, False),
        ({"method": {"merge": {"operator": "mean"}}}, False),
        ({"method": {"init_from": "base"}}, False),
        ({"method": {"head": {"bias": True}}}, False),
        ({"data": {"train_limit": 5}}, False),
        ({"data": {"view": {"centre_crop": 0.9}}}, False),
        ({"exact": True}, False),
    ],
)
def test_the_key_of_a_trunk(tmp_path, changes, same):
    from lca.data.sources import load_source

    def key(chosen):
        source = load_source(chosen.data, chosen.seed, 16, Progress())
        model = ContinualClassifier(chosen, source.view, backbone=tiny.load_tiny_backbone())
        return TrunkCache(tmp_path, model, source)._folder.name

    assert (key(QUICK_IM) == key(tiny.recipe(QUICK_IM.dump(), changes))) is same


@pytest.fixture
def package(tmp_path):
    """A copy of our code."""
    return shutil.copytree(
        Path(lca.__file__).parent, tmp_path / "lca", ignore=shutil.ignore_patterns("[!.]*.safetensors", "__pycache__")
    )


@pytest.mark.parametrize(
    ("edited", "same"),
    [
        ("report/page.py", True),
        ("cli/runs.py", True),
        ("runs/experiment.py", True),
        ("classifier.py", True),
        ("heads/alignment.py", True),
        ("training/loop.py", False),
        ("heads/growing.py", False),
        ("features.py", False),
    ],
)
def test_an_edit_discards_trunks_only_where_they_are_computed(package, edited, same):
    before, whole = sources_hash(ROOMS, package), sources_hash(package=package)
    assert before == sources_hash(ROOMS), "the copy is as good"
    sources_hash.cache_clear()
    (package / edited).write_text((package / edited).read_text() + "\n# edited\n")
    assert (sources_hash(ROOMS, package) == before) is same
    assert sources_hash(package=package) != whole


@pytest.mark.parametrize(
    ("module", "file"), [("lca_stranger.part", "lca_stranger/part.py"), ("lca_strange_file", "lca_strange_file.py")]
)
def test_an_edit_of_another_package_discards_the_trunks_of_what_it_brings(tmp_path, monkeypatch, module, file):
    source = tmp_path / "site" / file
    source.parent.mkdir(parents=True)
    if "/" in file:
        (source.parent / "__init__.py").touch()
    source.write_text("class Part:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    part = importlib.import_module(module).Part()
    before = foreign_code(part)
    assert list(before) == [module.partition(".")[0]]
    sources_hash.cache_clear()
    assert foreign_code(part, Progress(), None) == before, "our own code is hashed by rooms"
    source.write_text("class Part:\n    edited = True\n")
    sources_hash.cache_clear()
    assert foreign_code(part) != before


def test_nobody_shares_the_trunk_of_what_was_typed_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "typed", ModuleType("typed"))
    part = type("Part", (), {"__module__": "typed"})()
    assert foreign_code(part) != foreign_code(part)


def test_what_computes_a_trunk_needs_no_other_room():
    """Besides those that change no number, errors, options, files and what shows progress, and what follows the trunk:
    the branches, and FeTrIL's training of heads, which has no trunk to share."""
    package = Path(lca.__file__).parent
    assert all((package / room).exists() for room in ROOMS)
    files = [path for room in ROOMS for path in [package / room, *(package / room).rglob("*.py")] if path.is_file()]
    lines = {line.strip() for path in files for line in path.read_text().splitlines()}
    needed = {line.split()[1].removeprefix("lca.") for line in lines if line.startswith(("from lca.", "import lca."))}
    rooms = tuple(room.removesuffix(".py").replace("/", ".") for room in ROOMS)
    others = {name for name in needed if not any(f"{name}.".startswith(f"{room}.") for room in rooms)}
    branches = {"heads.branch", "heads.branches", "heads.alignment"}
    assert others <= {
        "arguments",
        "errors",
        "files",
        "guarded",
        "options",
        "progress",
        "registry",
        "text",
        "turns",
        *branches,
    }


def test_exact_mode_computes_with_deterministic_algorithms(tmp_path, finished):
    seen = []

    original = torch.optim.SGD.step

    def step(self, *args):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", step)
        results = run(tiny.recipe(QUICK_IM.dump(), exact=True), tmp_path / "run")
    assert seen
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()
    assert results["machine"]["exact"] == "true"
    assert results["machine"]["precision"] == "fp32"


def test_accuracies_on_the_validation_share(tmp_path):
    data = {"validation": 0.34, "evaluate": "validation", "train_limit": 9}
    results = run(tiny.recipe(method="finetune", data=data), tmp_path / "run")
    assert results["data"]["train_images"] == [6] * 10
    assert results["data"]["test_images"] == [3] * 10
    assert len(load_file(tmp_path / "run" / "predictions.safetensors")["labels"]) == 30


def test_the_log_takes_messages_that_were_switched_off_before(tmp_path):
    logging.getLogger("lca.statistics.gaussians").info("nobody listens")  # Python remembers that this logger is off
    chosen = tiny.recipe(method={"align": [tiny.branch("a")]}, data={"train_limit": 1, "tasks": 2})
    run(chosen, tmp_path / "run")
    assert any("one image" in line["text"] for line in log_of(tmp_path / "run", "message"))


def test_a_missing_source_or_bad_tasks_are_named(tmp_path):
    with pytest.raises(LcaError, match="hold 3 classes, the source has 10"):
        run(tiny.recipe(data={"tasks": [1, 2]}), tmp_path / "one")
    with pytest.raises(LcaError, match="unknown data source 'digit'"):
        run(tiny.recipe(data={"source": "digit"}), tmp_path / "two")


def test_a_run_that_failed_at_once_can_be_corrected(tmp_path):
    with pytest.raises(LcaError):
        run(tiny.recipe(method="finetune", data={"tasks": 11}), tmp_path / "run")
    assert run(tiny.recipe(method="finetune", data={"tasks": 2}), tmp_path / "run")["recipe"]["data"]["tasks"] == 2


def test_the_checkpoint_is_a_state_like_any_other(tmp_path):
    with pytest.raises(BudgetSpent):
        run(QUICK_IM, tmp_path / "run", budget=Budget(0))
    state = load_state(tmp_path / "run" / "checkpoint")
    assert state.meta["run"]["done"] == {"observe": 1}
    assert {path.suffix for path in (tmp_path / "run" / "checkpoint").iterdir()} == {".json", ".safetensors"}


def animals(folder):
    """Class folders of two domains."""
    draw = np.random.default_rng(0)
    for number, name in enumerate(("farm-cow", "farm-hen", "sea-cod", "sea-eel")):
        (folder / name).mkdir(parents=True)
        for index in range(6):
            pixels = np.clip(60 * number + draw.normal(0, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


STREAMS = {
    "classes come back": {"returning": 0.6},
    "a long tail": {"long_tail": 6.0},
    "domains": {"order": "domains"},
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("method", ["im", "mos"])
def test_every_stream_can_be_run_and_resumed(stream, method, tmp_path):
    changes = {"data": {**STREAMS[stream], "train_limit": 9, "tasks": [4, 3, 3]}}
    if stream == "domains":
        changes["data"] |= {"source": f"folder:{animals(tmp_path / 'animals')}", "tasks": None}
    recipe = tiny.recipe(changes, method=tiny.method_section(method), training={"epochs": 1})
    with tiny.tiny_backbone():
        whole = run(recipe, tmp_path / "whole")
        usual = run(tiny.recipe(recipe.dump(), data={"returning": 0.0, "long_tail": None}), tmp_path / "usual")
        while True:
            try:
                run(recipe, tmp_path / "sliced", budget=Budget(0))
                break
            except BudgetSpent:
                continue
    assert tiny.outcome(tmp_path / "whole") == tiny.outcome(tmp_path / "sliced")
    branch = list(whole["branches"])[-1]
    if stream in ("classes come back", "a long tail"):
        assert whole["branches"][branch]["correct"] != usual["branches"][branch]["correct"]
    if stream == "domains":
        assert whole["data"]["task_sizes"] == [2, 2]
    if stream == "classes come back":
        assert whole["data"]["train_images"] == usual["data"]["train_images"] == [9] * 10
        assert len(log_of(tmp_path / "whole", "learnt")) == 3
