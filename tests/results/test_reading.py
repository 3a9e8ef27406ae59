"""Which runs are seeds of one classifier, and which are told apart."""

import json

import pytest
from typer.testing import CliRunner

from lca.cli import app
from lca.errors import LcaError
from lca.recipe import merge_mappings
from lca.report.page import Report
from lca.report.terminal import present
from lca.results.classifiers import classifiers
from lca.results.reading import Run, collect
from packs import made, packed

ROWS = {"none": [[9, 9], [7, 7, 7, 7]], "lca": [[9, 9], [8, 8, 8, 8]]}


def results(seed=1, rows=ROWS, **changes):
    """Of a recipe with these changes."""
    found = made(rows, seed=seed)
    return found | {"recipe": merge_mappings(found["recipe"], changes)}


@pytest.fixture
def pack(tmp_path):
    def write(name, *cells):
        return packed(tmp_path / f"{name}.json", *cells)

    return write


def table(*paths, **options):
    """Rows and how many seeds they have, by data set."""
    found = classifiers(collect(paths).runs, **options)
    return {data: {row.label: len(row.runs) for row in rows} for data, rows in found.items()}


def test_runs_of_one_recipe_are_seeds(pack):
    paths = [pack(name, ("IM", results(seed))) for name, seed in (("a", 1), ("b", 2))]
    assert table(*paths) == {"digits": {"IM none": 2, "IM lca": 2}}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"device": "cuda"},
        {"keep_models": "all"},
        {"ood": True},
        {"forward_transfer": True},
    ],
)
def test_what_no_number_depends_on_keeps_no_seeds_apart(pack, changes):
    paths = [pack("a", ("IM", results(1))), pack("b", ("IM", results(2, **changes)))]
    assert table(*paths) == {"digits": {"IM none": 2, "IM lca": 2}}


def test_options_that_are_newer_than_a_run_have_their_defaults(pack):
    old = results(1)
    del old["recipe"]["training"]["epochs"], old["recipe"]["exact"]
    assert table(pack("a", ("IM", old), ("IM", results(2)))) == {"digits": {"IM none": 2, "IM lca": 2}}


def test_other_recipes_of_other_paths_have_the_names_of_these(pack):
    paths = [
        pack("a", ("IM", results(1)), ("MOS", results(1, {"default": ROWS["lca"]}))),
        pack("b", ("IM", results(2, training={"epochs": 99})), ("IM", results(3, training={"epochs": 99}))),
    ]
    found = {"IM (a) none": 1, "IM (a) lca": 1, "MOS (a)": 1, "IM (b) none": 2, "IM (b) lca": 2}
    assert table(*paths) == {"digits": found}
    assert table(*paths, only=["IM none"]) == {"digits": {"IM (a) none": 1, "IM (b) none": 2}}
    assert table(*paths, only=["IM (b)", "MOS"]) == {"digits": {"MOS (a)": 1, "IM (b) none": 2, "IM (b) lca": 2}}
    shown = CliRunner().invoke(app, ["show", *map(str, paths), "--markdown"])
    assert [line.split(" |")[0][2:] for line in shown.output.splitlines() if line.startswith(("| IM", "| MOS"))] == [
        *found
    ]


def test_figures_keep_the_order_that_was_asked_for(pack):
    paths = [pack(name, ("IM", results(1, training={"epochs": n}))) for n, name in enumerate("ab", start=1)]
    report = Report("t", 10, only=["IM none", "IM lca"], detail=0)
    report.page(collect(paths))
    names = [text.get_text() for text in report.figures["digits-curves"].legends[0].get_texts()]
    assert names == ["IM (a) none", "IM (b) none", "IM (a) lca", "IM (b) lca"]


def test_the_same_seed_of_other_recipes_did_not_come_twice(pack):
    paths = [pack(name, ("IM", results(1, training={"epochs": n}))) for n, name in enumerate("ab", start=1)]
    assert table(*paths) == {"digits": {f"IM ({name}) {branch}": 1 for name in "ab" for branch in ROWS}}


