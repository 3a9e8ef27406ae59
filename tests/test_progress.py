"""What progress shows on a terminal and elsewhere."""

import io
import re
import time

from rich.console import Console

from lca.progress import BarProgress, LineProgress, Progress, choose_progress


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
    assert type(progress) is Progress
    assert list(progress.track([1, 2], "x", 2)) == [1, 2]
    progress.line("news")
    assert capsys.readouterr() == ("", "")
