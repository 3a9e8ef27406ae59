"""One HTML page about runs: it needs no network and no other file."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lca.errors import LcaError
from lca.evaluation.accuracy import running_means
from lca.evaluation.calibration import wilson_interval
from lca.report import comparison, figures
from lca.report.comparison import METRICS, Classifier
from lca.report.confusions import Confusion, confusions, test_images
from lca.report.reading import Collection, Run
from lca.report.tables import LEGEND, bytes_of, seconds_by_phase, short_name
from lca.robustness.scores import RobustnessScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lca.data.images import ImageSet
    from lca.progress import Progress

CLASSES = 5
"""Classes that are shown from either end."""


@dataclass
class Report:
    """The page, and its figures by name."""

    title: str
    draws: int
    reference: str | None = None
    """Differences are to this classifier; by default to the best one of every data set."""
    detail: int = 6
    """Classifiers of a data set that are shown in detail, the best ones."""
    images: "Progress | None" = None
    """Show examples of confusions; reading the images is told here."""
    figures: dict[str, "Figure"] = field(default_factory=dict)
    _read: "tuple[Run, ImageSet] | None" = None

    def page(self, collection: Collection) -> str:
        """The whole page."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        if self.images is not None and not any(run.answers for run in collection.runs):
            raise LcaError("without the predictions in a run folder there are no confused images to show")
        found = comparison.classifiers(collection.runs, self.draws)
        together = comparison.overall(found)
        templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return templates.get_template("page.html").render(
            title=self.title,
            sections=[self._section(f"data-{n}", *each) for n, each in enumerate(found.items(), start=1)],
            overall=together,
            overall_bars=self._overall_bars(together) if together else None,
            unfinished=collection.unfinished,
            metrics=METRICS,
            legend=LEGEND,
            recipes=_recipes(collection.runs),
        )

    def _overall_bars(self, together: comparison.Overall) -> Any:
        """Average accuracies on all data sets, of as many classifiers as there are colours."""
        bars = {
            label: {short_name(row.row.source): row.measured["AA"].mean for row in rows}
            | {"Overall": together.mean(label)}
            for label, rows in together.rows.items()
        }
        if len(bars) > len(figures.PALETTE):
            return None
        return self._figure("overall-bars", figures.grouped_bars(bars, "average accuracy (%)"))

    def _section(self, name: str, source: str, rows: Sequence[Classifier]) -> dict[str, Any]:
        """Everything about one data set."""
        order = comparison.best_first(rows)
        reference = comparison.choose(rows, self.reference)
        return {
            "id": name,
            "source": source,
            "rows": order,
            "best": comparison.choose(rows, None),
            "rivals": len(comparison.rivals(rows)),
            "places": {column: comparison.places(rows, column) for column in METRICS},
            "ranks": comparison.mean_ranks(comparison.blocks_of(rows)) if len(rows) > 1 else {},
            "kinds": sorted({each.kind for row in rows for each in row.measured.values() if each.kind}),
            "facts": _facts(rows),
            **self._curves(name, order),
            "comparison": self._comparison(name, order, reference) if len(rows) > 1 else None,
            "damaged": self._damaged(name, order, reference),
            "details": [self._detail(f"{name}-{n}", each) for n, each in enumerate(order[: self.detail], start=1)],
        }

    def _curves(self, name: str, rows: Sequence[Classifier]) -> dict[str, Any]:
        """The accuracy after each task, and what the LCA paper plots instead."""
        after = {row.label: [record.sample_weighted() for record in row.records] for row in rows}
        running = {label: [running_means(curve) for curve in seeds] for label, seeds in after.items()}
        return {
            "curves": self._figure(f"{name}-curves", figures.named_curves(after, "accuracy (%)")),
            "running": self._figure(f"{name}-running", figures.named_curves(running, "mean accuracy so far (%)")),
        }

    def _comparison(self, name: str, rows: Sequence[Classifier], reference: Classifier) -> dict[str, Any]:
        table = {row.label: comparison.differences(row, reference) for row in rows if row is not reference}
        drawn = [each["AA"] for each in table.values() if "AA" in each]
        shown = figures.forest(
            [each.label for each in drawn],
            [each.measured.mean for each in drawn],
            [each.measured.interval for each in drawn],
        )
        kinds = {each.measured.kind for row in table.values() for each in row.values()}
        return {
            "reference": reference.label,
            "table": table,
            "figure": self._figure(f"{name}-differences", shown) if drawn else None,
            "kinds": sorted(kinds - {""}),
        }

    def _damaged(self, name: str, rows: Sequence[Classifier], reference: Classifier) -> dict[str, Any] | None:
        """Several classifiers on damaged images: bars of all, and radars of two, one of which is the reference if that
        was measured."""
        found = [row for row in rows if row.robustness]
        if len(found) < 2:
            return None
        bars = {row.label: _means([_summary(each) for each in row.robustness.values()]) for row in found}
        chosen = sorted(found, key=lambda row: row is not reference)[:2]
        one, two = sorted(chosen, key=found.index)
        seeds = [seed for seed in one.robustness if seed in two.robustness]
        radars = {}
        for kind, by_name in {
            "corruptions": RobustnessScores.by_corruption,
            "sequences": RobustnessScores.by_sequence,
        }.items():
            values = {row.label: _means([by_name(row.robustness[seed]) for seed in seeds]) for row in (one, two)}
            if len(set.intersection(*map(set, values.values()))) >= figures.FEWEST_KINDS:
                drawn = figures.radar(values, size=(5.8, 5.6), relative=True)
                radars[kind] = self._figure(f"{name}-relative-{kind}", drawn)
        return {
            "bars": self._figure(f"{name}-damaged", figures.grouped_bars(bars, "accuracy (%)")),
            "radars": radars,
            "pair": (one.label, two.label),
        }

    def _detail(self, name: str, row: Classifier) -> dict[str, Any]:
        """One classifier from all sides."""
        matrices = [record.matrix() for record in row.records]
        matrix = [[statistics.fmean(cell) for cell in zip(*line, strict=True)] for line in zip(*matrices, strict=True)]
        metrics = [run.results["branches"][row.branch]["metrics"] for run in row.runs]
        stored = [each["calibration"] for each in metrics if "calibration" in each]
        calibration = [each.calibration() for each in row.answers] or stored
        bins = pooled([each["reliability"] for each in calibration]) if calibration else []
        strangers = [each["unknown_detection"] for each in metrics if each.get("unknown_detection")]
        moved = drift(row)
        radar = {
            f"seed {seed}" if len(row.runs) > 1 else row.label: each.by_kind() for seed, each in row.robustness.items()
        }
        common = set.intersection(*map(set, radar.values())) if radar else set()
        return {
            "id": name,
            "row": row,
            "heat_map": self._figure(f"{name}-matrix", figures.heat_map(matrix)),
            "forgetting": self._figure(f"{name}-tasks", figures.forgetting_by_task(matrix))
            if len(matrix) > 1
            else None,
            "tasks": _tasks(matrix, row.records[0].task_sizes),
            "classes": _classes(row),
            "confusions": self._confusions(row),
            "reliability": self._figure(f"{name}-reliability", figures.reliability_diagram(bins)) if bins else None,
            "calibration_error": statistics.fmean(each["error"] for each in calibration) if calibration else None,
            "strangers": statistics.fmean(each["auroc"] for each in strangers) if strangers else None,
            "drift": self._figure(f"{name}-drift", figures.drift_curves(moved)) if moved else None,
            "robustness": row.robustness,
            "radar": self._figure(f"{name}-robustness", figures.radar(radar, size=(5.4, 4.6)))
            if len(common) >= figures.FEWEST_KINDS
            else None,
            "bytes": bytes_of(row.runs[0].results, row.branch),
            "seconds": seconds_by_phase(row.runs[0].results, row.branch),
        }

    def _confusions(self, row: Classifier) -> dict[str, Any]:
        """Those of all seeds where predictions are at hand, or else what the first run's results have."""
        first, seed = row.runs[0], f"seed {row.runs[0].seed}"
        if row.answers:
            images = None if self.images is None else self._images_of(first)
            together = f"all seeds together{f'; images of {seed}' if images else ''}"
            of = together if len(row.runs) > 1 else seed
            return {"of": of, "found": confusions(row.answers, images), "pictures": images is not None}
        stored = first.results["branches"][row.branch]["metrics"].get("most_confused") or []
        total = dict(zip(first.results["data"]["class_order"], first.results["data"]["test_images"], strict=True))
        found = [Confusion(truth, answer, times, total[truth]) for truth, answer, times in stored]
        return {"of": seed, "found": found, "pictures": False}

    def _images_of(self, run: Run) -> "ImageSet":
        """The test images of a run, kept while its branches are shown."""
        if self._read is None or self._read[0] is not run:
            assert self.images is not None
            self._read = (run, test_images(run, self.images))
        return self._read[1]

    def _figure(self, name: str, figure: "Figure") -> Any:
        from markupsafe import Markup

        self.figures[name] = figure
        return Markup(figures.inline_svg(figure, name))  # matplotlib escapes the texts in it


