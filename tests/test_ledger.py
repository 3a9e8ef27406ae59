"""The ledger's verdicts, on packs made up for them."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from lca.files import read_json, write_json
from lca.recipe_files import read_recipe
from lca.runs.sweep import expand
from packs import made, packed

DOCS = Path(__file__).parent.parent / "docs"
CLAIMS = yaml.safe_load((DOCS / "claims.yaml").read_text("utf-8"))
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


def test_a_clear_difference_is_support_and_a_clear_one_below_contradicts(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4))
    assert judged(path, better=[["IM lca", "IM none"]]) == ("digits +3.75 [+0.64, +6.86]", "supported")
    assert judged(path, better=[["IM none", "IM lca"]])[1] == "not supported: contradicted"


def test_a_difference_that_may_be_chance_decides_nothing(tmp_path):
    text, verdict = judged(pack(tmp_path, lca=(4, 0, 1)), better=[["IM lca", "IM none"]])
    assert text.startswith("digits +2.08 [-")
    assert verdict == "not supported: undecided"


def test_one_seed_decides_nothing(tmp_path):
    content = read_json(pack(tmp_path, lca=(2, 3, 4)))
    write_json(tmp_path / "one.json", content | {"cells": content["cells"][:1]})
    assert judged(tmp_path / "one.json", better=[["IM lca", "IM none"]]) == (
        "digits +2.50 (1 of 3 seeds)",
        "not supported: undecided",
    )


def test_the_best_is_held_against_the_best_of_the_others(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4), good=(3, 4, 6), poor=(1, 1, 0))
    assert judged(path, best="IM good", among=["IM none", "IM lca", "IM poor"])[0].endswith("against IM lca")


def test_near_enough_is_decided_by_the_interval(tmp_path):
    path = pack(tmp_path, one=(3, 3, 4), two=(4, 4, 4))
    for within, verdict in ((3, "supported"), (1, "not supported: undecided"), (0.0, "not supported: undecided")):
        assert judged(path, near=["IM one"], to=["IM two", "IM none"], within=within)[1] == verdict
    assert judged(path, near=["IM none"], to=["IM two"], within=1)[1] == "not supported: contradicted"


def test_means_must_stay_within_their_limit(tmp_path):
    path = pack(tmp_path, one=(2, 2, 2), two=(4, 4, 4))
    labels = ["IM one", "IM two"]
    assert judged(path, alike=labels, within=3) == ("digits 2.5 apart", "supported")
    assert judged(path, alike=labels, within=2)[1] == "not supported: contradicted"


def test_of_many_pairs_those_that_do_not_hold_are_named(tmp_path):
    path = pack(tmp_path, a=(2, 2, 3), b=(3, 3, 4), c=(4, 4, 5), d=(9, 0, 1))
    pairs = [[f"IM {name}", "IM none"] for name in "abcd"]
    text, verdict = judged(path, better=pairs)
    assert text.startswith("digits 3 of 4 are clear, not IM d - IM none +4.17 [-")
    assert verdict == "not supported: undecided"
    assert judged(path, better=pairs[:3])[0].count("; ") == 2


def test_several_data_sets_and_their_mean(tmp_path):
    cells = [
        cell for source in ("one", "two") for cell in read_json(pack(tmp_path, source=source, lca=(2, 2, 3)))["cells"]
    ]
    for number, cell in enumerate(cells):
        cell["key"] = str(number)
    path = tmp_path / "both.json"
    write_json(path, read_json(tmp_path / "one.json") | {"cells": cells})
    text, verdict = judged(path, better=[["IM lca", "IM none"]], overall=True)
    assert [part.split()[0] for part in text.split("; ")] == ["overall", "one", "two"]
    assert verdict == "supported"


def test_robustness_and_bytes(tmp_path):
    path = pack(tmp_path, lca=(2, 2, 3))
    content = read_json(path)
    for seed, cell in enumerate(content["cells"]):
        cell["results"]["branches"]["lca"]["storage_bytes"] = {"heads": 500_000 + seed}
        for branch, gain in (("none", 0), ("lca", 5 + seed)):
            kinds = {"fog": {"1": 50.0 + gain}, "snow": {"1": 40.0 + gain / 2}}
            scores = {"clean": 80.0, "images": 10, "generated": True, "branch": branch, "corrupted": kinds}
            scores["perturbed"] = {"tilt": {"accuracy": 30.0 - gain, "flips": 9.0 - gain}}
            cell.setdefault("robustness", []).append(scores)
    write_json(path, content)
    pair = [["IM lca", "IM none"]]
    assert judged(path, better=pair, of=["C"]) == ("digits corrupted +4.50 [+2.64, +6.36]", "supported")
    assert judged(path, better=pair, of=["C", "P"])[1] == "not supported: contradicted"
    assert judged(path, better=pair, of=["flips"])[1] == "supported", "fewer flips are better"
    assert judged(path, better=pair, of=["MB"]) == ("digits MB -1.00 [-1.00, -1.00]", "supported")
    text, verdict = judged(path, everywhere=["IM lca", "IM none"])
    assert (text, verdict) == (
        "digits 2 of 3 kinds, least tilt, frames -6.00 [-8.48, -3.52]",
        "not supported: contradicted",
    )


def test_claims_about_kept_models(tmp_path):
    def judged_runs(what, *runs):
        for seed, run in enumerate(runs):
            run["recipe"] = {"seed": seed, "data": {"source": "folder:$LCA_DATA/some-set"}}
        write_json(tmp_path / "runs.json", {"runs": runs})
        return ledger.judged({"pack": tmp_path / "runs.json", "of_runs": what})

    def similar(*values):
        return {"tasks": [{"similarity": {"cka": value}} for value in values]}

    def overlapping(lca, without):
        shares = {"lca": lca, "λ=0": without}
        return {
            "tasks": [{"overlap": {name: {"as_answered": {"between_tasks": each}} for name, each in shares.items()}}]
        }

    def bounded(side, images, vacuous=()):
        losses = {"theorem_1": side, "test_images": images, "vacuous": list(vacuous)}
        return {"branches": {"lca": [{"losses": {"zero-one": losses}, "drift": [{"at_least": 0.5}]}]}}

    text = "some-set CKA 0.915 after the last task, largest step 0.050"
    assert judged_runs("gradual", similar(1.0, 0.95), similar(1.0, 0.92, 0.88))[1] == "not supported: contradicted"
    assert judged_runs("gradual", similar(1.0, 0.96, 0.93), similar(0.95, 0.9)) == (text, "supported")
    assert judged_runs("overlap", overlapping(0.02, 0.03), overlapping(0.021, 0.032))[1] == "supported"
    assert judged_runs("overlap", overlapping(0.03, 0.02), overlapping(0.02, 0.03))[1] == "not supported: undecided"
    assert judged_runs("theorem 1", bounded(0.3, 0.2), bounded(0.4, 0.3))[1] == "supported"
    assert judged_runs("theorem 1", bounded(0.3, 0.2), bounded(0.1, 0.3)) == (
        "some-set right side 0.200, error on test images 0.250",
        "not supported: contradicted",
    )
    assert judged_runs("theorem 2", bounded(0.3, 0.2, ["theorem_2"]), bounded(0.3, 0.2)) == (
        "some-set vacuous in 1 of 2 runs, TV >= 0.500",
        "not supported: contradicted",
    )


def test_what_was_not_run_has_no_verdict(tmp_path):
    assert judged(tmp_path / "none.json", better=[["a", "b"]]) == ("not run yet", "")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda each: each["claim"])
def test_every_claim_has_a_row_with_a_verdict(claim):
    row = ledger.line(claim)
    assert len(row) == len(ledger.HEADINGS)
    assert row[-2] or row[-3] == "not run yet"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "measure" in claim], ids=lambda each: each["claim"])
def test_the_recipe_of_a_claim_has_the_classifiers_it_compares(claim):
    (name,) = re.findall(r"paper/[\w-]+", claim["command"])
    cells = expand(read_recipe(name, scale="mini"), name)
    known = {f"{cell.label} {branch.name}" for cell in cells for branch in getattr(cell.recipe.method, "align", ())}
    known |= {cell.label for cell in cells if not hasattr(cell.recipe.method, "align")}
    measure = claim["measure"]
    asked = {label for key in ("among", "near", "to", "alike", "everywhere") for label in measure.get(key, ())}
    asked |= {label for pair in measure.get("better", ()) for label in pair} | {measure.get("best")} - {None}
    assert asked
    assert asked <= known
