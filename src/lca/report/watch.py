"""A run in the terminal, while it runs or afterwards: everything comes from its log."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lca.errors import LcaError
from lca.report.terminal import spark
from lca.results.folder import FAILED, FINISHED, OPEN, RUNNING, STOPPED, RunFiles
from lca.results.packs import SweepCell, sweep_cells
from lca.results.reading import Run, short_name

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EVERY = 0.5
"""Seconds between two looks at the log."""
COLUMNS = 10
"""Tasks whose accuracies are shown, the latest."""
Event = Mapping[str, Any]


class Listener(Protocol):
    """Somebody else who wants every event of the log."""

    def take(self, event: Event) -> None: ...


class LogReader:
    """The lines of a file that grows. A line that is still being written is left for the next time; one that a kill cut
    off is left out."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0

    def new(self) -> Iterator[Event]:
        """What was added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                added = file.read()
        except FileNotFoundError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event


@dataclass
class RunState:
    """What a log has told so far. What a resumed run did again counts once."""

    tasks: int | None = None
    steps: dict[tuple[int, str, int], dict[str, float]] = field(default_factory=dict)
    """Seconds and what was measured, by task, phase and step, in the order they were done."""
    accuracies: dict[int, dict[str, float]] = field(default_factory=dict)
    """In per cent, by task and branch."""
    warnings: list[str] = field(default_factory=list)
    began: datetime | None = None
    last: datetime | None = None

    def take(self, event: Event) -> None:
        when = datetime.fromisoformat(event["time"])
        if event["event"] == "started":  # perhaps anew, after a run that failed before it saved anything
            self.tasks, self.began = event["tasks"], when
            self.steps.clear()
            self.accuracies.clear()
        elif event["event"] == "step":
            measured = {name: value for name, value in event.items() if isinstance(value, float)}
            place = (event["task"], event["phase"], event["step"])
            self.steps.pop(place, None)
            self.steps[place] = measured
        elif event["event"] == "evaluated":
            self.accuracies[event["task"]] = accuracies_of(event)
        elif event["event"] == "message" and event["level"] != "info":
            self.warnings.append(event["text"])
        self.began, self.last = self.began or when, when

    def take_results(self, run: Run) -> None:
        """What the results tell of a run whose log is not at hand."""
        self.tasks = len(run.results["data"]["task_sizes"])
        curves = {branch: run.metric(branch, "after_each_task")["sample_weighted"] for branch in run.branches}
        self.accuracies = {task: {name: curve[task] for name, curve in curves.items()} for task in range(self.tasks)}

    @property
    def finished_tasks(self) -> int:
        return len(self.accuracies)

    def seconds_left(self) -> float | None:
        """An estimate: the mean of the finished tasks for each of the others. None before the first is finished."""
        if not self.accuracies or self.tasks is None:
            return None
        spent = dict.fromkeys(self.accuracies, 0.0)
        for (task, _, _), measured in self.steps.items():
            if task in spent:
                spent[task] += measured["seconds"]
        begun = sum(each["seconds"] for (task, _, _), each in self.steps.items() if task not in spent)
        return max(sum(spent.values()) / len(spent) * (self.tasks - len(spent)) - begun, 0.0)


def accuracies_of(event: Event) -> dict[str, float]:
    """By branch. Logs of version 0.1 have them as texts, "NAME 97.3"."""
    if "accuracy" in event:
        return dict(event["accuracy"])
    pairs = (text.rpartition(" ") for text in event["accuracies"])
    return {name: float(value) for name, _, value in pairs}


def watch(folder: Path, console: "Console", *, once: bool = False, listeners: tuple[Listener, ...] = ()) -> RunState:
    """Show a run until it ends, or once."""
    run = _WatchedRun(folder, listeners)
    if not run.files.begun():
        raise LcaError(f"{folder} {'is no run folder' if folder.exists() else 'does not exist'}; `lca run` makes one")

    def look() -> Look:
        state = run.look()
        return Look(state, view(folder, run.told, state), [_line(state, run.told, phase=True)])

    _follow(look, console, once)
    return run.told


def watch_sweep(folder: Path, console: "Console", *, once: bool = False) -> None:
    """Show the cells of a sweep as long as one of them is running, or once."""
    runs: dict[Path, _WatchedRun] = {}

    def look() -> Look:
        cells = sweep_cells(folder)
        for cell in cells:
            if cell.folder is not None:
                runs.setdefault(cell.folder, _WatchedRun(cell.folder)).look()
        state = RUNNING if any(cell.state == RUNNING for cell in cells) else FINISHED
        told = [(cell, _told(cell, runs)) for cell in cells]
        lines = [
            f"{cell.label}, {short_name(cell.source)}, seed {cell.seed}: {_line(cell.state, so_far)}"
            for cell, so_far in told
        ]
        return Look(state, sweep_view(folder, told), lines)

    _follow(look, console, once)


class _WatchedRun:
    """A run folder and what it has told so far."""

    def __init__(self, folder: Path, listeners: tuple[Listener, ...] = ()) -> None:
        self.files, self.told, self._listeners = RunFiles(folder), RunState(), listeners
        self._reader = LogReader(self.files.log_file)

    def look(self) -> str:
        """Take what is new; gives how far the run is."""
        state = self.files.state()  # before the log: what is finished has written all of it
        for event in self._reader.new():
            for each in (self.told, *self._listeners):
                each.take(event)
        if not self.told.accuracies and (results := self.files.finished()) is not None:
            self.told.take_results(Run("", results))
        return state


def _line(state: str, told: RunState, *, phase: bool = False) -> str:
    """How far a run is, with the accuracies after its latest task."""
    parts = [state, *([f"{told.finished_tasks} of {told.tasks} tasks"] if told.tasks else [])]
    if phase and state == RUNNING and told.steps:
        task, name, _ = next(reversed(told.steps))
        parts.append(f"task {task + 1}, {name}")
    return ", ".join([*parts, *_latest_accuracies(told)])


def _latest_accuracies(told: RunState) -> list[str]:
    latest = told.accuracies[max(told.accuracies)] if told.accuracies else {}
    return [f"{branch} {value:.1f}" for branch, value in latest.items()]


def _told(cell: SweepCell, runs: Mapping[Path, _WatchedRun]) -> RunState:
    if cell.folder is not None:
        return runs[cell.folder].told
    told = RunState()
    if cell.state == FINISHED:
        told.take_results(Run(cell.label, cell.results))
    return told


class Look(NamedTuple):
    """What there is to see at a moment."""

    state: str
    shown: "RenderableType"
    lines: Sequence[str]
    """The same of every run in a line, without what changes all the time."""


def _follow(look: Callable[[], Look], console: "Console", once: bool) -> None:
    """Show it anew in a terminal as long as it is running; elsewhere a line for every change."""
    from rich.live import Live

    seen = look()
    goes_on = seen.state == RUNNING and not once
    if goes_on and console.is_terminal:
        with Live(seen.shown, console=console, auto_refresh=False, transient=True) as live:
            while seen.state == RUNNING:
                time.sleep(EVERY)
                seen = look()
                live.update(seen.shown, refresh=True)
    elif goes_on:
        console.print(seen.shown)
        while seen.state == RUNNING:
            time.sleep(EVERY)
            before, seen = seen, look()
            for line in seen.lines:
                if line not in before.lines:
                    console.print(line, soft_wrap=True)
    console.print(seen.shown)


# How it is shown


def view(folder: Path, state: RunState, how_far: str) -> "RenderableType":
    """Where the run is, how its losses go, and the accuracies so far."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines: list[Any] = [Text.assemble((str(folder), "bold"), f"  {_recipe(folder)}"), _where(state, how_far)]
    if state.tasks:
        bar = Table.grid(padding=(0, 1))
        done = state.finished_tasks
        bar.add_row(ProgressBar(total=state.tasks, completed=done, width=40), f"{done} of {state.tasks} tasks")
        lines.append(bar)
    if state.steps:
        lines += ["", f"task {_latest(state) + 1}", _phases(state)]
    if state.accuracies:
        lines += ["", "accuracy on all classes seen so far, after each task (per cent)", _accuracies(state)]
    lines += [Text(f"warning: {text}", style="yellow") for text in state.warnings[-3:]]
    return Group(*lines)


