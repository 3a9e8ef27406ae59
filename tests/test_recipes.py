"""Every recipe that comes with the package validates, and says in its first line what it is."""

from collections import defaultdict
from pathlib import Path

import pytest

from lca.methods import methods
from lca.recipe import load_recipe, read_recipe
from lca.recipe_files import recipe_names, recipe_summary
from lca.results.packs import Pack
from lca.runs.sweep import expand

RESULTS = Path(__file__).parents[1] / "results"


def is_sweep(name):
    return not {"grid", "cells"}.isdisjoint(read_recipe(name))


def test_the_three_readings_and_the_demo_are_there():
    assert {"paper", "reference", "best", "demo"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_validates(name):
    if is_sweep(name):
        cells = expand(read_recipe(name), name)
        assert len(cells) > 1
        assert len({cell.key for cell in cells}) == len(cells)
        names = {(cell.label, cell.recipe.seed, cell.recipe.data.source) for cell in cells}
        assert len(names) == len(cells), "rows would mix different recipes"
    else:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.dump() == load_recipe(name).dump()


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_says_what_it_is(name):
    assert recipe_summary(name).endswith(".")


def test_the_readings_differ_as_the_paper_and_its_code_do():
    paper, reference, best = (load_recipe(name) for name in ("paper", "reference", "best"))
    assert (paper.method.merge.operator, reference.method.merge.operator) == ("max_abs", "agree")
    assert (paper.tuning.feature_norm, reference.tuning.feature_norm) == (False, True)
    assert (paper.backbone.preprocessing, reference.backbone.preprocessing) == ("card", "raw")
    lca = {recipe.name: recipe.method.align[-1] for recipe in (paper, reference)}
    assert lca["paper"].robustness == lca["reference"].robustness == 0.1
    assert (lca["paper"].nearest_mean_filter, lca["reference"].nearest_mean_filter) == (False, True)
    assert best.method == load_recipe("best", ["method.align=best"]).method


def test_the_comparison_has_every_method():
    cells = expand(read_recipe("compare-mini"), "compare-mini")
    assert {cell.recipe.method.name for cell in cells} == set(methods)


def mean_accuracies(tuning, label_of):
    """By label and factor of the rate, the mean of what finished twice: on both data sets, or both backbones."""
    accuracies = defaultdict(list)
    for cell in Pack.read(RESULTS / f"{tuning}.json").finished:
        assert (cell.seed, cell.recipe["data"]["evaluate"]) == (1996, "validation")
        (branch,) = cell.results["branches"].values()
        accuracies[label_of(cell.label), cell.recipe["training"]["rate_scale"]].append(
            branch["metrics"]["average_accuracy"]["sample_weighted"]
        )
    means = defaultdict(dict)
    for (label, rate), values in accuracies.items():
        if len(values) == 2:
            means[label][rate] = sum(values) / 2
    return means


def test_the_kinds_of_tuning_train_at_the_rates_that_the_tuning_chose():
    def kind(label):
        return label.partition(" ")[0]

    means = mean_accuracies("tune-peft", kind)
    cells = expand(read_recipe("paper/peft", scale="mini"))
    assert {name: max(rates, key=rates.get) for name, rates in means.items()} == {
        kind(cell.label): cell.recipe.training.rate_scale for cell in cells
    }


def test_the_comparison_trains_at_the_rates_that_the_tuning_chose():
    means = mean_accuracies("tune-compare", lambda label: label.partition(" training.rate_scale=")[0])
    cells = expand(read_recipe("compare-mini"))
    chosen = {cell.label: cell.recipe.training.rate_scale for cell in cells}
    again = {label for label in chosen if label.endswith(" again")}
    assert all(chosen[label] == chosen[label.removesuffix(" again")] for label in again)
    untrained = {"SimpleCIL", "Frozen", "best"}  # `best` was chosen by tune-quadratic
    best = {label: max(rates, key=rates.get) for label, rates in means.items() if ", " not in label}
    assert best == {label: rate for label, rate in chosen.items() if label not in untrained | again}
    others = [label for label in means if ", " in label]
    assert others
    for label in others:
        assert max(means[label].values()) < max(means[label.partition(", ")[0]].values()), label


@pytest.mark.parametrize("sweep", ["compare-mini", "seeds-mini", "flowers-mini", "lessons-mini"])
def test_the_row_best_is_the_recipe_best(sweep):
    best = load_recipe("best")
    rows = [cell.recipe for cell in expand(read_recipe(sweep)) if cell.label.partition(" ")[0] == "best"]
    assert rows
    for row in rows:
        assert (row.tuning, row.training) == (best.tuning, best.training)
        others = {name: value for name, value in row.method if name != "align"}
        assert others == {name: value for name, value in best.method if name != "align"}
        assert best.method.align[0] in row.method.align
