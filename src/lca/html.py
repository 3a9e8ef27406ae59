"""Small pieces of HTML, as notebooks show them. Whatever is text is made safe here; cells are pieces of HTML."""

import base64
import html
import unicodedata
from collections.abc import Iterable, Sequence


def safe(text: object) -> str:
    """Text that shows as it is: no tag, no entity, no control character."""
    shown = "".join(each if unicodedata.category(each) not in ("Cc", "Cs", "Cf") else "\ufffd" for each in str(text))
    return html.escape(shown)


def bar(share: float, text: str) -> str:
    """A bar as long as a share of 1, with a text beside it."""
    width = round(100 * min(max(share, 0.0), 1.0))
    return (
        '<div style="display:flex;align-items:center;gap:.5em"><div style="width:8em;background:#8882">'
        f'<div style="width:{width}%;height:.8em;background:#3b7dd8"></div></div>{safe(text)}</div>'
    )


def picture(jpeg: bytes | None, name: str) -> str:
    """A small picture; its name where there is none."""
    if jpeg is None:
        return safe(name)
    content = base64.b64encode(jpeg).decode()
    return f'<img src="data:image/jpeg;base64,{content}" alt="{safe(name)}" title="{safe(name)}" style="height:64px">'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells, under a header of texts."""
    head, *lines = (
        "<tr>" + "".join(f'<{tag} style="text-align:left">{cell}</{tag}>' for cell in cells) + "</tr>"
        for tag, cells in [("th", map(safe, header)), *(("td", row) for row in rows)]
    )
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def titled(title: str, *parts: str) -> str:
    """A line of text over pieces of HTML."""
    return f"<div><p><b>{safe(title)}</b></p>{''.join(parts)}</div>"
