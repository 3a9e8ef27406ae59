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

from lca.progress import BarProgress, LineProgress, Progress, QuietProgress, choose_progress


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
