"""Figures, drawn with matplotlib in a palette that colour-blind readers can tell apart."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lca.report.drawing import BELOW, LINES, PALE, PALETTE, Look, band, new_figure, save, whole_numbers
from lca.results.classifiers import Classifier, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CROWDED = 10
"""Curves from which on the legend stands beside the plot."""
SMALL = (5.2, 3.4)
"""Inches of a figure that stays readable on a phone."""


def _new(height: float = SMALL[1]) -> tuple["Figure", "Axes"]:
    figure = new_figure(SMALL[0], height)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def accuracy_curves(rows: Sequence[Classifier], looks: Mapping[str, Look], path: Path, title: str) -> None:
    """Accuracy after each task, one curve a classifier."""
    crowded = len(rows) > CROWDED
    figure = new_figure(*((11, max(4.2, 0.2 * len(rows))) if crowded else (7, 4.2)))
    axes = figure.subplots()
    for row in rows:
        curve = row.curve()
        axes.plot(range(1, len(curve) + 1), curve, label=row.label, **looks[row.label].curve)
    axes.set(title=title, ylim=(0, 102))
    _over_tasks(axes, "accuracy on all classes seen so far (%)")
    beside = {"loc": "outside center right"} if crowded else {"loc": "outside lower center", "ncols": 2}
    figure.legend(frameon=False, fontsize=9, **beside)
    save(figure, path)


def named_curves(curves: Mapping[str, Sequence[Sequence[float]]], y: str, looks: Mapping[str, Look]) -> "Figure":
    """Of every classifier the curves of its seeds, as their mean with the standard deviation; the first eight have
    colours and names, the others are grey."""
    named = len(PALETTE)
    figure, axes = _new(SMALL[1] + 0.17 * min(len(curves), named))
    for number, (label, seeds) in enumerate(curves.items()):
        mean, tasks = [statistics.fmean(values) for values in zip(*seeds, strict=True)], range(1, len(seeds[0]) + 1)
        if number >= named:
            axes.plot(tasks, mean, color=PALE, alpha=0.35, linewidth=0.8, zorder=1)
            continue
        axes.plot(tasks, mean, label=label, **looks[label].curve)
        if len(seeds) > 1:
            band(
                axes,
                tasks,
                mean,
                [statistics.stdev(values) for values in zip(*seeds, strict=True)],
                looks[label].colour,
            )
    _over_tasks(axes, y)
    figure.legend(**BELOW, ncols=2 if max(map(len, curves)) <= 32 else 1)
    return figure


def heat_map(matrix: Sequence[Sequence[float]]) -> "Figure":
    """a_tj: a row for every time, a column for every task."""
    count = len(matrix)
    figure, axes = _new(min(SMALL[0], 1.2 + 0.42 * count))
    full = [[*row, *[math.nan] * (count - len(row))] for row in matrix]
    shown = axes.pcolormesh(full, cmap="cividis", vmin=0, vmax=100)
    for when, row in enumerate(matrix):
        for task, value in enumerate(row):
            colour, size = "#ffffff" if value < 55 else "#111111", 8 if count <= 10 else 5
            axes.text(task + 0.5, when + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=size, color=colour)
    tasks = range(0, count, max(1, count // 10))
    ticks, names = [task + 0.5 for task in tasks], [str(task + 1) for task in tasks]
    axes.set(xticks=ticks, xticklabels=names, xlabel="on task", yticks=ticks, yticklabels=names, ylabel="after task")
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes, label="accuracy (%)", shrink=0.9).outline.set_visible(False)
    return figure


def forgetting_by_task(matrix: Sequence[Sequence[float]], colour: str = PALETTE[0]) -> "Figure":
    """Every task right after it was learnt and at the end, joined by a line."""
    figure, axes = _new(min(6.0, 1.4 + 0.26 * len(matrix)))
    learnt, last = [row[-1] for row in matrix], matrix[-1]
    tasks = range(1, len(matrix) + 1)
    axes.hlines(tasks, last, learnt, color=PALE, linewidth=2, zorder=1)
    axes.scatter(
        learnt, tasks, marker="o", label="right after learning", zorder=2, facecolors="none", edgecolors=colour
    )
    axes.scatter(last, tasks, color=colour, marker="D", label="after the last task", zorder=3)
    axes.set(xlim=(-2, 102), xlabel="accuracy on the task (%)", ylabel="task")
    axes.invert_yaxis()
    whole_numbers(axes.yaxis)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(**BELOW, ncols=2)
    return figure


def reliability_diagram(bins: Sequence[Mapping[str, Any]], colour: str = PALETTE[0]) -> "Figure":
    """The share of right answers by the probability given with them; bars say how many answers there are."""
    figure, axes = _new()
    images = sum(each["images"] for each in bins)
    filled = [each for each in bins if each["images"]]
    middles = [(each["low"] + each["high"]) / 2 for each in filled]
    width = 0.9 * (bins[0]["high"] - bins[0]["low"])
    shares = [100 * each["images"] / images for each in filled]
    axes.bar(middles, shares, width, color=PALE, alpha=0.3, label="share of answers")
    axes.plot([0, 100], [0, 100], color=PALE, linestyle=":", label="calibrated")
    means, rights = ([each[key] for each in filled] for key in ("mean_probability", "accuracy"))
    sizes = [8 + 2 * share for share in shares]
    axes.scatter(means, rights, sizes, color=colour, label="right answers", zorder=3, clip_on=False)
    axes.set(xlabel="probability of the answer (%)", ylabel="%", xlim=(0, 100), ylim=(0, 102))
    axes.grid(alpha=0.3)
    figure.legend(**BELOW, ncols=3)
    return figure


def forest(differences: Mapping[str, Measured], looks: Mapping[str, Look]) -> "Figure":
    """Differences with their intervals, a line each; filled where the interval leaves out zero."""
    figure, axes = _new(1.1 + 0.26 * len(differences))
    axes.axvline(0, color=PALE, linewidth=1)
    for place, (label, each) in enumerate(differences.items()):
        colour = looks[label].colour
        if each.interval is not None:
            axes.hlines(place, *each.interval, color=colour, linewidth=1.5)
        axes.plot(each.mean, place, marker="o", color=colour, fillstyle="full" if each.clear else "none")
    axes.set_yticks(range(len(differences)), [_short(label) for label in differences], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("difference in average accuracy (points)")
    axes.grid(axis="x", alpha=0.3)
    return figure


def drift_curves(medians: Sequence[Sequence[float]], colour: str = PALETTE[0]) -> "Figure":
    """The median unknown score of every task's test images, from the time it was learnt on."""
    figure, axes = _new()
    last = len(medians)
    for task, values in enumerate(medians):
        shade = 0.25 + 0.75 * (1 - task / last)
        axes.plot(range(task + 1, last + 1), values, color=colour, alpha=shade, marker="o", markersize=3)
        if task == 0:
            axes.annotate("task 1", (last, values[-1]), (4, 0), textcoords="offset points", fontsize=8)
    _over_tasks(axes, "median distance to the nearest class")
    axes.set_ylim(bottom=0)
    return figure


