"""A diagnosis as tables, plain or Markdown, and as a figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lca.report.figures import MARKERS, PALETTE, save
from lca.report.tables import markdown_table
from lca.theory.tables import Table, plain_table

LEGEND = """\
CKA, cosine: linear centred kernel alignment, and mean cosine of an image's features, under the backbone after a task
and after the first. Overlap: both error rates of a pair of classes together at the best threshold of z_i - z_j, on
their test images; as answered: at 0, which is what the answers do. Mean over pairs of classes.
"""
KINDS = {"within_tasks": "within a task", "between_tasks": "between tasks"}
COLUMNS = {"best": "overlap", "as_answered": "as answered"}


def show(facts: Mapping[str, Any], markdown: bool) -> str:
    """The tables of a file that `lca diagnose` wrote."""
    table: Table = markdown_table if markdown else plain_table
    tasks, pairs = facts["tasks"], facts["pairs"]
    titled = {f"Backbone similarity to the first task's, {facts['images']} test images": _similarity(tasks, table)}
    titled["Class overlap, mean over pairs of classes"] = _overlap(tasks, table)
    if pairs:
        titled[f"Pairs that overlap most after task {tasks[-1]['task']}: overlap, as answered"] = _pairs(pairs, table)
    blocks = [(f"**{title}**\n\n" if markdown else f"{title}\n") + content for title, content in titled.items()]
    return "\n".join([*blocks, LEGEND])


def figure(facts: Mapping[str, Any], path: Path) -> None:
    """Similarity to the first task's backbone, and overlap between classes of different tasks, over the tasks."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    tasks = facts["tasks"]
    numbers = [each["task"] for each in tasks]
    for number, (name, label) in enumerate({"cka": "linear CKA", "cosine": "mean cosine"}.items()):
        values = [_or_nan((each["similarity"] or {}).get(name)) for each in tasks]
        left.plot(numbers, values, label=label, color=PALETTE[number], marker=MARKERS[number])
    for number, name in enumerate(tasks[-1]["overlap"]):
        for key, line in {"as_answered": "-", "best": ":"}.items():
            values = [_or_nan(each["overlap"][name][key]["between_tasks"]) for each in tasks]
            look = {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)]}
            right.plot(numbers, values, label=name if key == "as_answered" else None, linestyle=line, **look)
    right.plot([], [], label="at the best threshold", linestyle=":", color="grey")
    left.set_ylim(top=1.05)
    left.set_ylabel("similarity to the first task's backbone")
    right.set_ylabel("overlap of classes of different tasks")
    for axes in (left, right):
        axes.set_xlabel("tasks learnt")
        axes.set_xticks(numbers)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    save(drawn, path)


def _similarity(tasks: list[dict[str, Any]], table: Table) -> str:
    rows = [
        [
            *(str(each[key]) for key in ("task", "classes", "width")),
            *(_number((each["similarity"] or {}).get(key)) for key in ("cka", "cosine")),
        ]
        for each in tasks
    ]
    return table(["task", "classes", "features", "CKA", "cosine"], rows)


def _overlap(tasks: list[dict[str, Any]], table: Table) -> str:
    rows = [
        [str(each["task"]), name, *(_number(found[column][kind]) for kind in KINDS for column in COLUMNS)]
        for each in tasks
        for name, found in each["overlap"].items()
    ]
    header = [f"{kind}: {column}" for kind in KINDS.values() for column in COLUMNS.values()]
    return table(["task", "classifier", *header], rows)


def _pairs(pairs: list[dict[str, Any]], table: Table) -> str:
    rows = [
        [
            *pair["classes"],
            *(", ".join(_number(found[column]) for column in COLUMNS) for found in pair["overlap"].values()),
        ]
        for pair in pairs
    ]
    return table(["class", "and class", *pairs[0]["overlap"]], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
