"""A run in the terminal, while it runs or afterwards: everything comes from its log."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lca.errors import LcaError
from lca.report.terminal import spark
from lca.results.folder import FAILED, FINISHED, OPEN, RUNNING, STOPPED, RunFiles
from lca.results.packs import SweepCell, sweep_cells
from lca.results.reading import Run, short_name
from lca.text import number

EVERY = 0.5
"""Seconds between two looks at the log."""
COLUMNS = 10
"""Tasks whose accuracies are shown, the latest."""
STYLES = {RUNNING: "green", FINISHED: "bold green", STOPPED: "yellow", FAILED: "red", OPEN: "dim"}
Event = Mapping[str, Any]
Listener = Callable[[Event], None]
"""Somebody else who wants every event of the log."""


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
    def progress(self) -> str:
        return f"{len(self.accuracies)} of {self.tasks} tasks" if self.tasks else ""

    @property
    def latest(self) -> tuple[int, str, int]:
        """Task, phase and number of the last step."""
        return next(reversed(self.steps))

    def latest_accuracies(self) -> list[str]:
        latest = self.accuracies[max(self.accuracies)] if self.accuracies else {}
        return [f"{branch} {value:.1f}" for branch, value in latest.items()]

    def seconds_left(self) -> float | None:
        """An estimate: the mean of the finished tasks for each of the others. None before the first is finished."""
        if not self.accuracies or self.tasks is None:
            return None
        seconds: dict[int, float] = defaultdict(float)
        for (task, _, _), measured in self.steps.items():
            seconds[task] += measured["seconds"]
        spent = [seconds.pop(task, 0.0) for task in self.accuracies]
        return max(fmean(spent) * (self.tasks - len(spent)) - sum(seconds.values()), 0.0)


def accuracies_of(event: Event) -> dict[str, float]:
    """By branch. Logs of version 0.1 have them as texts, "NAME 97.3"."""
    if "accuracy" in event:
        return dict(event["accuracy"])
    pairs = (text.rpartition(" ") for text in event["accuracies"])
    return {name: float(value) for name, _, value in pairs}


class Look(NamedTuple):
    """What there is to see at a moment."""

    state: str
    shown: RenderableType
    lines: Sequence[str]
    """The same of every run in a line, without what changes all the time."""


def watch(folder: Path, console: Console, *, once: bool = False, listeners: Sequence[Listener] = ()) -> RunState:
    """Show a run until it ends, or once."""
    run = _WatchedRun(folder, listeners)
    if not run.files.begun():
        raise LcaError(f"{folder} {'is no run folder' if folder.exists() else 'does not exist'}; `lca run` makes one")

    def look() -> Look:
        state = run.look()
        phase = ""
        if state == RUNNING and run.told.steps:
            task, name, _ = run.told.latest
            phase = f"task {task + 1}, {name}"
        return Look(state, _view(folder, run.told, state), [_line(state, run.told, phase)])

    _follow(look, console, once)
    return run.told


def watch_sweep(folder: Path, console: Console, *, once: bool = False) -> None:
    """Show the cells of a sweep as long as one of them is running, or once."""
    runs: dict[Path, _WatchedRun] = {}

    def told(cell: SweepCell) -> RunState:
        if cell.folder is not None:
            run = runs.setdefault(cell.folder, _WatchedRun(cell.folder))
            run.look()
            return run.told
        state = RunState()
        if cell.state == FINISHED:
            state.take_results(Run(cell.label, cell.results))
        return state

    def look() -> Look:
        cells = [(cell, told(cell)) for cell in sweep_cells(folder)]
        state = RUNNING if any(cell.state == RUNNING for cell, _ in cells) else FINISHED
        lines = [
            f"{cell.label}, {short_name(cell.source)}, seed {cell.seed}: {_line(cell.state, so_far)}"
            for cell, so_far in cells
        ]
        return Look(state, _sweep_view(folder, cells), lines)

    _follow(look, console, once)


class _WatchedRun:
    """A run folder and what it has told so far."""

    def __init__(self, folder: Path, listeners: Sequence[Listener] = ()) -> None:
        self.files, self.told = RunFiles(folder), RunState()
        self._reader, self._listeners = LogReader(self.files.log_file), (self.told.take, *listeners)

    def look(self) -> str:
        """Take what is new; gives how far the run is."""
        state = self.files.state()  # before the log: what is finished has written all of it
        for event in self._reader.new():
            for take in self._listeners:
                take(event)
        if not self.told.accuracies and (results := self.files.finished()) is not None:
            self.told.take_results(Run("", results))
        return state


def _line(state: str, told: RunState, phase: str = "") -> str:
    """How far a run is, with the accuracies after its latest task."""
    return ", ".join(filter(None, [state, told.progress, phase, *told.latest_accuracies()]))


def _follow(look: Callable[[], Look], console: Console, once: bool) -> None:
    """Show it anew in a terminal as long as it is running; elsewhere a line for every change."""
    seen = look()
    if seen.state == RUNNING and not once:
        if not console.is_terminal:
            console.print(seen.shown)
        shown = Live(seen.shown, console=console, auto_refresh=False, transient=True)
        with shown if console.is_terminal else nullcontext() as live:
            while seen.state == RUNNING:
                time.sleep(EVERY)
                before, seen = seen, look()
                if live is not None:
                    live.update(seen.shown, refresh=True)
                    continue
                for line in seen.lines:
                    if line not in before.lines:
                        console.print(line, soft_wrap=True)
    console.print(seen.shown)


def _view(folder: Path, told: RunState, state: str) -> Group:
    """Where the run is, how its losses go, and the accuracies so far."""
    lines: list[RenderableType] = [Text.assemble((str(folder), "bold"), f"  {_recipe(folder)}"), _where(told, state)]
    if told.tasks:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=told.tasks, completed=len(told.accuracies), width=40), told.progress)
        lines.append(bar)
    if told.steps:
        lines += ["", f"task {told.latest[0] + 1}", _phases(told)]
    if told.accuracies:
        lines += ["", "accuracy on all classes seen so far, after each task (per cent)", _accuracies(told)]
    return Group(*lines, *(Text(f"warning: {text}", style="yellow") for text in told.warnings[-3:]))


def _sweep_view(folder: Path, cells: Sequence[tuple[SweepCell, RunState]]) -> Group:
    """How many cells are how far; of each its tasks, and the accuracies after the latest."""
    counts = Counter(cell.state for cell, _ in cells)
    line = ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])
    table = _table("cell", "data", ">seed", "state", ">tasks", "accuracy so far (per cent)")
    for cell, told in cells:
        table.add_row(
            cell.label,
            short_name(cell.source),
            str(cell.seed),
            Text(cell.state, STYLES[cell.state]),
            told.progress.removesuffix(" tasks"),
            ", ".join(told.latest_accuracies()),
        )
    return Group(Text.assemble((str(folder), "bold"), f"  {line}"), "", table)


def _recipe(folder: Path) -> str:
    try:
        recipe = RunFiles(folder).stored_recipe()
        return f"{recipe['method']['name']} on {recipe['data']['source']}, seed {recipe['seed']}"
    except (KeyError, TypeError):
        return ""


def _where(told: RunState, state: str) -> Text:
    parts = []
    if state == STOPPED:
        parts.append(": nothing runs in this folder; the command that began the run goes on with it")
    elif state == RUNNING and told.steps:
        parts.append(f": {_last_step(told)}")
        if (left := told.seconds_left()) is not None:
            parts.append(f", about {_time(left)} left")
    elif state == FINISHED and not told.began:
        parts.append("; its log is not at hand, so there are no losses and times")
    if told.began and told.last:
        parts.append(f"; {_time((told.last - told.began).total_seconds())} from the first to the last line of its log")
    return Text.assemble((state, STYLES[state]), *parts)


def _last_step(told: RunState) -> str:
    """Of how many, as earlier tasks tell; not in the first."""
    task, phase, step = told.latest
    usual = max((earlier + 1 for before, name, earlier in told.steps if name == phase and before < task), default=None)
    of = "" if usual is None else f" of {max(step + 1, usual)}"
    return f"task {task + 1}, {phase}, step {step + 1}{of}"


def _phases(told: RunState) -> Table:
    """Every phase of the latest task: its steps, their time, and the course of the losses."""
    table = _table("phase", ">steps", ">s per step", "loss", "other")
    phases: dict[str, list[dict[str, float]]] = defaultdict(list)
    for (task, phase, _), measured in told.steps.items():
        if task == told.latest[0]:
            phases[phase].append(measured)
    for phase, steps in phases.items():
        losses = [each["loss"] for each in steps if "loss" in each]
        top = max(losses, default=0.0) or 1.0
        course = spark([100 * value / top for value in losses[-24:]]) + f" {losses[-1]:.4f}" if losses else ""
        others = [f"{name} {value:.3g}" for name, value in steps[-1].items() if name not in {"loss", "seconds"}]
        seconds = fmean(each["seconds"] for each in steps)
        table.add_row(phase, str(len(steps)), f"{seconds:.2f}", course, ", ".join(others))
    return table


def _accuracies(told: RunState) -> Table:
    """Accuracy on all classes seen so far: a row for each branch, a column for each of the latest tasks."""
    tasks = sorted(told.accuracies)[-COLUMNS:]
    table = _table("classifier", *(f">{task + 1}" for task in tasks))
    for branch in told.accuracies[tasks[-1]]:
        table.add_row(branch, *(number(told.accuracies[task].get(branch)) for task in tasks))
    return table


def _table(*header: str) -> Table:
    """A table without lines; columns whose names begin with > stand to the right."""
    table = Table(box=None, pad_edge=False)
    for name in header:
        table.add_column(name.removeprefix(">"), justify="right" if name[0] == ">" else "left", overflow="fold")
    return table


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
