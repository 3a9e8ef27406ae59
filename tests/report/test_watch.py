"""A run in the terminal: finished, going on, cut off, taken up again."""

import io
import json
import shutil
import struct
import subprocess
import sys
from datetime import datetime
from itertools import pairwise

import pytest
from rich.console import Console

import tiny
from lca.errors import LcaError
from lca.files import hold, is_held
from lca.report import watch as watching
from lca.report.boards.mlflow import MlflowLog
from lca.report.boards.tensorboard import TensorBoardLog
from lca.report.boards.wandb import WandbLog
from lca.report.watch import LogReader, RunState, watch, watch_sweep
from lca.results.folder import SweepFiles
from lca.results.reading import collect
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run

RECIPE = tiny.recipe(
    method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]},
    data={"tasks": [3, 3, 4]},
    keep_models="none",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with tiny.tiny_backbone():
        run(RECIPE, folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(finished, tmp_path / "tiny")


def recorder(width, terminal=False):
    return Console(width=width, markup=False, highlight=False, record=True, file=io.StringIO(), force_terminal=terminal)


def shown(folder, *, terminal=False, **options):
    console = recorder(120, terminal)
    state = watch(folder, console, **options)
    return console.export_text(), state


def test_a_finished_run(finished):
    text, state = shown(finished)
    assert "finished;" in text
    assert "im on digits, seed 5" in text
    assert "3 of 3 tasks" in text
    results = json.loads((finished / "results.json").read_text())
    for branch in ("none", "best"):
        after = results["branches"][branch]["metrics"]["after_each_task"]["sample_weighted"]
        (line,) = [line for line in text.splitlines() if line.startswith(branch)]
        assert line.split() == [branch, *(f"{value:.1f}" for value in after)]
    epochs = [each for (task, phase, _), each in state.steps.items() if (task, phase) == (2, "finetune")]
    assert len(epochs) == 2
    (line,) = [line for line in text.splitlines() if line.startswith("finetune")]
    assert line.split()[1] == "2"
    assert f"{epochs[-1]['loss']:.4f}" in line
    assert f"{sum(each['seconds'] for each in epochs) / 2:.2f}" in line
    assert state.seconds_left() == 0


def test_a_run_that_stopped_says_so(tmp_path):
    with tiny.tiny_backbone(), pytest.raises(BudgetSpent):
        run(RECIPE, tmp_path / "stopped", budget=Budget(0.0))
    text, state = shown(tmp_path / "stopped")
    assert "stopped: nothing runs in this folder" in text
    assert "0 of 3 tasks" in text
    assert state.seconds_left() is None


def test_a_half_written_line_waits_for_its_end(folder):
    log = folder / "log.jsonl"
    whole = log.read_bytes()
    cut = whole.rindex(b"\n", 0, -1) - 20
    log.write_bytes(whole[:cut])
    reader = LogReader(log)
    before = list(reader.new())
    assert len(before) == whole[:cut].count(b"\n")
    assert list(reader.new()) == []
    log.write_bytes(whole)
    assert before + list(reader.new()) == [json.loads(line) for line in whole.splitlines()]


def test_a_line_that_a_kill_cut_off_is_left_out(folder):
    log = folder / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], lines[3][:20], *lines[4:]]))  # the next process wrote behind it
    assert [*LogReader(log).new()] == [json.loads(line) for line in (*lines[:3], *lines[5:])]
    shown(folder)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_running_run_is_followed_to_its_end(folder, monkeypatch, terminal):
    """Another process holds the folder and writes; the last line is half written at first."""
    log, results = folder / "log.jsonl", folder / "results.json"
    whole, content = log.read_bytes(), results.read_bytes()
    results.unlink()
    log.write_bytes(whole[: len(whole) // 2])
    stages = [lambda: log.write_bytes(whole), lambda: results.write_bytes(content)]
    seen = []

    def sleep(seconds):
        seen.append(seconds)
        stages.pop(0)()

    monkeypatch.setattr(watching.time, "sleep", sleep)
    with hold(folder, "busy"):
        half = shown(folder, once=True)
        text, state = shown(folder, terminal=terminal)
    assert half[0].splitlines()[1].startswith("running: task 2, ")
    assert "left" in half[0], "one task is finished, so there is an estimate"
    assert len(half[1].accuracies) < 3
    assert seen == [watching.EVERY] * 2
    assert not stages
    assert "finished;" in text
    assert "3 of 3 tasks" in text
    assert len(state.accuracies) == 3


def test_who_holds_a_folder(tmp_path):
    assert not is_held(tmp_path), "it was never held"
    with hold(tmp_path, "busy"):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    with hold(tmp_path, "busy"):
        pass  # looking leaves nothing behind


def event(kind, **facts):
    return {"time": datetime(2026, 1, 1).isoformat(), "event": kind, **facts}


def test_what_is_done_again_counts_once_and_a_new_start_counts_anew():
    state = RunState()
    for each in (
        event("started", tasks=2, classes=4),
        event("step", task=0, phase="finetune", step=0, seconds=9.0, loss=3.0),
        event("step", task=0, phase="finetune", step=0, seconds=1.0, loss=2.0),
        event("evaluated", task=0, accuracy={"my branch": 50.0}),
    ):
        state.take(each)
    assert state.steps == {(0, "finetune", 0): {"seconds": 1.0, "loss": 2.0}}
    assert state.accuracies == {0: {"my branch": 50.0}}
    assert state.seconds_left() == 1.0
    state.take(event("step", task=1, phase="finetune", step=0, seconds=0.25))
    assert state.seconds_left() == 0.75
    state.take(event("started", tasks=5, classes=4))
    assert (state.tasks, state.steps, state.accuracies) == (5, {}, {})


def test_a_log_of_version_0_1_has_texts():
    state = RunState()
    state.take(event("evaluated", task=1, accuracies=["my branch 50.0", "best 97.3"]))
    assert state.accuracies == {1: {"my branch": 50.0, "best": 97.3}}


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(LcaError, match="does not exist"):
        shown(tmp_path / "none")
    with pytest.raises(LcaError, match="is no run folder"):
        shown(tmp_path)


def test_a_finished_run_without_its_log(folder):
    """As a sweep leaves it that took the results from a pack."""
    (folder / "log.jsonl").unlink()
    (folder / "recipe.yaml").unlink()
    text, state = shown(folder)
    assert "finished; its log is not at hand" in text
    assert "im on digits, seed 5" in text
    assert "3 of 3 tasks" in text
    results = json.loads((folder / "results.json").read_text())
    after = results["branches"]["best"]["metrics"]["after_each_task"]["sample_weighted"]
    (line,) = [line for line in text.splitlines() if line.startswith("best")]
    assert line.split() == ["best", *(f"{value:.1f}" for value in after)]
    assert state.steps == {}


@pytest.fixture
def sweep_folder(finished, tmp_path):
    """Of one label a finished cell, a stopped and a failed one, with no pack."""
    cells = tmp_path / "sweep" / "cells"
    for seed in (5, 6, 7):
        shutil.copytree(finished, cells / f"im-{seed}-abc{seed}")
    for seed in (6, 7):
        (cells / f"im-{seed}-abc{seed}" / "results.json").unlink()
    log = cells / "im-6-abc6" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"evaluated"' in line)
    log.write_text("".join(lines[: first + 1]))
    (cells / "im-7-abc7" / "failed.json").write_text(json.dumps({"error": "MemoryError: none left"}))
    return tmp_path / "sweep"


def cells_shown(folder, *, terminal=False, **options):
    console = recorder(160, terminal)
    watch_sweep(folder, console, **options)
    return console.export_text()


def test_a_sweep_shows_its_cells(sweep_folder):
    assert SweepFiles(sweep_folder).exists()
    assert not SweepFiles(sweep_folder / "cells" / "im-5-abc5").exists()
    text = cells_shown(sweep_folder)
    assert text.splitlines()[0].endswith("1 finished, 1 stopped, 1 failed")
    rows = {line.split()[2]: line.split() for line in text.splitlines() if line.startswith("im ")}
    results = json.loads((sweep_folder / "cells" / "im-5-abc5" / "results.json").read_text())
    last = {
        name: f"{each['metrics']['last_accuracy']['sample_weighted']:.1f}" for name, each in results["branches"].items()
    }
    assert rows["5"] == f"im digits 5 finished 3 of 3 none {last['none']}, best {last['best']}".split()
    assert rows["6"][:7] == ["im", "digits", "6", "stopped", "1", "of", "3"]
    assert rows["7"][3] == "failed"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_sweep_is_followed_while_a_cell_runs(sweep_folder, monkeypatch, terminal):
    running = sweep_folder / "cells" / "im-6-abc6"
    held = hold(running, "busy")
    held.__enter__()
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: held.__exit__(None, None, None))
    text = cells_shown(sweep_folder, terminal=terminal)
    assert "1 stopped" in text, "it went on until nothing was running"


def test_without_a_terminal_every_change_is_a_line(sweep_folder, finished, monkeypatch):
    running = sweep_folder / "cells" / "im-6-abc6"
    lines = (finished / "log.jsonl").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines, start=1) if b'"evaluated"' in line]
    held = hold(running, "busy")
    held.__enter__()
    stages = [
        lambda: (running / "log.jsonl").write_bytes(b"".join(lines[: ends[0] + 1])),
        lambda: (running / "log.jsonl").write_bytes(b"".join(lines[: ends[1]])),
        lambda: held.__exit__(None, None, None),
    ]
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: stages.pop(0)())
    cells, rest = cells_shown(sweep_folder).split("im, digits, seed 6: ", 1)
    assert "1 running, 1 finished, 1 failed" in cells
    told = [line.rstrip() for line in rest.splitlines() if ": " in line or line.startswith(("running", "stopped"))]
    two = ", ".join(f"{name} {value:.1f}" for name, value in json.loads(lines[ends[1] - 1])["accuracy"].items())
    assert told[:2] == [f"running, 2 of 3 tasks, {two}", f"im, digits, seed 6: stopped, 2 of 3 tasks, {two}"]
    assert "im, digits, seed 5" not in rest, "nothing happened to the others"


