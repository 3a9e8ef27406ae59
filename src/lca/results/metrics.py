"""The table of metrics. What results.json holds, the columns of `lca show` and `lca report`, what `lca metrics` prints
and the list in docs/metrics.md all follow from it: a metric is one entry."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lca.evaluation.accuracy import AccuracyRecord
from lca.results.stored import StoredAnswers
from lca.text import markdown_table


@dataclass(frozen=True)
class Number:
    """One number of a metric, by which runs are compared."""

    name: str
    path: str = ""
    """Where it is in the metric's value: keys with dots between them."""
    column: str = ""
    """Its heading in tables; without one it is in none."""
    lower_is_better: bool = False
    signed: bool = False
    """Not a share, which lies between 0 and 100."""


@dataclass(frozen=True)
class Metric:
    """What is measured of the answers of a branch, and how it is shown."""

    name: str
    meaning: str
    of: Callable[[Any], Any]
    """Of the record of right answers, or of all that was stored: its value as JSON, None where it is not defined."""
    numbers: Sequence[Number] = ()
    counts: bool = True
    """Whether it follows from the record."""
    after_each_task: Mapping[str, str] = field(default_factory=dict)
    """Headings in the table by task of `lca metrics`, and where the values are."""
    unit: str = "%"
    undefined: str = ""
    """Where there is none."""
    missing: str = "not stored"
    """Why a run has none that could have it."""

    @property
    def better(self) -> str:
        """Which direction is."""
        return " or ".join(dict.fromkeys("lower" if number.lower_is_better else "higher" for number in self.numbers))


def _task_known(answers: StoredAnswers) -> dict[str, Any] | None:
    record = answers.task_known()
    return None if record is None else metrics_of_counts(record)


AVERAGES = [
    Number("average accuracy", "sample_weighted", "AA"),
    Number("average accuracy, task mean", "task_mean", "AA task"),
]
LAST = [Number("last accuracy", "sample_weighted", "last"), Number("last accuracy, task mean", "task_mean")]
FORGETTING = [Number("forgetting", column="forgets", lower_is_better=True, signed=True)]
DOMAINS = [Number("last accuracy, domain mean", "mean"), Number("last accuracy, worst domain", "worst")]
TASK_KNOWN = [
    Number("average accuracy, task known", "average_accuracy.sample_weighted"),
    Number("last accuracy, task known", "last_accuracy.sample_weighted"),
]
UNKNOWN = [
    Number("unknown: AUROC", "auroc"),
    Number("unknown: FPR95, known positive", "fpr95_known_positive", lower_is_better=True),
    Number("unknown: FPR95, OOD positive", "fpr95_ood_positive", lower_is_better=True),
]
METRICS: dict[str, Metric] = {
    "average_accuracy": Metric(
        "average accuracy, in both definitions",
        "mean over t of the accuracy after task t",
        AccuracyRecord.average_accuracy,
        AVERAGES,
    ),
    "last_accuracy": Metric(
        "last accuracy, in both definitions", "accuracy after task T", AccuracyRecord.last_accuracy, LAST
    ),
    "oldest_and_newest": Metric(
        "last accuracy on the oldest and the newest task",
        "a_T1; a_TT",
        AccuracyRecord.oldest_and_newest,
        [Number("oldest", "oldest"), Number("newest", "newest")],
    ),
    "learning_accuracy": Metric(
        "learning accuracy", "mean over j of a_jj", AccuracyRecord.learning_accuracy, [Number("learning accuracy")]
    ),
    "forgetting": Metric(
        "forgetting",
        "mean over j < T of (max over t of a_tj) - a_Tj",
        AccuracyRecord.forgetting,
        FORGETTING,
        undefined="one task",
    ),
    "backward_transfer": Metric(
        "backward transfer",
        "mean over j < T of a_Tj - a_jj",
        AccuracyRecord.backward_transfer,
        [Number("backward transfer", signed=True)],
        undefined="one task",
    ),
    "after_each_task": Metric(
        "accuracy after task t, in both definitions",
        "sample-weighted: right / all test images of the classes seen; task mean: mean over j ≤ t of a_tj",
        AccuracyRecord.after_each_task,
        after_each_task={"accuracy": "sample_weighted", "task mean": "task_mean"},
    ),
    "by_domain": Metric(
        "by domain: last accuracy, forgetting; mean and least of the former",
        "a_Tj; (max over t of a_tj) - a_Tj, by the names of the domains that tasks are",
        AccuracyRecord.by_domain,
        DOMAINS,
        undefined="classes that do not come back in domains",
    ),
    "matrix": Metric("by task", "a_tj", AccuracyRecord.matrix),
    "task_known": Metric(
        "accuracy with the task known",
        "all of the above, with the arg-max among the classes of the image's own task",
        _task_known,
        TASK_KNOWN,
        counts=False,
        after_each_task={"task known": "after_each_task.sample_weighted"},
        undefined="runs from before it was stored",
    ),
    "calibration": Metric(
        "calibration error (ECE) and reliability",
        "Σ over 15 bins of (images in it / all) · \\|accuracy - mean probability\\|; per bin of the answer's "
        "probability: images, mean probability, accuracy",
        StoredAnswers.calibration,
        [Number("calibration error, last", "error", lower_is_better=True)],
        counts=False,
        after_each_task={"calibration error": "after_each_task"},
        undefined="an empty bin",
    ),
    "unknown_detection": Metric(
        "unknown detection",
        "AUROC (higher is better): P(score of an OOD image > score of a known image) + ½ P(equal); FPR95, known "
        "positive: OOD images with score ≤ τ, where τ accepts 95 % of the known images; FPR95, OOD positive: "
        "known images with score ≥ τ, where τ finds 95 % of the OOD images",
        StoredAnswers.unknown_detection,
        UNKNOWN,
        counts=False,
        after_each_task={
            "AUROC": "after_each_task.auroc",
            "FPR95 known": "after_each_task.fpr95_known_positive",
            "FPR95 OOD": "after_each_task.fpr95_ood_positive",
        },
        undefined="see below",
        missing="not measured: ood is false in the recipe, the branch keeps no class statistics, or classes "
        "come back in domains",
    ),
    "forward_transfer": Metric(
        "forward transfer",
        "mean over t > 1 of b_t - b°_t",
        StoredAnswers.forward_transfer,
        [Number("forward transfer", "mean", signed=True)],
        counts=False,
        after_each_task={"next task": "reached", "pre-trained": "pretrained"},
        undefined="see below",
        missing="not measured: forward_transfer is false in the recipe",
    ),
    "most_confused": Metric(
        "most confused", "the ten largest C_ij with i ≠ j", StoredAnswers.most_confused, counts=False, unit="images"
    ),
}
"""By their key under `metrics` in results.json."""


