"""What progress shows on a terminal and elsewhere."""

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from lca.estimate import Stage
from lca.progress import (
    BarProgress,
    LineProgress,
    NotebookProgress,
    Progress,
    QuietProgress,
    choose_progress,
    progress_or_default,
)


def test_lines_where_there_is_no_terminal(capsys):
    assert isinstance(choose_progress(), LineProgress)
    progress = LineProgress(every=0.0)
    with progress.task("features", 4) as advance:
        time.sleep(0.01)
        advance(1)
        advance(3)
    progress.line("done")
    err = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"features: 1/4, \d+/s, \d+ s left", err[0])
    assert err[1:] == ["done"]


def test_what_takes_seconds_is_told_in_seconds(capsys, monkeypatch):
    monkeypatch.setattr("time.monotonic", iter([0.0, 26.0, 39.0]).__next__)
    with LineProgress().task("align", 10) as advance:
        advance(2)
        advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "align: 2/10, 13 s each, 104 s left",
        "align: 3/10, 13 s each, 91 s left",
    ]


def test_lines_are_rare(capsys):
    with LineProgress(every=60).task("features", 1000) as advance:
        for _ in range(999):
            advance(1)
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal_show_texts_as_they_are(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = choose_progress()
    assert isinstance(progress, BarProgress)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None, markup=progress._console._markup)
    progress._console = console
    with progress.task("align [/best]", 3) as advance:
        advance(3)
        progress.line("failed: [/tmp/a] is missing")
    assert "align [/best]" in stream.getvalue()
    assert "3/3" in stream.getvalue()
    assert "failed: [/tmp/a] is missing" in stream.getvalue()


def test_quiet_is_quiet(capsys):
    progress = choose_progress(quiet=True)
    assert isinstance(progress, QuietProgress)
    assert list(progress.track([1, 2], "x", 2)) == [1, 2]
    progress.line("news")
    assert capsys.readouterr() == ("", "")


PRINT_DURING_A_BAR = """
import sys, time
from lca.progress import BarProgress, choose_progress

progress = choose_progress()
assert isinstance(progress, BarProgress)
with progress.task("images", 3) as advance:
    for number in range(3):
        print('{"answer": %d}' % number, flush=True)
        advance(1)
        time.sleep(0.15)
    progress.warning("a warning")
"""


def test_what_is_printed_during_a_bar_arrives_on_standard_output():
    """With the bars on a terminal and the answers in a file: `lca predict MODEL FOLDER --json > answers`."""
    here, terminal = pty.openpty()
    shown = bytearray()

    def read_terminal() -> None:
        while True:
            try:
                piece = os.read(here, 4096)
            except OSError:  # how Linux says that the other side is closed
                return
            if not piece:
                return
            shown.extend(piece)

    reader = threading.Thread(target=read_terminal, daemon=True)
    reader.start()
    result = subprocess.run(
        [sys.executable, "-c", PRINT_DURING_A_BAR],
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=60,
        check=True,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(terminal)
    reader.join(10)
    os.close(here)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"answer": number} for number in range(3)]
    assert b"images" in shown
    assert b"answer" not in shown
    assert b"a warning" in shown


@pytest.mark.parametrize("kind", [QuietProgress, LineProgress, BarProgress])
def test_a_warning_is_logged_and_printed_even_when_quiet(kind, capsys, caplog):
    kind().warning("100 % of [/these] images")
    assert caplog.record_tuples == [("lca", logging.WARNING, "100 % of [/these] images")]
    assert capsys.readouterr() == ("", "100 % of [/these] images\n")


def test_a_warning_to_a_library_call_is_logged_alone(capsys, caplog):
    Progress().warning("100 % of these images")
    assert caplog.record_tuples == [("lca", logging.WARNING, "100 % of these images")]
    assert capsys.readouterr() == ("", "")


def test_a_warning_to_a_library_call_is_shown_by_default():
    script = "from lca.progress import Progress; Progress().warning('look here')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (result.stdout, result.stderr) == ("", "look here\n")


IN_A_TERMINAL = """
import threading, time
from lca.estimate import Stage
from lca.progress import BarProgress, progress_or_default

progress = progress_or_default(None)
assert isinstance(progress, BarProgress)
with progress.task("too short", 2) as advance:
    advance(1)
progress._after = 0.0

def ask():
    with progress.task("another thread", 3) as advance:
        advance(1)

with progress.lesson("lesson 7", "20 images"):
    progress.plan([Stage("finetune", 20)] * 2)
    with progress.stage("finetune"), progress.task("epoch 1/2", 10) as advance:
        for _ in range(5):
            time.sleep(0.1)
            advance(1)
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        time.sleep(0.3)
"""


def on_a_terminal(script):
    """What a script shows on a terminal."""
    here, terminal = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", script], stderr=terminal, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    shown = bytearray()
    try:
        while piece := os.read(here, 4096):
            shown.extend(piece)
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(here)
    assert done.wait(60) == 0, shown
    return shown.decode()


def test_a_lesson_is_one_bar_on_a_terminal_whatever_others_do():
    shown = on_a_terminal(IN_A_TERMINAL)
    assert re.search(r"lesson 7: epoch 1/2 .*about 2 s, \d s left", shown)
    assert "too short" not in shown
    assert "another thread" not in shown


def test_a_library_call_shows_what_suits_the_place(monkeypatch):
    assert type(progress_or_default(None)) is Progress, "no terminal"
    assert type(progress_or_default(True)) is LineProgress
    mine = QuietProgress()
    assert progress_or_default(mine) is mine
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert type(progress_or_default(None)) is BarProgress
    assert type(progress_or_default(False)) is Progress


def test_a_notebook_shows_a_bar_that_goes(monkeypatch):
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        assert type(progress_or_default(None)) is Progress, "IPython without a kernel"
        monkeypatch.setattr(shell, "kernel", object(), raising=False)
        monkeypatch.setattr(shell, "display_pub", CapturingDisplayPublisher(parent=shell))
        progress = progress_or_default(None)
        assert type(progress) is NotebookProgress
        with progress.task("too short", 2) as advance:
            advance(1)
        assert shell.display_pub.outputs == []
        progress = NotebookProgress(after=0, every=0)
        with progress.task("<features>", 2) as advance:
            advance(1)
        with progress.lesson("lesson 1", "2 images"):
            progress.plan([Stage("a", 1)])
            with progress.stage("a"), progress.task("b", 2) as advance:
                advance(1)
        told = [(each["data"]["text/html"], each["update"]) for each in shell.display_pub.outputs]
    finally:
        InteractiveShell.clear_instance()
    assert "&lt;features&gt;: 1/2" in told[0][0]
    assert told[1] == ("", True), "it goes"
    assert any("lesson 1, b, about 0 s, 0 s left" in content for content, _ in told[2:])
    assert told[-1] == ("", True)