STYLES = {RUNNING: "green", FINISHED: "bold green", STOPPED: "yellow", FAILED: "red", OPEN: "dim"}


def sweep_view(folder: Path, cells: Sequence[tuple[SweepCell, RunState]]) -> "RenderableType":
    """How many cells are how far; of each its tasks, and the accuracies after the latest."""
    from rich.console import Group
    from rich.text import Text

    counts = Counter(cell.state for cell, _ in cells)
    line = ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])
    header = ("cell", "data", "seed", "state", "tasks", "accuracy so far (per cent)")
    table = _table(header, {"seed", "tasks"})
    for cell, told in cells:
        table.add_row(
            cell.label,
            short_name(cell.source),
            str(cell.seed),
            Text(cell.state, STYLES[cell.state]),
            f"{told.finished_tasks} of {told.tasks}" if told.tasks else "",
            ", ".join(_latest_accuracies(told)),
        )
    return Group(Text.assemble((str(folder), "bold"), f"  {line}"), "", table)


def _recipe(folder: Path) -> str:
    try:
        recipe = RunFiles(folder).stored_recipe()
        return f"{recipe['method']['name']} on {recipe['data']['source']}, seed {recipe['seed']}"
    except (KeyError, TypeError):
        return ""


def _where(state: RunState, how_far: str) -> Any:
    from rich.text import Text

    parts: list[Any] = [(how_far, STYLES[how_far])]
    if how_far == STOPPED:
        parts.append(": nothing runs in this folder; the command that began the run goes on with it")
    elif how_far == RUNNING and state.steps:
        task, phase, step = next(reversed(state.steps))
        parts.append(f": task {task + 1}, {phase}, {_count(step + 1, _usual(state, phase))}")
        if (left := state.seconds_left()) is not None:
            parts.append(f", about {_time(left)} left")
    elif how_far == FINISHED and not state.began:
        parts.append("; its log is not at hand, so there are no losses and times")
    if state.began and state.last:
        parts.append(
            f"; {_time((state.last - state.began).total_seconds())} from the first to the last line of its log"
        )
    return Text.assemble(*parts)


