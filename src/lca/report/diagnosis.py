"""A diagnosis as tables, plain or Markdown, and as a figure."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lca.evaluation.intervals import mean_and_deviation
from lca.report.drawing import MARKERS, PALETTE, band, new_figure, save, whole_numbers
from lca.report.looks import alignment_places
from lca.report.tables import Table
from lca.report.theory import number, titled_tables
from lca.results.measured import AS_TRAINED, Seeds, common

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND = """\
CKA, cosine: linear centred kernel alignment, and mean cosine of an image's features, under the backbone after a task
and after the first. Overlap: both error rates of a pair of classes together at the best threshold of z_i - z_j, on
their test images; as answered: at 0, which is what the answers do. Mean over pairs of classes.
"""
KINDS = {"within_tasks": "within a task", "between_tasks": "between tasks"}
COLUMNS = {"best": "overlap", "as_answered": "as answered"}
MEANS = [(column, kind) for kind in KINDS for column in COLUMNS]
HEADER = [f"{KINDS[kind]}: {COLUMNS[column]}" for column, kind in MEANS]
FLAT = 0.98
"""From here to 1 is shown of similarities at least: what hardly moves shall look so."""


def show(groups: Sequence[Seeds], markdown: bool) -> str:
    """The tables of what `lca diagnose` measured."""
    return titled_tables(groups, _tables, LEGEND, markdown)


def _tables(seeds: Seeds) -> dict[str, Table]:
    tasks, images = seeds.values("tasks"), common(seeds.values("images"))
    last = common(tasks[-1]["task"])
    found = {f"Backbone similarity to the first task's, {images} test images": _similarity(tasks)}
    found["Class overlap, mean over pairs of classes"] = _overlap(tasks)
    if len(seeds.runs) > 1:
        found[f"Class overlap after task {last}, one classifier less another"] = _less(tasks[-1])
    if any(run["pairs"] for run in seeds.runs):
        found[f"Pairs that overlap most after task {last}: overlap, as answered"] = _pairs(seeds)
    return found


def figures(groups: Sequence[Seeds], folder: Path) -> None:
    """diagnosis.png and .svg, or one of each for every data set."""
    for seeds in groups:
        name = "diagnosis" if len(groups) == 1 else "-".join(["diagnosis", *re.findall(r"[\w.-]+", seeds.title)])
        for ending in ("png", "svg"):
            _figure(seeds, folder / f"{name}.{ending}")


def _figure(seeds: Seeds, path: Path) -> None:
    """Similarity to the first task's backbone, and overlap between classes of different tasks, over the tasks: the
    mean over seeds, and a standard deviation to either side."""
    drawn = new_figure(8.4, 4.2)
    left, right = drawn.subplots(1, 2)
    tasks = seeds.values("tasks")
    if len(seeds.runs) > 1:
        drawn.suptitle(seeds.heading, fontsize=10)

    def curve(axes: "Axes", values: Iterable[Sequence[float | None]], place: int, **look: Any) -> None:
        numbers = [common(each["task"]) for each in tasks]
        means, deviations = zip(*(_mean_and_deviation(each) for each in values), strict=True)
        colour = PALETTE[place % len(PALETTE)]
        axes.plot(numbers, means, color=colour, marker=MARKERS[place % len(MARKERS)], markersize=4, **look)
        band(axes, numbers, means, deviations, colour)

    for place, (name, label) in enumerate({"cka": "linear CKA", "cosine": "mean cosine"}.items()):
        curve(left, (_similar(each, name) for each in tasks), place, label=label)
    names = {name: "none" if name == AS_TRAINED else name for name in tasks[-1]["overlap"]}
    places = alignment_places(names.values())
    for name, alignment in names.items():
        for key, look in {"as_answered": {"label": name}, "best": {"linestyle": ":"}}.items():
            curve(right, (each["overlap"][name][key]["between_tasks"] for each in tasks), places[alignment], **look)
    right.plot([], [], label="at the best threshold", linestyle=":", color="grey")
    lowest = min(left.get_ylim()[0], FLAT)
    left.set(ylim=(lowest, 1 + 0.05 * (1 - lowest)), ylabel="similarity to the first task's backbone")
    right.set_ylim(bottom=0)
    right.set_ylabel("overlap of classes of different tasks")
    for axes in (left, right):
        axes.set_xlabel("tasks learnt")
        whole_numbers(axes.xaxis)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    save(drawn, path)


def _similarity(tasks: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            *(str(common(each[key])) for key in ("task", "classes", "width")),
            *(number(_similar(each, key)) for key in ("cka", "cosine")),
        ]
        for each in tasks
    ]
    return Table(["task", "classes", "features", "CKA", "cosine"], rows)


def _similar(task: Mapping[str, Any], key: str) -> Sequence[float | None]:
    """Nothing, where the first task's model was not kept."""
    found = task["similarity"]
    return found[key] if isinstance(found, dict) else found


def _overlap(tasks: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [str(common(each["task"])), name, *(number(found[column][kind]) for column, kind in MEANS)]
        for each in tasks
        for name, found in each["overlap"].items()
    ]
    return Table(["task", "classifier", *HEADER], rows)


def _less(task: Mapping[str, Any]) -> Table:
    """Every classifier less every one before it, the same seeds of both."""

    def differences(own: Sequence[float | None], other: Sequence[float | None]) -> list[float | None]:
        pairs = zip(own, other, strict=True)
        return [None if one is None or two is None else one - two for one, two in pairs]

    rows = [
        [one, other, *(number(differences(more[column][kind], less[column][kind]), 4) for column, kind in MEANS)]
        for (other, less), (one, more) in itertools.combinations(task["overlap"].items(), 2)
    ]
    return Table(["classifier", "less", *HEADER], rows)


def _pairs(seeds: Seeds) -> Table:
    """The pairs of classes that overlap most under any classifier, as many as a run has."""
    several = len(seeds.runs) > 1
    pairs = [(run["recipe"]["seed"], pair) for run in seeds.runs for pair in run["pairs"]]
    pairs.sort(key=lambda each: max(found["best"] for found in each[1]["overlap"].values()), reverse=True)
    rows = [
        [
            *[str(seed)] * several,
            *pair["classes"],
            *(", ".join(f"{found[column]:.3f}" for column in COLUMNS) for found in pair["overlap"].values()),
        ]
        for seed, pair in pairs[: max(len(run["pairs"]) for run in seeds.runs)]
    ]
    return Table([*["seed"] * several, "class", "and class", *pairs[0][1]["overlap"]], rows)


def _mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """NaN where there is nothing to draw."""
    known = [math.nan if value is None else value for value in values]
    mean, deviation = mean_and_deviation(known)
    return mean, deviation or 0.0
