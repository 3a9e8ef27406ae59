"""Progress of anything over a few seconds: bars with rate and remaining time on a terminal and in notebooks, lines
elsewhere. A lesson has one estimate for all of it."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Protocol, TypeVar

from lca import html
from lca.arguments import expect
from lca.estimate import Estimate, Stage
from lca.text import terminal_lines

T = TypeVar("T")

_log = logging.getLogger("lca")


class Progress:
    """Silent progress, and the interface of the loud ones."""

    _place = ""
    _lesson: Estimate | None = None
    _pace: float | None = None

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """Pass the items on, showing how many went by."""
        with self.task(what, total) as advance:
            for item in items:
                yield item
                advance(1)

    @contextmanager
    def task(self, what: str, total: int) -> Iterator["Advance"]:
        """A piece of work of `total` units; the yielded function says how many were done. During a lesson it is a part
        of that."""
        lesson = self._lesson
        if lesson is None or lesson.thread != threading.get_ident():
            with self._task(self.placed(what), total) as advance:
                yield advance
            return
        lesson.begin_task(what)

        def advance_lesson(units: int) -> None:
            lesson.advance(units / max(total, 1))
            self._told(lesson)

        yield advance_lesson

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Tasks within are named after it: `task 2, epoch 1/5`."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def placed(self, what: str) -> str:
        """A name with the place it belongs to."""
        return f"{self._place}, {what}" if self._place else what

    @contextmanager
    def lesson(self, name: str, about: str) -> Iterator[None]:
        """All tasks within count towards one estimate, from where `plan` says what there is to do."""
        estimate = self._lesson = Estimate(name, self._pace)
        try:
            with self._showing(estimate, about):
                yield
        finally:
            self._pace, self._lesson = estimate.pace, None

    def plan(self, stages: Sequence[Stage]) -> None:
        """What a lesson consists of."""
        if self._lesson is not None:
            self._lesson.plan(stages)
            self._told(self._lesson)

    @contextmanager
    def stage(self, kind: str) -> Iterator[None]:
        """One stage of the plan, where there is a lesson."""
        yield
        if self._lesson is not None:
            self._lesson.end_stage(kind)
            self._told(self._lesson)

    def line(self, text: str) -> None:
        """One line of news."""

    def warning(self, text: str) -> None:
        """What a user must know even when progress is silent: a line, and in the log."""
        _log.warning("%s", text)
        self.line(text)

    @contextmanager
    def _task(self, what: str, total: int) -> Iterator["Advance"]:
        """Show a task outside of lessons."""
        yield lambda units: None

    @contextmanager
    def _showing(self, estimate: Estimate, about: str) -> Iterator[None]:
        """Show a lesson."""
        yield

    def _told(self, estimate: Estimate) -> None:
        """The estimate has changed."""


class Advance(Protocol):
    def __call__(self, units: int) -> None: ...


class QuietProgress(Progress):
    """No bars and no news, only what a user must know, on standard error."""

    def warning(self, text: str) -> None:
        super().warning(text)
        print(terminal_lines(text), file=sys.stderr, flush=True)


class LineProgress(Progress):
    """Plain lines on standard error: the first of a task after `first` seconds, then at most one every few seconds."""

    def __init__(self, every: float = 10.0, first: float = 1.5) -> None:
        self._every, self._first = every, min(first, every)
        self._due = 0.0

    @contextmanager
    def _task(self, what: str, total: int) -> Iterator[Advance]:
        began = time.monotonic()
        done, due = 0, began + self._first

        def advance(units: int) -> None:
            nonlocal done, due
            done += units
            now = time.monotonic()
            if now >= due and done < total:
                due = now + self._every
                rate = done / (now - began)
                self.line(f"{what}: {done}/{total}, {_pace(rate)}, {(total - done) / rate:.0f} s left")

        yield advance

    @contextmanager
    def _showing(self, estimate: Estimate, about: str) -> Iterator[None]:
        self.line(f"{estimate.name}: {about}")
        self._due = time.monotonic() + self._first
        yield

    def _told(self, estimate: Estimate) -> None:
        now = time.monotonic()
        if now >= self._due and (text := str(estimate)):
            self._due = now + self._every
            self.line(f"{estimate.name}: {text}" + f" ({estimate.what})" * bool(estimate.what))

    def line(self, text: str) -> None:
        print(terminal_lines(text), file=sys.stderr, flush=True)


class BarProgress(Progress):
    """Bars for a terminal. One is shown at a time: what another thread does meanwhile, or a task within a task, is not.

    What is done within `after` seconds shows no bar.
    """

    def __init__(self, after: float = 0.0) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, markup=False)
        self._after = after
        self._busy = threading.Lock()
        self._update: Callable[[], None] = _nothing

    @contextmanager
    def _task(self, what: str, total: int) -> Iterator[Advance]:
        from rich import progress as rich_progress

        columns = (
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[rate]}"),
            rich_progress.TimeRemainingColumn(),
        )
        with self._bars(columns) as show:
            if show is None:
                yield lambda units: None
                return
            bars, appear = show
            bar = bars.add_task(what, total=total, rate="")

            def advance(units: int) -> None:
                appear()
                bars.advance(bar, units)
                if speed := bars.tasks[0].speed:
                    bars.update(bar, rate=_pace(speed))

            yield advance

    @contextmanager
    def _showing(self, estimate: Estimate, about: str) -> Iterator[None]:
        from rich import progress as rich_progress
        from rich.text import Text

        class Left(rich_progress.ProgressColumn):
            """Counts down between two advances as well."""

            def render(self, task: rich_progress.Task) -> Text:
                return Text(str(estimate))

        text = rich_progress.TextColumn("{task.description}", markup=False)
        with self._bars((text, rich_progress.BarColumn(), Left())) as show:
            if show is None:
                yield
                return
            bars, appear = show
            bar = bars.add_task(f"{estimate.name}: {about}", total=1.0)

            def update() -> None:
                appear()
                what = estimate.what or about
                bars.update(bar, completed=estimate.share, description=f"{estimate.name}: {what}")

            self._update = update
            try:
                yield
            finally:
                self._update = _nothing

    def _told(self, estimate: Estimate) -> None:
        self._update()

    @contextmanager
    def _bars(self, columns: Sequence[Any]) -> Iterator[tuple[Any, Callable[[], None]] | None]:
        """rich's bars, and what lets them appear when it is time to; None while others are shown."""
        from rich import progress as rich_progress

        if not self._busy.acquire(blocking=False):
            yield None
            return
        began, shown = time.monotonic(), False
        bars = rich_progress.Progress(
            *columns,
            console=self._console,
            transient=True,
            redirect_stdout=False,  # rich would send what is printed to the bars' console, which is standard error
            redirect_stderr=False,
        )
        with ExitStack() as stack:
            stack.callback(self._busy.release)

            def appear() -> None:
                nonlocal shown
                if not shown and time.monotonic() - began >= self._after:
                    shown = True
                    stack.enter_context(bars)

            if not self._after:
                appear()
            yield bars, appear

    def line(self, text: str) -> None:
        self._console.print(terminal_lines(text), highlight=False)


