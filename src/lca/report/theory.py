"""The measured theorems as tables: plain or Markdown."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lca.evaluation.intervals import mean_and_deviation
from lca.report.tables import Table
from lca.results.measured import Seeds, common, error_of

LEARNT = "L(D): mean loss of the n_i samples of every class that the heads were aligned on.\n"
NOT_LEARNT = """\
L(D): mean loss of n_i samples of every class, with a star because the heads did not learn from these: they are in
closed form, are not aligned, or learnt from samples that cannot be drawn again.
"""
PARTLY_LEARNT = """\
L(D): mean loss of the n_i samples of every class that the heads were aligned on; with a star, of as many from which the
heads did not learn: they are in closed form, are not aligned, or learnt from samples that cannot be drawn again.
"""
LEGEND = """\
Robustness: mean |l(z) - l(s)| of fresh and drawn samples in their class's own cell. Theorem 1, as printed, is the sum
of these two and the uncertainty, and so is Corollary 1, for all classes have equally many samples. With cells, without:
what holds for every classifier. Gaussians: the loss that these bound, measured with fresh samples. Test images:
measured beside it; no theorem covers it.
In brackets, where it was measured: the standard error, by how much a number moves with the fresh samples while D stays
as it is (of several seeds, that of one). No digit beyond its first is shown, and none where it rounds to nothing.
Vacuous: it says nothing, for the loss cannot exceed its maximum anyway.
"""
DRIFT_LEGEND = """\
P_t: Gaussians of the true features of all training images so far, read for diagnosis only. TV: total variation between
them and the stored Gaussians, features and labels together, so the mean over classes; from below (TV >=), by
Monte-Carlo (estimate) and from above in closed form (TV <= takes the better one of every class, which enters Theorem
2). At 1: classes whose bound says nothing. Theorem 2 as printed, then corrected: a factor 2 less, and on top of the
better corrected bound. P_t, before the Gaussians and the test images: the loss that it bounds, measured.
"""
SEEDS = "Mean ± standard deviation over seeds; none where it rounds to nothing.\n"


def show(groups: Sequence[Seeds], branch: str | None, losses: Sequence[str], markdown: bool) -> str:
    """The tables of what `lca theory` measured, of all classifiers or of one."""

    def tables(seeds: Seeds) -> dict[str, Table]:
        found = {}
        for name, tasks in seeds.values("branches").items():
            if branch not in (None, name):
                continue
            drifted = "drift" in tasks[0]
            for loss in losses:
                what = f"{name}, {loss} loss (at most {common(tasks[0]['losses'][loss]['maximum']):g})"
                found[f"{what}: Theorem 1"] = _theorem_1(tasks, loss)
                if drifted:
                    found[f"{what}: Theorem 2"] = _theorem_2(tasks, loss)
            if drifted:
                when = f"after task {common(tasks[-1]['task'])}"
                found[f"{name}: distance {when}, by the variance added in every direction"] = _ridges(tasks[-1])
        return found

    runs = [run for seeds in groups for run in seeds.runs]
    shown = [tasks for run in runs for name, tasks in run["branches"].items() if branch in (None, name)]
    legend = _drawn(shown) + LEGEND + DRIFT_LEGEND * any(run["old_data"] for run in runs)
    ways = dict.fromkeys((run["settings"]["samples"], run["settings"]["delta"]) for run in runs)
    told = "".join(f"{samples} fresh samples of every class, delta {delta:g}.\n" for samples, delta in ways)
    return titled_tables(groups, tables, told + legend, markdown)


def _drawn(shown: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """What D is, of the tasks of the classifiers that are shown."""
    learnt = {task["heads_learnt_from_samples"] for tasks in shown for task in tasks}
    return PARTLY_LEARNT if len(learnt) > 1 else LEARNT if learnt == {True} else NOT_LEARNT


def titled_tables(
    groups: Sequence[Seeds], tables: Callable[[Seeds], Mapping[str, Table]], legend: str, markdown: bool
) -> str:
    """Tables by their titles, of every group of runs; a run alone is not named."""
    several = sum(len(seeds.runs) for seeds in groups) > 1
    blocks = []
    for seeds in groups:
        for title, table in tables(seeds).items():
            whole = f"{seeds.heading}: {title}" if several else title
            blocks.append(f"**{whole}**\n\n{table.markdown()}" if markdown else f"{whole}\n{table.plain()}")
    return "\n".join([*blocks, legend + SEEDS * any(len(seeds.runs) > 1 for seeds in groups)])


def number(values: Sequence[float | None], digits: int = 3) -> str:
    """The mean over seeds, with the standard deviation if so many digits show one."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    mean, deviation = mean_and_deviation(known)
    spread = f"{deviation or 0:.{digits}f}"
    return f"{mean:z.{digits}f}" + (f" ± {spread}" if float(spread) else "")


