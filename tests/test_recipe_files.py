"""Recipe files: folders of recipes, scales, and what a file takes over from the one it extends."""

import pytest
import yaml

from lca.errors import LcaError
from lca.recipe import load_recipe, read_recipe
from lca.recipe_files import recipe_names
from lca.runs.sweep import expand


def write(path, content):
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_recipes_in_a_folder_are_named_with_it():
    assert {"paper", "paper/main-table"} <= set(recipe_names())
    with pytest.raises(LcaError, match="did you mean 'paper/main-table'"):
        read_recipe("main-table")


@pytest.fixture
def scaled(tmp_path):
    """A sweep with a smaller version of itself."""
    content = {
        "training": {"lr": 0.5, "epochs": 9},
        "tuning": {"name": "lora", "rank": 64},
        "grid": {"seed": [1, 2], "data": {"one": {"train_limit": 500}, "two": {"source": "cifar10"}}},
        "cells": [{"label": "a"}, {"label": "b", "method": "joint"}],
        "mini": {
            "training": {"epochs": 2},
            "tuning": {"rank": 4},
            "grid": {"data": {"small": {"train_limit": 3}}},
        },
    }
    return write(tmp_path / "scaled.yaml", content)


def test_without_a_scale_its_section_is_left_out(scaled):
    content = read_recipe(scaled)
    assert "mini" not in content
    cells = expand(content)
    assert len(cells) == 2 * 2 * 2
    assert {(cell.recipe.training.epochs, cell.recipe.tuning.rank) for cell in cells} == {(9, 64)}


def test_a_scale_replaces_keys_and_whole_axes(scaled):
    cells = expand(read_recipe(scaled, scale="mini"))
    assert [(cell.label, cell.recipe.seed) for cell in cells] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert {cell.recipe.data.train_limit for cell in cells} == {3}
    assert {(each.recipe.training.lr, each.recipe.training.epochs) for each in cells} == {(0.5, 2)}
    assert {cell.recipe.tuning.rank for cell in cells} == {4}


def test_overrides_win_over_the_scale(scaled):
    cells = expand(read_recipe(scaled, ["training.epochs=5"], "mini"))
    assert {cell.recipe.training.epochs for cell in cells} == {5}


def test_a_recipe_over_another_one_with_a_scale(scaled, tmp_path):
    content = {
        "extends": "scaled.yaml",
        "grid": {"data": {"other": {"train_limit": 70}}},
        "mini": {"grid": {"data": {"tiny": {"train_limit": 1}}}, "cells": [{"label": "c"}]},
    }
    path = write(tmp_path / "above.yaml", content)
    assert {cell.recipe.data.train_limit for cell in expand(read_recipe(path))} == {70}
    cells = expand(read_recipe(path, scale="mini"))
    assert [(cell.label, cell.recipe.seed) for cell in cells] == [("c", 1), ("c", 2)]
    assert {(each.recipe.data.train_limit, each.recipe.training.epochs) for each in cells} == {(1, 2)}


def test_scales_that_are_not_there(scaled, tmp_path):
    with pytest.raises(LcaError, match="there is no scale 'minni'; did you mean 'mini'"):
        read_recipe(scaled, scale="minni")
    with pytest.raises(LcaError, match="demo has no section `mini`"):
        read_recipe("demo", scale="mini")
    with pytest.raises(LcaError, match="has no section `mini`"):
        read_recipe(write(tmp_path / "a.yaml", {"mini": 3}), scale="mini")


def test_a_single_run_may_have_a_scale_too(tmp_path):
    assert load_recipe(write(tmp_path / "a.yaml", {"seed": 3, "mini": {"seed": 4}})).seed == 3
