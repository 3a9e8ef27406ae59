"""The measured theorems as tables: plain or Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lca.report.tables import markdown_table

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
LEGEND = """\
L(D): mean loss of the samples the heads were aligned on. Robustness: mean |l(z) - l(s)| of fresh and drawn samples in
their class's own cell. Theorem 1, as printed, is the sum of these two and the uncertainty, and so is Corollary 1, for
all classes have equally many samples. With cells, without: what holds for every classifier. Gaussians: the loss that
these bound, measured with fresh samples. Test images: measured beside it; no theorem covers it.
Vacuous: it says nothing, for the loss cannot exceed its maximum anyway.
"""
DRIFT_LEGEND = """\
P_t: Gaussians of the true features of all training images so far, read for diagnosis only. TV: total variation between
them and the stored Gaussians, features and labels together, so the mean over classes; from below (TV >=), by
Monte-Carlo (estimate) and from above in closed form (TV <= takes the better one of every class, which enters Theorem
2). At 1: classes whose bound says nothing. Theorem 2 as printed, then corrected: a factor 2 less, and on top of the
better corrected bound. P_t, before the Gaussians and the test images: the loss that it bounds, measured.
"""


def show(facts: Mapping[str, Any], branches: Sequence[str], losses: Sequence[str], markdown: bool) -> str:
    """The tables of a file that `lca theory` wrote."""
    table: Table = markdown_table if markdown else plain_table
    blocks = []

    def add(title: str, content: str) -> None:
        blocks.append((f"**{title}**\n\n" if markdown else f"{title}\n") + content)

    for branch in branches:
        tasks = facts["branches"][branch]
        for loss in losses:
            maximum = tasks[0]["losses"][loss]["maximum"]
            add(f"{branch}, {loss} loss (at most {maximum:g}): Theorem 1", _theorem_1(tasks, loss, table))
            if facts["old_data"]:
                add(f"{branch}, {loss} loss (at most {maximum:g}): Theorem 2", _theorem_2(tasks, loss, table))
        if facts["old_data"]:
            title = f"{branch}: distance after task {tasks[-1]['task']}, by the variance added in every direction"
            add(title, _ridges(tasks[-1], table))
    settings = facts["settings"]
    told = f"{settings['samples']} fresh samples of every class, delta {settings['delta']:g}.\n"
    blocks.append(told + LEGEND + DRIFT_LEGEND * facts["old_data"])
    return "\n".join(blocks)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, all to the right."""
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    lines = (header, *rows)
    return "".join(
        "  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)) + "\n" for line in lines
    )


def _theorem_1(tasks: Sequence[Mapping[str, Any]], loss: str, table: Table) -> str:
    rows = [
        [
            *(str(each[key]) for key in ("task", "classes", "samples_per_class")),
            _number(each["alignment_loss"]),
            f"{100 * each['inside_own_cell']:.1f} %",
            *(_number(each["losses"][loss][key]) for key in ("drawn", "robustness", "uncertainty")),
            *(_bound(each["losses"][loss], key) for key in ("theorem_1", "within_cells", "without_cells")),
            *(_number(each["losses"][loss][key]) for key in ("gaussians", "test_images")),
        ]
        for each in tasks
    ]
    terms = ["L(D)", "robustness", "uncertainty", "Theorem 1", "with cells", "without"]
    header = ["task", "classes", "n_i", "alignment loss", "in own cell", *terms, "Gaussians", "test images"]
    return table(header, rows)


def _theorem_2(tasks: Sequence[Mapping[str, Any]], loss: str, table: Table) -> str:
    rows = [
        [
            str(each["task"]),
            f"{each['drift'][0]['ridge']:g}",
            *_distance(each["drift"][0], each["classes"]),
            *(_bound(each["losses"][loss], key) for key in ("theorem_2", "theorem_2_corrected")),
            *(_number(each["losses"][loss][key]) for key in ("true_gaussians", "gaussians", "test_images")),
        ]
        for each in tasks
    ]
    return table(["task", "ridge", *DISTANCE, "Theorem 2", "corrected", "P_t", "Gaussians", "test images"], rows)


def _ridges(task: Mapping[str, Any], table: Table) -> str:
    rows = [[f"{line['added']:g}", *_distance(line, task["classes"])] for line in task["drift"]]
    return table(["added", *DISTANCE], rows)


DISTANCE = ["TV >=", "estimate", "Hellinger", "Pinsker", "TV <=", "at 1"]


def _distance(line: Mapping[str, Any], classes: int) -> list[str]:
    values = [_number(line[key]) for key in ("at_least", "estimate", "hellinger", "pinsker")]
    values.append(_number(line["at_most"]) + " vacuous" * line["vacuous"])
    return [*values, f"{line['classes_at_1']} of {classes}"]


def _bound(sides: Mapping[str, Any], key: str) -> str:
    return _number(sides[key]) + " vacuous" * (key in sides["vacuous"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