def test_the_phases_of_a_run_without_a_terminal(folder, monkeypatch):
    log, lines = folder / "log.jsonl", (folder / "log.jsonl").read_bytes().splitlines(keepends=True)
    content = (folder / "results.json").read_bytes()
    (folder / "results.json").unlink()
    steps = [number for number, line in enumerate(lines, start=1) if b'"step"' in line]
    stages = [lambda end=end: log.write_bytes(b"".join(lines[:end])) for end in steps[1:]]
    stages.append(lambda: (folder / "results.json").write_bytes(content))
    log.write_bytes(b"".join(lines[: steps[0]]))
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: stages.pop(0)())
    with hold(folder, "busy"):
        text, _ = shown(folder)
    told = [line.split(", ")[1:4] for line in text.splitlines() if line.startswith("running, ")]
    done = [json.loads(lines[number - 1]) for number in steps]
    phases = [[f"{each['task']} of 3 tasks", f"task {each['task'] + 1}", each["phase"]] for each in done]
    assert told == [phase for before, phase in pairwise(phases) if phase != before], "no line for a step"
    assert len(told) < len(steps)


def test_a_report_of_a_sweep_without_a_pack(sweep_folder):
    found = collect([sweep_folder])
    assert [(run.label, run.seed) for run in found.runs] == [("im", 5)]
    assert [*map(str, found.unfinished)] == [
        "im, digits, seed 6, is stopped",
        "im, digits, seed 7, is failed: MemoryError: none left",
    ]


