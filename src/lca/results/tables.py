"""Tables of results: on a terminal and as Markdown."""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lca.evaluation.accuracy import mean_and_deviation
from lca.text import markdown_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One classifier on one data set: the runs of one label and branch, over seeds."""

    source: str
    """The data set, as `data_set_of` names it."""
    group: str
    branch: str
    metrics: list[dict[str, Any]]
    seconds: float
    bytes: int
    places: list[int]
    """Which of the given runs these are."""
    images: str
    """What it was measured on: test or validation images."""

    @property
    def label(self) -> str:
        alone = self.group and self.branch in ("default", self.group)
        return self.group if alone else f"{self.group} {self.branch}".strip()

    def values(self, *path: str) -> list[float]:
        """A metric of every seed; none where it is not defined."""
        found = []
        for metrics in self.metrics:
            value: Any = metrics
            for key in path:
                value = value[key]
            if value is None:
                return []
            found.append(float(value))
        return found

    def cell(self, *path: str) -> str:
        """Mean over seeds, with the standard deviation where there are several."""
        if not (values := self.values(*path)):
            return "-"
        mean, deviation = mean_and_deviation(values)
        return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"

    def curve(self) -> list[float]:
        """Accuracy after each task (sample-weighted), mean over seeds."""
        curves = [metrics["after_each_task"]["sample_weighted"] for metrics in self.metrics]
        return [sum(values) / len(values) for values in zip(*curves, strict=True)]


HEADER = ("classifier", "runs", "AA", "AA task", "last", "forgets", "MB", "s")
_AVERAGE, _LAST = ("average_accuracy", "sample_weighted"), ("last_accuracy", "sample_weighted")
OVERALL = "Overall: the mean over the data sets, of classifiers that all of them have."


def legend(rows: Iterable[Row]) -> str:
    """What the columns are."""
    images = " or ".join(dict.fromkeys(row.images for row in rows))
    return (
        f"AA: mean over tasks of the accuracy on all {images} images seen so far; AA task: the same with every task "
        "counting equally; last: accuracy after the last task; forgets: mean drop of earlier tasks from their best. In "
        "per cent, mean ± standard deviation over seeds. MB: stored beyond the backbone. s: seconds of training, "
        "alignment and test of the fastest seed (others may have shared the machine)."
    )


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


Each = TypeVar("Each", bound=Labelled)


def rows_of(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Row]:
    """Rows from (label, results) pairs; runs of one label are seeds of one row, every branch is a row of its own."""
    grouped: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, (label, results) in enumerate(runs):
        for branch in results["branches"]:
            grouped[data_set_of(results), label, branch].append(place)
    rows = []
    for (source, label, branch), places in grouped.items():
        members = [runs[place][1] for place in places]
        metrics = [results["branches"][branch]["metrics"] for results in members]
        seconds = min(sum(seconds_by_phase(results, branch).values()) for results in members)
        stored = sum(sum(bytes_of(results, branch).values()) for results in members) // len(members)
        images = members[0]["recipe"]["data"]["evaluate"]
        rows.append(Row(source, label, branch, metrics, seconds, stored, places, images))
    return rows


def data_set_of(results: Mapping[str, Any]) -> str:
    """Where the images are from, and which of them were asked about unless it was those for the test: results on others
    are never put beside these."""
    images = results["recipe"]["data"]["evaluate"]
    return results["data"]["source"] + ("" if images == "test" else f", {images} images")


def by_source(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of every data set."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.source].append(row)
    return dict(found)


def across(found: Mapping[str, Sequence[Each]]) -> dict[str, list[Each]]:
    """The classifiers that all of several data sets have: by label, one of each data set."""
    labelled = [{each.label: each for each in rows} for rows in found.values()]
    if len(labelled) < 2:
        return {}
    return {
        label: [rows[label] for rows in labelled] for label in labelled[0] if all(label in rows for rows in labelled)
    }


def short_name(source: str) -> str:
    """A data set without where it was read from."""
    return re.split("[:/]", source.rstrip("/"))[-1]


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """Data sets without where they were read from, unless that tells them apart."""
    short = {source: short_name(source) for source in sources}
    return {source: name if [*short.values()].count(name) == 1 else source for source, name in short.items()}


def overall(rows: Sequence[Row]) -> list[list[str]]:
    """AA on every data set and over all of them: a header, and a line for every classifier that all of them have. Empty
    where there is nothing to compare."""
    sources = by_source(rows)
    lines = [
        [label, *(row.cell(*_AVERAGE) for row in own), f"{fmean(fmean(row.values(*_AVERAGE)) for row in own):.1f}"]
        for label, own in across(sources).items()
    ]
    return [["AA", *short_names(sources).values(), "Overall"], *lines] if lines else []


def seconds_by_phase(results: Mapping[str, Any], branch: str) -> dict[str, float]:
    """Time of the trunk and of this branch's alignment; other branches on the same trunk do not count."""
    others = {f"align {name}" for name in results["branches"] if name != branch}
    return {phase: seconds for phase, seconds in results["seconds"].items() if phase not in others}


