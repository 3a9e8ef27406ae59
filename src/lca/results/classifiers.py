"""Classifiers: the runs of one label and branch on one data set, with every number over their seeds."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from lca.errors import LcaError, nearest
from lca.evaluation.accuracy import AccuracyRecord
from lca.evaluation.intervals import (
    DRAWS,
    Ends,
    mean_and_deviation,
    seed_intervals,
    student_interval,
    wilson_interval,
)
from lca.methods import methods
from lca.results.metrics import columns, numbers, summary
from lca.results.reading import Run
from lca.results.robustness import RobustnessScores
from lca.results.stored import StoredAnswers, same_test_images

DAMAGE = {
    "clean": "clean",
    "C": "accuracy_c",
    "C at 5": "at_severity_5",
    "P": "accuracy_p",
    "score": "score",
    "flips": "flip_rate",
}
"""Columns of damaged images, and the names in the file that `lca robustness` writes."""

BOOTSTRAP = "bootstrap over seeds and test images"
IMAGES = "bootstrap over test images"
STUDENT = "Student's t over seeds"
WILSON = "Wilson, over test images"


@dataclass(frozen=True)
class Measured:
    """A number over seeds."""

    values: Sequence[float]
    interval: Ends | None = None
    """95 %; None where there is nothing to tell it from."""
    kind: str = ""
    """What the interval is from."""

    @property
    def mean(self) -> float:
        return mean_and_deviation(self.values)[0]

    @property
    def deviation(self) -> float | None:
        return mean_and_deviation(self.values)[1]

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    def text(self, between: str = " ± ") -> str:
        """Mean over seeds, with the standard deviation where there are several."""
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f"{between}{self.deviation:.1f}")

    def ends(self, sign: str = "") -> str:
        """The interval in brackets, if there is one."""
        return "" if self.interval is None else " ({0:{2}.1f} to {1:{2}.1f})".format(*self.interval, sign)


@dataclass(frozen=True, eq=False)
class Classifier:
    """One row of a table with the runs it is made of."""

    group: str
    """The label of its runs."""
    branch: str
    runs: Sequence[Run]
    draws: int = DRAWS

    @property
    def source(self) -> str:
        return self.runs[0].data_set

    @property
    def label(self) -> str:
        alone = self.group and self.branch in ("default", self.group)
        return self.group if alone else f"{self.group} {self.branch}".strip()

    @cached_property
    def names(self) -> list[str]:
        """What asks for it: its label, and that of its runs; also without the name of a path in them."""
        given = self.runs[0].given
        rows = [self] if given is None else [self, replace(self, group=given)]
        return [name for row in rows for name in (row.group, row.label) if name]

    @cached_property
    def continual(self) -> bool:
        """Whether it learnt task by task. What sees all data at once is a bound beside the others, not one of them."""
        names = {run.recipe["method"]["name"] for run in self.runs}
        return not any(methods[name].info.needs_all_data for name in names if name in methods)

    @property
    def own(self) -> bool:
        """Whether it is as its method is published: with its own alignment, or with none to choose."""
        return self.branch in ("default", self.runs[0].recipe["method"]["name"])

    @property
    def seconds(self) -> float:
        """Of the fastest seed."""
        return min(sum(run.seconds(self.branch).values()) for run in self.runs)

    @property
    def bytes(self) -> int:
        return sum(sum(run.bytes(self.branch).values()) for run in self.runs) // len(self.runs)

    @cached_property
    def records(self) -> list[AccuracyRecord]:
        return [run.records[self.branch] for run in self.runs]

    @cached_property
    def answers(self) -> list[StoredAnswers]:
        """Of every run, or none at all."""
        found = [run.answers[self.branch] for run in self.runs if self.branch in run.answers]
        return found if len(found) == len(self.runs) else []

    def stored(self, key: str) -> list[Any]:
        """The value of a metric of every run that has one."""
        values = [run.metric(self.branch, key) for run in self.runs]
        return [value for value in values if value]

    def number(self, name: str) -> Measured:
        """A number of any metric over the seeds that have it."""
        values = [run.number(self.branch, name) for run in self.runs]
        return Measured([value for value in values if value is not None])

    def curve(self) -> list[float]:
        """Accuracy after each task (sample-weighted), mean over seeds."""
        curves = [record.sample_weighted() for record in self.records]
        return [sum(values) / len(values) for values in zip(*curves, strict=True)]

    def by_domain(self, what: str) -> dict[str, Measured]:
        """The `last` accuracy on every domain, or the `forgetting` of it, by its name. Empty where classes do not come
        back in domains."""
        values: dict[str, list[float]] = defaultdict(list)
        for each in self.stored("by_domain"):
            for name, value in each[what].items():
                values[name].append(value)
        return {name: Measured(numbers) for name, numbers in sorted(values.items())}

    @cached_property
    def robustness(self) -> dict[int, RobustnessScores]:
        """On damaged images, by seed; of the runs that were measured on them, and where these differ in the damage, of
        those most of which are alike."""
        found = {run.seed: run.robustness[self.branch] for run in self.runs if self.branch in run.robustness}
        return {seed: found[seed] for seed in most_alike({seed: scores.damage for seed, scores in found.items()})}

    def values(self, column: str) -> dict[int, float]:
        """A number by seed; without the seeds of which it is not defined."""
        if column in DAMAGE:
            found = {seed: getattr(scores, DAMAGE[column]) for seed, scores in self.robustness.items()}
        else:
            found = {run.seed: run.number(self.branch, columns()[column]) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def plain(self) -> dict[str, Measured]:
        """Every column that is defined, those of damaged images too, without intervals, which take a while."""
        found = {column: [*self.values(column).values()] for column in (*columns(), *DAMAGE)}
        return {column: Measured(values) for column, values in found.items() if values}

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """The same with intervals."""
        return {
            column: Measured(each.values, *self._interval(column, each.values)) for column, each in self.plain.items()
        }

    @cached_property
    def bootstrap(self) -> dict[str, Ends | None]:
        """Intervals of what follows from the counts by name, where the predictions are at hand."""
        outcomes = [answers.outcomes() for answers in self.answers]
        return seed_intervals(outcomes, self.same_test_images, summary, self.draws) if outcomes else {}

    @property
    def same_test_images(self) -> bool:
        return all(same_test_images(self.runs[0].results, run.results) for run in self.runs)

    def _interval(self, column: str, values: Sequence[float]) -> tuple[Ends | None, str]:
        if column in DAMAGE:
            return student_interval(values, whole=100.0), STUDENT
        name = columns()[column]
        if name in self.bootstrap:
            return self.bootstrap[name], BOOTSTRAP if len(values) > 1 else IMAGES
        if len(values) > 1:
            return student_interval(values, None if numbers()[name][1].signed else 100.0), STUDENT
        if name == "last accuracy":
            (record,) = self.records
            return wilson_interval(sum(record.correct[-1]), sum(record.total)), WILSON
        return None, ""


def classifiers(runs: Sequence[Run], draws: int = DRAWS, only: Sequence[str] = ()) -> dict[str, list[Classifier]]:
    """All classifiers of every data set, in the order they were given; `only` those of some labels, if any are
    given, which may be patterns (`* lda`). Runs of one label are seeds of one classifier, every branch is one of its
    own."""
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        for branch in run.branches:
            groups[run.data_set, run.label, branch].append(run)
    names: set[str] = set()
    found: dict[str, list[Classifier]] = defaultdict(list)
    for (source, label, branch), seeds in groups.items():
        row = Classifier(label, branch, seeds, draws)
        names |= {*row.names}
        if not only or any(_asked(name, by) for name in row.names for by in only):
            found[source].append(row)
    for name in only:
        if not any(_asked(known, name) for known in names):
            raise LcaError(f"there is no classifier {name!r}; {nearest(name, names)}")
    return dict(found)


def _asked(name: str, by: str) -> bool:
    return name == by or fnmatchcase(name, by)


def most_alike(kinds: Mapping[int, Hashable]) -> list[int]:
    """The keys of the most frequent value."""
    ((most, _),) = Counter(kinds.values()).most_common(1) or [(None, 0)]
    return [key for key, kind in kinds.items() if kind == most]


def lower_is_better(column: str) -> bool:
    name = columns().get(column)
    return column == "flips" or (name is not None and numbers()[name][1].lower_is_better)
