"""Text for people: Markdown tables, and words that stay words in them."""

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts as a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def markdown_text(text: str) -> str:
    """Text that shows as it is in a Markdown table: no cell, code span, link or HTML of its own."""
    escaped = re.sub(r"([\\`|\[])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return " ".join(escaped.split())
