"""The `lca` command: exit codes, messages, and what it writes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import tiny
from lca.backbones import load_backbone
from lca.data import cache
from lca.data.decoding import read_together
from lca.methods import methods
from lca.progress import Progress
from lca.runs import sweep as sweeps

SMALL = tiny.recipe(method={"name": "finetune"}, training={"epochs": 1}, data={"tasks": [5, 5], "train_limit": 4})


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Every command runs in an empty folder, with the tiny transformer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    with tiny.tiny_backbone():
        yield


@pytest.fixture
def recipe(tmp_path):
    def write(content=None, name="mine.yaml", **changes):
        content = tiny.recipe(SMALL.dump(), changes).dump() if content is None else content
        del_name = {key: value for key, value in content.items() if key != "name"}
        (tmp_path / name).write_text(yaml.safe_dump(del_name))
        return name

    return write


def test_a_run(lca, recipe, tmp_path):
    code, out, err = lca("run", recipe())
    assert code == 0
    folder = tmp_path / "runs" / "mine"
    results = json.loads((folder / "results.json").read_text())
    last = results["branches"]["default"]["metrics"]["last_accuracy"]["sample_weighted"]
    assert f"{last:.1f}" in out
    assert "results, table.md and accuracy.png are in runs/mine" in out
    assert f"| {last:.1f} |" in (folder / "table.md").read_text()
    with Image.open(folder / "accuracy.png") as image:
        image.verify()
    lines = err.splitlines()
    assert re.fullmatch(r"after task 1 of 2: accuracy default \d+\.\d", lines[0])
    assert len(lines) == 2
    assert "\x1b" not in err + out, "no control characters where there is no terminal"
    again = lca("run", "mine.yaml")
    assert again[0] == 0
    assert again[1] == out
    assert again[2] == ""


def test_quiet_and_set_and_out(lca, recipe, tmp_path):
    code, _, err = lca("run", recipe(), "-q", "--set", "seed=7", "--set", "data.tasks=[2, 8]", "--out", "there/it")
    assert (code, err) == (0, "")
    resolved = yaml.safe_load((tmp_path / "there" / "it" / "recipe.yaml").read_text())
    assert resolved["seed"] == 7
    assert resolved["data"]["tasks"] == [2, 8]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "trainin.lr=1"], "unknown key 'trainin'; did you mean 'training'"),
        (["--set", "training.lr=fast"], "training.lr: .*got 'fast'"),
        (["--set", "training.epochs=0"], "training.epochs: .*got 0"),
        (["--set", "method=in"], "unknown method 'in'; did you mean .*'im'"),
        (["--set", "training.lr"], "--set takes key=value, for example --set training.lr=0.02; got 'training.lr'"),
        (["--set", "=3"], "--set takes key=value"),
        (["--set", "seed=[1"], "the value is not YAML"),
        (["--set", "data.source=folder:nowhere"], "'nowhere' is none"),
        (["--set", "data.source='folder:'"], "needs a folder with one folder per class"),
        (["--set", "data.source=digit"], "unknown data source 'digit'; did you mean 'digits'"),
        (["--set", "data.tasks=11"], "data.tasks is 11, but there are only 10 classes"),
        (["--set", "device=gpu"], "unknown device 'gpu'; expected auto, cpu, cuda"),
        (["--budget", "soon"], "--budget takes a time such as 90s, 9m or 1.5h; got 'soon'"),
    ],
)
def test_mistakes_are_one_readable_message(lca, recipe, words, message):
    code, out, err = lca("run", recipe(), *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert re.search(message, err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.yaml", "sed: 3", "mine.yaml: 1 mistake.*unknown key 'sed'; did you mean 'seed'"),
        ("mine.yaml", "seed: x\ntraining: {lr: -1}", r"2 mistake.*training\.lr: .*got -1.*seed: .*got 'x'"),
        ("mine.yaml", "- 1", "mine.yaml must hold a mapping of recipe keys, got list"),
        ("mine.yaml", "a: [", "mine.yaml cannot be read as YAML"),
        ("mine.yaml", "extends: bets", "there is no recipe 'bets'; did you mean 'best'"),
        ("mine.yaml", "backbone: {weights: gone.safetensors}", "gone.safetensors"),
        ("gone.yaml", None, "there is no recipe file gone.yaml"),
        ("pape", None, "there is no recipe 'pape'; did you mean 'paper'"),
    ],
)
def test_a_recipe_with_mistakes(lca, tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr("lca.runs.experiment.load_backbone", load_backbone)
    if content is not None:
        (tmp_path / name).write_text(content)
    code, _, err = lca("run", name)
    assert code == 2
    assert re.search(message, err, re.DOTALL)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "Missing argument"), (["--out"], "requires an argument"), (["mine.yaml", "--outt", "x"], "No such option")],
)
def test_a_wrong_command_line(lca, words, message):
    code, _, err = lca("run", *words)
    assert code == 2
    assert message in err


def test_another_recipe_in_the_same_folder(lca, recipe):
    assert lca("run", recipe(), "-q")[0] == 0
    code, _, err = lca("run", recipe(), "--set", "training.lr=0.5")
    assert code == 2
    assert "training.lr: 0.05 -> 0.5" in err
    assert "another --out" in err


def test_a_spent_budget_says_how_to_go_on(lca, recipe, tmp_path):
    words = ["run", recipe(), "--budget", "0s", "--set", "name=with space"]
    stops = 0
    while (answer := lca(*words))[0] == 75:
        stops += 1
        assert "the budget is spent; everything so far is saved. Go on with:" in answer[2]
        assert "  lca run mine.yaml --budget 0s --set 'name=with space'\n" in answer[2]
    assert answer[0] == 0
    assert stops == 8  # an epoch, keeping the head, the task, the evaluation; twice
    assert (tmp_path / "runs" / "with space" / "results.json").exists()


def test_a_sweep(lca, recipe, tmp_path):
    words = ["sweep", recipe(), "--grid", "seed=[1,2]", "--grid", "training.lr=0.1"]
    code, out, err = lca(*words)
    assert code == 0
    packed = json.loads((tmp_path / "runs" / "mine" / "pack.json").read_text())
    assert [(cell["label"], cell["seed"], cell["status"]) for cell in packed["cells"]] == [
        ("finetune training.lr=0.1", 1, "finished"),
        ("finetune training.lr=0.1", 2, "finished"),
    ]
    assert "cell 2 of 2: finetune training.lr=0.1, digits, seed 2" in err
    assert "±" in out
    assert lca(*words)[2] == "", "all is finished"


def test_workers_share_the_cells_of_a_sweep(lca, tmp_path, monkeypatch):
    original, threads = sweeps.run, torch.get_num_threads()

    def after_the_other(*arguments, **options):
        """This process waits until the other one has finished a cell."""
        until = time.monotonic() + 120
        while not list(tmp_path.glob("runs/simplecil/cells/*/results.json")) and time.monotonic() < until:
            time.sleep(0.1)
        return original(*arguments, **options)

    monkeypatch.setattr(sweeps, "run", after_the_other)
    try:
        data = "data={source: digits, train_limit: 4, validation: 0.5, evaluate: validation}"
        words = ["sweep", "simplecil", "--grid", "seed=[1,2,3]", "--set", data, "--workers", "2"]
        code, _, err = lca(*words)
    finally:
        torch.set_num_threads(threads)
    assert code == 0
    assert "| 3 |" in (tmp_path / "runs" / "simplecil" / "table.md").read_text()
    assert 1 <= len(re.findall(r"^cell \d of 3", err, re.MULTILINE)) <= 2


def test_a_sweep_takes_what_a_pack_has(lca, recipe):
    assert lca("sweep", recipe(), "--grid", "seed=[1,2]", "--out", "first")[0] == 0
    words = ["sweep", recipe(), "--grid", "seed=[1,2,3]", "--reuse", "first/pack.json", "--out", "second"]
    code, _, err = lca(*words)
    assert code == 0
    assert re.findall(r"^cell (\d) of 3", err, re.MULTILINE) == ["3"]
    code, _, err = lca(*words, "--reuse", "nowhere.json")
    assert (code, "there is no file nowhere.json" in err) == (2, True)


def test_a_sweep_at_another_scale(lca, recipe, tmp_path):
    words = [
        "sweep",
        recipe({**SMALL.dump(), "method": {"name": "im", "align": "none"}, "mini": {"grid": {"seed": [7]}}}),
        "--scale",
        "mini",
        "--trunks",
        "kept",
    ]
    assert lca(*words)[0] == 0
    packed = json.loads((tmp_path / "runs" / "mine-mini" / "pack.json").read_text())
    assert [cell["seed"] for cell in packed["cells"]] == [7]
    assert (tmp_path / "kept").is_dir()
    assert not (tmp_path / "runs" / "mine-mini" / "trunks").exists()


def test_the_main_table_is_there_at_the_mini_scale(lca, tmp_path):
    pack = Path(__file__).parents[2] / "results" / "compare-mini.json"
    code, _, err = lca("sweep", "paper/main-table", "--scale", "mini", "--reuse", pack)
    assert (code, err) == (0, ""), "nothing is left to run"
    assert "| IM lca | 3 |" in (tmp_path / "runs" / "main-table-mini" / "table.md").read_text()


def test_a_sweep_with_a_failed_cell(lca, recipe, monkeypatch):
    def steps(self, task, labels):
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(methods["joint"], "steps", steps)
    code, out, err = lca("sweep", recipe(), "--grid", "method=[finetune, joint]")
    assert code == 1
    assert "finetune" in out
    assert "failed: joint method=joint, digits, seed 5: RuntimeError: the disk is on fire" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "1"], "--shard takes I/N, for example 1/4; got '1'"),
        (["--shard", "a/b"], "--shard takes I/N"),
        (["--shard", "3/2"], "got 3/2"),
        (["--grid", "sed=[1]"], "unknown key 'sed'; did you mean 'seed'"),
        (["--grid", "seed=[1"], "not YAML"),
        (["--grid", "seed=[]"], "grid must map dotted keys to lists"),
        (["--budget", "x"], "--budget takes a time"),
        (["--scale", "mini"], "mine.yaml has no section `mini`"),
        (["--scale", "maxi"], "there is no scale 'maxi'; did you mean 'mini'?"),
    ],
)
def test_mistakes_of_a_sweep(lca, recipe, words, message):
    code, _, err = lca("sweep", recipe(), *words)
    assert code == 2
    assert message in err


def test_show_and_merge(lca, recipe, tmp_path):
    for number in (1, 2):
        assert lca("sweep", recipe(), "--grid", "seed=[1,2]", "--shard", f"{number}/2", "--out", f"s{number}")[0] == 0
    code, out, _ = lca("merge", "s1/pack.json", "s2/pack.json", "--out", "all.json")
    assert (code, out) == (0, "2 finished, 0 failed, 0 open\n")
    code, table, _ = lca("show", "all.json", "--markdown")
    assert code == 0
    assert re.search(r"^\| finetune \| 2 \| \d+\.\d ± \d+\.\d \|", table, re.MULTILINE)
    assert lca("show", "s1", "s2", "--markdown")[1] == table
    assert "finetune" in lca("show", "s1")[1]
    assert lca("show", "nowhere")[0] == 2
    assert lca("merge", "all.json", "nowhere.json", "--out", "x.json")[0] == 2
    (tmp_path / "empty.json").write_text('{"format": 1, "cells": []}')
    code, _, err = lca("show", "empty.json")
    assert code == 2
    assert "no finished runs" in err


def test_show_keeps_runs_of_one_name_but_different_recipes_apart(lca, recipe):
    """Seeds of one recipe are averaged; different recipes never are."""
    lca("run", recipe(), "-q", "--out", "a")
    lca("run", recipe(), "-q", "--out", "b", "--set", "seed=6")
    lca("run", recipe(), "-q", "--out", "c", "--set", "data.tasks=[4, 3, 3]")
    assert "| mine | 2 |" in lca("show", "a", "b", "--markdown")[1]
    code, table, _ = lca("show", "a", "b", "c", "--markdown")
    assert code == 0
    assert [line.split(" | ")[:2] for line in table.splitlines()[2:5]] == [[f"| mine ({name})", "1"] for name in "abc"]


# Real processes


def lca_process(*words, options=(), **streams):
    command = [sys.executable, *options, "-m", "lca", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, **{"stderr": subprocess.PIPE, **streams}, text=True, env=environment)


BUFFERED_OR_NOT = pytest.mark.parametrize("options", [(), ("-u",)], ids=["written at the end", "written at once"])


@BUFFERED_OR_NOT
def test_output_that_cannot_be_written_is_one_line_and_74(options):
    with open("/dev/full", "w") as full:
        done = lca_process("recipes", options=options, stdout=full)
        assert done.stderr == "error: could not read or write: No space left on device\n"
        assert done.returncode == 74
        assert lca_process("recipes", options=options, stdout=full, stderr=full).returncode == 74
        done = lca_process("show", "nowhere", options=options, stdout=full)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), "the mistake comes first"


@BUFFERED_OR_NOT
def test_a_reader_that_goes_away_ends_it_quietly(options):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = lca_process("recipes", options=options, stdout=writing)
        assert (done.returncode, done.stderr) == (141, "")
        assert lca_process("recipes", options=options, stdout=writing, stderr=writing).returncode == 141
    finally:
        os.close(writing)


def test_closed_output_is_no_trouble():
    command = f"{shlex.quote(sys.executable)} -m lca recipes >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_cannot_be_read_is_named(lca, monkeypatch):
    def refused():
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr("lca.recipe_files.recipe_names", refused)
    code, out, err = lca("recipes")
    assert (code, out, err) == (74, "", "error: could not read or write some/file: Permission denied\n")


def test_control_c_leaves_a_run_that_goes_on(lca, tmp_path, monkeypatch):
    monkeypatch.setattr("lca.runs.experiment.load_backbone", load_backbone)
    data = "data={source: digits, tasks: 2, train_limit: 6, validation: 0.3, evaluate: validation}"
    words = ["run", "best", "--set", data, "--set", "training.epochs=5", "--set", "method.align=none", "--out", "run"]
    assert lca(*words, "--budget", "0s")[0] == 75
    log = tmp_path / "run" / "log.jsonl"
    before = log.read_text().count("\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lca", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def heed_interrupts():  # a shell starts background jobs, and so the tests in them, with SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(command, **pipes, env=environment, preexec_fn=heed_interrupts) as first:
        deadline = time.monotonic() + 120
        while log.read_text().count("\n") < before + 2:  # it has gone on, and made a step
            assert first.poll() is None, first.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Traceback" not in err
    again = err.partition("Go on with:\n")[2].strip()
    assert shlex.split(again) == ["lca", *words]
    assert not (tmp_path / "run" / "results.json").exists()
    code, out, err = lca(*words)
    assert code == 0, err
    assert "going on with run: task 1 of 2" in err
    assert "\x1b" not in err + out
    assert (tmp_path / "run" / "results.json").exists()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("resumed") == 2


def test_a_sweep_recipe_given_to_run(lca):
    code, _, err = lca("run", "demo")
    assert code == 2
    assert "use `lca sweep demo`" in err


def test_show_of_a_results_file_an_unfinished_run_and_something_else(lca, recipe, tmp_path):
    assert lca("run", recipe(), "--out", "done", "--trunks", "none")[0] == 0
    assert not (tmp_path / "trunks").exists()
    code, out, _ = lca("show", "done/results.json", "--pivot")
    assert code == 0
    assert out.startswith("| AA / last |")
    code, out, _ = lca("show", "done/results.json", "--pivot", "--number", "newest")
    assert (code, out.startswith("| newest |")) == (0, True)
    assert lca("run", recipe(), "--out", "open", "--budget", "0")[0] == 75
    code, _, err = lca("show", "open")
    assert code == 2
    assert "not finished yet: open" in err
    (tmp_path / "x.json").write_text("[]")
    code, _, err = lca("show", "x.json")
    assert code == 2
    assert "neither a run folder nor a pack" in err


def test_a_seed_out_of_range_names_the_key(lca, recipe):
    code, _, err = lca("run", recipe(), "--set", "seed=-1")
    assert code == 2
    assert "seed" in err
    assert "greater than or equal to 0" in err


def test_examples_are_printed_as_they_must_be_typed(lca):
    assert "'method.align=[none, ca, lca, best]'" in lca("run", "--help")[1]
    assert "--grid seed=[1993,1994,1995]" in lca("sweep", "--help")[1]


def test_a_full_disk_is_said_in_one_line(lca, recipe, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "log.jsonl").symlink_to("/dev/full")
    (tmp_path / "full" / "recipe.yaml").write_text("{}")
    code, _, err = lca("run", recipe(), "--out", "full")
    assert code == 2
    assert "could not write full/log.jsonl: No space left on device" in err


def test_the_cache_of_decoded_images(lca, tmp_path, monkeypatch):
    monkeypatch.setenv("LCA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LCA_CACHE_GB", "2")
    assert lca("cache")[1] == f"0 set(s), 0.0 MB of at most 2 GB, in {tmp_path / 'cache'}\n"
    cache.save("f" * 40, read_together([torch.zeros(3, 40, 50)] * 600, 64, Progress()), Progress())
    code, out, _ = lca("cache")
    assert code == 0
    assert "ffffffffffff       600 images         3.6 MB  used 20" in out
    assert lca("cache", "--clear")[1] == f"3.6 MB removed from {tmp_path / 'cache'}\n"
    assert "0 set(s)" in lca("cache")[1]


def test_the_folder_of_a_run_is_no_model_but_holds_some(lca, recipe, tmp_path):
    assert lca("run", recipe(), "--out", "here", "-q")[0] == 0
    (tmp_path / "photo.png").write_bytes(b"")
    code, _, err = lca("predict", "here", "photo.png")
    assert code == 2
    assert "here is the folder of a run; its last model is here/models/task-01" in err