def estimate(of: Mapping[str, Any], key: str, digits: int = 3, scale: float = 1.0) -> str:
    """The same with the Monte-Carlo standard error in brackets, if it is known, and no digit beyond its first."""
    values, errors = ([each and scale * each for each in of.get(name, ())] for name in (key, error_of(key)))
    error = math.hypot(*errors) / len(errors) ** 0.5 if errors and None not in errors else 0.0
    if error:
        digits = min(digits, max(-math.floor(math.log10(error)), 0))
    shown = f"{error:.{digits}f}"
    return number(values, digits) + (f" ({shown})" if float(shown) else "")


def shown_only(run: Mapping[str, Any]) -> dict[str, Any]:
    """Without what no table shows: the distances with added variance after all tasks but the last."""
    branches = {
        name: [*({**each, "drift": each["drift"][:1]} if "drift" in each else each for each in tasks[:-1]), tasks[-1]]
        for name, tasks in run["branches"].items()
    }
    return {**run, "branches": branches}


def _theorem_1(tasks: Sequence[Mapping[str, Any]], loss: str) -> Table:
    rows = [
        [
            *(str(common(each[key])) for key in ("task", "classes")),
            f"{common(each['samples_per_class'])}{'' if all(each['heads_learnt_from_samples']) else '*'}",
            number(each["alignment_loss"]),
            estimate(each, "inside_own_cell", 1, 100.0) + " %",
            *(estimate(each["losses"][loss], key) for key in ("drawn", "robustness", "uncertainty")),
            *(_bound(each["losses"][loss], key) for key in ("theorem_1", "within_cells", "without_cells")),
            *(estimate(each["losses"][loss], key) for key in ("gaussians", "test_images")),
        ]
        for each in tasks
    ]
    terms = ["L(D)", "robustness", "uncertainty", "Theorem 1", "with cells", "without"]
    header = ["task", "classes", "n_i", "alignment loss", "in own cell", *terms, "Gaussians", "test images"]
    return Table(header, rows)


def _theorem_2(tasks: Sequence[Mapping[str, Any]], loss: str) -> Table:
    rows = [
        [
            str(common(each["task"])),
            f"{common(each['drift'][0]['ridge']):g}",
            *_distance(each["drift"][0], common(each["classes"])),
            *(_bound(each["losses"][loss], key) for key in ("theorem_2", "theorem_2_corrected")),
            *(estimate(each["losses"][loss], key) for key in ("true_gaussians", "gaussians", "test_images")),
        ]
        for each in tasks
    ]
    return Table(["task", "ridge", *DISTANCE, "Theorem 2", "corrected", "P_t", "Gaussians", "test images"], rows)


def _ridges(task: Mapping[str, Any]) -> Table:
    rows = [[f"{common(line['added']):g}", *_distance(line, common(task["classes"]))] for line in task["drift"]]
    return Table(["added", *DISTANCE], rows)


DISTANCE = ["TV >=", "estimate", "Hellinger", "Pinsker", "TV <=", "at 1"]


def _distance(line: Mapping[str, Any], classes: int) -> list[str]:
    values = [estimate(line, key) for key in ("at_least", "estimate", "hellinger", "pinsker")]
    values.append(number(line["at_most"]) + _vacuous(line["vacuous"]))
    counts = line["classes_at_1"]
    return [*values, f"{number(counts, 1 if len({*counts}) > 1 else 0)} of {classes}"]


def _bound(sides: Mapping[str, Any], key: str) -> str:
    return estimate(sides, key) + _vacuous([key in names for names in sides["vacuous"]])


def _vacuous(seeds: Sequence[bool]) -> str:
    """In how many seeds, where not in all or none."""
    if not any(seeds):
        return ""
    return " vacuous" if all(seeds) else f" vacuous in {sum(seeds)} of {len(seeds)}"
