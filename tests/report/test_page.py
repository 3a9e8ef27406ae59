"""The page: well-formed, alone in the world, with the right numbers, and nobody's markup but its own."""

import base64
import io
import json
import re
import shutil
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from lca.data.sources import load_source
from lca.errors import LcaError
from lca.evaluation.intervals import paired_differences, seed_intervals
from lca.progress import Progress
from lca.report import comparison
from lca.report.confusions import confusions
from lca.report.facts import drift_of, pooled_reliability
from lca.report.page import Report
from lca.results.classifiers import IMAGES, classifiers
from lca.results.metrics import columns, metrics_of, summary
from lca.results.reading import Run, collect
from lca.results.stored import StoredAnswers, read_run
from lca.runs.experiment import run
from lca.runs.sweep import expand, sweep
from packs import CORRUPTIONS, SEQUENCES, damage, made, packed

RESULTS = Path(__file__).parent.parent.parent / "results"
VOID = {"meta", "link", "img", "br", "path", "use", "rect", "stop", "hr"}
NASTY = "<script>alert('x')</script> & \"quoted\" $x_1$"


class Page(HTMLParser):
    """Checks that elements are closed in order, and gathers ids, references and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.references, self.images, self.tags = [], [], set(), [], []
        self.rows, self.texts = [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name == "href" and value.startswith("#"):
                self.references.add(value[1:])
            if name == "src":
                self.images.append(value)
            self.references.update(re.findall(r"url\(#([^)]+)\)", value or ""))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag, f"</{tag}> where another element is open"

    def handle_data(self, data):
        self.texts.append(data)
        if "tr" in self.open and self.rows[-1]:
            self.rows[-1][-1] += data

    def row(self, label):
        """The first table row that begins with a label, its white space made even."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        return next(row for row in rows if row and row[0] == label)


def check(text):
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert page.references <= set(page.ids)
    assert not re.findall(r"https?:|//\w+\.|@import|<iframe|<object", text)
    assert all(uri.startswith(("data:image/png;base64,", "data:image/jpeg;base64,")) for uri in page.images)
    assert page.tags.count("script") == 1, "the one that unfolds for the printer"
    return page


