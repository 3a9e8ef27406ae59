"""Sweeps: the grid, its shards, failed and finished cells, packs."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
import yaml

import tiny
from lca.errors import LcaError
from lca.files import hold, read_json, write_json
from lca.methods import methods
from lca.results.folder import RunFiles, SweepFiles
from lca.results.packs import Pack
from lca.results.reading import collect
from lca.runs import sweep as sweeps
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.sweep import Cell, expand, shard, sweep

BASE = tiny.recipe(training={"epochs": 1}, data={"tasks": [5, 5], "train_limit": 4}).dump()
IM = {"name": "im", "align": ["none"]}


def small(**more):
    return {**BASE, "method": {"name": "finetune"}, **more}


def test_every_change_meets_every_combination():
    cells = expand(
        small(
            cells=[{"label": "plain"}, {"label": "long", "training": {"epochs": 3}}],
            grid={"seed": [1, 2], "training.lr": [0.1, 0.2]},
        )
    )
    found = {(cell.label, cell.recipe.seed, cell.recipe.training.lr, cell.recipe.training.epochs) for cell in cells}
    assert found == {
        (f"{label} training.lr={lr}", seed, lr, epochs)
        for label, epochs in (("plain", 1), ("long", 3))
        for seed in (1, 2)
        for lr in (0.1, 0.2)
    }
    assert len({cell.key for cell in cells}) == len({cell.folder for cell in cells}) == 8


def test_values_can_be_named_and_data_sets_stay_out_of_the_label():
    data = {"few": {"train_limit": 3}, "folder": {"source": "folder:photos"}}
    cells = expand(small(grid={"data": data, "training": {"slow": {"lr": 0.1, "epochs": 7}, "fast": {"lr": 1.0}}}))
    assert [(cell.label, cell.recipe.data.source, cell.recipe.data.train_limit) for cell in cells] == [
        ("finetune slow", "digits", 3),
        ("finetune fast", "digits", 3),
        ("finetune slow", "folder:photos", 4),
        ("finetune fast", "folder:photos", 4),
    ]
    assert [cell.recipe.training.epochs for cell in cells] == [7, 1, 7, 1]


def test_a_plain_recipe_is_a_sweep_of_one():
    (cell,) = expand(small())
    assert cell.label == "finetune"
    assert cell.recipe == tiny.recipe(small())


def test_equal_cells_are_run_once():
    assert len(expand(small(cells=[{"label": "a"}, {"label": "b", "training": {"epochs": 1}}]))) == 1


def test_a_cell_may_name_another_method():
    cells = expand({**BASE, "method": IM, "cells": [{}, {"method": "joint"}]})
    assert [cell.recipe.method.name for cell in cells] == ["im", "joint"]
    assert [cell.label for cell in cells] == ["im", "joint"]


def test_cells_of_one_trunk_come_one_after_another():
    cells = expand({**BASE, "method": IM, "grid": {"method.align": [["none"], ["lda"]], "seed": [1, 2, 3]}})
    assert [cell.recipe.seed for cell in cells] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"cells": {"a": 1}}, "mine: cells must be a list of mappings"),
        ({"cells": ["a"]}, "mine: cells must be a list of mappings"),
        ({"grid": [1]}, "mine: grid must map dotted keys to lists"),
        ({"grid": {"seed": 1}}, "mine: grid must map dotted keys to lists"),
        ({"grid": {"seed": []}}, "mine: grid must map dotted keys to lists"),
        ({"grid": {"training.epoch": [1]}}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"cells": [{"training": {"lr": -1}}]}, "training.lr"),
    ],
)
def test_a_grid_with_mistakes_is_refused(content, message):
    with pytest.raises(LcaError, match=message):
        expand(small(**content), "mine")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_shards_share_the_cells_and_keep_trunks_together(count):
    grid = {"method.align": [["none"], ["lda"], ["ca"]], "seed": list(range(7))}
    cells = expand({**BASE, "method": IM, "grid": grid})
    parts = [shard(cells, number, count) for number in range(1, count + 1)]
    assert sorted(cell.key for part in parts for cell in part) == sorted(cell.key for cell in cells)
    for seed in range(7):
        holders = [part for part in parts if any(cell.recipe.seed == seed for cell in part)]
        assert len(holders) == 1
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (1, 0)])
def test_a_shard_that_is_not_there(number, count):
    with pytest.raises(LcaError, match=f"got {number}/{count}"):
        shard(expand(small()), number, count)


def test_the_key_does_not_depend_on_the_name():
    one, two = (Cell("a", tiny.recipe(small(name=name))) for name in ("x", "y"))
    assert one.key == two.key
    assert one.key != Cell("a", tiny.recipe(small(seed=9))).key


@pytest.fixture
def broken(monkeypatch):
    """A switch: while it is on, `joint` fails in its second step."""
    state = {"on": True}
    original = methods["joint"].steps

    def steps(self, task, labels):
        for step in original(self, task, labels):
            yield step
            if state["on"]:
                raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(methods["joint"], "steps", steps)
    return state


def ran(monkeypatch):
    """Notes which cells are really run."""
    seen = []
    original = sweeps.run

    def noting(recipe, folder, **options):
        seen.append(recipe.method.name)
        return original(recipe, folder, **options)

    monkeypatch.setattr(sweeps, "run", noting)
    return seen


def test_a_failed_cell_is_reported_the_others_run_and_it_is_tried_again(tmp_path, monkeypatch, broken):
    seen = ran(monkeypatch)
    cells = expand({**BASE, "cells": [{"method": "joint"}, {"method": "finetune"}]})
    packed = sweep(cells, tmp_path)
    assert seen == ["joint", "finetune"]
    assert [(cell.label, cell.state) for cell in packed.cells] == [
        ("joint", "failed"),
        ("finetune", "finished"),
    ]
    assert packed.cells[0].error == "RuntimeError: the disk is on fire"
    assert packed.cells[0].stored is None
    assert packed == Pack.read(tmp_path / "pack.json")
    folder = SweepFiles(tmp_path).cell(cells[0].folder)
    failure = read_json(folder / "failed.json")
    assert "Traceback" in failure["traceback"]
    broken["on"] = False
    seen.clear()
    packed = sweep(cells, tmp_path)
    assert seen == ["joint"], "what is finished is not run again"
    assert [cell.state for cell in packed.cells] == ["finished", "finished"]
    assert not list(tmp_path.rglob("failed.json"))
    assert packed.cells[0].results == read_json(folder / "results.json")


def test_a_spent_budget_leaves_a_pack_and_the_sweep_goes_on(tmp_path):
    cells = expand({**BASE, "cells": [{"method": "joint"}, {"method": "finetune"}]})

    class ThreeSteps(Budget):
        left = 3

        def spent(self):
            self.left -= 1
            return self.left < 0

    slices = 0
    while True:
        try:
            packed = sweep(cells, tmp_path, budget=ThreeSteps())
            break
        except BudgetSpent:
            slices += 1
            assert slices < 20
            states = [cell.state for cell in Pack.read(tmp_path / "pack.json").cells]
            assert "failed" not in states
            assert "open" in states
    assert slices >= 2
    whole = sweep(cells, tmp_path / "whole")
    for one, two in zip(packed.cells, whole.cells, strict=True):
        assert one.results["branches"] == two.results["branches"]


def test_what_is_taken_over_is_packed_though_no_time_is_left(tmp_path):
    cells = expand({**BASE, "cells": [{"method": "joint"}, {"method": "finetune"}]})
    measured = sweep(cells[:1], tmp_path / "first")
    with pytest.raises(BudgetSpent):
        sweep(cells, tmp_path / "second", reuse=[measured], budget=Budget(0))
    packed = Pack.read(tmp_path / "second" / "pack.json")
    assert [cell.state for cell in packed.cells] == ["finished", "open"]


def test_branch_cells_share_one_training(tmp_path):
    grid = {"method.align": [["none"], [tiny.branch("a")], [tiny.branch("a", robustness=1.0)]]}
    cells = expand({**BASE, "method": IM, "grid": grid})
    sweep(cells, tmp_path)
    trained = []
    for cell in cells:
        lines = RunFiles(SweepFiles(tmp_path).cell(cell.folder)).log_file.read_text().splitlines()
        trained.append(sum(json.loads(line).get("phase") == "finetune" for line in lines))
    assert trained == [2, 0, 0]


def entry(key, status, **more):
    return {"key": key, "label": key, "seed": 1, "source": "x", "status": status, **more}


def results(number):
    return {"number": number, "branches": {}}


def test_packs_are_merged_cell_by_cell(tmp_path):
    one = {
        "format": 1,
        "cells": [entry("a", "failed", error="x"), entry("b", "open"), entry("c", "finished", results=results(1))],
    }
    two = {"format": 1, "cells": [entry("a", "finished", results=results(2)), entry("b", "failed", error="y")]}
    three = {"format": 1, "cells": [entry("c", "finished", results=results(3)), entry("d", "open"), entry("b", "open")]}
    for path, content in (("1.json", one), ("2.json", two), ("3.json", three)):
        write_json(tmp_path / path, content)
    Pack.merged(Pack.read(tmp_path / f"{number}.json") for number in (1, 2, 3)).write(tmp_path / "merged.json")
    assert read_json(tmp_path / "merged.json") == {
        "format": 2,
        "cells": [
            entry("a", "finished", results=results(2)),
            entry("b", "failed", error="y"),
            entry("c", "finished", results=results(1)),
            entry("d", "open"),
        ],
    }


@pytest.mark.parametrize("content", [{}, {"format": 3, "cells": []}, {"format": 1}, {"cells": []}])
def test_what_is_no_pack_is_refused(content, tmp_path):
    write_json(tmp_path / "pack.json", content)
    with pytest.raises(LcaError, match=r"neither a run folder nor a pack|format (3|None), this version reads packs"):
        Pack.read(tmp_path / "pack.json")


def test_shards_merged_are_the_whole_sweep(tmp_path):
    cells = expand(small(grid={"seed": [1, 2, 3]}))
    whole = sweep(cells, tmp_path / "whole")
    parts = [sweep(shard(cells, number, 2), tmp_path / f"part-{number}") for number in (1, 2)]
    merged = Pack.merged(parts)

    def numbers(packed):
        return {cell.key: cell.results["branches"] for cell in packed.cells}

    assert numbers(merged) == numbers(whole)
    assert len(merged.cells) == 3


def test_cells_that_a_table_would_mix_are_refused():
    with pytest.raises(LcaError, match="two different cells are called 'finetune', seed 5; give each a label"):
        expand(small(cells=[{"training": {"lr": 0.1}}, {"training": {"lr": 0.2}}]))
    with pytest.raises(
        LcaError, match=r"'finetune' differ in more than the seed \(training.lr: 0.1 -> 0.2\); give each"
    ):
        expand(small(cells=[{"seed": 1, "training": {"lr": 0.1}}, {"seed": 2, "training": {"lr": 0.2}}]))
    assert len(expand(small(cells=[{"seed": 1}, {"seed": 2, "device": "cpu", "ood": True}]))) == 2


def test_shards_in_one_folder_share_one_pack(tmp_path):
    cells = expand(small(grid={"seed": [1, 2]}))
    with tiny.tiny_backbone():
        for number in (1, 2):
            packed = sweep(cells, tmp_path, only=shard(cells, number, 2))
    assert [cell.state for cell in packed.cells] == ["finished", "finished"]
    assert Pack.read(tmp_path / "pack.json") == packed


def test_cells_that_an_earlier_version_named_go_on(tmp_path):
    """Its keys were hashes of other dumps: an option had another name, and options of all operators stood together."""
    cells = expand(small())
    with tiny.tiny_backbone():
        new = sweep(cells, tmp_path)
        folder = next((tmp_path / "cells").iterdir())
        earlier = folder.rename(folder.with_name(f"finetune-{cells[0].recipe.seed}-0123456789ab"))
        recipe = yaml.safe_load((earlier / "recipe.yaml").read_text())
        recipe["strangers"] = recipe.pop("ood")
        (earlier / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        log = (earlier / "log.jsonl").read_text()
        again = sweep(cells, tmp_path)
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [folder.name]
    assert (folder / "log.jsonl").read_text() == log, "nothing was run again"
    assert again == new
    old = Pack([replace(new.cells[0], key="0123456789ab")])
    assert [cell.key for cell in Pack.merged([old, new]).cells] == [cells[0].key]


def with_results(pack, key=None, **changes):
    """The pack with other results of its first cell."""
    first, *others = pack.cells
    changed = replace(first, key=key or first.key, stored={**first.stored, **changes})
    return Pack([changed, *others])


def test_results_of_a_pack_are_taken_over(tmp_path, monkeypatch):
    cells = expand(small(grid={"seed": [1, 2]}))
    first = sweep(cells, tmp_path / "first", only=cells[:1])
    recipe = {**first.cells[0].recipe}
    del recipe["ood"]  # as if it had not been an option then
    older = with_results(first, recipe=recipe, key="of other options")
    seen = ran(monkeypatch)
    packed = sweep(cells, tmp_path / "second", reuse=[older])
    assert len(seen) == 1
    assert packed.cells[0].results["branches"] == first.cells[0].results["branches"]
    assert packed.cells[1].state == "finished"


def test_cells_that_saw_other_images_are_named(tmp_path):
    cells = expand(small(cells=[{}, {"label": "other", "training": {"lr": 0.1}}]))
    packed = sweep(cells, tmp_path / "first")
    data = packed.cells[0].results["data"] | {"sha256": "of other images"}
    packed = with_results(packed, data=data)
    with pytest.warns(UserWarning, match=r"digits: 1 of 2 cells of a seed saw other images than the rest"):
        sweep(cells, tmp_path / "second", reuse=[packed])


def test_what_was_measured_of_robustness_travels_with_the_pack(tmp_path):
    cells = expand(small())
    assert not sweep(cells, tmp_path / "first").cells[0].robustness
    scores = {"branch": "default", "clean": 80.0, "images": 10, "generated": True}
    scores |= {"corrupted": {"fog": {"1": 70.0}}, "perturbed": {}}
    write_json(SweepFiles(tmp_path / "first").cell(cells[0].folder) / "robustness.json", scores)
    before = Pack.read(tmp_path / "first" / "pack.json")
    packed = sweep(cells, tmp_path / "first")
    assert packed.cells[0].robustness == [scores]
    assert Pack.merged([before, packed]) == Pack.merged([packed, before]) == packed
    assert sweep(cells, tmp_path / "second", reuse=[packed]) == packed
    packed.write(tmp_path / "packed.json")
    for place in ("packed.json", "second"):
        (run,) = collect([tmp_path / place]).runs
        assert run.robustness["default"].accuracy_c == 70


def test_cells_that_another_process_runs_are_left_to_it_and_waited_for(tmp_path, monkeypatch):
    cells = expand(small(grid={"seed": [1, 2]}))
    seen = ran(monkeypatch)
    with (
        hold(tmp_path / "running" / cells[0].trunk, "busy"),
        pytest.raises(BudgetSpent),
        patch.object(sweeps, "WAIT", 0.01),
    ):
        sweep(cells, tmp_path, budget=Budget(2))
    assert [cell.state for cell in Pack.read(tmp_path / "pack.json").cells] == ["open", "finished"]
    assert len(seen) == 1
    packed = sweep(cells, tmp_path)
    assert [cell.state for cell in packed.cells] == ["finished", "finished"]


def test_a_cell_that_failed_meanwhile_is_not_tried_by_every_process(tmp_path, monkeypatch, broken):
    cells = expand({**BASE, "cells": [{"method": "finetune"}, {"method": "joint"}]})
    seen, original = ran(monkeypatch), sweeps.run

    def another_works_meanwhile(recipe, folder, **options):
        if recipe.method.name == "finetune":
            monkeypatch.setattr(sweeps, "run", original)
            sweep(cells, tmp_path, only=cells[1:])
        return original(recipe, folder, **options)

    monkeypatch.setattr(sweeps, "run", another_works_meanwhile)
    packed = sweep(cells, tmp_path)
    assert seen == ["joint", "finetune"]
    assert [cell.state for cell in packed.cells] == ["finished", "failed"]
