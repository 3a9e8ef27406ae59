"""Several ranks: real processes that train one model together give what one process gives, and leave what it leaves."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

import lca.training.loop
import tiny
from lca.cli import app
from lca.errors import LcaError
from lca.files import load_state, load_tensors, read_json
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.methods import methods
from lca.ranks import Ranks, joined
from lca.recipe import Recipe
from lca.runs.budget import BudgetSpent
from lca.training.loop import FineTuning
from tiny import Kill

KILLED = -signal.SIGKILL
CLOSE = 3e-4
"""What numbers that were added up in another order in float32 may differ by, as a share of the largest of a tensor.
Most differ by 1e-6; a linear discriminant and a ridge regression, which divide by small numbers, by up to 6e-5."""
EXACT = {"tuning": {"dropout": 0.0}, "training": {"lr": 0.005}}
"""Dropout is drawn by every rank for itself, and long steps make small differences large ones."""
UNCOUPLED = {"mos": {"orthogonality": 0.0}, "macil": {"calibration": 0.0}}
"""Methods whose default loss compares the images of a batch, and what of it is to be switched off."""


@dataclass(frozen=True)
class Job:
    """A run that ranks do together; a list of recipes or budgets has one for every rank."""

    recipe: Recipe | list[Recipe]
    folder: Path
    trunks: Path | None = None
    budget: list[float | None] | None = None
    every: float = 5.0
    """Seconds between checkpoints."""


def rank_process(place: dict[str, str], jobs: list[Job], kill: Kill | None, drifts: bool, answer: Any) -> None:
    """What a rank does: one job after the other. It answers with the errors it met."""
    os.environ.update(place)
    rank, met = int(place["RANK"]), []
    if kill is not None:
        tiny.arm(kill, jobs[0].folder.parent)
    if drifts:
        FineTuning.after_update = lambda self: [each.data.add_(1e-6 * rank) for each in self.parameters().values()]
    with joined(torch.device("cpu")):
        for job in jobs:
            recipe = job.recipe[rank] if isinstance(job.recipe, list) else job.recipe
            budget = job.budget[rank] if job.budget else None
            try:
                tiny.child_run(recipe.dump(), job.folder, job.trunks, job.every, budget, None)
                met.append("")
            except (LcaError, BudgetSpent) as error:
                met.append(f"{type(error).__name__}: {error}")
    answer.send(met)


def together(
    jobs: list[Job], count: int = 2, kills: dict[int, Kill] | None = None, drifting: bool = False
) -> list[tuple[int, list[str]]]:
    """Run jobs with so many ranks: of each, its exit code and the errors it met. `drifting` ranks change what they
    train, each in its own way."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes, answers = [], []
    for rank in range(count):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
        place = {name: str(value) for name, value in (place | {"MASTER_PORT": port}).items()}
        receiver, sender = multiprocessing.Pipe(duplex=False)
        arguments = (place, jobs, (kills or {}).get(rank), drifting, sender)
        processes.append(tiny.started(rank_process, *arguments, daemon=True))  # none outlives the tests
        sender.close()
        answers.append(receiver)
    found = []
    for process, receiver in zip(processes, answers, strict=True):
        process.join(120)
        assert process.exitcode is not None, "a rank hangs"
        try:
            met = receiver.recv()
        except EOFError:
            met = ["it gave no answer"]
        found.append((process.exitcode, met))
    return found


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log without times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: each for key, each in line.items() if key not in ("time", "seconds")} for line in lines]


def events(folder: Path) -> list[str]:
    return [line["event"] for line in log_of(folder)]


def steps(folder: Path) -> dict[tuple[int, str, int], dict[str, Any]]:
    """What was measured in every step; one that was done again counts once."""
    done = [line for line in log_of(folder) if line.pop("event") == "step"]
    return {(line.pop("task"), line.pop("phase"), line.pop("step")): line for line in done}


def assert_alike(one: Path, other: Path, border: int = 1) -> None:
    """Two finished runs have the same steps with the same losses, the same tensors in all models, and the same
    accuracies but for `border` images that lie on the border of two classes; a task has 12 images or more."""
    assert files(other) == files(one)
    assert steps(other).keys() == steps(one).keys()
    for step, expected in steps(one).items():
        came = steps(other)[step]
        assert came.pop("accuracy", 0.0) == pytest.approx(expected.pop("accuracy", 0.0), abs=border / 12 + 1e-6), step
        assert came == pytest.approx(expected, rel=CLOSE), step
    for model in sorted((one / "models").iterdir()):
        expected, came = load_state(model).parts, load_state(other / "models" / model.name).parts
        for part, tensors in expected.items():
            assert came[part].keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert difference(came[part][name], tensor, name) <= CLOSE, f"{model}, {part}, {name}"
    expected, came = (load_tensors(folder / "predictions.safetensors") for folder in (one, other))
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            assert difference(came[name], tensor, name) <= CLOSE, f"{one.name}, {name}"
        else:
            assert (came[name] != tensor).sum() <= border, f"{one.name}, {name}"