def test_a_pack_that_is_older_than_its_cells(sweep_folder):
    entries = [{"key": f"abc{seed}", "label": "IM λ=1", "seed": seed, "status": "open"} for seed in (5, 6)]
    (sweep_folder / "pack.json").write_text(json.dumps({"format": 1, "cells": entries}))
    found = collect([sweep_folder])
    assert [(run.label, run.seed) for run in found.runs] == [("IM λ=1", 5)], "finished since"
    assert [*map(str, found.unfinished)] == ["IM λ=1, seed 6, is stopped"], (
        "what the pack does not know is not of this sweep"
    )


def test_a_sweep_has_no_board(sweep_folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lca", "watch", sweep_folder, "--tensorboard", tmp_path / "board"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "TensorBoard takes one run" in done.stderr


def scalars(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    return {tag: [(each.step, each.value) for each in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_tensorboard_has_the_losses_and_accuracies(finished, tmp_path):
    pytest.importorskip("tensorboard")
    board = TensorBoardLog(tmp_path / "board")
    state = shown(finished, listeners=(board.take,))[1]
    board.close()
    found = scalars(tmp_path / "board")
    losses = [each["loss"] for (_, phase, _), each in state.steps.items() if phase == "finetune"]
    assert found["finetune/loss"] == [(n, pytest.approx(loss)) for n, loss in enumerate(losses, start=1)]
    assert found["accuracy/best"] == [(t + 1, pytest.approx(each["best"])) for t, each in state.accuracies.items()]
    assert len(found["seconds/finetune"]) == len(losses) == 6
    with pytest.raises(LcaError, match="holds TensorBoard files already"):
        TensorBoardLog(tmp_path / "board")


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(LcaError, match=r"pip install tensorboard"):
        TensorBoardLog(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(LcaError, match=r"pip install mlflow-skinny"):
        MlflowLog("sqlite:///mlflow.db", tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(LcaError, match=r"pip install wandb"):
        WandbLog("mine", tmp_path)


def test_mlflow_has_the_recipe_the_losses_and_the_accuracies(finished, tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    board = MlflowLog(uri, finished)
    state = shown(finished, listeners=(board.take,))[1]
    board.close()
    client = tracking.MlflowClient(tracking_uri=uri)
    (sent,) = client.search_runs([client.get_experiment_by_name("lca").experiment_id])
    assert (sent.info.run_name, sent.info.status) == ("tiny", "FINISHED")
    assert sent.data.params["tuning.rank"] == "2"
    losses = [each["loss"] for (_, phase, _), each in state.steps.items() if phase == "finetune"]
    history = client.get_metric_history(sent.info.run_id, "finetune/loss")
    assert [(each.step, each.value) for each in history] == [*enumerate(losses, start=1)]
    first = next(each for each in LogReader(finished / "log.jsonl").new() if each.get("phase") == "finetune")
    assert history[0].timestamp == round(1000 * datetime.fromisoformat(first["time"]).timestamp())
    accuracies = client.get_metric_history(sent.info.run_id, "accuracy/best")
    assert {each.step: each.value for each in accuracies} == {t + 1: a["best"] for t, a in state.accuracies.items()}
    with pytest.raises(LcaError, match=r"has the run .* already"):
        MlflowLog(uri, finished)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    with pytest.raises(LcaError, match=r"MLflow at file://.* refuses: "):
        MlflowLog((tmp_path / "other").as_uri(), finished)


def wandb_records(content):
    """What wandb wrote for `wandb sync`: a log as LevelDB has them, in blocks of 32 KiB with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    records, place, data = [], 7, b""
    while place < len(content):
        if 32768 - place % 32768 < 7:  # no room for another piece in this block
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        data += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            records.append(Record.FromString(data))
            data = b""
    return records


def test_wandb_has_the_recipe_the_losses_and_the_accuracies(finished, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    board = WandbLog("mine", finished)
    state = shown(finished, listeners=(board.take,))[1]
    board.close()
    wandb.teardown()
    (file,) = tmp_path.rglob("*.wandb")
    assert board.hint == f"wandb sync {file.parent}"
    records = wandb_records(file.read_bytes())
    (begun,) = [each.run for each in records if each.run.run_id]
    assert (begun.project, begun.display_name) == ("mine", "tiny")
    assert {each.key: json.loads(each.value_json) for each in begun.config.update}["tuning.rank"] == 2
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in each.history.item}
        for each in records
        if each.history.item
    ]
    losses = [each["loss"] for (_, phase, _), each in state.steps.items() if phase == "finetune"]
    assert [(row["step/finetune"], row["finetune/loss"]) for row in rows if "finetune/loss" in row] == [
        *enumerate(losses, start=1)
    ]
    accuracies = {row["task"]: row["accuracy/best"] for row in rows if "accuracy/best" in row}
    assert accuracies == {task + 1: each["best"] for task, each in state.accuracies.items()}
    axes = {each.metric.name: each.metric.step_metric for each in records if each.metric.name}
    assert axes["finetune/loss"] == "step/finetune"


def test_a_board_needs_a_run_that_has_begun(tmp_path):
    pytest.importorskip("mlflow.tracking")
    with pytest.raises(LcaError, match="has no log"):
        MlflowLog((tmp_path / "mlruns").as_uri(), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_command(finished):
    done = subprocess.run([sys.executable, "-m", "lca", "watch", finished], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 of 3 tasks" in done.stdout
