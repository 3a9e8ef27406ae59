"""Progress of anything over a few seconds: bars with rate and remaining time on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from lca.text import terminal_lines

T = TypeVar("T")

_log = logging.getLogger("lca")


class Progress:
    """Silent progress: the default for library calls, and the interface of the loud ones."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """Pass the items on, showing how many went by."""
        with self.task(what, total) as advance:
            for item in items:
                yield item
                advance(1)

    @contextmanager
    def task(self, what: str, total: int) -> Iterator["Advance"]:
        """A piece of work of `total` units; the yielded function says how many were done."""
        yield lambda units: None

    def line(self, text: str) -> None:
        """One line of news."""

    def warning(self, text: str) -> None:
        """What a user must know even when progress is silent: a line, and in the log."""
        _log.warning("%s", text)
        self.line(text)


class Advance(Protocol):
    def __call__(self, units: int) -> None: ...


class QuietProgress(Progress):
    """No bars and no news, only what a user must know, on standard error."""

    def warning(self, text: str) -> None:
        super().warning(text)
        print(terminal_lines(text), file=sys.stderr, flush=True)


class LineProgress(Progress):
    """Plain lines on standard error, at most one every few seconds for a running task."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every

    @contextmanager
    def task(self, what: str, total: int) -> Iterator[Advance]:
        began = last = time.monotonic()
        done = 0

        def advance(units: int) -> None:
            nonlocal done, last
            done += units
            now = time.monotonic()
            if now - last >= self._every and done < total:
                last = now
                rate = done / (now - began)
                self.line(f"{what}: {done}/{total}, {_pace(rate)}, {(total - done) / rate:.0f} s left")

        yield advance

    def line(self, text: str) -> None:
        print(terminal_lines(text), file=sys.stderr, flush=True)


class BarProgress(Progress):
    """Bars for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, markup=False)

    @contextmanager
    def task(self, what: str, total: int) -> Iterator[Advance]:
        from rich import progress as rich_progress

        columns = (
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[rate]}"),
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(
            *columns,
            console=self._console,
            transient=True,
            redirect_stdout=False,  # rich would send what is printed to the bars' console, which is standard error
            redirect_stderr=False,
        ) as bars:
            bar = bars.add_task(what, total=total, rate="")

            def advance(units: int) -> None:
                bars.advance(bar, units)
                if speed := bars.tasks[0].speed:
                    bars.update(bar, rate=_pace(speed))

            yield advance

    def line(self, text: str) -> None:
        self._console.print(terminal_lines(text), highlight=False)


def _pace(rate: float) -> str:
    """Units a second, or seconds a unit where that is longer."""
    return f"{rate:.0f}/s" if rate >= 1 else f"{1 / rate:.0f} s each"


def choose_progress(quiet: bool = False) -> Progress:
    """Bars on a terminal, lines elsewhere, only warnings when quiet."""
    if quiet:
        return QuietProgress()
    return BarProgress() if sys.stderr.isatty() else LineProgress()
