"""Numbers in documents come from files: every marked table is what its command prints."""

import re
import runpy
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from lca.cli import app

ROOT = Path(__file__).parent.parent
MARKED = re.compile(
    r"<!-- ((?:lca|python (?:benchmarks|docs|paper)/\w+\.py)(?: [^\n]+?)?) -->\n(.*?)<!-- end -->", re.DOTALL
)
DOCUMENTS = [ROOT / "README.md", ROOT / "benchmarks" / "NOTES.md", *sorted((ROOT / "docs").glob("*.md"))]


def printed(command):
    """What a command prints, run in the repository's root; what is no Markdown table is fenced."""
    program, *words = shlex.split(command)
    if program == "lca":
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        text = result.stdout
    else:
        text = printed_by_script(*words)
    return text if text.startswith(("|", "**")) else f"```\n{text}```\n"


def printed_by_script(path, *words):
    """Run in this process, for a fresh one takes seconds until it has imported torch."""
    places = patch.object(sys, "path", [str(ROOT / Path(path).parent), *sys.path])
    with places, patch.object(sys, "argv", [path, *words]), redirect_stdout(StringIO()) as shown:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    return shown.getvalue()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_marked_tables_are_what_the_command_prints(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command, table in MARKED.findall(document.read_text(encoding="utf-8")):
        assert table.strip() == printed(command).strip(), f"{document.name}: run `python tests/update_documents.py`"


def test_a_command_ends_with_its_line():
    text = "<!-- python paper/a.py -->\n<!-- end -->\n\n<!-- lca b --c 'd e' -->\n| f |\n<!-- end -->\n"
    assert MARKED.findall(text) == [("python paper/a.py", ""), ("lca b --c 'd e'", "| f |\n")]


def test_there_are_marked_tables():
    assert sum(len(MARKED.findall(path.read_text(encoding="utf-8"))) for path in DOCUMENTS) >= 5


def test_the_picture_of_the_rooms_is_what_the_imports_say():
    drawn = runpy.run_path(str(ROOT / "docs" / "rooms.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "rooms.svg").read_text(), "run `python docs/rooms.py --draw docs/rooms.svg`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document):
    named = set(re.findall(r"`((?:\w+/)+[\w-]+\.(?:py|md|yaml))`", document.read_text(encoding="utf-8")))
    roots = (ROOT, ROOT / "src" / "lca", ROOT / "benchmarks", document.parent)
    missing = {path for path in named if not any((root / path).exists() for root in roots)}
    assert not missing, document
