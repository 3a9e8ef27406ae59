"""Numbers in documents come from files: every marked table is what its command prints."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lca.cli import app

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- ((?:lca|python (?:benchmarks|docs)/\w+\.py)(?: .+?)?) -->\n(.*?)<!-- end -->", re.DOTALL)
DOCUMENTS = [ROOT / "README.md", ROOT / "benchmarks" / "NOTES.md", *sorted((ROOT / "docs").glob("*.md"))]


def printed(command):
    """What a command prints, run in the repository's root; what is no Markdown table is fenced."""
    program, *words = shlex.split(command)
    if program == "lca":
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        text = result.stdout
    else:
        text = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
    return text if text.startswith(("|", "**")) else f"```\n{text}```\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_marked_tables_are_what_the_command_prints(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command, table in MARKED.findall(document.read_text(encoding="utf-8")):
        assert table.strip() == printed(command).strip(), f"{document.name}: run `python tests/update_documents.py`"


def test_there_are_marked_tables():
    assert sum(len(MARKED.findall(path.read_text(encoding="utf-8"))) for path in DOCUMENTS) >= 5