def bytes_of(results: Mapping[str, Any], branch: str) -> dict[str, int]:
    """Stored bytes by part, of this branch where that is known."""
    return dict(results["branches"][branch].get("storage_bytes", results["storage_bytes"]))


def cells_of(row: Row) -> tuple[str, ...]:
    """The texts of a row, in the header's order."""
    return (
        row.label,
        str(len(row.metrics)),
        row.cell(*_AVERAGE),
        row.cell("average_accuracy", "task_mean"),
        row.cell(*_LAST),
        row.cell("forgetting"),
        f"{row.bytes / 1e6:.2f}",
        f"{row.seconds:.0f}",
    )


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table of every data set, one of all together where there are several, and a legend."""
    sources = by_source(rows)
    tables = [
        (f"**{source}**\n\n" if len(sources) > 1 else "") + markdown_table(HEADER, [cells_of(row) for row in own])
        for source, own in sources.items()
    ]
    if not (together := overall(rows)):
        return "\n".join([*tables, f"{legend(rows)}\n"])
    tables.append(f"**all data sets**\n\n{markdown_table(together[0], together[1:])}")
    return "\n".join([*tables, f"{legend(rows)} {OVERALL}\n"])


def pivot_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with a line per branch and a column per label: AA / last, as in the plain table. A label that
    several data sets have has a column for each."""
    columns = list(dict.fromkeys((row.group, row.source) for row in rows))
    sets, short = Counter(group for group, _ in columns), short_names(row.source for row in rows)
    header = [group if sets[group] == 1 else f"{group}, {short[source]}" for group, source in columns]
    cells = {(row.branch, row.group, row.source): f"{row.cell(*_AVERAGE)} / {row.cell(*_LAST)}" for row in rows}
    branches = list(dict.fromkeys(row.branch for row in rows))
    lines = [[branch, *(cells.get((branch, *column), "") for column in columns)] for branch in branches]
    return markdown_table(["AA / last", *header], lines)


def print_rows(rows: Sequence[Row], title: str) -> None:
    """A table, and the accuracy of every classifier after each task."""
    console = _console()
    console.print(_table(title, HEADER, [cells_of(row) for row in rows]))
    console.print(legend(rows), style="dim", highlight=False)
    console.print("accuracy on all classes seen so far, after each task (per cent)")
    width = max(len(row.label) for row in rows)
    for row in rows:
        numbers = " ".join(f"{value:5.1f}" for value in row.curve())
        console.print(f"  {row.label:<{width}}  {spark(row.curve())}  {numbers}", highlight=False)


def print_overall(rows: Sequence[Row], title: str) -> None:
    """The table over all data sets, if there are several."""
    if together := overall(rows):
        console = _console()
        console.print(_table(f"{title}, all data sets", together[0], together[1:]))
        console.print(OVERALL, style="dim", highlight=False)


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, markup=False)


def _table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table

    table = Table(title=title)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def spark(values: Sequence[float]) -> str:
    """A curve from 0 to 100 in block letters."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(int(value / 100 * len(blocks)), len(blocks) - 1)] for value in values)
