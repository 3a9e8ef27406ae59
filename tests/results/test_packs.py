"""Packs are small, and hold the same as those of the first format."""

import json
from pathlib import Path

import pytest

from lca.files import read_json
from lca.results.folder import CellName
from lca.results.packs import Pack
from lca.results.reading import collect

OLD = Path(__file__).parents[1] / "old" / "pack.json"


def agrees(old, new):
    """Whether all that is in the one is in the other; sums differ in their last digit between releases of Python."""
    if isinstance(old, dict):
        return all(key in new and agrees(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(agrees, old, new))
    return new == (pytest.approx(old, rel=1e-12, abs=1e-12) if isinstance(old, float) else old)


def test_a_pack_of_the_first_format_is_read():
    entries = read_json(OLD)["cells"]
    cells = Pack.read(OLD).cells
    assert (
        [cell.state for cell in cells] == [entry["status"] for entry in entries] == ["finished", "finished", "failed"]
    )
    for entry, cell in zip(entries, cells, strict=True):
        assert (cell.key, cell.label, cell.seed) == (entry["key"], entry["label"], entry["seed"])
        assert (cell.error, cell.robustness) == (entry.get("error", ""), entry.get("robustness", []))
        assert agrees(entry["results"], cell.results) if cell.state == "finished" else cell.stored is None
    assert not agrees(entries[0], {**entries[0], "seed": 4}), "the comparison compares"
    (run, _) = collect([OLD]).runs
    assert run.number("default", "last accuracy") == pytest.approx(95.7, abs=0.05)
    assert run.robustness["default"].clean == entries[0]["robustness"][0]["clean"]


def test_what_is_written_is_small_and_the_same(tmp_path):
    old = Pack.read(OLD)
    old.write(tmp_path / "pack.json")
    assert Pack.read(tmp_path / "pack.json") == old
    Pack.read(tmp_path / "pack.json").write(tmp_path / "again.json")
    text = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert text == (tmp_path / "pack.json").read_text(encoding="utf-8")
    assert len(text) < 0.4 * OLD.stat().st_size
    first, *lines, last = text.splitlines()
    assert (first, last) == ('{"format": 2, "cells": [', "]}")
    assert [json.loads(line.rstrip(","))["key"] for line in lines] == [cell.key for cell in old.cells]
    metrics = json.loads(lines[0].rstrip(","))["results"]["branches"]["default"]["metrics"]
    assert "average_accuracy" not in metrics, "it follows from the counts"


@pytest.mark.parametrize("label", ["IM", "", "a-1-b", "λ=0.1 (x)", "a/b\nc", "long " * 40])
def test_the_name_of_a_cells_folder_is_read_again(label):
    name = CellName(label, 1993, "ae0ac9d12ecf")
    text = str(name)
    assert len(text.encode()) < 255
    assert not set(text) & set("/\n ()=")
    assert (CellName.parse(text).seed, CellName.parse(text).key) == (1993, "ae0ac9d12ecf")
    assert str(CellName.parse(text)) == text
    assert CellName.parse("pack.json") is None
