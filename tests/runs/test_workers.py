"""The processes of a sweep beside the one that was started."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from lca.errors import LcaError
from lca.progress import Progress
from lca.runs.budget import BudgetSpent
from lca.runs.sweep import read_sweep, sweep
from lca.runs.workers import _work, beside

CORES = """
import multiprocessing, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.cpu_count = lambda: 64
import torch
from lca.progress import Progress
from lca.runs.workers import beside

class Worker:
    exitcode = 0
    def __init__(self, target, args):
        print(args[0])
    def start(self):
        pass
    join = start

multiprocessing.get_context("spawn").__class__.Process = Worker
with beside(2, Progress(), print):
    print(torch.get_num_threads())
"""

KILLED = """
import multiprocessing, time
from lca.progress import Progress
from lca.runs.workers import beside

with beside(1, Progress(), time.sleep, 600):
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be kept to some cores here")
def test_workers_share_the_cores_they_may_use_not_those_of_the_machine():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    found = subprocess.run([sys.executable, "-c", CORES], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "1", "1"]


def test_no_worker_outlives_the_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)  # it is there
        parent.kill()
    deadline = time.monotonic() + 120
    while _alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # nobody here waits for what is nobody's child
    except FileNotFoundError:
        return False


def test_what_stops_the_work_stops_the_workers():
    threads, began, during = torch.get_num_threads(), time.monotonic(), []

    def stop():
        during.append(torch.get_num_threads())
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), beside(1, Progress(), time.sleep, 600):
        stop()
    assert time.monotonic() - began < 120
    assert not multiprocessing.active_children()
    assert (during, torch.get_num_threads()) == ([max(1, threads // 2)], threads)


@pytest.mark.parametrize(
    ("error", "ending"), [(BudgetSpent(), None), (KeyboardInterrupt(), None), (LcaError("full"), "error: full")]
)
def test_a_worker_ends_without_a_traceback(monkeypatch, error, ending):
    def work():
        raise error

    monkeypatch.setattr("lca.runs.workers._end_with_parent", lambda: None)
    threads = torch.get_num_threads()
    try:
        if ending is None:
            _work(threads, work, ())
        else:
            with pytest.raises(SystemExit, match=ending):
                _work(threads, work, ())
    finally:
        torch.set_num_threads(threads)


def test_workers_share_the_cells_of_a_sweep_started_from_python(tmp_path, monkeypatch):
    """This process waits with its first cell until a worker has finished one."""
    from lca.runs import sweep as sweeps

    original = sweeps.run

    def after_the_other(*arguments, **options):
        until = time.monotonic() + 120
        while not list(tmp_path.glob("cells/*/results.json")) and time.monotonic() < until:
            time.sleep(0.1)
        return original(*arguments, **options)

    monkeypatch.setattr(sweeps, "run", after_the_other)
    data = "data={source: digits, train_limit: 4, validation: 0.5, evaluate: validation}"
    name, cells = read_sweep("simplecil", [data, "device=cpu"], ["seed=[1,2,3]"])
    assert (name, len(cells)) == ("simplecil", 3)
    news = Lines()
    packed = sweep(cells, tmp_path, progress=news, workers=2)
    assert [cell.state for cell in packed.cells] == ["finished"] * 3
    assert 1 <= sum(line.startswith("cell ") for line in news.lines) <= 2, "the worker ran the others"


class Lines(Progress):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def test_a_worker_that_is_killed_is_told(monkeypatch):
    news = Lines()
    news.warning = news.lines.append
    with beside(1, news, time.sleep, 600):
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    assert news.lines == ["1 of 1 workers ended early, with exit code -9"]
