"""What all figures share: the palette, how things are told apart, and how a figure is written, signed and embedded."""

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lca.errors import needs
from lca.files import hash_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito (2008)."""
MARKERS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")
HATCHES = ("", "////", "....", "xxxx")
PALE = PALETTE[-1]
BELOW: dict[str, Any] = {"frameon": False, "fontsize": 8, "loc": "outside lower center"}
"""A legend under the plots."""
READABLE = 8
"""CSS pixels of the smallest text on a page."""


@dataclass(frozen=True)
class Look:
    """How something is told from the others: by a colour of the palette and by its line, or its hatch as a bar."""

    place: int
    line: int = 0

    @classmethod
    def of(cls, number: int, line: int = 0) -> "Look":
        """Of the first, second and so on: all colours are taken before the next line is."""
        lines, place = divmod(number, len(PALETTE))
        return cls(place, line + lines)

    @property
    def colour(self) -> str:
        return PALETTE[self.place]

    @property
    def curve(self) -> dict[str, Any]:
        marker = MARKERS[(self.place + self.line) % len(MARKERS)]
        return {"color": self.colour, "marker": marker, "markersize": 5, "linestyle": LINES[self.line % len(LINES)]}

    @property
    def bar(self) -> dict[str, Any]:
        hatch = HATCHES[self.line % len(HATCHES)]
        return {"color": self.colour, "hatch": hatch, "edgecolor": "#ffffff", "linewidth": 0}


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches; it finds the places of what is in it by itself."""
    with needs("a figure", "matplotlib"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def band(axes: Any, across: Sequence[float], means: Sequence[float], spread: Sequence[float], colour: str) -> None:
    """A deviation to either side of a curve."""
    low, high = ([mean + sign * each for mean, each in zip(means, spread, strict=True)] for sign in (-1, 1))
    axes.fill_between(across, low, high, color=colour, alpha=0.12, linewidth=0)


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def save(figure: "Figure", path: Path, dpi: int = 150) -> None:
    """Write a figure in the format of its name; a PNG has its signature with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    signed = {"metadata": {"Signature": signature(figure)}} if path.suffix == ".png" else {}
    _render(figure, path, dpi=dpi, **signed)


def signature(figure: "Figure") -> str:
    """Hash of what a figure shows, before and after it is drawn: its data, words and colours. Pixels differ between
    releases of matplotlib where this does not."""
    from matplotlib.ticker import FixedLocator

    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    shown: list[Any] = [figure.get_size_inches(), figure.get_suptitle()]
    shown += [text.get_text() for legend in legends for text in (legend.get_title(), *legend.get_texts())]
    for axes in figure.axes:
        shown += [axes.get_visible(), axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        shown += [axes.get_xlim(), axes.get_ylim(), axes.get_xscale(), axes.get_yscale()]
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_locator(), FixedLocator):  # the others depend on the room there is
                shown += [text.get_text() for text in axis.get_ticklabels()]
        for text in axes.texts:
            shown += [text.get_text(), text.get_position(), text.get_color(), text.get_fontsize()]
        for line in axes.lines:
            shown += [line.get_xydata(), line.get_color(), line.get_linestyle(), line.get_linewidth()]
            shown += [line.get_marker(), line.get_markersize(), line.get_alpha()]
        for patch in axes.patches:
            outline = patch.get_patch_transform().transform_path(patch.get_path())
            shown += [outline.vertices, patch.get_facecolor(), patch.get_hatch()]
        for group in axes.collections:
            values, colours = group.get_array(), [group.get_facecolor(), group.get_edgecolor()]
            shown += [[outline.vertices for outline in group.get_paths()], group.get_offsets()]
            shown += colours if values is None else [values]
    return hash_json(_rounded(shown))


def _rounded(value: Any) -> Any:
    """What JSON takes, with five digits of every number."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if hasattr(value, "tolist"):
        return _rounded(value.tolist())
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def titled(figure: "Figure", title: str) -> "Figure":
    """The same figure to stand alone: with a title, and as much higher."""
    lines = textwrap.wrap(title, int(12 * figure.get_figwidth()))
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.16 * len(lines))
    figure.suptitle("\n".join(lines), fontsize=10)
    return figure


def file_name(*parts: str) -> str:
    """Words as the name of a file, without what file systems and pages give a meaning."""
    words = ("".join(letter if letter.isalnum() else "-" for letter in part)[:48] for part in parts)
    return re.sub("-+", "-", "-".join(words)).strip("-")


def inline_svg(figure: "Figure", name: str) -> str:
    """A figure as an element of an HTML page: ids of its own, black in the colour of the text around it, as large as
    its place but so large that it can be read, nothing that leads elsewhere."""
    buffer = io.StringIO()
    _render(figure, buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' (xmlns(:xlink)?|version)="[^"]*"', "", text, count=3)
    smallest = min(float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text))
    width = f' style="min-width: {72 * figure.get_figwidth() * READABLE / smallest:.0f}px"'
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf"\1{width}", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r' id="([^"]+)"', rf' id="{name}-\1"', text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', text).replace("xlink:href", "href")
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    return re.sub(r"(fill|stroke): #000000", r"\1: currentColor", text).strip()


def _render(figure: "Figure", target: Any, **options: Any) -> None:
    """Text stays text in SVG, the same figure gives the same file, and a dollar in a name is a dollar."""
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "lca", "text.parse_math": False}
    if options.get("format") == "svg" or str(target).endswith(".svg"):
        options["metadata"] = {"Date": None}
    with matplotlib.rc_context(style):
        figure.savefig(target, **options)