def test_runs_without_a_label_are_called_as_their_path(pack):
    paths = [pack(name, ("", results(1, training={"epochs": n}))) for n, name in enumerate("ab", start=1)]
    assert table(*paths) == {"digits": {"a none": 1, "a lca": 1, "b none": 1, "b lca": 1}}
    assert table(*paths, only=["lca"]) == {"digits": {"a lca": 1, "b lca": 1}}


def test_paths_of_one_name_are_told_apart_by_where_they_are(tmp_path):
    paths = []
    for epochs, place in enumerate(("one", "two"), start=1):
        for name in ("p.json", "pack.json"):
            (tmp_path / place).mkdir(exist_ok=True)
            paths.append(packed(tmp_path / place / name, ("IM", results(1, training={"epochs": epochs}))))
    assert [run.label for run in collect(paths[::2]).runs] == [f"IM ({path})" for path in paths[::2]]
    assert [run.label for run in collect(paths[1::2]).runs] == ["IM (one)", "IM (two)"], (
        "a sweep's pack is its folder's"
    )


def test_run_folders_of_one_name_are_told_apart_too(tmp_path):
    for name, epochs in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(results(1, training={"epochs": epochs})))
    paths = [tmp_path / "one", tmp_path / "two" / "results.json"]
    assert [run.label for run in collect(paths).runs] == ["made (one)", "made (two)"]


def test_two_recipes_in_one_path_are_refused(pack):
    cells = [("IM", results(1)), ("IM", results(2, training={"epochs": 99}, data={"tasks": 2}))]
    with pytest.raises(LcaError) as refused:
        collect([pack("a", *cells)])
    epochs = results()["recipe"]["training"]["epochs"]
    (line,) = str(refused.value).splitlines()
    assert "'IM' on digits" in line
    assert "seeds 1 and 2" in line
    assert f"training.epochs: {epochs} -> 99" in line
    assert "data.tasks: " in line


def test_recipes_that_are_none_any_more_are_compared_as_they_are(pack):
    def old(seed, view):
        found = results(seed)
        found["recipe"]["data"]["view"] = {"augment": view}
        return found

    assert table(pack("a", ("IM", old(1, True)), ("IM", old(2, True)))) == {"digits": {"IM none": 2, "IM lca": 2}}
    with pytest.raises(LcaError, match=r"data\.view\.augment: True -> False"):
        collect([pack("b", ("IM", old(1, True)), ("IM", old(2, False)))])


def test_a_run_that_came_twice_is_named(pack):
    path = pack("a", ("", results()))
    for verb in ("report", "show"):
        done = CliRunner().invoke(app, [verb, str(path), str(path), "--markdown"])
        assert str(done.exception) == "'made' on digits with seed 1 came twice; give every run once"


def test_an_unknown_name_is_answered_with_names(pack):
    with pytest.raises(LcaError, match=r"no classifier 'xyz'; known: IM, IM lca, IM none, lca, none$"):
        table(pack("a", ("", results()), ("IM", results())), only=["xyz"])


def test_what_was_measured_on_other_images_is_another_data_set(pack):
    tuned = results(1, data={"evaluate": "validation"})
    path = pack("a", ("IM", results(1)), ("IM", tuned), ("MOS", tuned))
    assert table(path) == {
        "digits": {"IM none": 1, "IM lca": 1},
        "digits, validation images": dict.fromkeys(("IM none", "IM lca", "MOS none", "MOS lca"), 1),
    }


def test_without_a_finished_run_the_others_are_counted(tmp_path):
    states = ("open", "failed", "open")
    cells = [{"key": str(n), "label": "IM", "seed": n, "source": "x", "status": each} for n, each in enumerate(states)]
    (tmp_path / "p.json").write_text(json.dumps({"format": 1, "cells": cells}))
    with pytest.raises(LcaError, match=r"no finished runs to show: 2 open, 1 failed$"):
        collect([tmp_path / "p.json"])


def test_the_figures_of_a_sweep_have_names_without_spaces(tmp_path):
    present([Run("IM", results(1)), Run("IM", results(1, data={"evaluate": "validation"}))], tmp_path, "a title")
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {"accuracy-digits.png", "accuracy-digits-validation-images.png"}
