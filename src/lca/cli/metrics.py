"""The verb metrics: everything that a run's stored predictions tell."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lca.errors import LcaError, nearest

if TYPE_CHECKING:
    from lca.results.stored import StoredAnswers

SHOWN = 10
"""Classes and confusions in the readable output; --json has all."""

ALIKE = ("name", "seed", "device", "keep_models", "strangers", "forward_transfer")
"""Keys of a recipe in which the seeds of one run may differ."""


def metrics_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="A run folder; several are taken as seeds of one run.")
    ],
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Only this classifier.", show_default="all")
    ] = None,
    joint: Annotated[
        Path | None, typer.Option("--joint", metavar="RUN", help="A run of method joint: gives the intransigence.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="RUN", help="A run to compare with, image by image.")
    ] = None,
    against_branch: Annotated[
        str | None,
        typer.Option(
            "--against-branch", metavar="NAME", help="Its classifier.", show_default="the same name, or the only one"
        ),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=10, help="Draws of the bootstrap.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the whole confusion matrix.")] = False,
) -> None:
    """Show every metric of a run: by task, by class, confusions, calibration, strangers, transfer, with intervals.

    It reads results.json and predictions.safetensors of the run folder. docs/metrics.md has the definitions. Strangers
    and forward transfer are there when the run was told to measure them.

    Examples:

      lca run best --set strangers=true --set forward_transfer=true

      lca metrics runs/best

      lca metrics runs/best --branch best --json > metrics.json

      lca metrics runs/seed-1993 runs/seed-1994 runs/seed-1995

      lca metrics runs/best --joint runs/joint

      lca metrics runs/best --against runs/paper --against-branch lca
    """
    from lca.results.stored import read_run

    read = [read_run(path) for path in runs]
    names = [branch] if branch else list(read[0][1])
    for path, (_, answers) in zip(runs, read, strict=True):
        for name in names:
            _check_branch(name, answers, path)
    if len(read) > 1:
        if joint or against:
            raise LcaError("--joint and --against take one run, not several")
        found: dict[str, Any] = {name: _over_seeds(read, name, draws) for name in names}
        show = _print_seeds
    else:
        found = {name: _of_run(read[0], name, draws, joint, against, against_branch) for name in names}
        show = _print_run
    if as_json:
        print(json.dumps({"runs": [str(path) for path in runs], "branches": found}, ensure_ascii=False, indent=2))
        return
    for number, (name, facts) in enumerate(found.items()):
        print("\n" * bool(number) + f"{', '.join(str(path) for path in runs)}: {name}")
        show(facts)


def _check_branch(name: str, answers: Mapping[str, "StoredAnswers"], path: Path) -> None:
    if name not in answers:
        raise LcaError(f"{path} has no branch {name!r}; {nearest(name, list(answers))}")


# What is shown


def _of_run(
    run: tuple[dict[str, Any], Mapping[str, "StoredAnswers"]],
    name: str,
    draws: int,
    joint: Path | None,
    against: Path | None,
    against_branch: str | None,
) -> dict[str, Any]:
    from lca.evaluation.calibration import wilson_interval
    from lca.evaluation.resampling import seed_intervals

    results, answers = run[0], run[1][name]
    record, known = answers.record(), answers.task_known()
    matrix = record.matrix()
    by_task = [
        {
            "classes": size,
            "images": images,
            "right": right,
            "learnt": matrix[task][task],
            "best": max(row[task] for row in matrix[task:]),
            "last": matrix[-1][task],
            "last_interval_95": list(wilson_interval(right, images)),
            "last_task_known": None if known is None else known.matrix()[-1][task],
        }
        for task, (size, (right, images)) in enumerate(zip(record.task_sizes, record.by_task(), strict=True))
    ]
    return {
        "tasks": len(record.task_sizes),
        "images": sum(record.total),
        "summary": {
            metric: {"value": value, "bootstrap_interval_95": interval}
            for (metric, value), interval in zip(
                record.summary().items(), seed_intervals([answers.outcomes()], True, draws).values(), strict=True
            )
        },
        "last_accuracy_interval_95": list(wilson_interval(sum(record.correct[-1]), sum(record.total))),
        "intransigence": None if joint is None else _intransigence(results, record, joint),
        "difference": None if against is None else _difference(run, name, against, against_branch, draws),
        "metrics": answers.metrics(),
        "by_task": by_task,
        "by_class": {
            label: {"right": right, "images": images, "interval_95": list(wilson_interval(right, images))}
            for label, right, images in zip(answers.classes, record.correct[-1], record.total, strict=True)
            if images
        },
        "classes": list(answers.classes),
        "confusion": answers.confusion().tolist(),
    }


def _over_seeds(
    runs: Sequence[tuple[dict[str, Any], Mapping[str, "StoredAnswers"]]], name: str, draws: int
) -> dict[str, Any]:
    from lca.evaluation.accuracy import mean_and_deviation
    from lca.evaluation.resampling import seed_intervals
    from lca.results.stored import same_test_images

    _check_seeds([run[0]["recipe"] for run in runs])
    shared = all(same_test_images(runs[0][0], run[0]) for run in runs)
    records = [run[1][name].record().summary() for run in runs]
    intervals = seed_intervals([run[1][name].outcomes() for run in runs], shared, draws)
    summary = {}
    for metric, interval in intervals.items():
        values = [record[metric] for record in records]
        mean, deviation = mean_and_deviation(values)
        summary[metric] = {"mean": mean, "deviation": deviation, "bootstrap_interval_95": interval, "values": values}
    return {"seeds": [run[0]["recipe"]["seed"] for run in runs], "same_test_images": shared, "summary": summary}


def _check_seeds(recipes: Sequence[Mapping[str, Any]]) -> None:
    """Runs are averaged only if nothing but their seed tells them apart."""
    from lca.recipe import differences

    alike = [{key: value for key, value in recipe.items() if key not in ALIKE} for recipe in recipes]
    for other in alike[1:]:
        if changed := differences(alike[0], other):
            raise LcaError("these are not seeds of one run; they differ in\n  " + "\n  ".join(changed))
    seeds = [recipe["seed"] for recipe in recipes]
    if len(set(seeds)) < len(seeds):
        raise LcaError(f"a seed came twice: {', '.join(map(str, seeds))}")


def _intransigence(results: dict[str, Any], record: Any, path: Path) -> float:
    from lca.evaluation.accuracy import intransigence
    from lca.results.stored import read_run, same_test_images

    other, answers = read_run(path)
    if other["recipe"]["method"]["name"] != "joint":
        raise LcaError(f"--joint takes a run of the method joint; {path} is one of {other['recipe']['method']['name']}")
    if not same_test_images(results, other) or any(
        results["data"][key] != other["data"][key] for key in ("class_order", "task_sizes")
    ):
        raise LcaError(f"{path} has other tasks, class order or test images: give the joint run the same data and seed")
    (bound,) = answers.values()
    return intransigence(record, bound.record())


def _difference(
    run: tuple[dict[str, Any], Mapping[str, "StoredAnswers"]],
    name: str,
    path: Path,
    wanted: str | None,
    draws: int,
) -> dict[str, Any]:
    from lca.evaluation.resampling import paired_differences
    from lca.results.stored import read_run, same_test_images

    other, answers = read_run(path)
    chosen = wanted or (next(iter(answers)) if len(answers) == 1 else name)
    _check_branch(chosen, answers, path)
    if not same_test_images(run[0], other):
        raise LcaError(f"{path} was tested on other images; a comparison image by image needs the same ones")
    found = paired_differences(run[1][name].outcomes(), answers[chosen].outcomes(), draws)
    return {
        "run": str(path),
        "branch": chosen,
        "summary": {
            metric: {"value": value, "bootstrap_interval_95": interval} for metric, (value, interval) in found.items()
        },
    }


# How it is shown


def _print_run(facts: dict[str, Any]) -> None:
    metrics, known = facts["metrics"], facts["metrics"]["task_known"]
    print(f"{facts['tasks']} tasks, {len(facts['classes'])} classes, {facts['images']} test images; all in per cent\n")
    rows = [(name, each["value"], each["bootstrap_interval_95"]) for name, each in facts["summary"].items()]
    _print_table(["", "", "95 % interval"], [[name, _number(value), _interval(ends)] for name, value, ends in rows])
    no_interval = "; -: too few images, or nothing varies" * any(ends is None for *_, ends in rows)
    print(
        f"  (bootstrap over test images{no_interval}; the last accuracy's Wilson interval is "
        f"{_interval(facts['last_accuracy_interval_95'])})"
    )
    print()
    forward, strangers = metrics["forward_transfer"], metrics["unknown_detection"]
    for label, value, missing in (
        ("average accuracy, task known", known and known["average_accuracy"]["sample_weighted"], "not stored"),
        ("last accuracy, task known", known and known["last_accuracy"]["sample_weighted"], "not stored"),
        ("intransigence", facts["intransigence"], "needs --joint RUN"),
        ("forward transfer", forward and forward["mean"], "not measured: forward_transfer is false in the recipe"),
        ("calibration error, last", metrics["calibration"]["error"], ""),
        *(
            [
                ("unknown: AUROC", strangers["auroc"], ""),
                ("unknown: FPR95, known positive", strangers["fpr95_known_positive"], ""),
                ("unknown: FPR95, strangers positive", strangers["fpr95_stranger_positive"], ""),
            ]
            if strangers
            else [("unknown detection", None, NO_STRANGERS)]
        ),
    ):
        print(f"{label:<36}{_number(value) if value is not None else f'- ({missing})'}")
    if facts["difference"] is not None:
        print(f"\nminus {facts['difference']['run']}: {facts['difference']['branch']}, on the same test images")
        rows = [
            (name, each["value"], each["bootstrap_interval_95"])
            for name, each in facts["difference"]["summary"].items()
        ]
        _print_table(
            ["", "", "95 % interval"], [[name, f"{value:+.1f}", _interval(ends)] for name, value, ends in rows]
        )
    _print_tasks(facts)
    _print_classes(facts)


NO_STRANGERS = "not measured: strangers is false in the recipe, or the branch keeps no class statistics"


def _print_tasks(facts: dict[str, Any]) -> None:
    print("\ntasks: right after learning, at their best, and after the last task")
    _print_table(
        ["task", "classes", "images", "learnt", "best", "last", "95 % interval", "task known"],
        [
            [str(number), str(each["classes"]), str(each["images"])]
            + [_number(each[key]) for key in ("learnt", "best", "last")]
            + [_interval(each["last_interval_95"]), _number(each["last_task_known"])]
            for number, each in enumerate(facts["by_task"], start=1)
        ],
    )
    metrics = facts["metrics"]
    after, known = metrics["after_each_task"], metrics["task_known"]
    strangers, forward = metrics["unknown_detection"], metrics["forward_transfer"]
    columns: dict[str, list[float | None]] = {
        "accuracy": after["sample_weighted"],
        "task mean": after["task_mean"],
        "task known": known["after_each_task"]["sample_weighted"] if known else [],
        "calibration error": metrics["calibration"]["after_each_task"],
        "AUROC": strangers["after_each_task"]["auroc"] if strangers else [],
        "FPR95 known": strangers["after_each_task"]["fpr95_known_positive"] if strangers else [],
        "FPR95 strangers": strangers["after_each_task"]["fpr95_stranger_positive"] if strangers else [],
        "next task": forward["reached"] if forward else [],
        "pre-trained": forward["pretrained"] if forward else [],
    }
    columns = {name: values for name, values in columns.items() if values}
    print(
        "\nafter each task, on all classes seen so far"
        + "; next task: nearest class means before it is learnt" * bool(forward)
    )
    _print_table(
        ["after", *columns],
        [
            [str(task + 1), *(_number(values[task]) if task < len(values) else "-" for values in columns.values())]
            for task in range(facts["tasks"])
        ],
    )


def _print_classes(facts: dict[str, Any]) -> None:
    by_class = sorted(facts["by_class"].items(), key=lambda item: item[1]["right"] / item[1]["images"])
    few = len(by_class) <= 2 * SHOWN
    for title, chosen in (
        ("classes, the worst first", by_class if few else by_class[:SHOWN]),
        ("the best classes", [] if few else by_class[-SHOWN:]),
    ):
        if chosen:
            print(f"\n{title}, after the last task")
            _print_table(
                ["class", "right", "images", "accuracy", "95 % interval"],
                [
                    [
                        name,
                        str(each["right"]),
                        str(each["images"]),
                        _number(100 * each["right"] / each["images"]),
                        _interval(each["interval_95"]),
                    ]
                    for name, each in chosen
                ],
            )
    if facts["metrics"]["most_confused"]:
        print("\nmost frequent confusions")
        for truth, answer, times in facts["metrics"]["most_confused"][:SHOWN]:
            print(f"  {truth} taken for {answer}: {times}")
    print("\nreliability after the last task: answers by their probability")
    _print_table(
        ["probability", "images", "mean probability", "accuracy"],
        [
            [
                f"{each['low']:.0f} to {each['high']:.0f}",
                str(each["images"]),
                _number(each["mean_probability"]),
                _number(each["accuracy"]),
            ]
            for each in facts["metrics"]["calibration"]["reliability"]
            if each["images"]
        ],
    )


def _print_seeds(facts: dict[str, Any]) -> None:
    shared = "the same" if facts["same_test_images"] else "their own"
    print(f"seeds {', '.join(map(str, facts['seeds']))}, on {shared} test images; all in per cent\n")
    _print_table(
        ["", "mean", "deviation", "95 % interval"],
        [
            [name, _number(each["mean"]), _number(each["deviation"]), _interval(each["bootstrap_interval_95"])]
            for name, each in facts["summary"].items()
        ],
    )
    print("  (sample standard deviation over seeds; bootstrap over seeds and test images)")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(len(line[place]) for line in (header, *rows)) for place in range(len(header))]
    for first, *others in (header, *rows):
        cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join([f"  {first:<{widths[0]}}", *cells]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.1f} to {ends[1]:.1f}"
