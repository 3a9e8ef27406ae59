"""Classifiers side by side: means over seeds with intervals, paired differences, ranks."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lca.errors import LcaError, nearest
from lca.evaluation.accuracy import AccuracyRecord, mean_and_deviation
from lca.evaluation.calibration import wilson_interval
from lca.evaluation.resampling import DRAWS, Intervals, paired_differences, seed_intervals
from lca.methods import methods
from lca.progress import Progress
from lca.results.reading import Run
from lca.results.robustness import RobustnessScores
from lca.results.stored import StoredAnswers, same_test_images
from lca.results.tables import Row, rows_of

METRICS = {
    "AA": "average accuracy",
    "AA task": "average accuracy, task mean",
    "last": "last accuracy",
    "forgets": "forgetting",
}
"""Columns, and the names in `AccuracyRecord.summary`."""
DAMAGE = {
    "clean": "clean",
    "C": "accuracy_c",
    "C at 5": "at_severity_5",
    "P": "accuracy_p",
    "score": "score",
    "flips": "flip_rate",
}
"""Columns of damaged images, and the names in the file that `lca robustness` writes."""
LOWER_IS_BETTER = ("forgets", "flips")
SIGNED = ("forgets",)
"""Not a share, which lies between 0 and 100."""

BOOTSTRAP = "bootstrap over seeds and test images"
IMAGES = "bootstrap over test images"
STUDENT = "Student's t over seeds"
WILSON = "Wilson, over test images"


@dataclass(frozen=True)
class Measured:
    """A metric over seeds."""

    values: Sequence[float]
    interval: tuple[float, float] | None
    """95 %; None where there is nothing to tell it from."""
    kind: str = ""
    """What the interval is from."""

    @property
    def mean(self) -> float:
        return mean_and_deviation([*self.values])[0]

    @property
    def deviation(self) -> float | None:
        return mean_and_deviation([*self.values])[1]


@dataclass(frozen=True, eq=False)
class Classifier:
    """One row of a table with the runs it is made of."""

    row: Row
    runs: Sequence[Run]
    draws: int = DRAWS

    @property
    def label(self) -> str:
        return self.row.label

    @property
    def branch(self) -> str:
        return self.row.branch

    @cached_property
    def names(self) -> list[str]:
        """What asks for it: its label, and that of its runs; also without the name of a path in them."""
        given = self.runs[0].given
        rows = [self.row] if given is None else [self.row, replace(self.row, group=given)]
        return [name for row in rows for name in (row.group, row.label) if name]

    @cached_property
    def continual(self) -> bool:
        """Whether it learnt task by task. What sees all data at once is a bound beside the others, not one of them."""
        names = {run.results["recipe"]["method"]["name"] for run in self.runs}
        return not any(methods[name].info.needs_all_data for name in names if name in methods)

    @cached_property
    def records(self) -> list[AccuracyRecord]:
        return [run.record(self.branch) for run in self.runs]

    @cached_property
    def answers(self) -> list[StoredAnswers]:
        """Of every run, or none at all."""
        found = [run.answers[self.branch] for run in self.runs if self.branch in run.answers]
        return found if len(found) == len(self.runs) else []

    @cached_property
    def robustness(self) -> dict[int, RobustnessScores]:
        """On damaged images, by seed; of the runs that were measured on them, and where these differ in the damage, of
        those most of which are alike."""
        found = {run.seed: run.robustness[self.branch] for run in self.runs if self.branch in run.robustness}
        return {seed: found[seed] for seed in _most_alike({seed: damage_of(each) for seed, each in found.items()})}

    @property
    def own(self) -> bool:
        """Whether it is as its method is published: with its own alignment, or with none to choose."""
        return self.branch in ("default", self.runs[0].results["recipe"]["method"]["name"])

    def values(self, column: str) -> dict[int, float]:
        """A metric by seed; empty where it is not defined."""
        if column in DAMAGE:
            found = {seed: getattr(each, DAMAGE[column]) for seed, each in self.robustness.items()}
            return {seed: value for seed, value in found.items() if value is not None}
        name = METRICS[column]
        summaries = [record.summary() for record in self.records]
        return {run.seed: each[name] for run, each in zip(self.runs, summaries, strict=True) if name in each}

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """Every metric that is defined, by column."""
        found = {}
        for column in METRICS:
            if values := [*self.values(column).values()]:
                found[column] = Measured(values, *self._interval(column, values))
        return found

    @cached_property
    def damaged(self) -> dict[str, Measured]:
        """Every column of damaged images that was measured."""
        found = {column: [*self.values(column).values()] for column in DAMAGE}
        return {
            column: Measured(values, student_interval(values, whole=100.0), STUDENT)
            for column, values in found.items()
            if values
        }

    @cached_property
    def _bootstrap(self) -> Intervals:
        shared = all(same_test_images(self.runs[0].results, run.results) for run in self.runs)
        return seed_intervals([each.outcomes() for each in self.answers], shared, self.draws)

    def _interval(self, column: str, values: list[float]) -> tuple[tuple[float, float] | None, str]:
        if self.answers:
            return self._bootstrap[METRICS[column]], BOOTSTRAP if len(values) > 1 else IMAGES
        if len(values) > 1:
            return student_interval(values, None if column in SIGNED else 100.0), STUDENT
        if column == "last":
            (record,) = self.records
            return wilson_interval(sum(record.correct[-1]), sum(record.total)), WILSON
        return None, ""


@dataclass(frozen=True)
class Difference:
    """One classifier minus the reference, over the seeds that both have."""

    label: str
    measured: Measured

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        ends = self.measured.interval
        return ends is not None and (ends[0] > 0 or ends[1] < 0)


def classifiers(runs: Sequence[Run], draws: int = DRAWS, only: Sequence[str] = ()) -> dict[str, list[Classifier]]:
    """All classifiers of every data set, in the order they came; `only` those of some labels, if any are given."""
    rows = rows_of([(run.label, run.results) for run in runs])
    known = [Classifier(row, [runs[place] for place in row.places], draws) for row in rows]
    names = {name for each in known for name in each.names}
    for name in only:
        if name not in names:
            raise LcaError(f"there is no classifier {name!r}; {nearest(name, names)}")
    found: dict[str, list[Classifier]] = defaultdict(list)
    for each in known:
        if not only or not {*only}.isdisjoint(each.names):
            found[each.row.source].append(each)
    return dict(found)


def measure(found: Mapping[str, Sequence[Classifier]], progress: Progress) -> None:
    """Draw the bootstraps of all classifiers now, which takes a while where there are many predictions."""
    rows = [row for own in found.values() for row in own]
    for row in progress.track(rows, "intervals", len(rows)):
        row.measured  # noqa: B018  # it is kept


def best_first(rows: Iterable[Classifier]) -> list[Classifier]:
    """By average accuracy."""
    return sorted(rows, key=lambda each: -each.measured["AA"].mean)


def rivals(rows: Sequence[Classifier]) -> list[Classifier]:
    """Those that may be best: the continual ones, if there are any."""
    return [each for each in rows if each.continual] or [*rows]


def choose(rows: Sequence[Classifier], label: str | None) -> Classifier:
    """The classifier of that label, or the best one."""
    if label is None:
        return best_first(rivals(rows))[0]
    found = [each for each in rows if each.label == label]
    if not found:
        raise LcaError(f"there is no classifier {label!r}; {nearest(label, [each.label for each in rows])}")
    return found[0]


def check_reference(found: Mapping[str, Sequence[Classifier]], label: str | None) -> None:
    """Refuse a label that no data set has."""
    if label is not None:
        choose([row for rows in found.values() for row in rows], label)


def references(found: Mapping[str, Sequence[Classifier]], label: str | None) -> dict[str, Classifier]:
    """What the others of every data set are compared with: the classifier of that label, or the best where it has
    none of it."""
    check_reference(found, label)
    return {
        source: choose(rows, label if any(row.label == label for row in rows) else None)
        for source, rows in found.items()
    }


def instead_of(label: str | None, chosen: Classifier) -> str:
    """What to say of a reference that is not the one that was asked for."""
    return "" if label in (None, chosen.label) else f" (the best, as {label} is not there)"


def choose_measured(rows: Sequence[Classifier], reference: Classifier) -> Classifier:
    """The reference, if it is one of these; or else the best."""
    return reference if reference in rows else choose(rows, None)


def robust_pairs(rows: Sequence[Classifier], reference: Classifier) -> list[tuple[Classifier, Classifier]]:
    """Whom to compare on damaged images: of every label LCA (or, without it, the best) with none and with the method's
    own alignment; and the best of all with the reference."""
    labels: dict[str, list[Classifier]] = defaultdict(list)
    for row in rows:
        labels[row.row.group].append(row)
    pairs = []
    for branches in labels.values():
        plain = [row for row in branches if row.branch == "none" or row.own]
        aligned = best_first(row for row in branches if row not in plain)
        if aligned:
            ours = next((row for row in aligned if row.branch == "lca"), aligned[0])
            pairs += [(ours, theirs) for theirs in plain]
    others = best_first(row for row in rivals(rows) if row is not reference)
    pairs += [(other, reference) for other in others[:1]]
    return [
        pair
        for number, pair in enumerate(pairs)
        if not why_none(*pair, damaged=True) and set(pair) not in map(set, pairs[:number])
    ]


def differences(one: Classifier, two: Classifier, columns: Iterable[str] = METRICS) -> dict[str, Difference]:
    """One minus two by column, on the same seeds, class orders, test images and damage; empty where they share none.

    From several seeds the interval is Student's, of the mean of the differences. From one seed it is a bootstrap of
    the test images, the same for both, where the predictions are at hand.
    """
    others = {run.seed: run for run in two.runs}
    shared = [run for run in one.runs if run.seed in others and not _unlike(run, others[run.seed])]
    images = _by_images(one, two, shared[0], others[shared[0].seed]) if len(shared) == 1 else {}
    found = {}
    for column in columns:
        if column in DAMAGE and not same_damage(one, two):
            continue
        firsts, seconds = one.values(column), two.values(column)
        values = [firsts[run.seed] - seconds[run.seed] for run in shared if run.seed in firsts and run.seed in seconds]
        if len(values) > 1:
            found[column] = Difference(one.label, Measured(values, student_interval(values), STUDENT))
        elif values:
            interval = images.get(METRICS.get(column, ""))
            found[column] = Difference(one.label, Measured(values, interval, IMAGES if interval else ""))
    return found


def why_none(one: Classifier, two: Classifier, *, damaged: bool = False) -> str:
    """What keeps two classifiers from being compared, in words; empty if nothing does."""
    firsts, seconds = (
        {run.seed: run for run in each.runs if not damaged or run.seed in each.robustness} for each in (one, two)
    )
    reasons = [_unlike(run, seconds[seed]) for seed, run in firsts.items() if seed in seconds]
    if not reasons:
        return "no seed in common"
    if all(reasons):
        return reasons[0]
    return "other damage" if damaged and not same_damage(one, two) else ""


def damage_of(scores: RobustnessScores) -> tuple[Any, ...]:
    """What damaged images a classifier was asked about."""
    return scores.images, scores.generated, frozenset(scores.asked())


def damage_in_words(rows: Iterable[Classifier]) -> str:
    """How many images were damaged, and by whom; and which classifiers were asked about none of them."""
    rows = [*rows]
    found = [scores for row in rows for scores in row.robustness.values()]
    kinds = [f"{each.images} test images, {'generated' if each.generated else 'published'} damage" for each in found]
    words = " or ".join(dict.fromkeys(kinds))
    missing = ", ".join(row.label for row in rows if not row.robustness)
    return f"{words}; not measured: {missing}" if missing else words


def same_damage(one: Classifier, two: Classifier) -> bool:
    """Whether both were asked about the same damage."""
    kinds = [{damage_of(scores) for scores in each.robustness.values()} for each in (one, two)]
    return bool(kinds[0]) and kinds[0] == kinds[1]


def measured_alike(rows: Sequence[Classifier]) -> tuple[list[Classifier], list[int]]:
    """The classifiers that were asked about the same damaged images, most of them where they differ; and the seeds that
    all of these have."""
    found = {place: damage_of(next(iter(row.robustness.values()))) for place, row in enumerate(rows) if row.robustness}
    alike = [rows[place] for place in _most_alike(found)]
    seeds = set.intersection(*(set(row.robustness) for row in alike)) if alike else set()
    return alike, sorted(seeds)


def _most_alike(kinds: Mapping[int, Hashable]) -> list[int]:
    """The keys of the most frequent value."""
    ((most, _),) = Counter(kinds.values()).most_common(1) or [(None, 0)]
    return [key for key, kind in kinds.items() if kind == most]


def _by_images(one: Classifier, two: Classifier, first: Run, second: Run) -> Intervals:
    if one.branch not in first.answers or two.branch not in second.answers:
        return {}
    mine, theirs = first.answers[one.branch].outcomes(), second.answers[two.branch].outcomes()
    return {name: interval for name, (_, interval) in paired_differences(mine, theirs, one.draws).items()}


def student_interval(values: Sequence[float], whole: float | None = None) -> tuple[float, float] | None:
    """95 % interval of the mean of a few normal values; None where they do not vary. Of shares it ends at 0 and at the
    whole."""
    from scipy import stats

    mean, deviation = mean_and_deviation([*values])
    if not deviation:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * deviation / len(values) ** 0.5
    low, high = mean - half, mean + half
    return (low, high) if whole is None else (max(low, 0.0), min(high, whole))


def _unlike(one: Run, two: Run) -> str:
    """In what two runs differ so that they cannot be compared; empty if in nothing."""
    if not same_test_images(one.results, two.results):
        return "seen at another size" if _other_size(one, two) else "other test images"
    tasks = ("class_order", "task_sizes")
    return "" if all(one.results["data"][key] == two.results["data"][key] for key in tasks) else "other tasks"


def _other_size(one: Run, two: Run) -> bool:
    """Whether backbones of two sizes were asked about as many images of the same classes and source. The hash of the
    images is of those that were decoded for a size: it cannot tell whether the files are the same."""
    from lca.backbones import input_size

    data = {**two.results["data"], "sha256": one.results["data"]["sha256"]}
    sizes = {input_size(run.results["backbone"]["name"]) for run in (one, two)}
    return (
        one.source == two.source
        and len(sizes - {None}) == 2
        and same_test_images(one.results, {**two.results, "data": data})
    )
