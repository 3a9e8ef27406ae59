"""One HTML page about runs: it needs no network and no other file."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lca.errors import LcaError, needs
from lca.evaluation.accuracy import running_means
from lca.progress import Progress
from lca.report import comparison, drawing, figures, ranking
from lca.report.ablation import Ablation, ablation
from lca.report.confusions import Confusion, confusions, test_images
from lca.report.drawing import Look
from lca.report.facts import CLASSES, cell_means, drift_of, ends_of, facts_of, in_words, pooled_reliability, recipes_of
from lca.report.formats import DAMAGED
from lca.report.looks import Looks, looks_of
from lca.report.radars import FEWEST_KINDS, radar, shared_kinds
from lca.report.tables import SHOWN, domain_tables, legend
from lca.report.templates import render
from lca.results.classifiers import DAMAGE, Classifier, Measured, classifiers
from lca.results.details import classes_of, tasks_of
from lca.results.metrics import columns
from lca.results.reading import Collection, Run, short_names
from lca.results.robustness import RobustnessScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lca.data.images import ImageSet


ACCURACIES = {"AA": "average accuracy", "last": "last accuracy"}
DAMAGED_BARS = {"clean": "clean", "C": "corrupted", "C at 5": "at severity 5", "P": "perturbed", "score": "score"}


@dataclass
class Report:
    """The page, and its figures by name."""

    title: str
    draws: int
    reference: str | None = None
    """Differences are to this classifier; by default to the best one of every data set."""
    detail: int = 6
    """Classifiers of a data set that are shown in detail, the best ones."""
    only: Sequence[str] = ()
    """Labels and classifiers that are shown; all if there are none."""
    images: bool = False
    """Show examples of confusions."""
    progress: Progress = field(default_factory=Progress)
    figures: dict[str, "Figure"] = field(default_factory=dict)
    _looks: Looks = field(init=False)
    _read: "tuple[Run, ImageSet] | None" = None

    def page(self, collection: Collection) -> str:
        """The whole page."""
        with needs("a page", "jinja2", "matplotlib", "scipy"):
            import matplotlib  # noqa: F401  # told before anything is measured

        if self.images and not any(run.answers for run in collection.runs):
            raise LcaError("without the predictions in a run folder there are no confused images to show")
        found = classifiers(collection.runs, self.draws, self.only)
        references = comparison.references(found, self.reference)
        comparison.measure(found, self.progress)
        together, short = ranking.overall(found), short_names(found)
        numbers = {source: each for source, rows in found.items() if (each := ablation(rows))}
        self._looks = looks_of(found, self.only)
        sections = [
            self._section(f"data-{n}", short[source], found[source], references[source], numbers.get(source))
            for n, source in enumerate(self.progress.track(found, "data sets", len(found)), start=1)
        ]
        self._add_details(sections)
        return render(
            "page.html",
            title=self.title,
            sections=sections,
            overall=together,
            overall_bars=self._overall_bars(together, short) if together else None,
            short=short,
            unfinished=collection.unfinished,
            metrics=columns(),
            damage=DAMAGE,
            damage_legend=DAMAGED,
            recipes=recipes_of(dict.fromkeys(run for rows in found.values() for row in rows for run in row.runs)),
        )

    def _overall_bars(self, together: ranking.Overall, short: Mapping[str, str]) -> Any:
        """Average accuracies on all data sets."""
        columns = [*zip(*together.rows.values(), strict=True)]
        panels = {
            short[source]: {row: row.plain["AA"] for row in rows}
            for source, rows in zip(together.sources, columns, strict=True)
        }
        panels["Overall"] = {row: Measured([together.mean(row.label)]) for row in columns[0]}
        drawn = self._grouped(panels, "average accuracy (%)")
        return self._figure(drawn, f"Average accuracy on all data sets{_spread(columns[0])}", "all", "bars")

    def _section(
        self,
        name: str,
        short: str,
        rows: Sequence[Classifier],
        reference: Classifier,
        numbers: Ablation | None,
    ) -> dict[str, Any]:
        """Everything about one data set."""
        order = comparison.best_first(rows)
        blocks = ranking.blocks_of(rows)
        measured = [row.measured[column] for row in rows for column in columns() if column in row.measured]
        several = len(rows) > 1
        return {
            "id": name,
            "short": short,
            "rows": order,
            "domains": domain_tables(order, SHOWN),
            "best": comparison.choose(rows, None),
            "rivals": len(comparison.rivals(rows)),
            "places": {column: ranking.places(rows, column) for column in columns()},
            "ranks": ranking.mean_ranks(blocks) if several and len(blocks) > 1 else {},
            "blocks": len(blocks),
            "kinds": _kinds(measured),
            "facts": facts_of(rows),
            "legend": legend(rows),
            "ablation": self._ablation(short, numbers) if numbers else None,
            "bars": self._bars(short, rows) if several and not numbers else None,
            **self._curves(short, order, numbers),
            "comparison": self._comparison(short, order, reference) if several else None,
            "damaged": self._damaged(short, rows, reference),
            "details": [],
        }

    def _ablation(self, short: str, found: Ablation) -> dict[str, Any]:
        """Accuracies over the number of the labels, beside the best of the others."""
        beside = self._ordered(comparison.best_first(found.others)[: len(drawing.PALETTE) - len(found.lines)])
        panels = {}
        for column, title in ACCURACIES.items():
            lines = {
                label: {number: _point(row.plain[column]) for number, row in points.items()}
                for label, points in found.lines.items()
            }
            panels[f"{title} (%)"] = (lines, {row.label: _point(row.plain[column]) for row in beside})
        drawn = figures.over_numbers(panels, found.name, self._looks.labels)
        rows = [*beside, *(row for points in found.lines.values() for row in points.values())]
        picture = self._figure(drawn, f"Accuracy over {found.name}, {short}{_spread(rows)}", short, "over", found.name)
        return {"name": found.name, "figure": picture, "left_out": len(found.others) - len(beside)}

    def _bars(self, short: str, rows: Sequence[Classifier]) -> Any:
        panels = {title: {row: row.plain[column] for row in rows} for column, title in ACCURACIES.items()}
        return self._figure(self._grouped(panels, "%"), f"Accuracies on {short}{_spread(rows)}", short, "bars")

    def _curves(self, short: str, rows: Sequence[Classifier], numbers: Ablation | None) -> dict[str, Any]:
        """The accuracy after each task, and what the LCA paper plots instead; of what depends on a number, the best."""
        if numbers:
            best = [comparison.best_first(points.values())[0] for points in numbers.lines.values()]
            rows = [*best, *numbers.others]
        rows = self._ordered(rows)
        after = {row.label: [record.sample_weighted() for record in row.records] for row in rows}
        running = {label: [running_means(curve) for curve in seeds] for label, seeds in after.items()}
        curves = figures.named_curves(after, "accuracy (%)", self._looks.labels)
        means = figures.named_curves(running, "mean accuracy so far (%)", self._looks.labels)
        title, end = "Accuracy on all classes seen so far", f"{short}{_spread(rows)}"
        return {
            "curves": self._figure(curves, f"{title}, {end}", short, "curves"),
            "running": self._figure(means, f"{title}, mean over the tasks so far, {end}", short, "running-means"),
            "curve_count": len(rows),
        }

    def _comparison(self, short: str, rows: Sequence[Classifier], reference: Classifier) -> dict[str, Any]:
        minus = comparison.minus(rows, reference)
        drawn = {row.label: found["AA"] for row, found, _ in minus if "AA" in found}
        shown = figures.forest(drawn, self._looks.labels) if drawn else None
        title, names = f"Average accuracy minus that of {reference.label}, {short}", ("minus", reference.label)
        return {
            "reference": reference.label,
            "instead": comparison.instead_of(self.reference, reference),
            "minus": minus,
            "figure": self._figure(shown, title, short, *names) if shown else None,
            "kinds": _kinds(each for _, found, _ in minus for each in found.values()),
        }

    def _damaged(self, short: str, rows: Sequence[Classifier], reference: Classifier) -> dict[str, Any] | None:
        """Several classifiers on damaged images: a table, bars over the seeds that all have, the differences to the
        reference, and radars of pairs."""
        found = [row for row in rows if row.robustness]
        if len(found) < 2:
            return None
        chosen = comparison.choose_measured(found, reference)
        alike, seeds = comparison.measured_alike(found)
        return {
            "rows": found,
            "words": comparison.damage_in_words(rows),
            "places": ranking.damage_places(found),
            "reference": chosen.label,
            "minus": comparison.minus(found, chosen, DAMAGE),
            "bars": self._damage_bars(short, alike, seeds) if seeds and len(alike) > 1 else None,
            "seeds": in_words(seeds),
            "other_damage": [row.label for row in found if row not in alike],
            "radars": [self._radars(short, *pair) for pair in comparison.robust_pairs(found, chosen)],
        }

    def _damage_bars(self, short: str, rows: Sequence[Classifier], seeds: Sequence[int]) -> Any:
        panels = {
            title: {row: Measured([row.values(column)[seed] for seed in seeds]) for row in rows}
            for column, title in DAMAGED_BARS.items()
            if seeds[0] in rows[0].values(column)
        }
        spread = ", ± standard deviation" if len(seeds) > 1 else ""
        title = f"Accuracy on damaged images, {short}, {comparison.damage_in_words(rows)}, {in_words(seeds)}{spread}"
        return self._figure(self._grouped(panels, "%"), title, short, "damaged", "bars")

    def _radars(self, short: str, one: Classifier, two: Classifier) -> dict[str, Any]:
        """One relative to the other by kind, of the seeds that both have."""
        seeds = [seed for seed in one.robustness if seed in two.robustness]
        drawn = {}
        kinds = {"corruptions": RobustnessScores.by_corruption, "sequences": RobustnessScores.by_sequence}
        for kind, by_name in kinds.items():
            values = {row.label: _means([by_name(row.robustness[seed]) for seed in seeds]) for row in (one, two)}
            if len(shared_kinds([*values.values()])) >= FEWEST_KINDS:
                title = f"{one.label} relative to {two.label}: accuracy by kind (%), {kind}, {short}, {in_words(seeds)}"
                names = (short, "damaged", one.label, "relative to", two.label, kind)
                shown = radar(values, size=(5.8, 5.6), relative=True, looks=self._looks.labels)
                drawn[kind] = self._figure(shown, title, *names)
        return {"pair": f"{one.label} relative to {two.label}", "seeds": in_words(seeds), "figures": drawn}

    def _add_details(self, sections: Sequence[dict[str, Any]]) -> None:
        """The best classifiers of every section. Their images are read before, which has a progress of its own."""
        chosen = [(section, row) for section in sections for row in section["rows"][: self.detail]]
        confused = [self._confusions(row) for _, row in chosen]
        for (section, row), pairs in self.progress.track(zip(chosen, confused, strict=True), "details", len(chosen)):
            section["details"].append(self._detail(section["short"], row, pairs))

    def _detail(self, short: str, row: Classifier, confused: Mapping[str, Any]) -> dict[str, Any]:
        """One classifier from all sides."""

        look = self._looks.labels[row.label]

        def picture(draw: Callable[[Any], "Figure"], shown: Any, title: str, what: str) -> Any:
            if not shown:
                return None
            return self._figure(draw(shown), f"{title}: {row.label}, {short}", short, row.label, what)

        matrix = cell_means([record.matrix() for record in row.records])
        orders = {tuple(record.domains) for record in row.records}
        classes = classes_of((run.results["data"]["class_order"], run.records[row.branch]) for run in row.runs)
        worst, best = ends_of(classes, CLASSES)
        calibration, ood = (row.stored(key) for key in ("calibration", "unknown_detection"))
        bins = pooled_reliability([each["reliability"] for each in calibration]) if calibration else []
        by_kind = {
            f"seed {seed}" if len(row.runs) > 1 else row.label: each.by_kind() for seed, each in row.robustness.items()
        }
        seeds = {name: Look(look.place, look.line + number) for number, name in enumerate(by_kind)}
        drawn_kinds = by_kind if len(shared_kinds([*by_kind.values()])) >= FEWEST_KINDS else None
        return {
            "row": row,
            "heat_map": picture(figures.heat_map, matrix, "Accuracy on every task, after every task", "matrix"),
            "forgetting": picture(
                partial(figures.forgetting_by_task, colour=look.colour),
                matrix if len(matrix) > 1 else None,
                "What is left of every task",
                "tasks",
            ),
            "tasks": tasks_of(matrix, row.records[0].task_sizes, orders.pop() if len(orders) == 1 else ()),
            "classes": [*worst, *best],
            "confusions": confused,
            "reliability": picture(
                partial(figures.reliability_diagram, colour=look.colour), bins, "Reliability", "reliability"
            ),
            "calibration_error": statistics.fmean(each["error"] for each in calibration) if calibration else None,
            "ood": statistics.fmean(each["auroc"] for each in ood) if ood else None,
            "drift": picture(
                partial(figures.drift_curves, colour=look.colour), drift_of(row), "Drift of every task", "drift"
            ),
            "radar": picture(
                partial(radar, size=(5.4, 4.6), looks=seeds),
                drawn_kinds,
                "Accuracy by kind of damage (%)",
                "robustness",
            ),
        }

    def _confusions(self, row: Classifier) -> dict[str, Any]:
        """Those of all seeds where predictions are at hand, or else what the first run's results have."""
        first, seed = row.runs[0], f"seed {row.runs[0].seed}"
        if row.answers:
            images = self._images_of(first) if self.images else None
            together = f"all seeds together{f'; images of {seed}' if images else ''}"
            of = together if len(row.runs) > 1 else seed
            return {"of": of, "found": confusions(row.answers, images), "pictures": images is not None}
        stored = first.metric(row.branch, "most_confused") or []
        asked = classes_of([(first.results["data"]["class_order"], first.records[row.branch])])
        found = [Confusion(truth, answer, times, asked[truth]["images"]) for truth, answer, times in stored]
        return {"of": seed, "found": found, "pictures": False}

    def _images_of(self, run: Run) -> "ImageSet":
        """The test images of a run, kept while its branches are shown."""
        if self._read is None or self._read[0] is not run:
            self._read = (run, test_images(run, self.progress))
        return self._read[1]

    def _ordered(self, rows: Iterable[Classifier]) -> list[Classifier]:
        """As in all figures."""
        return sorted(rows, key=lambda row: self._looks.order.index(row.label))

    def _grouped(self, panels: Mapping[str, Mapping[Classifier, Measured]], x: str) -> "Figure":
        """Bars by label, each with the name and the look of its classifier."""
        bars: dict[str, dict[str, dict[str, tuple[float, float | None]]]] = {}
        for title, rows in panels.items():
            groups = bars.setdefault(title, {})
            for row, measured in rows.items():
                groups.setdefault(row.group, {})[row.label] = _point(measured)
        return figures.grouped_bars(bars, x, self._looks.labels)

    def _figure(self, figure: "Figure", title: str, *names: str) -> Any:
        """For the page; and by name, with a title, for a file."""
        from markupsafe import Markup

        name = drawing.file_name(*names)
        if taken := sum(other == name or other.startswith(f"{name}~") for other in self.figures):
            name = f"{name}~{taken + 1}"
        svg = drawing.inline_svg(figure, name)
        self.figures[name] = drawing.titled(figure, title)
        return Markup(svg)  # matplotlib escapes the texts in it


def _spread(rows: Iterable[Classifier]) -> str:
    """For titles of figures that show it."""
    return ", ± standard deviation over seeds" if any(len(row.runs) > 1 for row in rows) else ""


def _kinds(numbers: Iterable[Measured]) -> list[str]:
    """What their intervals are from."""
    return sorted({each.kind for each in numbers} - {""})


def _point(measured: Measured) -> tuple[float, float | None]:
    return measured.mean, measured.deviation


def _means(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over seeds of what all of them have."""
    return {name: statistics.fmean(each[name] for each in seeds) for name in shared_kinds(seeds)}
