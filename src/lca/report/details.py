"""What `lca metrics` prints of the details of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from lca.report.facts import ends_of
from lca.results.metrics import METRICS, follow
from lca.text import number, plain_table

SHOWN = 10
"""Classes and confusions; the JSON has all."""


def text_of_run(facts: Mapping[str, Any]) -> str:
    """The details of one run."""
    metrics, rows = facts["metrics"], facts["summary"]
    missing = "; -: too few images, or nothing varies" * any(
        row["bootstrap_interval_95"] is None for row in rows.values()
    )
    blocks = [
        f"{facts['tasks']} tasks, {len(facts['classes'])} classes, {facts['images']} test images; all in per cent\n",
        _with_intervals(rows, number)
        + f"  (bootstrap over test images{missing}; the last accuracy's Wilson interval is "
        f"{_interval(facts['last_accuracy_interval_95'])})\n",
        _numbers(facts),
    ]
    if (difference := facts["difference"]) is not None:
        title = f"minus {difference['run']}: {difference['branch']}, on the same test images\n"
        blocks.append(title + _with_intervals(difference["summary"], lambda value: f"{value:+.1f}"))
    blocks += [_tasks(facts["by_task"]), _after_each_task(facts), *_classes(facts["by_class"])]
    if metrics["most_confused"]:
        pairs = [f"  {truth} taken for {answer}: {times}\n" for truth, answer, times in metrics["most_confused"]]
        blocks.append("most frequent confusions\n" + "".join(pairs[:SHOWN]))
    bins = [
        [f"{each['low']:.0f} to {each['high']:.0f}", str(each["images"])]
        + [number(each[key]) for key in ("mean_probability", "accuracy")]
        for each in metrics["calibration"]["reliability"]
        if each["images"]
    ]
    title = "reliability after the last task: answers by their probability\n"
    blocks.append(title + plain_table(["probability", "images", "mean probability", "accuracy"], bins))
    return "\n".join(blocks)


def text_of_seeds(facts: Mapping[str, Any]) -> str:
    """The means over several runs."""
    shared = "the same" if facts["same_test_images"] else "their own"
    rows = [
        [name, number(row["mean"]), number(row["deviation"]), _interval(row["bootstrap_interval_95"])]
        for name, row in facts["summary"].items()
    ]
    return (
        f"seeds {', '.join(map(str, facts['seeds']))}, on {shared} test images; all in per cent\n\n"
        + plain_table(["", "mean", "deviation", "95 % interval"], rows)
        + "  (sample standard deviation over seeds; bootstrap over seeds and test images)\n"
    )


def _numbers(facts: Mapping[str, Any]) -> str:
    """What does not follow from the counts, a line each; why, where there is none."""
    found = {"intransigence": (facts["intransigence"], "needs --joint RUN")}
    for key, metric in METRICS.items():
        value = facts["metrics"][key]
        if not metric.counts and metric.numbers and value is None:
            found[metric.name] = (None, metric.missing)
        elif not metric.counts:
            found |= {each.name: (follow(value, each.path), "not defined") for each in metric.numbers}
    return "".join(
        f"{name:<36}{f'- ({why})' if value is None else number(value)}\n" for name, (value, why) in found.items()
    )


def _tasks(tasks: Sequence[Mapping[str, Any]]) -> str:
    first = "domain" if "domain" in tasks[0] else "task"
    header = [first, "classes", "images", "learnt", "best", "last", "95 % interval", "task known"]
    rows = [
        [task.get("domain", str(place)), str(task["classes"]), str(task["images"])]
        + [number(task[key]) for key in ("learnt", "best", "last")]
        + [_interval(task["last_interval_95"]), number(task["last_task_known"])]
        for place, task in enumerate(tasks, start=1)
    ]
    return "tasks: right after learning, at their best, and after the last task\n" + plain_table(header, rows)


def _after_each_task(facts: Mapping[str, Any]) -> str:
    columns = {
        name: follow(facts["metrics"][key], path) or []
        for key, metric in METRICS.items()
        for name, path in metric.after_each_task.items()
    }
    columns = {name: values for name, values in columns.items() if values}
    rows = [
        [str(task + 1), *(number(values[task] if task < len(values) else None) for values in columns.values())]
        for task in range(facts["tasks"])
    ]
    title = "after each task, on all classes seen so far"
    title += "; next task: nearest class means before it is learnt" * ("next task" in columns)
    return f"{title}\n" + plain_table(["after", *columns], rows)


def _classes(by_class: Mapping[str, Mapping[str, Any]]) -> list[str]:
    worst, best = ends_of(by_class, SHOWN)
    header = ["class", "right", "images", "accuracy", "95 % interval"]
    blocks = []
    for title, chosen in (("classes, the worst first", worst), ("the best classes", best)):
        rows = []
        for name, row in chosen:
            share = number(100 * row["right"] / row["images"])
            rows.append([name, str(row["right"]), str(row["images"]), share, _interval(row["interval_95"])])
        blocks += [f"{title}, after the last task\n" + plain_table(header, rows)] * bool(rows)
    return blocks


def _with_intervals(rows: Mapping[str, Mapping[str, Any]], text: Any) -> str:
    lines = [[name, text(row["value"]), _interval(row["bootstrap_interval_95"])] for name, row in rows.items()]
    return plain_table(["", "", "95 % interval"], lines)


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.1f} to {ends[1]:.1f}"
