"""Radars: accuracy by kind of damage, an axis each."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lca.report.drawing import PALE, Look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes

FEWEST_KINDS = 3
"""With fewer axes a radar shows next to nothing."""


def shared_kinds(models: Sequence[Collection[str]]) -> list[str]:
    """The kinds of damage that all of them have, in the order of the first."""
    return [kind for kind in models[0] if all(kind in other for other in models)] if models else []


def radar(
    models: Mapping[str, Mapping[str, float]],
    title: str = "",
    size: tuple[float, float] = (8, 6),
    *,
    relative: bool = False,
    looks: Mapping[str, Look] | None = None,
) -> "Figure":
    """Accuracy by kind of damage, an axis each, one line a model; kinds that not all of them have are left out. Models
    without a look have one by their place.

    `relative`: of two models, what lies between them is filled, and every axis says by how many per cent of the second
    the first is better. The axes then begin where the difference can be seen.
    """
    kinds = shared_kinds([*models.values()])
    angles = [2 * math.pi * number / len(kinds) for number in range(len(kinds))]
    figure = new_figure(*size)
    from matplotlib.projections.polar import PolarAxes

    axes = PolarAxes(figure, 111)
    figure.add_subplot(axes)
    lines = {name: [values[kind] for kind in kinds] for name, values in models.items()}
    chosen = {name: looks[name] if looks else Look.of(number) for number, name in enumerate(lines)}
    for name, line in lines.items():
        axes.plot([*angles, *angles[:1]], [*line, *line[:1]], label=name, **{**chosen[name].curve, "linestyle": "-"})
        if not relative:
            axes.fill(angles, line, color=chosen[name].colour, alpha=0.08)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    names = [kind.replace("_", " ") for kind in kinds]
    if relative:
        names = [
            f"{name}\n{_change(*pair)}" for name, pair in zip(names, zip(*lines.values(), strict=True), strict=True)
        ]
    axes.set_xticks(angles, names, fontsize=8)
    for angle, label in zip(angles, axes.get_xticklabels(), strict=True):  # beside the circle, not on it
        sideways = math.sin(angle)
        label.set_horizontalalignment("center" if abs(sideways) < 0.05 else "left" if sideways > 0 else "right")
    axes.set_ylim(0, 100)
    if relative:
        ours, theirs = lines.values()
        _highlight_difference(axes, angles, ours, theirs, [look.colour for look in chosen.values()])
    axes.set_rlabel_position(360 / len(kinds) * (_free_sector(axes.get_yticks(), [*lines.values()]) + 0.5))
    axes.tick_params(axis="y", labelsize=8, labelcolor="grey")
    axes.set_title(title)
    what = " relative to ".join(lines) if relative else None
    figure.legend(title=what, title_fontsize=8, frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    return figure


def _free_sector(rings: Iterable[float], lines: Sequence[Sequence[float]]) -> int:
    """Between which axis and the next one the labels of the rings are farthest from the lines."""
    rings = [*rings]

    def distance(sector: int) -> float:
        ends = [value for line in lines for value in (line[sector], line[(sector + 1) % len(line)])]
        return min(max(ring - max(ends), min(ends) - ring) for ring in rings)

    return max(range(len(lines[0])), key=distance)


def _change(ours: float, theirs: float) -> str:
    return f"{100 * (ours - theirs) / theirs:+.1f} %" if theirs else "–"


def _highlight_difference(
    axes: "PolarAxes", angles: Sequence[float], ours: Sequence[float], theirs: Sequence[float], colours: Sequence[str]
) -> None:
    """Fill what lies between the two lines of a radar; names of axes have the colour of the better one."""
    there_and_back = [*angles, angles[0], angles[0], *reversed(angles)]
    axes.fill(there_and_back, [*ours, ours[0], theirs[0], *reversed(theirs)], color=PALE, alpha=0.4, linewidth=0)
    low, high = 10 * math.floor(min(*ours, *theirs) / 10), 10 * math.ceil(max(*ours, *theirs) / 10)
    low = max(low - 10, 0)
    axes.set_ylim(low, high)
    axes.set_yticks(range(low, high + 1, 10 if high - low <= 40 else 20)[1:])  # few, so that their labels are apart
    for name, one, two in zip(axes.get_xticklabels(), ours, theirs, strict=True):
        name.set_color("black" if one == two else colours[one < two])
