"""Everything that a run's stored predictions tell, as JSON: what `lca metrics` shows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lca.errors import LcaError, nearest
from lca.evaluation.accuracy import AccuracyRecord, intransigence
from lca.evaluation.intervals import DRAWS, Ends, paired_differences, wilson_interval
from lca.results.classifiers import Classifier, Measured
from lca.results.metrics import metrics_of, summary
from lca.results.reading import Run
from lca.results.seeds import recipe_differences
from lca.results.stored import StoredAnswers, counted, same_tasks, same_test_images


def answers_of(run: Run, branch: str) -> StoredAnswers:
    if branch not in run.answers:
        raise LcaError(f"{run.folder} has no branch {branch!r}; {nearest(branch, list(run.answers))}")
    return run.answers[branch]


def details(
    run: Run,
    branch: str,
    draws: int = DRAWS,
    *,
    joint: Run | None = None,
    against: Run | None = None,
    against_branch: str | None = None,
) -> dict[str, Any]:
    """Of one run: every metric with intervals, by task and by class; beside a run of method joint the intransigence,
    and against another run the differences, image by image."""
    answers = answers_of(run, branch)
    record, known = answers.record(), answers.task_known()
    intervals = Classifier(run.label, branch, [run], draws).bootstrap
    tasks = tasks_of(record.matrix(), record.task_sizes, record.domains)
    for task, (row, (right, images)) in enumerate(zip(tasks, record.by_task(), strict=True)):
        row |= {"images": images, "right": right, "last_interval_95": list(wilson_interval(right, images))}
        row["last_task_known"] = None if known is None else known.matrix()[-1][task]
    return {
        "tasks": len(tasks),
        "images": sum(record.total),
        "summary": _with_intervals({name: (value, intervals[name]) for name, value in summary(record).items()}),
        "last_accuracy_interval_95": list(wilson_interval(sum(record.correct[-1]), sum(record.total))),
        "intransigence": None if joint is None else _intransigence(run, answers, joint),
        "difference": None if against is None else _difference(run, branch, against, against_branch, draws),
        "metrics": metrics_of(answers),
        "by_task": tasks,
        "by_class": classes_of([(answers.classes, record)]),
        "classes": list(answers.classes),
        "confusion": answers.confusion().tolist(),
    }


def over_seeds(runs: Sequence[Run], branch: str, draws: int = DRAWS) -> dict[str, Any]:
    """Of several seeds of one recipe: mean, deviation and interval of every number that follows from the counts."""
    for other in runs[1:]:
        if changed := recipe_differences(runs[0].recipe, other.recipe):
            raise LcaError("these are not seeds of one run; they differ in\n  " + "\n  ".join(changed))
    if len({run.seed for run in runs}) < len(runs):
        raise LcaError(f"a seed was given twice: {', '.join(str(run.seed) for run in runs)}")
    records = [summary(answers_of(run, branch).record()) for run in runs]
    row, found = Classifier(runs[0].label, branch, runs, draws), {}
    for name, interval in row.bootstrap.items():
        each = Measured([record[name] for record in records])
        spread = {"mean": each.mean, "deviation": each.deviation}
        found[name] = {**spread, "bootstrap_interval_95": interval, "values": each.values}
    return {"seeds": [run.seed for run in runs], "same_test_images": row.same_test_images, "summary": found}


def tasks_of(
    matrix: Sequence[Sequence[float]], sizes: Sequence[int], domains: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every task right after it was learnt, at its best, and after the last one; with the name of its domain."""
    return [
        {
            **({"domain": domains[task]} if domains else {}),
            "classes": size,
            "learnt": matrix[task][task],
            "best": max(row[task] for row in matrix[task:]),
            "last": matrix[-1][task],
        }
        for task, size in enumerate(sizes)
    ]


def classes_of(seeds: Iterable[tuple[Sequence[str], AccuracyRecord]]) -> dict[str, dict[str, Any]]:
    """Right answers after the last task by class, all seeds together; without classes that have no images."""
    right: Counter[str] = Counter()
    images: Counter[str] = Counter()
    for classes, record in seeds:
        names = (name for _, name in counted(classes, record.domains))
        for name, correct, total in zip(names, record.correct[-1], record.total, strict=True):
            right[name] += correct
            images[name] += total
    return {
        name: {"right": right[name], "images": count, "interval_95": list(wilson_interval(right[name], count))}
        for name, count in images.items()
        if count
    }


def _intransigence(run: Run, answers: StoredAnswers, joint: Run) -> float:
    if (method := joint.recipe["method"]["name"]) != "joint":
        raise LcaError(f"--joint takes a run of the method joint; {joint.folder} is one of {method}")
    if not same_test_images(run.results, joint.results) or not same_tasks(run.results, joint.results):
        raise LcaError(
            f"{joint.folder} has other tasks, class order or test images: give the joint run the same data and seed"
        )
    (bound,) = joint.answers.values()
    return intransigence(answers.record(), bound.record())


def _difference(run: Run, branch: str, other: Run, wanted: str | None, draws: int) -> dict[str, Any]:
    chosen = wanted or (next(iter(other.answers)) if len(other.answers) == 1 else branch)
    theirs = answers_of(other, chosen)
    if not same_test_images(run.results, other.results):
        raise LcaError(f"{other.folder} was tested on other images; a comparison image by image needs the same ones")
    found = paired_differences(run.answers[branch].outcomes(), theirs.outcomes(), summary, draws)
    return {"run": str(other.folder), "branch": chosen, "summary": _with_intervals(found)}


def _with_intervals(found: Mapping[str, tuple[float, Ends | None]]) -> dict[str, Any]:
    return {name: {"value": value, "bootstrap_interval_95": interval} for name, (value, interval) in found.items()}
