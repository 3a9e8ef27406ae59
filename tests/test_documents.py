"""Numbers in documents come from files: every marked table is what its command prints."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lca.cli import app

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- lca (show .+?) -->\n(.*?)<!-- end -->", re.DOTALL)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_marked_tables_are_what_the_command_prints(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command, table in MARKED.findall(document.read_text(encoding="utf-8")):
        printed = CliRunner().invoke(app, shlex.split(command))
        assert printed.exit_code == 0
        assert table.strip() == printed.stdout.strip(), f"{document.name}: run `python tests/update_documents.py`"


def test_there_are_marked_tables():
    assert sum(len(MARKED.findall(path.read_text(encoding="utf-8"))) for path in DOCUMENTS) >= 5
