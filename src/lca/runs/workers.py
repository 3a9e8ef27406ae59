"""Worker processes beside this one: they share its threads, and none outlives it."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import torch

from lca.errors import LcaError
from lca.progress import Progress
from lca.runs.budget import BudgetSpent


@contextmanager
def beside(count: int, progress: Progress, work: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """So many processes that call `work(*arguments)` beside what is done here; they are waited for.

    They import the main program anew, so a script that starts them has its own work under `if __name__ == "__main__"`.
    """
    threads = torch.get_num_threads()
    share = max(1, threads // (count + 1))
    start = multiprocessing.get_context("spawn")  # neither CUDA nor torch's threads survive a fork
    workers = [start.Process(target=_work, args=(share, work, arguments)) for _ in range(count)]
    for worker in workers:
        worker.start()
    torch.set_num_threads(share)
    try:
        yield
    except BudgetSpent:  # it is theirs as well
        raise
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    finally:
        for worker in workers:
            worker.join()
        torch.set_num_threads(threads)
    if broken := [worker.exitcode for worker in workers if worker.exitcode]:
        progress.warning(f"{len(broken)} of {count} workers ended early, with exit code {broken[0]}")


def _work(threads: int, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """What a worker does. Whoever stops the sweep says so; a worker only ends."""
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        work(*arguments)
    except (BudgetSpent, KeyboardInterrupt):
        pass
    except LcaError as error:
        sys.exit(f"error: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
