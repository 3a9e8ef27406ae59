"""One entry in the table of metrics is all that a new one takes."""

import csv
import json
import re

import pytest

import tiny
from lca.evaluation.accuracy import AccuracyRecord
from lca.files import read_json
from lca.results.metrics import METRICS, Metric, Number
from lca.runs.experiment import run
from packs import made, packed


def worst_class(record: AccuracyRecord) -> float:
    return min(100 * right / total for right, total in zip(record.correct[-1], record.total, strict=True))


@pytest.fixture
def _worst_class(monkeypatch):
    entry = Metric(
        "worst class",
        "the lowest accuracy of a class",
        worst_class,
        numbers=[Number("accuracy, worst", column="worst")],
    )
    monkeypatch.setitem(METRICS, "worst_class", entry)


@pytest.mark.usefixtures("_worst_class")
def test_a_new_metric_is_in_all_views(lca, tmp_path):
    with tiny.tiny_backbone():
        run(tiny.recipe(method={"name": "simplecil"}), tmp_path / "run")
    branch = read_json(tmp_path / "run" / "results.json")["branches"]["default"]
    worst = branch["metrics"]["worst_class"]
    assert 0 <= worst <= branch["metrics"]["last_accuracy"]["sample_weighted"]
    (facts,) = json.loads(lca("metrics", tmp_path / "run", "--draws", 20, "--json")[1])["branches"].values()
    assert facts["summary"]["accuracy, worst"]["value"] == facts["metrics"]["worst_class"] == worst
    assert re.search(rf"accuracy, worst +{worst:.1f} ", lca("metrics", tmp_path / "run", "--draws", 20)[1])


@pytest.mark.usefixtures("_worst_class")
def test_also_of_packs_that_are_older_than_it(lca, tmp_path):
    rows = {seed: [[9, 9], [7, 7, low, 7]] for seed, low in ((1, 5), (2, 4))}
    runs = [made({"default": counts}, seed=seed) for seed, counts in rows.items()]
    for results in runs:
        del results["branches"]["default"]["metrics"]["worst_class"]
    pack = packed(tmp_path / "p.json", *(("a", results) for results in runs), ("b", runs[0]))
    for words in (("show",), ("show", "--markdown"), ("report", "--markdown"), ("report", "--latex")):
        assert " worst " in lca(words[0], pack, *words[1:])[1]
        assert "45.0" in lca(words[0], pack, *words[1:])[1]
    lines = csv.DictReader(lca("report", pack, "--csv")[1].splitlines())
    assert [line["accuracy, worst"] for line in lines] == ["50.0", "40.0", "50.0"]
    lca("report", pack, "--out", tmp_path / "r.html")
    assert '<th class="n">worst</th>' in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("_worst_class")
def test_it_is_listed(lca):
    listed = lca("metrics", "--list")[1].splitlines()
    assert "| worst class | the lowest accuracy of a class | % | higher | `worst_class` |  |" in listed
    assert len(listed) == len(METRICS) + 2