def _usual(state: RunState, phase: str) -> int | None:
    """Steps of a phase in earlier tasks; None in the first."""
    earlier = (step + 1 for task, name, step in state.steps if name == phase and task < _latest(state))
    return max(earlier, default=None)


def _latest(state: RunState) -> int:
    """The task of the last step."""
    return next(reversed(state.steps))[0]


def _count(done: int, usual: int | None) -> str:
    return f"step {done}" if usual is None else f"step {done} of {max(done, usual)}"


def _phases(state: RunState) -> Any:
    """Every phase of the latest task: its steps, their time, and the course of the losses."""
    table, current = _table(("phase", "steps", "s per step", "loss", "other"), {"steps", "s per step"}), _latest(state)
    phases: dict[str, list[dict[str, float]]] = {}
    for (task, phase, _), measured in state.steps.items():
        if task == current:
            phases.setdefault(phase, []).append(measured)
    for phase, steps in phases.items():
        losses = [each["loss"] for each in steps if "loss" in each]
        top = max(losses, default=0.0) or 1.0
        course = spark([100 * value / top for value in losses[-24:]]) + f" {losses[-1]:.4f}" if losses else ""
        others = ", ".join(
            f"{name} {value:.3g}" for name, value in steps[-1].items() if name not in {"loss", "seconds"}
        )
        seconds = sum(each["seconds"] for each in steps) / len(steps)
        table.add_row(phase, str(len(steps)), f"{seconds:.2f}", course, others)
    return table


def _accuracies(state: RunState) -> Any:
    """Accuracy on all classes seen so far: a row for each branch, a column for each of the latest tasks."""
    tasks = sorted(state.accuracies)[-COLUMNS:]
    numbers = [str(task + 1) for task in tasks]
    table = _table(["classifier", *numbers], numbers)
    for branch in state.accuracies[tasks[-1]]:
        values = [state.accuracies[task].get(branch) for task in tasks]
        table.add_row(branch, *("-" if value is None else f"{value:.1f}" for value in values))
    return table


def _table(header: Iterable[str], right: Collection[str]) -> Any:
    """A table without lines, some of its columns to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