def _over_tasks(axes: "Axes", y: str) -> None:
    axes.set(xlabel="tasks learnt", ylabel=y)
    whole_numbers(axes.xaxis)
    axes.grid(alpha=0.3)


def _short(text: str, longest: int = 32) -> str:
    """Without its middle, where it is long: names often differ at their ends."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[: longest - half - 1]}…{text[-half:]}"


Bars = Mapping[str, Mapping[str, tuple[float, float | None]]]
"""Mean and deviation by label and classifier."""


def grouped_bars(panels: Mapping[str, Bars], x: str, looks: Mapping[str, Look]) -> "Figure":
    """Bars that lie: in every panel a group for each label, in it a bar for each classifier, with its name and look."""
    first, *_ = panels.values()
    counts = [len(bars) for bars in first.values()]
    starts = [sum(counts[:number]) + 0.8 * number for number in range(len(counts))]
    columns = 3 if len(panels) == 3 else min(len(panels), 2)
    lines = math.ceil(len(panels) / columns)
    height = 0.5 + 0.15 * (sum(counts) + 0.8 * len(counts))
    figure = new_figure(1.15 * SMALL[0], lines * height + 0.3)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False).flat
    for (title, bars), axes in zip(panels.items(), grid, strict=False):
        top = max(mean + (deviation or 0) for own in bars.values() for mean, deviation in own.values()) or 1.0
        for start, own in zip(starts, bars.values(), strict=True):
            for place, (name, (mean, deviation)) in enumerate(own.items()):
                axes.barh(start + place, mean, 0.92, label=name, **looks[name].bar)
                if deviation:
                    axes.errorbar(mean, start + place, xerr=deviation, color=PALE, capsize=1.5, linewidth=1)
                end = mean + (deviation or 0) + 0.02 * top
                axes.text(end, start + place, f"{mean:.1f}", fontsize=7, va="center_baseline")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(x, fontsize=8)
        axes.set_xlim(0, 1.25 * top)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.tick_params(axis="y", length=0)
    for axes in grid:
        axes.set_visible(False)
    axes = figure.axes[0]
    ticks = [start + place for start, count in zip(starts, counts, strict=True) for place in range(count)]
    axes.set_yticks(ticks, [_short(name, 26) for bars in first.values() for name in bars])
    axes.set_ylim(sum(counts) + 0.8 * len(counts) - 0.9, -0.9)
    return figure


def _legend(figure: "Figure", order: Iterable[str]) -> None:
    """Below a figure, what its first axes show, every label once."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    shown = {label: found[label] for label in order}
    names = [_short(label) for label in shown]
    columns = 5 if sum(map(len, shown)) < 40 else 3 if max(map(len, shown)) <= 20 else 2
    figure.legend(shown.values(), names, **BELOW, ncols=columns)