def difference(one: torch.Tensor, two: torch.Tensor, name: str) -> float:
    """The largest difference, as a share of the largest number."""
    if name.endswith(
        ("factor", "residual")
    ):  # the root of a covariance: known only up to signs, and badly where that is 0
        one, two = one.T @ one, two.T @ two
    if torch.equal(one, two):
        return 0.0
    return ((one - two).abs().max() / two.abs().max()).item()


def files(folder: Path) -> set[str]:
    """What lies in a run folder; hashes in names say what is in a file, not which it is."""
    return {str(path.relative_to(folder)).rpartition("-")[0] or path.name for path in folder.rglob("*")}


def recipe_of(name: str, **changes: Any) -> Recipe:
    section = tiny.method_section(name, **UNCOUPLED.get(name, {}))
    return tiny.recipe({"method": section}, EXACT, changes)


def run_alone(recipe: Recipe, folder: Path) -> Path:
    tiny.child_run(recipe.dump(), folder, None, 5.0, None, None)
    return folder


def test_two_ranks_give_what_one_process_gives(tmp_path):
    """Every method there is; the second rank is killed if it ever writes anything where the runs are."""
    runs = tmp_path / "together"
    jobs = [Job(recipe_of(name), runs / name, runs / "trunks") for name in methods]
    assert together(jobs, kills={1: Kill("files", 1)}) == [(0, [""] * len(jobs))] * 2
    for name in methods:
        assert_alike(run_alone(recipe_of(name), tmp_path / "alone" / name), runs / name)
        assert events(runs / name) == events(tmp_path / "alone" / name)


def test_a_trunk_of_two_ranks_is_taken_by_two_ranks_only(tmp_path):
    trunks = tmp_path / "trunks"
    other = tiny.recipe(recipe_of("im").dump(), method={"align": ["none"]})
    jobs = [Job(recipe_of("im"), tmp_path / "first", trunks), Job(other, tmp_path / "second", trunks)]
    assert together(jobs) == [(0, ["", ""])] * 2
    assert "trunk from cache" in events(tmp_path / "second")
    assert (tmp_path / "first" / "results.json").exists()
    tiny.child_run(other.dump(), tmp_path / "alone", trunks, 5.0, None, None)
    assert "trunk from cache" not in events(tmp_path / "alone")
    machines = [read_json(tmp_path / name / "results.json")["machine"] for name in ("second", "alone")]
    assert machines[0] == machines[1] | {"ranks": "2"}


def test_a_batch_smaller_than_the_number_of_ranks(tmp_path):
    """Batches of 8 out of 18 images leave 2 for the last one."""
    names = ["im", "linear_probe"]
    jobs = [Job(recipe_of(name), tmp_path / "together" / name) for name in names]
    assert together(jobs, count=3) == [(0, [""] * len(jobs))] * 3
    for name in names:
        alone = run_alone(recipe_of(name), tmp_path / "alone" / name)
        assert_alike(alone, tmp_path / "together" / name, border=0)


@pytest.mark.parametrize("killed", [0, 1])
def test_one_rank_killed_and_gone_on_with_another_number(tmp_path, killed):
    """In the second epoch of the third task. The other rank notices and ends by itself."""
    recipe = recipe_of("im", method={"align": ["none", "lda"]})
    job = Job(recipe, tmp_path / "run", every=0.0)
    found = together([job], kills={killed: Kill("steps", 9)})
    assert found[killed][0] == KILLED
    code, met = found[1 - killed]
    assert code == 0
    assert "another rank has ended" in met[0]
    assert not (tmp_path / "run" / "results.json").exists()
    assert list(steps(tmp_path / "run"))[-1] == (2, "finetune", 0)
    if killed:
        run_alone(recipe, tmp_path / "run")
    else:
        assert together([job], count=3) == [(0, [""])] * 3
    assert events(tmp_path / "run").count("resumed") == 1
    assert_alike(run_alone(recipe, tmp_path / "alone"), tmp_path / "run")


