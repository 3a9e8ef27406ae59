"""What a report says of runs besides their metrics: what was run, tasks, classes, reliability, drift, recipes."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from lca.recipe import differences
from lca.results.classifiers import Classifier
from lca.results.reading import Run

CLASSES = 5
"""Classes that are shown from either end."""


def pooled_reliability(tables: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The reliability tables of several runs as one."""
    found = []
    for bins in zip(*tables, strict=True):
        images = sum(each["images"] for each in bins)
        means = {
            key: sum(each[key] * each["images"] for each in bins if each["images"]) / images if images else None
            for key in ("mean_probability", "accuracy")
        }
        found.append({"low": bins[0]["low"], "high": bins[0]["high"], "images": images, **means})
    return found


def facts_of(rows: Sequence[Classifier]) -> dict[str, str]:
    """What was run on a data set; where runs differ, all values are named."""
    runs = list({id(run): run for row in rows for run in row.runs}.values())
    data = [run.results["data"] for run in runs]

    def all_of(values: Sequence[Any]) -> str:
        return ", ".join(map(str, dict.fromkeys(values)))

    return {
        "data": all_of([run.source for run in runs]),
        "classes": all_of([len(each["class_order"]) for each in data]),
        "tasks": all_of([len(each["task_sizes"]) for each in data]),
        "training images": all_of([f"{sum(each['train_images']):,}" for each in data]),
        "test images": all_of([f"{sum(each['test_images']):,}" for each in data]),
        "measured on": all_of([f"{run.images} images" for run in runs]),
        "seeds": all_of(sorted(run.seed for run in runs)),
        "backbone": all_of([run.results["backbone"]["name"] for run in runs]),
        "machine": all_of([_machine(run.results["machine"]) for run in runs]),
    }


def _machine(facts: Mapping[str, str]) -> str:
    exact = ", exact" if facts.get("exact") == "true" else ""
    return f"{facts['name']}, {facts['precision']}{exact}"


def ends_of(by_class: Mapping[str, Mapping[str, Any]], count: int) -> tuple[list[Any], list[Any]]:
    """The worst and the best classes as pairs of name and facts; of few classes all are among the worst."""
    order = sorted(by_class.items(), key=lambda item: (item[1]["right"] / item[1]["images"], item[0]))
    return (order, []) if len(order) <= 2 * count else (order[:count], order[-count:])


def drift_of(row: Classifier) -> list[list[float]]:
    """The median unknown score of the test images of every task, after it and after each later task, mean over seeds.
    Empty where no scores were stored."""
    found = []
    for answers in row.answers:
        if not all("unknown" in part for part in answers.after):
            return []
        end, lines = 0, []
        for task, size in enumerate(answers.task_sizes):
            own = (answers.places >= end) & (answers.places < end + size)
            scores = [part["unknown"].double()[own[: len(part["unknown"])]] for part in answers.after[task:]]
            lines.append([float(each.quantile(0.5)) for each in scores])
            end += size
        found.append(lines)
    return cell_means(found)


def cell_means(seeds: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """One table of several, of the same shape."""
    return [[statistics.fmean(cell) for cell in zip(*line, strict=True)] for line in zip(*seeds, strict=True)]


def recipes_of(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The recipe of every label and data set with its seeds, versions and hashes."""
    grouped: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.data_set, run.label].append(run)
    return [_recipe(sorted(members, key=lambda run: run.seed)) for members in grouped.values()]


def _recipe(seeds: Sequence[Run]) -> dict[str, Any]:
    """The recipe of the first seed, how those of the others differ besides the seed, and what all of them ran with."""
    first, *others = [run.results["recipe"] for run in seeds]
    changed = {each["seed"]: differences({**first, "seed": None}, {**each, "seed": None}) for each in others}
    versions = dict.fromkeys(name for run in seeds for name in run.results["versions"])
    return {
        "name": seeds[0].name,
        "source": seeds[0].data_set,
        "seeds": [run.seed for run in seeds],
        "recipe": yaml.safe_dump(first, sort_keys=False, allow_unicode=True),
        "changed": {seed: lines for seed, lines in changed.items() if lines},
        "versions": {
            name: _of_seeds(seeds, [run.results["versions"].get(name, "not recorded") for run in seeds])
            for name in versions
        },
        "weights": _of_seeds(seeds, [run.results["backbone"]["sha256"] for run in seeds]),
        "data": _of_seeds(seeds, [run.results["data"]["sha256"] for run in seeds]),
    }


def _of_seeds(runs: Sequence[Run], values: Sequence[str]) -> str:
    """What all have, or every value with its seeds."""
    found: dict[str, list[int]] = defaultdict(list)
    for run, value in zip(runs, values, strict=True):
        found[value].append(run.seed)
    return values[0] if len(found) == 1 else ", ".join(f"{value} ({in_words(own)})" for value, own in found.items())


def in_words(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