Points = Mapping[float, tuple[float, float | None]]
"""Mean and deviation by number."""


def over_numbers(
    panels: Mapping[str, tuple[Mapping[str, Points], Mapping[str, tuple[float, float | None]]]],
    name: str,
    looks: Mapping[str, Look],
) -> "Figure":
    """In every panel lines over a number, with deviations, and what does not depend on it as broken level lines.

    The axis is logarithmic where the numbers span a decade or more; zero then stands apart at the left.
    """
    numbers = sorted({number for lines, _ in panels.values() for points in lines.values() for number in points})
    positive = [number for number in numbers if number > 0]
    logarithmic = numbers[0] >= 0 and positive[-1] >= 10 * positive[0]

    def place(number: float) -> float:
        if not logarithmic:
            return number
        return math.log10(number) if number else math.log10(positive[0]) - 0.12 * (1 + len(positive))

    apart = 0.008 * (place(numbers[-1]) - place(numbers[0]))
    figure = new_figure(1.15 * SMALL[0], 0.9 * SMALL[1] * len(panels))
    for axes, (title, (lines, levels)) in zip(
        figure.subplots(len(panels), squeeze=False).flat, panels.items(), strict=True
    ):
        for number, (label, points) in enumerate(lines.items()):
            joined = [each for each in sorted(points) if each or not logarithmic]
            for part, look in ((joined, {}), ([0.0] if len(joined) < len(points) else [], {"linestyle": "none"})):
                means, deviations = ([points[each][what] for each in part] for what in (0, 1))
                spread = [each or 0.0 for each in deviations] if any(deviations) else None
                shown = label if part is joined else None
                across = [place(each) + apart * (number - (len(lines) - 1) / 2) for each in part]
                axes.errorbar(across, means, spread, label=shown, capsize=2, **{**looks[label].curve, **look})
        for label, (mean, deviation) in levels.items():
            colour, broken = looks[label].colour, LINES[1:]
            axes.axhline(mean, label=label, color=colour, linestyle=broken[looks[label].place % len(broken)])
            if deviation:
                axes.axhspan(mean - deviation, mean + deviation, color=colour, alpha=0.1, linewidth=0)
        axes.set_xticks([*map(place, numbers)], [f"{number:g}" for number in numbers], fontsize=8)
        axes.set(xlabel=name, ylabel=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    _legend(figure, [label for each in next(iter(panels.values())) for label in each])
    return figure
