"""Committed packs: rows that stand beside each other are complete and saw the same images."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from lca.files import read_json
from lca.results.classifiers import classifiers
from lca.results.reading import collect

RESULTS = Path(__file__).parents[2] / "results"
DEMO = RESULTS / "demo.json"
PACKS = {path.stem: cells for path in sorted(RESULTS.glob("*.json")) if (cells := read_json(path).get("cells"))}
HAVE_FAILURES = {"tune-peft"}
"""Training fails at too high a rate, and that was to be found."""
HAVE_OPEN = {"compare-mini": 6, "lessons-mini": 2}
"""Cells of which no result is there yet; docs/results.md says which."""
CUT_OTHERWISE = {"tune-compare"}
"""Most of its photos were cut up to a pixel differently; docs/results.md says so."""


@pytest.mark.parametrize("pack", PACKS)
def test_every_cell_was_run(pack):
    states = Counter(cell["status"] for cell in PACKS[pack])
    assert states.pop("open", 0) == HAVE_OPEN.get(pack, 0)
    assert states.keys() == ({"finished", "failed"} if pack in HAVE_FAILURES else {"finished"})


@pytest.mark.parametrize("pack", sorted(PACKS.keys() - CUT_OTHERWISE))
def test_all_cells_of_a_data_set_saw_the_same_images(pack):
    seen = defaultdict(set)
    for results in (cell["results"] for cell in PACKS[pack] if cell["status"] == "finished"):
        recipe = results["recipe"]
        seen[recipe["data"]["source"], recipe["backbone"]["name"]].add(results["data"]["sha256"])
    assert all(len(images) == 1 for images in seen.values()), seen


def test_no_continual_row_of_the_demo_is_above_best():
    rows = {row.label: row.plain["AA"].mean for row in classifiers(collect([DEMO]).runs)["digits"] if row.continual}
    assert len(rows) == 5
    assert max(rows, key=rows.get) == "best"


def test_the_packs_are_found():
    assert len(PACKS) > 10
    assert PACKS.keys() > CUT_OTHERWISE