def metrics_of(answers: StoredAnswers) -> dict[str, Any]:
    """All of them, as results.json has them; None is what is not defined or was not stored."""
    record = answers.record()
    return {key: metric.of(record if metric.counts else answers) for key, metric in METRICS.items()}


def metrics_of_counts(record: AccuracyRecord) -> dict[str, Any]:
    """Those that follow from the record."""
    return {key: metric.of(record) for key, metric in METRICS.items() if metric.counts}


def summary(record: AccuracyRecord) -> dict[str, float]:
    """The numbers that follow from the record by name, without those that are not defined."""
    found: dict[str, float] = {}
    for metric in METRICS.values():
        if metric.counts and metric.numbers and (value := metric.of(record)) is not None:
            found |= {number.name: follow(value, number.path) for number in metric.numbers}
    return found


def numbers() -> dict[str, tuple[str, Number]]:
    """Every number by name, with the key of its metric."""
    return {number.name: (key, number) for key, metric in METRICS.items() for number in metric.numbers}


def columns() -> dict[str, str]:
    """The names of the numbers that stand in tables, by heading."""
    return {number.column: name for name, (_, number) in numbers().items() if number.column}


EARLIER = {"fpr95_ood_positive": "fpr95_stranger_positive"}
"""Names in results of earlier versions."""


def follow(value: Any, path: str) -> Any:
    """What is at a place within a metric's value; None where there is no value."""
    for key in path.split(".") if path else ():
        value = None if value is None else value[key if key in value else EARLIER[key]]
    return value


def listed() -> str:
    """The metrics in Markdown."""
    header = ["metric", "what it is", "unit", "better", "key", "not defined"]
    return markdown_table(
        header,
        [
            [each.name, each.meaning, each.unit, each.better, f"`{key}`", each.undefined]
            for key, each in METRICS.items()
        ],
    )
