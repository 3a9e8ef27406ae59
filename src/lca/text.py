"""Text for people: Markdown tables, and words that stay words in them."""

import re
from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts as a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def number(value: float | None) -> str:
    """With one digit; a dash where there is none."""
    return "-" if value is None else f"{value:.1f}"


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: bool = True) -> str:
    """Columns of equal width, to the right; names in the first stand at the left."""
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    lines = []
    for line in (header, *rows):
        cells = [f"{text:>{width}}" for text, width in zip(line, widths, strict=True)]
        if names:
            cells[0] = f"  {line[0]:<{widths[0]}}"
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)


def markdown_text(text: str) -> str:
    """Text that shows as it is in a Markdown table: no cell, code span, link or HTML of its own."""
    escaped = re.sub(r"([\\`|\[])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return " ".join(escaped.split())


def count(number: int, singular: str, plural: str = "") -> str:
    """`1 class`, `3 classes`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
