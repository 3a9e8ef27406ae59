"""The recipes of the paper: they validate at both scales, reuse what has been measured, and every cell runs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tiny
from lca.recipe import read_recipe
from lca.recipe_files import recipe_names
from lca.results.packs import Pack
from lca.runs.experiment import run
from lca.runs.sweep import Cell, expand, known_cells

RESULTS = Path(__file__).parents[2] / "results"
PACKS = [RESULTS / "compare-mini.json", *sorted(RESULTS.glob("paper-*.json"))]
PAPER = [name for name in recipe_names() if name.startswith("paper/")]
DOCUMENT = Path(__file__).parents[2] / "docs" / "paper.md"


def cells_of(name: str, scale: str | None) -> list[Cell]:
    return expand(read_recipe(name, scale=scale), name)


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_settings(name):
    cells = cells_of(name, None)
    assert {cell.recipe.seed for cell in cells} == {1993, 1994, 1995}
    assert all(cell.recipe.backbone.name.startswith("vit_base_patch16_224.augreg_in21k") for cell in cells)
    sets = {"cifar100", "imagenet_r", "imagenet_a", "cub200", "omnibenchmark", "vtab", "cars196"}
    assert {cell.recipe.data.source for cell in cells} <= sets
    merged = [cell.recipe for cell in cells if cell.recipe.method.name == "im" and cell.recipe.tuning.name == "lora"]
    assert all((recipe.tuning.rank, recipe.tuning.alpha) == (64, 128) for recipe in merged)
    assert all((recipe.training.epochs, recipe.training.batch_size) == (10, 64) for recipe in merged)


@pytest.mark.parametrize("name", PAPER)
def test_the_mini_scale_asks_the_same_of_small_data(name):
    cells, whole = cells_of(name, "mini"), cells_of(name, None)
    assert {cell.recipe.backbone.name for cell in cells} <= {"deit_tiny_patch16_224.fb_in1k", "vit_pico_patch8_64"}
    assert {cell.recipe.data.source for cell in cells} <= {
        f"folder:$LCA_DATA/{name}-mini" for name in ("cifar100", "vtab")
    }
    assert {cell.recipe.seed for cell in cells} == {1993, 1994, 1995}

    def asked(some: list[Cell]) -> list[tuple[str, ...]]:
        rows = {cell.label: cell.recipe for cell in some}.values()
        return [
            (
                recipe.method.name,
                recipe.tuning.name,
                str(getattr(recipe.method, "merge", "")),
                str(getattr(recipe.method, "init_from", "")),
                str(getattr(recipe.method, "align", "")),
            )
            for recipe in rows
        ]

    assert asked(cells) == asked(whole)


def test_the_main_table_has_the_paper_s_rows_on_all_data_sets():
    cells = cells_of("paper/main-table", None)
    assert len(cells) == 12 * 7 * 3
    im = {cell.key for cell in cells if cell.label == "IM"}
    assert im == {cell.key for cell in cells_of("paper/im-vs-lca", None)}
    assert {cell.key for cell in cells} == {cell.key for cell in cells_of("paper/performance-curves", None)}
    assert {cell.key for cell in cells_of("paper/slca-mos", None)} < {cell.key for cell in cells}


def test_the_document_counts_the_trainings_and_what_has_been_measured():
    told = {}
    for name, *counts in re.findall(
        r"^\| `(paper/[\w-]+)` \|.*\| (\d+) \| (\d+) \| (\d+) \|$", DOCUMENT.read_text(), re.M
    ):
        told[name] = tuple(map(int, counts))
    known = known_cells(Pack.read(path) for path in PACKS)
    assert told == {
        name: (
            len({cell.trunk for cell in cells_of(name, None)}),
            len({cell.trunk for cell in cells_of(name, "mini")}),
            sum(cell.key in known for cell in cells_of(name, "mini")),
        )
        for name in PAPER
    }


def test_one_training_serves_all_lambdas_sample_counts_and_the_main_table():
    trunks = {
        cell.trunk
        for name in ("im-vs-lca", "lambda", "samples-per-class", "selective-heads", "diagnosis")
        for cell in cells_of(f"paper/{name}", "mini")
    }
    assert len(trunks) == 2 * 3


def tiny_recipe(cell: Cell) -> dict[str, Any]:
    """A cell on a few painted patterns, with a step or two of everything."""
    content = cell.recipe.dump()
    content["data"] = {"source": "synthetic:classes=4,train=3,test=2", "tasks": 2}
    content["training"] |= {"epochs": 1, "batch_size": 8, "rate_scale": 1.0}
    small = {key: value for key, value in tiny.SMALL_METHOD.get(cell.recipe.method.name, {}).items() if key != "align"}
    content["method"] |= small
    for branch in content["method"].get("align", ()):
        if branch["kind"] == "align":
            branch |= {**tiny.QUICK, "epochs": 1}
    return content | {"device": "cpu", "seed": 5}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Mapping[str, dict[str, Any]]:
    """What has been run, by key: many recipes share cells."""
    return {}


@pytest.mark.parametrize("scale", [None, "mini"])
@pytest.mark.parametrize("name", PAPER)
def test_every_row_runs(name, scale, outcomes, tmp_path):
    rows = {cell.label: cell for cell in cells_of(name, scale)}
    with tiny.tiny_backbone():
        for cell in rows.values():
            small = Cell(cell.label, tiny.recipe(tiny_recipe(cell)))
            if small.key not in outcomes:
                outcomes[small.key] = run(small.recipe, tmp_path / small.key, trunks=tmp_path / "trunks")
            branches = outcomes[small.key]["branches"]
            assert [*branches] == ([each.name for each in getattr(cell.recipe.method, "align", ())] or ["default"])
            assert all(len(each["correct"]) == 2 for each in branches.values())
