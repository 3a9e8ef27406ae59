"""Fill the marked tables of README and docs from the committed results: `python tests/update_documents.py`."""

import os

from test_documents import DOCUMENTS, MARKED, ROOT, printed


def main() -> None:
    os.chdir(ROOT)
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        filled = MARKED.sub(lambda match: f"<!-- {match[1]} -->\n{printed(match[1])}<!-- end -->", text)
        if filled != text:
            document.write_text(filled, encoding="utf-8")
            print(f"updated {document.relative_to(ROOT)}")


main()
