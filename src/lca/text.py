"""Text for people: tables, and words that stay words in them. Names of classes and files may hold anything; one
function for each output makes them safe: a terminal, JSON, a cell of a spreadsheet, Markdown."""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They show what follows in another order than it is in."""


def terminal_text(text: str) -> str:
    """The text with line breaks, control characters, those that turn the direction of others, and bytes that are no
    UTF-8 as escapes: safe to print and store."""
    return "".join(each.encode("unicode_escape").decode() if _commands(each) else each for each in text)


def terminal_lines(text: str) -> str:
    """The same of a text with several lines."""
    return "\n".join(map(terminal_text, text.split("\n")))


def json_text(content: Any, indent: int | None = None) -> str:
    """JSON that is safe on a terminal, too: control characters are escapes, which mean the same. NaN is refused."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    return "".join(f"\\u{ord(each):04x}" if each != "\n" and _commands(each) else each for each in text)


def csv_text(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: with an apostrophe before what begins one."""
    return f"'{text}" if text.lstrip()[:1] in set("=+-@") or text[:1] in set("\t\r") else text


def _commands(character: str) -> bool:
    return unicodedata.category(character) in _CONTROLS or character in _TURNING


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
    plain = terminal_text(" ".join(text.split()))
    return re.sub(r"([\\`|\[])", r"\\\1", plain.replace("&", "&amp;").replace("<", "&lt;"))


def count(number: int, singular: str, plural: str = "") -> str:
    """`1 class`, `3 classes`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
