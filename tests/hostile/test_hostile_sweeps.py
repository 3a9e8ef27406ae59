"""Sweeps and exports beside others that are slow, wrong about the time, or killed."""

import os
import signal
import threading
import time

import pytest

import tiny
from lca.files import hold
from lca.models import export
from lca.progress import Progress
from lca.results.folder import RunFiles, SweepFiles
from lca.runs import sweep as sweeps
from lca.runs.sweep import expand, sweep

BASE = {**tiny.recipe(training={"epochs": 1}, data={"tasks": [5, 5], "train_limit": 4}).dump(),
        "method": {"name": "finetune"}}  # fmt: skip


class Told(Progress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def line(self, text):
        self.lines.append(text)


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch):
    monkeypatch.setattr(sweeps, "WAIT", 0.02)
    with tiny.tiny_backbone():
        yield


def test_a_sweep_waits_for_the_cells_of_another_process_and_takes_over_what_it_leaves(tmp_path):
    cells, told, held = expand({**BASE, "grid": {"seed": [1, 2]}}), Told(), threading.Event()

    def another():
        with hold(SweepFiles(tmp_path).running(cells[0].trunk), "busy"):
            held.set()
            while not any("waiting" in line for line in told.lines):
                time.sleep(0.01)

    thread = threading.Thread(target=another)
    thread.start()
    held.wait()
    packed = sweep(cells, tmp_path, progress=told)
    thread.join()
    assert [cell.state for cell in packed.cells] == ["finished", "finished"]
    assert [line.partition(":")[0] for line in told.lines if line.startswith(("cell", "wait"))] == [
        "cell 2 of 2",
        "waiting for 1 cell(s) that other processes run",
        "cell 1 of 2",
    ]


@pytest.mark.parametrize("years", [-1, 1])
def test_a_cell_that_failed_is_tried_again_whatever_the_time(years, tmp_path, monkeypatch):
    (cell,) = expand(BASE)
    failure = RunFiles(SweepFiles(tmp_path).cell(cell.folder)).failure
    failure.parent.mkdir(parents=True)
    failure.write_text('{"error": "x"}')
    then = time.time() + years * 365 * 86400
    os.utime(failure, (then, then))
    tries, run = [], sweeps.run

    def fails(*arguments, **options):
        tries.append(1)
        raise RuntimeError("once more")

    monkeypatch.setattr(sweeps, "run", fails)
    assert [each.state for each in sweep([cell], tmp_path).cells] == ["failed"]
    assert tries == [1]
    monkeypatch.setattr(sweeps, "run", run)
    packed = sweep([cell], tmp_path)
    assert [(each.state, each.error) for each in packed.cells] == [("finished", "")]
    assert not failure.exists()


def killed_export(folder):
    model = tiny.taught(tiny.classifier(tiny.recipe()), [{"0": 4, "1": 4}])
    save = export.torch.export.save

    def half(*arguments, **options):
        save(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    export.torch.export.save = half
    model.save(folder / "model")
    export.export_torch(model, folder / "a.pt2")


def test_what_a_killed_export_leaves_is_removed_by_the_next_and_what_a_living_one_writes_is_not(tmp_path):
    process = tiny.started(killed_export, tmp_path)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = tmp_path.glob(".a.pt2.*.tmp")
    assert (left / "a.pt2").stat().st_size
    (tmp_path / ".a.pt2.notes.tmp").mkdir()  # somebody else's
    other = tmp_path / ".a.pt2.11111111.tmp"
    model = tiny.classifier(tiny.recipe())
    model.load_state(type(model).load(tmp_path / "model").state())
    with hold(other, "busy"):
        export.export_torch(model, tmp_path / "a.pt2")
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"model", "a.pt2", "a.pt2.json", other.name, ".a.pt2.notes.tmp"}
    export.export_peft(model, tmp_path / "adapter")
    assert not list(tmp_path.glob(".adapter*"))
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    assert not (tmp_path / "adapter" / ".lock").exists()
