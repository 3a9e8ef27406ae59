"""Recipes of strangers: whatever is in them, there is one short error with exit code 2, soon."""

import os
import sys
import time

import pytest
import yaml

from lca.cli import main
from lca.errors import LcaError
from lca.recipe import Recipe, load_recipe, merge_mappings
from lca.recipe_files import DEEPEST, DIGITS, LARGEST, LONGEST, MOST, parse_override, parse_yaml
from lca.runs.sweep import MOST_CELLS, expand

LAUGHS = "\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 18)])
MERGES = "\n".join(["a0: &a0 {k: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 18)])

TEXTS = {
    "aliases explode in a value": LAUGHS + "\ntraining: *a17",
    "aliases explode where a name is expected": LAUGHS + "\nmethod: *a17",
    "aliases explode in a key": LAUGHS + "\n? *a17\n: 1",
    "merges explode": MERGES + "\ntraining: *a17",
    "an alias of itself": "training: &a [*a]",
    "an alias of itself in a mapping": "training: &a {lr: *a}",
    "an alias that merges itself": "training: &a {<<: *a}",
    "an alias of nothing": "training: *missing",
    "deep lists": "training: " + "[" * 5000 + "]" * 5000,
    "deep lists without an end": "[" * 200_000,
    "deep mappings": "training: " + "{a: " * 5000 + "}" * 5000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(1000)),
    "deep dashes": "- " * 5000,
    "5,000 digits": "seed: " + "7" * 5000,
    "5,000 digits below zero": "seed: -" + "7" * 5000,
    "5,000 digits of 16": "seed: 0x" + "f" * 5000,
    "5,000 digits of 2": "training: {epochs: 0b" + "1" * 5000 + "}",
    "5,000 digits of 60": "seed: 1" + ":59" * 5000,
    "5,000 digits of a key": "7" * 5000 + ": 1",
    "5,000 digits in a list": "data: {tasks: [" + "7" * 5000 + "]}",
    "a float with 5,000 digits": "training: {lr: 1." + "7" * 5000 + "}",
    "no digits": "seed: 0x_",
    "no digits of 2": "seed: 0b_",
    "a number that is none": "seed: !!int x",
    "a float that is none": "training: {lr: !!float x}",
    "a zero byte": "name: a\0b",
    "a zero character": 'name: "a\\0b"',
    "a zero character in a source": 'data: {source: "folder:a\\0b"}',
    "a zero character in what it extends": 'extends: "a\\0b.yaml"',
    "half a character": 'name: "\\ud800"',
    "a bell": "name: \x07",
    "a long text": "name: " + "x" * 100_000,
    "a long key": "x" * 100_000 + ": 1",
    "a long name of a method": "method: " + "x" * 4000,
    "a long name of a recipe": "extends: " + "x" * 4000,
    "a long name of a file": "extends: " + "x" * 4000 + ".yaml",
    "a key twice": "seed: 1\nseed: 2",
    "a key twice inside": "training: {lr: 0.1, lr: 0.2}",
    "a key twice in another spelling": 'seed: 1\n"seed": 2',
    "two merges": "a: &a {lr: 1}\ntraining: {<<: *a, <<: *a}",
    "a key that is a list": "? [a]\n: 1",
    "a key that is a mapping": "? {a: 1}\n: 1",
    "a key that is a number": "5: 1",
    "a key that is nothing": "~: 1",
    "a key that is a number inside": "training: {5: 1}",
    "a key of a method that is a number": "method: {5: 1}",
    "a Python object": "name: !!python/object/apply:os.system [true]",
    "a Python name": "method: !!python/name:os.system",
    "a tag of nobody": "name: !x y",
    "a set": "data: {tasks: !!set {1, 2}}",
    "an ordered map": "training: !!omap [lr: 0.1]",
    "pairs": "training: !!pairs [lr: 0.1]",
    "bytes": "name: !!binary aGVsbG8=",
    "a date that is none": "seed: 2001-13-45",
    "a date": "seed: 2001-01-01",
    "a merge of a number": "training: {<<: 5}",
    "a list": "[1, 2]",
    "a text": "hello",
    "nothing": "",
    "two documents": "seed: 1\n---\nseed: 2",
    "tabs": "training:\n\tlr: 0.1",
    "an open quote": 'name: "abc',
    "an open bracket": "training: {lr: 0.1",
    "a directive": "%YAML 9.9\n---\nseed: 1",
    "many anchors": "\n".join(f"a{n}: &b{n} 1" for n in range(11_000)),
    "many keys": "\n".join(f"a{n}: 1" for n in range(11_000)),
    "a preset that is a list": "method: {align: [{preset: [best]}]}",
    "a preset that is a mapping": "method: {align: [{preset: {a: 1}}]}",
    "aliases of a preset": LAUGHS + "\nmethod: {align: [{preset: *a17}]}",
    "peft of nothing": "tuning: {name: 'peft:', options: 5}",
    "peft of lists": "tuning: {name: 'peft:lora', options: [1]}",
    "peft of a text": "tuning: {name: 'peft:ia3', options: {target_modules: 5, nobody: .inf}}",
    "many wrong keys": "training: {" + ", ".join(f"k{n}: 1" for n in range(5000)) + "}",
    "many wrong values": "data: {tasks: [" + ", ".join(["x"] * 5000) + "]}",
    "more bytes than are read": "# " + "x" * LARGEST,
    "itself": "extends: recipe.yaml",
    "what it extends is a list": "extends: [best]",
    "what it extends is a mapping": "extends: {best: 1}",
    "what it extends is a folder": "extends: ./folder.yaml",
    "what it extends is nowhere": "extends: nowhere.yaml",
    "a name above": "name: ../x",
    "a name from the root": "name: /tmp/x",
    "a name that is the folder above": "name: ..",
    "a name that is the folder": "name: .",
    "a name of nothing": "name: ''",
    "a name of Windows": "name: a\\b",
    "infinite drift": "method: {align: [{preset: best, drift: {strength: .inf}}]}",
    "drift of nothing": "method: {align: [{preset: best, drift: {strength: .nan}}]}",
    "infinite steps": "training: {lr: .inf}",
    "infinite steps, written out": "training: {lr: 1.0e+999}",
    "a tail of infinity": "data: {long_tail: .inf}",
    "infinite epochs": "training: {epochs: .inf}",
    "a seed of nothing": "seed: .nan",
    "cells": "cells: [{label: a}]",
    "a grid": "grid: {seed: [1, 2]}",
    "another way round": "strangers: true\nood: true",
}
WRONG = {"number": "5", "true": "true", "nothing": "~", "list": "[1, [2]]", "listed mapping": "[{a: 1}]",
         "named list": "{name: [im]}", "named mapping": "{name: {a: 1}}", "named nothing": "{name: ~}",
         "named number": "{name: 5}", "unknown": "{name: nobody}", "unknown key": "{nobody: 1}"}  # fmt: skip
PLACES = {
    **{section: f"{section}: VALUE" for section in ("method", "tuning", "training", "data", "backbone", "name")},
    "align": "method: {name: im, align: VALUE}",
    "one of align": "method: {name: im, align: [VALUE]}",
    "drift": "method: {name: im, align: [{preset: best, drift: VALUE}]}",
    "merge": "method: {name: im, merge: VALUE}",
    "head": "method: {name: im, head: VALUE}",
}
RIGHT = {(place, "unknown") for place in ("backbone", "align", "one of align")}
"""Any name may be one of timm's, which is told when it is loaded, or that of a branch."""
SWEEPS = {
    "cells are a number": "cells: 5",
    "cells are mappings by name": "cells: {a: 1}",
    "a cell is a number": "cells: [5]",
    "a cell is wrong": "cells: [{method: {name: [im]}}]",
    "a grid is a list": "grid: [1]",
    "an axis is a number": "grid: {seed: 5}",
    "an axis is empty": "grid: {seed: []}",
    "an axis is named by a number": "grid: {5: [1, 2]}",
    "an axis is deep": "grid: {" + "a." * 500 + "a: [1]}",
    "an axis is no key": "grid: {nobody.at.home: [1]}",
    "a value of an axis is wrong": "grid: {training: [5]}",
    "more cells than atoms": "grid: {" + ", ".join(f"a{n}: {[*range(99)]}" for n in range(12)) + "}",
    "the name leads elsewhere": "name: ../../x\ngrid: {seed: [1]}",
}
OVERRIDES = (
    "", "=", "=5", "seed", "seed=" + "7" * 5000, "seed=[", "training=5", "method=[1]", "method.name=[im]",
    "a" + ".a" * 5000 + "=1", "training.lr=.inf", "name=../x", 'name="\\0"', "seed=*a", "x" * 50_000 + "=1",
    "seed={a: 1, a: 2}", "training.lr.deeper=1", "tuning.name={a: 1}",
)  # fmt: skip


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, tries):
    """Runs the command; it must end with one short error, at once."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lca", *map(str, words), "--budget", "0s"])
        began = time.process_time()
        with pytest.raises(SystemExit) as end:
            main()
        output = capsys.readouterr()
        assert end.value.code == 2, output.err[:2000]
        assert output.err.startswith("error: "), output.err[:2000]
        assert len(output.err) < 12_000
        assert not output.out
        assert time.process_time() - began < 5
        assert sorted(path.name for path in tmp_path.iterdir()) in (["folder.yaml", "recipe.yaml"], ["folder.yaml"])
        tries["recipes refused in one error"] += 1
        return output.err

    (tmp_path / "folder.yaml").mkdir()
    return run


def written(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("what", TEXTS)
def test_texts(what, refused, tmp_path):
    refused("run", written(tmp_path, TEXTS[what]))


@pytest.mark.parametrize("what", WRONG)
def test_wrong_types(what, refused, tmp_path):
    for place in PLACES:
        if (place, what) not in RIGHT:
            refused("run", written(tmp_path, PLACES[place].replace("VALUE", WRONG[what])))


@pytest.mark.parametrize("what", SWEEPS)
def test_sweeps(what, refused, tmp_path):
    refused("sweep", written(tmp_path, SWEEPS[what]), "--out", tmp_path / "out")


@pytest.mark.parametrize("override", OVERRIDES, ids=range(len(OVERRIDES)))
def test_overrides(override, refused):
    refused("run", "best", "--set", override)


def test_what_is_no_file(refused, tmp_path):
    path = tmp_path / "recipe.yaml"
    refused("run", path)
    refused("run", "x" * 5000)
    refused("run", "x" * 5000 + ".yaml")
    refused("run", "/dev/zero/x.yaml")
    refused("run", tmp_path / "folder.yaml")
    path.symlink_to(path)
    assert "symbolic links" in refused("run", path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "no regular file" in refused("run", path)
    path.unlink()
    os.mkfifo(path)
    assert "no regular file" in refused("run", path)
    path.unlink()
    path.write_bytes(b"\xff\xfe\x00name")
    refused("run", path)


def test_a_chain_of_recipes_has_an_end(tmp_path):
    for number in range(DEEPEST + 2):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n" if number <= DEEPEST else "seed: 7\n")
    assert load_recipe(str(tmp_path / "1.yaml")).seed == 7
    with pytest.raises(LcaError, match="at most 20 steps"):
        load_recipe(str(tmp_path / "0.yaml"))


def test_what_lies_within_the_bounds_is_read():
    assert parse_yaml("[" * (DEEPEST - 1) + "x" + "]" * (DEEPEST - 1))
    with pytest.raises(yaml.YAMLError, match="20 levels"):
        parse_yaml("[" * DEEPEST + "x" + "]" * DEEPEST)
    assert parse_yaml("7" * DIGITS) == int("7" * DIGITS)
    with pytest.raises(yaml.YAMLError, match="61 characters"):
        parse_yaml("7" * (DIGITS + 1))
    assert len(parse_yaml("x" * LONGEST)) == LONGEST
    with pytest.raises(yaml.YAMLError, match="4,097 characters"):
        parse_yaml("x" * (LONGEST + 1))
    assert len(parse_yaml(f"[{'1,' * (MOST - 1)}]")) == MOST - 1
    with pytest.raises(yaml.YAMLError, match="20,000 values"):
        parse_yaml(f"[{'1,' * MOST}]")


def test_aliases_and_merges_mean_what_they_did():
    text = "a: &a {x: 1, y: [2]}\nb: {<<: *a, x: 3}\nc: *a\nd: 2020-01-01\n"
    assert parse_yaml(text) == {"a": {"x": 1, "y": [2]}, "b": {"x": 3, "y": [2]}, "c": {"x": 1, "y": [2]},
                                "d": "2020-01-01"}  # fmt: skip
    assert parse_override("a.b=[1, x]") == {"a": {"b": [1, "x"]}}


def test_a_grid_has_at_most_so_many_cells():
    with pytest.raises(LcaError, match="10,001 cells; a sweep has at most 10,000"):
        expand({"grid": {"seed": [*range(MOST_CELLS + 1)]}})


def test_python_gets_the_same_errors():
    with pytest.raises(ValueError, match="finite"):
        Recipe(training={"lr": float("inf")})
    with pytest.raises(LcaError, match="cannot be read as YAML"):
        load_recipe("a\0b.yaml")
    assert merge_mappings({"method": "im"}, {"method": {"name": [1]}}) == {"method": {"name": [1]}}