class NotebookProgress(Progress):
    """A bar below the cell of a notebook, which goes when the work is done. What is done within `after` seconds shows
    none."""

    def __init__(self, after: float = 0.5, every: float = 0.3) -> None:
        self._after, self._every = after, every
        self._bar: _NotebookBar | None = None

    @contextmanager
    def _task(self, what: str, total: int) -> Iterator[Advance]:
        bar, done = _NotebookBar(self._after, self._every), 0

        def advance(units: int) -> None:
            nonlocal done
            done += units
            bar.show(done / max(total, 1), f"{what}: {done}/{total}")

        try:
            yield advance
        finally:
            bar.end()

    @contextmanager
    def _showing(self, estimate: Estimate, about: str) -> Iterator[None]:
        self._bar = bar = _NotebookBar(self._after, self._every)
        try:
            yield
        finally:
            self._bar = None
            bar.end()

    def _told(self, estimate: Estimate) -> None:
        if self._bar is not None:
            self._bar.show(estimate.share, ", ".join(filter(None, [estimate.name, estimate.what, str(estimate)])))

    def line(self, text: str) -> None:
        print(text, flush=True)


class _NotebookBar:
    """One display of a notebook, changed in place."""

    def __init__(self, after: float, every: float) -> None:
        self._due, self._every = time.monotonic() + after, every
        self._handle: Any = None

    def show(self, share: float, text: str) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every
        self._put(html.bar(share, text))

    def end(self) -> None:
        if self._handle is not None:
            self._put("")

    def _put(self, content: str) -> None:
        display: Any = import_module("IPython.display")  # who is in a notebook has it, and it has no types
        if self._handle is None:
            self._handle = display.display(display.HTML(content), display_id=True)
        else:
            self._handle.update(display.HTML(content))


def _nothing() -> None:
    return


def _pace(rate: float) -> str:
    """Units a second, or seconds a unit where that is longer."""
    return f"{rate:.0f}/s" if rate >= 1 else f"{1 / rate:.0f} s each"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython on a terminal has none."""
    python = sys.modules.get("IPython")
    return python is not None and getattr(python.get_ipython(), "kernel", None) is not None


def progress_or_default(progress: Progress | bool | None) -> Progress:
    """What a library call shows: bars on a terminal and in a notebook and nothing elsewhere, unless it says what.
    `False` is silent, `True` means lines elsewhere."""
    if isinstance(progress, Progress):
        return progress
    expect("progress", progress, (bool, type(None)), "a Progress, True or False")
    if progress is False:
        return Progress()
    if in_notebook():
        return NotebookProgress()
    if sys.stderr is not None and sys.stderr.isatty():
        return BarProgress(after=0.5)
    return LineProgress() if progress else Progress()


def choose_progress(quiet: bool = False) -> Progress:
    """Bars on a terminal, lines elsewhere, only warnings when quiet."""
    if quiet:
        return QuietProgress()
    return BarProgress() if sys.stderr.isatty() else LineProgress()
