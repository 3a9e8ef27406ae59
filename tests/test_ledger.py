"""The ledger's verdicts, on packs made up for them."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from packs import made, packed

DOCS = Path(__file__).parent.parent / "docs"
SPECIFICATION = importlib.util.spec_from_file_location("ledger", DOCS / "ledger.py")
ledger = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(ledger)


def pack(folder, *, source="digits", **gains):
    """Three seeds of IM with a branch `none` and others above it by so many right answers of 20, seed by seed."""
    folder.mkdir(exist_ok=True)
    cells = []
    for seed in range(3):
        after = {name: [[5, 5], [5, 5, 5 + gain[seed], 5]] for name, gain in ({"none": (0, 0, 0)} | gains).items()}
        cells.append(("IM", made(after, seed=seed, source=source)))
    return packed(folder / f"{source}.json", *cells)


def judged(path, **measure):
    return ledger.judged({"pack": path, "measure": measure})


def test_a_clear_difference_is_support(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4))
    assert judged(path, difference=["IM lca", "IM none"]) == ("digits +3.8 [+0.6, +6.9]", "supported")
    assert judged(path, difference=["IM none", "IM lca"])[1] == "not supported"


def test_a_difference_that_may_be_chance_is_none(tmp_path):
    text, verdict = judged(pack(tmp_path, lca=(4, 0, 1)), difference=["IM lca", "IM none"])
    assert text.startswith("digits +2.1 [-")
    assert verdict == "not supported"


def test_the_best_is_held_against_the_best_of_the_others(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4), good=(3, 4, 6), poor=(1, 1, 0))
    assert judged(path, best="IM good", among=["IM none", "IM lca", "IM poor"])[0].endswith("against IM lca")


def test_a_range_must_stay_within_its_limit(tmp_path):
    path = pack(tmp_path, one=(2, 2, 2), two=(4, 4, 4))
    labels = ["IM one", "IM two"]
    assert judged(path, range=labels, within=3) == ("digits 2.5 apart", "supported")
    assert judged(path, range=labels, within=2)[1] == "not supported"


def test_what_was_not_run_has_no_verdict(tmp_path):
    assert judged(tmp_path / "none.json", difference=["a", "b"]) == ("not run yet", "")


@pytest.mark.parametrize(
    "claim", yaml.safe_load((DOCS / "claims.yaml").read_text("utf-8")), ids=lambda each: each["claim"]
)
def test_every_claim_has_a_row(claim):
    assert len(ledger.line(claim)) == len(ledger.HEADINGS)
    assert "pack" in claim or "untestable" in claim