def _summary(scores: RobustnessScores) -> dict[str, float]:
    """The means that were measured, by what they are of."""
    found = {
        "clean": scores.clean,
        "corrupted": scores.accuracy_c,
        "at severity 5": scores.at_severity_5,
        "perturbed": scores.accuracy_p,
        "score": scores.score,
    }
    return {name: value for name, value in found.items() if value is not None}


def _means(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over seeds of what all of them have."""
    names = [name for name in seeds[0] if all(name in each for each in seeds)] if seeds else []
    return {name: statistics.fmean(each[name] for each in seeds) for name in names}


def pooled(tables: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
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


def _facts(rows: Sequence[Classifier]) -> dict[str, str]:
    """What was run on a data set; where runs differ, all values are named."""
    runs = list({id(run): run for row in rows for run in row.runs}.values())
    data = [run.results["data"] for run in runs]

    def all_of(values: Sequence[Any]) -> str:
        return ", ".join(map(str, dict.fromkeys(values)))

    return {
        "classes": all_of([len(each["class_order"]) for each in data]),
        "tasks": all_of([len(each["task_sizes"]) for each in data]),
        "training images": all_of([f"{sum(each['train_images']):,}" for each in data]),
        "test images": all_of([f"{sum(each['test_images']):,}" for each in data]),
        "measured on": all_of([f"{run.results['recipe']['data']['evaluate']} images" for run in runs]),
        "seeds": all_of(sorted(run.seed for run in runs)),
        "backbone": all_of([run.results["backbone"]["name"] for run in runs]),
        "machine": all_of([_machine(run.results["machine"]) for run in runs]),
    }


def _machine(facts: Mapping[str, str]) -> str:
    exact = ", exact" if facts.get("exact") == "true" else ""
    return f"{facts['name']}, {facts['precision']}{exact}"


def _tasks(matrix: Sequence[Sequence[float]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "classes": size,
            "learnt": matrix[task][task],
            "best": max(row[task] for row in matrix[task:]),
            "last": matrix[-1][task],
        }
        for task, size in enumerate(sizes)
    ]


def _classes(row: Classifier) -> list[dict[str, Any]]:
    """The worst and the best classes after the last task, all seeds together."""
    right: Counter[str] = Counter()
    images: Counter[str] = Counter()
    for run, record in zip(row.runs, row.records, strict=True):
        for name, correct, total in zip(
            run.results["data"]["class_order"], record.correct[-1], record.total, strict=True
        ):
            right[name] += correct
            images[name] += total
    order = sorted((name for name in images if images[name]), key=lambda name: (right[name] / images[name], name))
    chosen = order if len(order) <= 2 * CLASSES else order[:CLASSES] + order[-CLASSES:]
    return [
        {"name": name, "right": right[name], "images": images[name], "ends": wilson_interval(right[name], images[name])}
        for name in chosen
    ]


def drift(row: Classifier) -> list[list[float]]:
    """The median unknown score of the test images of every task, after it and after each later task, mean over seeds.
    Empty where no scores were stored."""
    found = []
    for answers in row.answers:
        if not all("unknown" in part for part in answers.after):
            return []
        end, lines = 0, []
        for task, size in enumerate(answers.task_sizes):
            own = (answers.labels >= end) & (answers.labels < end + size)
            scores = [part["unknown"].double()[own[: len(part["unknown"])]] for part in answers.after[task:]]
            lines.append([float(each.quantile(0.5)) for each in scores])
            end += size
        found.append(lines)
    return [[statistics.fmean(cell) for cell in zip(*line, strict=True)] for line in zip(*found, strict=True)]


def _recipes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The recipe of every label and data set with its seeds, versions and hashes."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.source, run.label), []).append(run)
    return [
        {
            "name": label or members[0].results["recipe"]["name"],
            "source": source,
            "seeds": sorted(run.seed for run in members),
            "recipe": yaml.safe_dump(members[0].results["recipe"], sort_keys=False, allow_unicode=True),
            "versions": members[0].results["versions"],
            "weights": members[0].results["backbone"]["sha256"],
            "data": members[0].results["data"]["sha256"],
        }
        for (source, label), members in grouped.items()
    ]