def page_of(*paths, **options):
    report = Report(options.pop("title", "title"), options.pop("draws", 20), **options)
    return check(report.page(collect(paths))), report


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A sweep of two seeds with two branches, and a joint run."""
    folder = tmp_path_factory.mktemp("sweep")
    content = tiny.recipe(
        method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]},
        training={"epochs": 1},
        data={"tasks": [3, 3, 4]},
        keep_models="none",
        ood=True,
    ).dump()
    cells = expand({**content, "grid": {"seed": [5, 6]}, "cells": [{"label": "im"}]})
    cells += expand({**content, "method": {"name": "joint"}, "cells": [{"label": "joint"}]})
    with tiny.tiny_backbone():
        sweep(cells, folder)
    return folder


def test_a_sweep_with_its_folders(seeds):
    page, report = page_of(seeds)
    folders = sorted((seeds / "cells").glob("im-*"))
    read = [read_run(folder) for folder in folders]
    for branch in ("none", "best"):
        row = page.row(f"im {branch}")
        assert row[1] == "2"
        intervals = seed_intervals([answers[branch].outcomes() for _, answers in read], True, summary, 20)
        for cell, (column, name) in zip(row[2:6], columns().items(), strict=True):
            path = {"AA": ("average_accuracy", "sample_weighted"), "AA task": ("average_accuracy", "task_mean")}
            path |= {"last": ("last_accuracy", "sample_weighted"), "forgets": ("forgetting",)}
            values = []
            for results, _ in read:
                value = results["branches"][branch]["metrics"]
                for key in path[column]:
                    value = value[key]
                values.append(value)
            low, high = intervals[name]
            assert cell == f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}{low:.1f} to {high:.1f}"
    assert page.row("joint none sees all data at once")[1] == "1"
    texts = " ".join(" ".join(page.texts).split())
    assert "has the highest average accuracy" in texts
    assert "bootstrap over seeds and test images" in texts
    assert "seeds 5, 6" in texts
    assert "AUROC" in texts
    names = set(report.figures)
    best = comparison.choose(classifiers(collect([seeds]).runs)["digits"], None).branch
    assert {f"digits-{what}" for what in ("bars", "curves", "running-means", f"minus-im-{best}")} <= names
    assert {f"digits-im-{branch}-{what}" for branch in ("none", "best") for what in ("matrix", "tasks")} <= names
    assert (
        report.figures[f"digits-minus-im-{best}"].get_suptitle() == f"Average accuracy minus that of im {best}, digits"
    )
    assert any(name.endswith("-drift") for name in names)
    assert page.tags.count("svg") == len(names)


def test_every_number_of_the_heat_map_is_in_the_page(seeds):
    (folder,) = (seeds / "cells").glob("im-5-*")
    page, _ = page_of(folder, detail=1)
    matrix = max(
        json.loads((folder / "results.json").read_text())["branches"].values(),
        key=lambda each: each["metrics"]["average_accuracy"]["sample_weighted"],
    )["metrics"]["matrix"]
    texts = [text.strip() for text in page.texts]
    for row in matrix:
        for value in row:
            assert f"{value:.0f}" in texts
    assert page.row("2")[1:] == [
        "3",
        f"{matrix[1][1]:.1f}",
        f"{max(matrix[1][1], matrix[2][1]):.1f}",
        f"{matrix[2][1]:.1f}",
    ]


def test_confusions_with_pictures(seeds):
    (folder,) = (seeds / "cells").glob("im-5-*")
    results, answers = read_run(folder)
    page, _ = page_of(folder, images=True, detail=1)
    best = answers[
        max(results["branches"], key=lambda b: results["branches"][b]["metrics"]["average_accuracy"]["sample_weighted"])
    ]
    truth, answer, times = metrics_of(best)["most_confused"][0]
    rows = [row for row in page.rows if row[:2] == [truth, answer]]
    assert (
        rows[0][2].strip()
        == f"{times} of {results['data']['test_images'][results['data']['class_order'].index(truth)]}"
    )
    found = confusions([best])[0]
    assert (found.truth, found.answer, found.times, found.mistaken) == (truth, answer, times, [])
    assert page.images
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(page.images[0].partition(",")[2]))))
    assert picture.shape == (72, 72, 3)
    source = load_source(tiny.recipe().data, 0, 16, Progress()).test.of_classes(results["data"]["class_order"])
    names = results["data"]["class_order"]
    wrong = (best.labels == names.index(truth)) & (best.after[-1]["prediction"] == names.index(answer))
    first = source.image(int(torch.nonzero(wrong)[0])).permute(1, 2, 0).numpy()
    assert (picture[::9, ::9] == first).all(), "the 8 x 8 image, enlarged"


def test_other_images_than_the_runs_are_refused(seeds, tmp_path):
    (folder,) = (seeds / "cells").glob("im-5-*")
    changed = shutil.copytree(folder, tmp_path / "run")
    results = json.loads((changed / "results.json").read_text())
    results["data"]["sha256"] = "0" * 64
    (changed / "results.json").write_text(json.dumps(results))
    with pytest.raises(LcaError, match="are not those of the run"):
        page_of(changed, images=True)


def test_images_need_predictions(tmp_path):
    pack = packed(tmp_path / "p.json", ("a", made({"default": [[9, 9], [7, 7, 7, 7]]})))
    with pytest.raises(LcaError, match="without the predictions"):
        page_of(pack, images=True)


def test_names_are_shown_and_never_obeyed(tmp_path):
    classes = [NASTY, "b", "<img src=x onerror=alert(1)>", "d"]
    results = made({"default": [[9, 9], [1, 7, 7, 7]]}, classes=classes, source=f"folder:{NASTY}")
    results["branches"]["default"]["metrics"]["most_confused"] = [[NASTY, classes[2], 5]]
    results["recipe"]["name"] = NASTY
    other = made({"default": [[9, 9], [5, 5, 5, 5]]}, classes=classes, source=f"folder:{NASTY}")
    pack = packed(tmp_path / "p.json", (NASTY, results), ("#000000", other))
    page, _ = page_of(pack, title=NASTY)
    assert "#000000" in page.texts, "a name in a figure is no colour"
    assert page.tags.count("img") == 0
    text = "".join(page.texts)
    assert text.count(NASTY) > 8
    assert page.row(NASTY)
    assert "alert('x')</script>" not in re.sub(r"&lt;script&gt;", "", Report(NASTY, 20).page(collect([pack])))


@pytest.mark.parametrize("name", ["cifar100-mini-noise", "cifar100-mini"])
def test_packs_from_before_calibration_was_stored(name):
    page, report = page_of(RESULTS / f"{name}.json", detail=2)
    cells = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
    shown = {row[0].partition(" sees all")[0] for row in page.rows if row}
    for label, results in ((cell["label"], cell["results"]) for cell in cells):
        assert {
            label if branch == "default" else f"{label} {branch}".strip() for branch in results["branches"]
        } <= shown
    assert not any(name.endswith(("-reliability", "-drift")) for name in report.figures)


def test_what_is_not_finished_is_named(tmp_path):
    pack = packed(tmp_path / "p.json", ("a", made({"default": [[9, 9], [7, 7, 7, 7]]})))
    content = json.loads(pack.read_text())
    content["cells"].append({"key": "x", "label": "b", "seed": 7, "status": "failed", "error": "no <memory>"})
    pack.write_text(json.dumps(content))
    page, _ = page_of(pack)
    assert "b, seed 7, is failed: no <memory>" in page.texts


def test_what_was_measured_on_validation_images_is_not_said_of_test_images(tmp_path):
    results = made({"default": [[9, 9], [7, 7, 7, 7]]})
    results["recipe"]["data"]["evaluate"] = "validation"
    page, _ = page_of(packed(tmp_path / "p.json", ("a", results)), detail=0)
    text = " ".join(" ".join(page.texts).split())
    assert "right for 70.0 % of the validation images after the last task" in text
    assert "the accuracy on all validation images seen so far" in text


@pytest.mark.parametrize("kinds", [2, 3])
def test_robustness_is_read_from_the_run_folder(seeds, tmp_path, kinds):
    (folder,) = (seeds / "cells").glob("im-5-*")
    folder = shutil.copytree(folder, tmp_path / "run")
    scores = {"clean": 81.25, "images": 10, "generated": True, "branch": "best"}
    damaged = {"fog": {"1": 70.0, "5": 50.0}, "snow": {"1": 40.0, "5": 20.0}, "frost": {"1": 50.0, "5": 40.0}}
    scores |= {"corrupted": dict(list(damaged.items())[:kinds]), "perturbed": {}}
    (folder / "robustness.json").write_text(json.dumps(scores))
    page, report = page_of(folder)
    drawn = any(name.endswith("-robustness") for name in report.figures)
    assert drawn == (kinds == 3), "two axes are no radar"
    assert ["5", "81.2", "45.0", "–", "–"] in page.rows


def test_curves_of_seeds_and_their_running_means(tmp_path):
    cells = [("a", made({"default": rows}, seed=n)) for n, rows in enumerate(([[8, 8], [6] * 4], [[4, 4], [2] * 4]))]
    _, report = page_of(packed(tmp_path / "p.json", *cells))

    def drawn(name):
        (axes,) = report.figures[f"digits-{name}"].axes
        (band,) = axes.collections
        low, high = (getattr(band.get_datalim(axes.transData), end) for end in ("y0", "y1"))
        return [*axes.lines[0].get_ydata()], pytest.approx((low, high)), axes.get_ylabel()

    deviation = 20 * 2**0.5
    assert drawn("curves") == ([60.0, 40.0], (40 - deviation, 60 + deviation), "accuracy (%)")
    assert drawn("running-means") == ([60.0, 50.0], (50 - deviation, 60 + deviation), "mean accuracy so far (%)")


def test_two_classifiers_on_damaged_images(seeds, tmp_path):
    (folder,) = (seeds / "cells").glob("im-5-*")
    folder = shutil.copytree(folder, tmp_path / "run")
    for branch, accuracy in (("none", 50.0), ("best", 90.0)):
        (folder / f"robustness-{branch}.json").write_text(json.dumps(damage(branch, accuracy)))
    page, report = page_of(folder, reference="tiny none")
    (radar,) = [name for name in report.figures if name.endswith("corruptions")]
    assert radar == "digits-damaged-tiny-best-relative-to-tiny-none-corruptions", "the aligned one comes first"
    assert report.figures[radar].get_suptitle().replace("\n", " ") == (
        "tiny best relative to tiny none: accuracy by kind (%), corruptions, digits, seed 5"
    )
    text = " ".join(page.texts)
    assert text.count("+133.3 %") == len(CORRUPTIONS), "70 instead of 30"
    assert text.count("+88.9 %") == len(SEQUENCES), "85 instead of 45"
    bars = {
        axes.get_title(): sorted(bar.get_width() for bar in axes.patches)
        for axes in report.figures["digits-damaged-bars"].axes
        if axes.get_visible()
    }
    assert bars == {
        "clean": [50.0, 90.0],
        "corrupted": [30.0, 70.0],
        "at severity 5": [20.0, 60.0],
        "perturbed": [45.0, 85.0],
        "score": [37.5, 77.5],
    }
    assert page.row("tiny none")[0], "and the table of damaged images"
    assert ["tiny none", "5", "50.0", "30.0", "20.0", "45.0", "37.5", "5.0"] in evened(page)
    assert ["tiny best", "1", *["+40.0"] * 5, "-4.0"] in evened(page)


def evened(page):
    return [[" ".join(cell.split()) for cell in row] for row in page.rows]


def robust_pack(path, **accuracies):
    """Three methods with their alignments, each measured on damaged images with some seeds: `SLCA={1: 60, 2: 70}` has
    60 for its first branch with seed 1, and one more for each further branch."""
    rows = [[9, 9], [7, 7, 7, 7]]
    branches = {"IM": ("none", "ca", "lca"), "SLCA": ("slca", "none", "lca"), "MOS": ("mos", "none", "lca")}
    return packed(
        path,
        *(
            (
                label,
                made(dict.fromkeys(branches[label], rows), seed=seed, method=label.lower()),
                [damage(branch, accuracy + more) for more, branch in enumerate(branches[label])],
            )
            for label, seeds in accuracies.items()
            for seed, accuracy in seeds.items()
        ),
    )


def test_radars_of_every_label_with_and_without_lca(tmp_path):
    pack = robust_pack(tmp_path / "p.json", IM={1: 60, 2: 62}, SLCA={1: 70, 3: 70}, MOS={1: 50, 2: 60})
    _, report = page_of(pack, reference="SLCA slca", detail=0)
    found = [name for name in report.figures if name.endswith("-corruptions")]
    assert found == [
        f"digits-damaged-{pair}-corruptions"
        for pair in (
            "IM-lca-relative-to-IM-none",
            "SLCA-lca-relative-to-SLCA-slca",
            "SLCA-lca-relative-to-SLCA-none",
            "MOS-lca-relative-to-MOS-mos",
            "MOS-lca-relative-to-MOS-none",
            "IM-none-relative-to-SLCA-slca",
        )
    ], "and the best of the others beside the reference; all have the same average accuracy"
    assert report.figures[found[0]].get_suptitle().endswith("seeds 1, 2")
    assert report.figures[found[1]].get_suptitle().endswith("seeds 1, 3")
    assert report.figures[found[-1]].get_suptitle().endswith("seed 1"), "which both have"


def test_bars_of_damaged_images_rest_on_the_seeds_that_all_have(tmp_path):
    pack = robust_pack(tmp_path / "p.json", IM={1: 60, 2: 62, 4: 10}, SLCA={1: 70, 2: 70, 3: 20}, MOS={1: 50, 2: 60})
    page, report = page_of(pack, detail=0, reference="IM none")
    figure = report.figures["digits-damaged-bars"]
    assert figure.get_suptitle().replace("\n", " ") == (
        "Accuracy on damaged images, digits, 10 test images, generated damage, seeds 1, 2, ± standard deviation"
    )
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [61, 62, 63, 70, 71, 72, 55, 56, 57]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:4] == ["IM none", "IM ca", "IM lca", "SLCA slca"], "every bar has the name of its classifier"
    spread = axes.containers[1].lines[2][0].get_segments()[0]
    assert spread[:, 0] == pytest.approx([61 - 2**0.5, 61 + 2**0.5]), "of 60 and 62"
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches}) == 9
    assert not figure.legends
    assert "mean over seeds 1, 2, which all have" in " ".join(page.texts)
    (own,) = [row for row in evened(page) if row[:2] == ["IM none", "1, 2, 4"]]
    assert own[2].startswith("44.0 ± 29.5"), "the table has all its seeds"
    (minus,) = [row for row in evened(page) if row[0] == "SLCA slca" and len(row) == 8 and row[1] == "2"]
    assert minus[2] == "+9.0-3.7 to +21.7", "+10 and +8 against IM none: 9 ± 12.7"
    assert "none is called the best" in " ".join(page.texts)


def test_how_many_images_were_damaged_and_what_was_not_measured(tmp_path):
    rows = {branch: [[9, 9], [7, 7, 7, 7]] for branch in ("none", "lca", "best")}
    scores = [damage("none", 50.0, images=500), damage("lca", 60.0, images=500, generated=False)]
    page, _ = page_of(packed(tmp_path / "p.json", ("IM", made(rows), scores)), detail=0)
    words = "500 test images, generated damage or 500 test images, published damage; not measured: IM best"
    text = " ".join(" ".join(page.texts).split())
    assert f"Accuracy after the last task in per cent ({words})" in text
    assert "score: the mean of C and P, the LCA paper's overall robustness" in text


def test_several_data_sets_have_an_overall_table(tmp_path):
    def row(label, source, right):
        return label, made({"default": [[right, right], [right] * 4]}, source=source)

    cells = [row("a", "one", 8), row("b", "one", 6), row("a", "two", 5), row("b", "two", 9), row("c", "two", 1)]
    page, report = page_of(packed(tmp_path / "p.json", *cells))
    assert page.row("b") == ["b", "60.0", "90.0", "75.0", "1.5"]
    assert page.row("a") == ["a", "80.0", "50.0", "65.0", "1.5"]
    panels = {axes.get_title(): [bar.get_width() for bar in axes.patches] for axes in report.figures["all-bars"].axes}
    assert panels == {"one": [80.0, 60.0], "two": [50.0, 90.0], "Overall": [65.0, 75.0]}


def test_reliability_of_several_runs_together():
    one = [{"low": 0.0, "high": 50.0, "images": 1, "mean_probability": 40.0, "accuracy": 0.0}]
    two = [{"low": 0.0, "high": 50.0, "images": 3, "mean_probability": 20.0, "accuracy": 100.0}]
    empty = [{"low": 0.0, "high": 50.0, "images": 0, "mean_probability": None, "accuracy": None}]
    assert pooled_reliability([one, two, empty]) == [
        {"low": 0.0, "high": 50.0, "images": 4, "mean_probability": 25.0, "accuracy": 75.0}
    ]
    assert pooled_reliability([empty]) == empty


def test_drift_by_hand():
    after = [{"unknown": torch.tensor([1.0, 3.0])}, {"unknown": torch.tensor([2.0, 4.0, 7.0])}]
    stored = StoredAnswers(("a", "b"), [1, 1], torch.tensor([0, 0, 1]), after)
    (row,) = classifiers([Run("a", made({"default": [[1], [1, 1]]}, sizes=(1, 1)))])["digits"]
    row.runs[0].__dict__["answers"] = {"default": stored}
    assert drift_of(row) == [[2.0, 3.0], [7.0]], (
        "the median of the first class's two images rises, the other has one image"
    )


def test_one_seed_is_compared_image_by_image(seeds):
    (folder,) = (seeds / "cells").glob("im-5-*")
    ((none, best),) = classifiers(collect([folder]).runs, 50).values()
    answers = read_run(folder)[1]
    expected = paired_differences(answers["none"].outcomes(), answers["best"].outcomes(), summary, 50)
    found = comparison.differences(none, best)
    for column, name in columns().items():
        assert (found[column].mean, found[column].interval) == expected[name]
        assert found[column].kind == IMAGES


def test_equals_are_not_called_the_best(tmp_path):
    cells = [(label, made({"default": [[n, n], [n] * 4]})) for label, n in (("a", 8), ("b", 8), ("c", 5))]
    page, _ = page_of(packed(tmp_path / "p.json", *cells))
    assert "is among the 2 with the highest average accuracy" in " ".join(" ".join(page.texts).split())


def test_one_task_and_one_class(tmp_path):
    page, report = page_of(packed(tmp_path / "p.json", ("a", made({"default": [[9]]}, sizes=(1,)))))
    assert page.row("a")[2:6] == ["90.0", "90.0", "90.059.6 to 98.2", "–"]
    assert "data-1-1-tasks" not in report.figures


def test_the_same_runs_give_the_same_page(tmp_path):
    pack = packed(tmp_path / "p.json", ("a", made({"default": [[9, 9], [7, 7, 7, 7]]})))
    assert Report("t", 20).page(collect([pack])) == Report("t", 20).page(collect([pack]))


def test_seeds_of_runs_given_one_by_one(tmp_path):
    with tiny.tiny_backbone():
        for seed in (5, 6):
            run(
                tiny.recipe(data={"tasks": [5, 5]}, training={"epochs": 1}, method={"align": ["none"]}, seed=seed),
                tmp_path / str(seed),
            )
    page, _ = page_of(tmp_path / "5", tmp_path / "6")
    assert page.row("tiny none")[1] == "2"


def test_versions_and_recipes_of_all_seeds(tmp_path):
    def seed(number, sources, **recipe):
        results = made({"default": [[9, 9], [7, 7, 7, 7]]}, seed=number, versions={"lca": "1.2.3", **sources})
        return "a", results | {"recipe": results["recipe"] | recipe}

    old, new = {}, {"lca sources": "abc"}
    alike = packed(tmp_path / "alike.json", seed(2, new), seed(1, new))
    text = " ".join(" ".join(page_of(alike)[0].texts).split())
    assert "The recipe of seed 1; the others differ in the seed only." in text
    assert "lca 1.2.3 lca sources abc SHA-256" in text
    unlike = packed(tmp_path / "unlike.json", seed(1, new), seed(3, old), seed(2, new, device="cpu"), seed(4, old))
    text = " ".join(" ".join(page_of(unlike)[0].texts).split())
    assert "differ in the seed only" not in text
    assert "The recipe of seed 1; that of seed 2 has device: auto -> cpu." in text
    assert "lca sources abc (seeds 1, 2), not recorded (seeds 3, 4)" in text


def test_recipes_are_those_of_what_is_shown(tmp_path):
    cells = [(label, made({"default": [[9, 9], [7, 7, 7, 7]]})) for label in ("a", "b")]
    page, _ = page_of(packed(tmp_path / "p.json", *cells), only=["b"])
    assert page.tags.count("pre") == 1


def test_all_that_takes_long_has_a_progress(seeds, monkeypatch):
    told, open_, drawn = [], [], []

    def draw(*arguments):
        drawn.append([*open_])
        return seed_intervals(*arguments)

    class Recorder(Progress):
        @contextmanager
        def task(self, what, total):
            assert not open_, "older releases of rich have one bar at a time"
            open_.append(what)
            done = []
            yield done.append
            open_.remove(what)
            told.append((what, total, sum(done)))

    monkeypatch.setattr("lca.results.classifiers.seed_intervals", draw)
    with pytest.raises(LcaError, match="no classifier 'nobody'"):
        page_of(seeds, reference="nobody", progress=Recorder())
    assert not told, "what is wrong is told first"
    page_of(seeds, images=True, detail=1, progress=Recorder())
    assert drawn == [["intervals"]] * 3
    assert ("intervals", 3, 3) in told, "two branches and joint"
    assert ("data sets", 1, 1) in told
    assert told[-1] == ("details", 1, 1)
    assert all(total == done for _, total, done in told)


def test_without_details_there_is_no_section_of_them(tmp_path):
    pack = packed(tmp_path / "p.json", ("a", made({"default": [[9, 9], [7, 7, 7, 7]]})))
    text = "".join(page_of(pack)[0].texts)
    assert text.count("In detail") == 2, "a link and a heading"
    assert "In detail" not in "".join(page_of(pack, detail=0)[0].texts)
    assert "--detail shows more" not in "".join(page_of(pack, detail=0)[0].texts)


def test_domains_have_tables_and_names(tmp_path):
    first = made({"default": [[5, 5], [4, 4, 9, 9]]}, domains=("ink", "oil"))
    first["branches"]["default"]["metrics"]["most_confused"] = [["class 1", "class 0", 7]]
    other = made({"default": [[7, 7], [9, 9, 2, 4]]}, domains=("oil", "ink"), seed=2)
    alone, _ = page_of(packed(tmp_path / "one.json", ("a", first)))
    assert ["a", "40.0", "90.0", "65.0"] in alone.rows, "last accuracies and their mean"
    assert ["a", "10.0", "0.0"] in alone.rows, "forgotten"
    assert ["1: ink", "2", "50.0", "50.0", "40.0"] in alone.rows
    assert any("7 of 20" in cell for row in alone.rows for cell in row), "of the class in both domains"
    both, _ = page_of(packed(tmp_path / "two.json", ("a", first), ("a", other)))
    assert ["a", "35.0 ± 7.1", "90.0 ± 0.0", "62.5 ± 3.5"] in both.rows
    assert any(row[:2] == ["1", "2"] for row in both.rows), "seeds have other domains as first tasks"
