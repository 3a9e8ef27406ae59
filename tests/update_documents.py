"""Fill the marked tables of README and docs from the committed results: `python tests/update_documents.py`."""

import os
import shlex

from typer.testing import CliRunner

from lca.cli import app
from test_documents import DOCUMENTS, MARKED, ROOT


def main() -> None:
    os.chdir(ROOT)
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        filled = MARKED.sub(
            lambda match: (
                f"<!-- lca {match[1]} -->\n{CliRunner().invoke(app, shlex.split(match[1])).stdout}<!-- end -->"
            ),
            text,
        )
        if filled != text:
            document.write_text(filled, encoding="utf-8")
            print(f"updated {document.relative_to(ROOT)}")


main()
