"""Text for people: Markdown tables, and words that stay words in them."""

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts as a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    lines = []
    for first, *others in (header, *rows):
        cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"  {first:<{widths[0]}}", *cells]) + "\n")
    return "".join(lines)


def markdown_text(text: str) -> str:
    """Text that shows as it is in a Markdown table: no cell, code span, link or HTML of its own."""
    escaped = re.sub(r"([\\`|\[])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return " ".join(escaped.split())