def test_killed_and_gone_on_with_the_same_number_is_bit_equal(tmp_path):
    """Also with dropout."""
    recipe = tiny.recipe(method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]})
    jobs = [Job(recipe, tmp_path / name, every=0.0) for name in ("killed", "undisturbed")]
    assert together(jobs[:1], kills={1: Kill("batches", 4)})[1][0] == KILLED
    assert together(jobs) == [(0, ["", ""])] * 2
    assert events(tmp_path / "killed").count("resumed") == 1
    assert tiny.outcome(tmp_path / "killed") == tiny.outcome(tmp_path / "undisturbed")


def test_the_first_rank_decides_when_the_time_is_up(tmp_path):
    recipe = recipe_of("simplecil")
    jobs = [Job(recipe, tmp_path / "run", budget=[0.0, None]), Job(recipe, tmp_path / "run", budget=[None, 0.0])]
    assert together(jobs) == [(0, ["BudgetSpent: ", ""])] * 2
    assert_alike(run_alone(recipe, tmp_path / "alone"), tmp_path / "run")


def test_what_is_refused(tmp_path):
    """By all ranks alike: they can go on with another job afterwards."""
    couple = {
        "mos": {"name": "mos"},
        "macil": {"name": "macil"},
        "l2p": tiny.method_section("l2p", batch_vote=True),
        "vote": tiny.method_section("dualprompt", batch_vote=True),
        "reshape": tiny.method_section("dualprompt", reference_reshape=True),
    }
    jobs = [Job(tiny.recipe(method=section), tmp_path / name) for name, section in couple.items()]
    jobs += [
        Job(recipe_of("im", training={"loss": "lca"}), tmp_path / "loss"),
        Job([recipe_of("im"), recipe_of("im", seed=6)], tmp_path / "seeds"),
        Job([recipe_of("im"), recipe_of("im", data={"train_limit": 5})], tmp_path / "images"),
        Job(recipe_of("im", data={"source": "folder:nowhere"}), tmp_path / "nowhere"),
        Job(recipe_of("im", training={"lr": 1e30}), tmp_path / "diverged"),
        Job(recipe_of("simplecil"), tmp_path / "fine"),
        Job(recipe_of("finetune"), tmp_path / "fine"),
    ]
    (code, met), other = together(jobs)
    assert code == 0
    assert other == (code, met)
    options = [f"method.{name}" for name in ("orthogonality", "calibration", "batch_vote", "batch_vote")]
    for option, message in zip([*options, "method.reference_reshape", "training.loss"], met, strict=False):
        assert f"{option} lets the images of a batch influence each other" in message
    met = met[1:]
    for message in met[5:7]:
        assert "recipe, weights and images must be the same on all ranks, but differ from rank 0 on rank 1" in message
    assert "nowhere" in met[7]
    assert "training diverged in task 1" in met[8]
    assert met[9] == ""
    assert "holds a run of another recipe" in met[10]


def test_ranks_that_drift_apart_are_noticed(tmp_path):
    assert together([Job(recipe_of("finetune"), tmp_path / "run")], drifting=True)[0][1] == [
        "LcaError: the tensors being tuned must be the same on all ranks, but differ from rank 0 on rank 1"
    ]


def test_every_rank_draws_dropout_for_itself(make_extractor, make_task, make_tuning, make_setting):
    class Second(Ranks):
        rank = 1

    def loss(ranks: Ranks, dropout: float) -> float:
        setting = make_setting(tuning=make_tuning("lora", dropout=dropout))
        with patch.object(lca.training.loop, "current", lambda: ranks):
            training = FineTuning(setting)
            heads = GrowingHeads(setting.extractor.width, LinearOptions())
            return training.epoch(make_task(0, ("a", "b"), 6), 0, heads)["loss"]

    assert loss(Second(), 0.0) == loss(Ranks(), 0.0)
    assert loss(Second(), 0.5) != loss(Ranks(), 0.5)


def test_a_sweep_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["sweep", "demo"])
    assert "torchrun is for `lca run`" in str(result.exception)


def test_a_gpu_for_every_rank(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(LcaError, match="here are 1; use --nproc_per_node 1"), joined(torch.device("cuda")):
        pass
    with pytest.raises(LcaError, match="set device to cuda instead of cuda:0"), joined(torch.device("cuda:0")):
        pass


def test_torchrun_shows_everything_once(tmp_path):
    """The command as a user gives it, twice: the second time there is nothing left to do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m", "lca"]
    data = "data={source: digits, train_limit: 4, validation: 0.5, evaluate: validation}"
    command += ["run", "simplecil", "--out", "run", "--set", "device=cpu", "--set", data]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("results, table.md and accuracy.png are in run") == 1
    assert done.stderr.count("after task 5 of 5") == 1
    assert events(tmp_path / "run").count("started") == 1
    assert (tmp_path / "run" / "table.md").exists()
