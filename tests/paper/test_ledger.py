"""The ledger's verdicts, on packs made up for them."""

import re
from pathlib import Path

import pytest
import yaml

from lca.files import read_json, write_json
from lca.recipe import read_recipe
from lca.runs.sweep import expand
from packs import damage, made, packed
from paper import ledger

ROOT = Path(__file__).parents[2]
CLAIMS = yaml.safe_load((ROOT / "paper" / "claims.yaml").read_text("utf-8"))


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


def joined(path, *packs):
    """One pack of several."""
    cells = [cell for each in packs for cell in read_json(each)["cells"]]
    for number, cell in enumerate(cells):
        cell["key"] = str(number)
    write_json(path, read_json(packs[0]) | {"cells": cells})
    return path


def test_a_clear_difference_is_support_and_a_clear_one_below_contradicts(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4))
    assert judged(path, better=[["IM lca", "IM none"]]) == (
        "digits +3.75 [+0.64, +6.86]",
        "supported, on digits alone",
    )
    assert judged(path, better=[["IM none", "IM lca"]])[1] == "not supported: contradicted, on digits alone"


def test_a_difference_that_may_be_chance_decides_nothing(tmp_path):
    text, verdict = judged(pack(tmp_path, lca=(4, 0, 1)), better=[["IM lca", "IM none"]])
    assert text.startswith("digits +2.08 [-")
    assert verdict == "not supported: undecided, on digits alone"


def test_one_seed_decides_nothing(tmp_path):
    content = read_json(pack(tmp_path, lca=(2, 3, 4)))
    write_json(tmp_path / "one.json", content | {"cells": content["cells"][:1]})
    assert judged(tmp_path / "one.json", better=[["IM lca", "IM none"]]) == (
        "digits +2.50 (1 of 3 seeds)",
        "not supported: undecided, on digits alone",
    )


def test_only_seeds_with_the_same_test_images_and_tasks_count(tmp_path):
    path = pack(tmp_path, lca=(2, 3, 4))
    content = read_json(path)
    for cell in read_json(path)["cells"]:
        cell |= {"label": "other", "key": f"other {cell['key']}"}
        content["cells"].append(cell)

    def compared(of="AA"):
        write_json(path, content)
        return judged(path, better=[["IM lca", "other none"]], of=[of])

    assert compared() == ("digits +3.75 [+0.64, +6.86]", "supported, on digits alone")
    content["cells"][-1]["results"]["data"]["sha256"] = "e" * 64
    assert compared()[0] == "digits +3.12 [-4.82, +11.07] (2 of 3 seeds)"
    content["cells"][-2]["results"]["data"]["task_sizes"] = [1, 3]
    assert compared()[0] == "digits +2.50 (1 of 3 seeds)"
    content["cells"][-3]["results"]["data"]["sha256"] = "e" * 64
    assert compared() == ("digits not compared (other test images)", "not supported: undecided, on digits alone")


def test_the_best_must_be_clear_of_every_rival(tmp_path):
    path = pack(tmp_path, lca=(4, 5, 6), steady=(3, 4, 5), wild=(0, 5, 3))
    text, verdict = judged(path, best={"IM lca": ["IM none", "IM steady", "IM wild"]})
    assert "against IM steady +1.25;" in text, "the next by mean"
    assert verdict == "not supported: undecided on digits (against IM wild)"
    assert judged(path, best={"IM lca": ["IM steady"], "IM steady": ["IM none"]})[1] == "supported, on digits alone"
    assert judged(path, best={"IM lca": ["IM none"], "IM none": ["IM steady"]})[1] == (
        "not supported: contradicted on digits (IM none - IM steady)"
    )


def test_near_enough_is_decided_by_the_interval(tmp_path):
    path = pack(tmp_path, one=(3, 3, 4), two=(4, 4, 4))
    for within, verdict in (
        (3, "supported, on digits alone"),
        (1, "not supported: undecided on digits (against IM two)"),
        (0.0, "not supported: undecided on digits (against IM two)"),
    ):
        assert judged(path, near=["IM one"], to=["IM two", "IM none"], within=within)[1] == verdict
    assert judged(path, near=["IM none"], to=["IM two"], within=1)[1] == "not supported: contradicted, on digits alone"


def test_any_two_of_those_that_are_alike_are_near_either_way_round(tmp_path):
    path = pack(tmp_path, one=(2, 2, 2), two=(4, 4, 4), wild=(1, 7, 4))
    labels = ["IM one", "IM two"]
    assert judged(path, alike=labels, within=3)[1] == "supported, on digits alone"
    assert judged(path, alike=labels, within=2) == (
        "digits IM one - IM two -2.50; IM two - IM one +2.50",
        "not supported: contradicted on digits (IM one - IM two)",
    )
    assert judged(path, alike=["IM two", "IM wild"], within=3)[1] == "not supported: undecided, on digits alone"


def test_of_many_pairs_those_that_do_not_hold_are_named(tmp_path):
    path = pack(tmp_path, a=(2, 2, 3), b=(3, 3, 4), c=(4, 4, 5), d=(9, 0, 1), e=(4, 4, 5))
    pairs = [[f"IM {name}", "IM none"] for name in "abcd"]
    text, verdict = judged(path, better=pairs)
    assert text.startswith("digits 3 of 4 are clear, not: IM d +4.17 [-")
    assert verdict == "not supported: undecided on digits (IM d)"
    assert judged(path, better=pairs[:3])[0].count("; ") == 2
    text, verdict = judged(path, better=[*pairs[:3], ["IM e", "IM none"]])
    assert text.startswith("digits 4 of 4 are clear, least IM a +2.92 [")
    assert verdict == "supported, on digits alone"


def test_several_data_sets_and_their_mean(tmp_path):
    path = joined(tmp_path / "both.json", *(pack(tmp_path, source=source, lca=(2, 2, 3)) for source in ("one", "two")))
    text, verdict = judged(path, better=[["IM lca", "IM none"]], overall=True)
    assert [part.split()[0] for part in text.split("; ")] == ["overall", "one", "two"]
    assert verdict == "supported"


def test_the_verdict_says_what_failed_and_where(tmp_path):
    gains = {
        "one": {"lca": (2, 2, 3), "ca": (4, 0, 1), "bad": (-2, -2, -3)},
        "two": {"lca": (2, 2, 3), "ca": (4, 0, 1), "bad": (-2, -2, -3)},
        "three": {"lca": (2, 2, 3), "ca": (2, 2, 3), "bad": (2, 2, 3)},
        "four": {"lca": (4, 0, 1), "ca": (4, 0, 1), "bad": (4, 0, 1)},
    }
    path = joined(tmp_path / "all.json", *(pack(tmp_path, source=source, **each) for source, each in gains.items()))
    assert judged(path, better=[[f"IM {name}", "IM none"] for name in ("lca", "ca", "bad")])[1] == (
        "not supported: contradicted on one and two (IM bad); undecided on one and two (IM ca), four (all); "
        "supported on three (all)"
    )


def test_robustness(tmp_path):
    path = pack(tmp_path, lca=(2, 2, 3))
    content = read_json(path)
    for seed, cell in enumerate(content["cells"]):
        for branch, gain in (("none", 0), ("lca", 5 + seed)):
            kinds = {"fog": {"1": 50.0 + gain}, "snow": {"1": 40.0 + gain / 2}}
            scores = {"clean": 70.0 + gain, "images": 10, "generated": True, "branch": branch, "corrupted": kinds}
            scores["perturbed"] = {"tilt": {"accuracy": 30.0 - gain, "flips": 9.0 - gain}}
            cell.setdefault("robustness", []).append(scores)
    unmeasured = [
        cell | {"label": "unmeasured", "key": f"unmeasured {seed}", "robustness": []}
        for seed, cell in enumerate(read_json(path)["cells"])
    ]
    write_json(path, content | {"cells": content["cells"] + unmeasured})
    pair = [["IM lca", "IM none"]]
    assert judged(path, better=pair, of=["C"]) == (
        "digits corrupted +4.50 [+2.64, +6.36]",
        "supported, on digits alone",
    )
    assert judged(path, better=pair, of=["C", "P"])[1] == "not supported: contradicted on digits (perturbed)"
    assert judged(path, better=pair, of=["flips"])[1] == "supported, on digits alone", "fewer flips are better"
    assert judged(path, better=pair, of=["C - clean"]) == (
        "digits corrupted less clean -1.50 [-2.12, -0.88]",
        "not supported: contradicted, on digits alone",
    ), "it gains more on undamaged images"
    other = [["IM lca", "unmeasured lca"]]
    for measure in ({"better": other, "of": ["C"]}, {"everywhere": other}):
        assert judged(path, **measure)[0].endswith("not compared (no seed in common)")


def test_storage_is_nothing_but_the_named_parts(tmp_path):
    path = pack(tmp_path, lca=(2, 2, 3))
    content = read_json(path)
    for cell in content["cells"]:
        cell["results"]["branches"]["lca"]["storage_bytes"] = {"heads": 500_000, "heads/lca": 1_000_000, "old": 9}
    write_json(path, content)
    assert judged(path, stores="IM lca", only=["heads", "old"]) == (
        "digits MB heads 1.50, old 0.00",
        "supported, on digits alone",
    )
    assert judged(path, stores="IM lca", only=["heads"])[1] == "not supported: contradicted, on digits alone"


def test_passes_are_what_the_methods_say():
    text = "passes through the transformer per answer: im 1, ease one per task"
    assert ledger.judged({"passes": ["im", "ease"]}) == (text, "supported")
    assert ledger.judged({"passes": ["ease", "im"]})[1] == "not supported: contradicted"
    assert ledger.judged({"passes": ["im", "finetune"]})[1] == "not supported: contradicted"


def test_a_verdict_about_something_else_says_so(tmp_path):
    claim = {"pack": pack(tmp_path, lca=(2, 3, 4)), "measure": {"better": [["IM lca", "IM none"]]}}
    assert ledger.judged(claim | {"proxy": "of digits"})[1] == "supported, on digits alone (of digits)"


@pytest.mark.parametrize(
    ("snow", "text", "verdict"),
    [
        ((2, 2, 3), "2 of 2 means above, 2 clear, least snow +2.33 [+0.90, +3.77]", "supported"),
        ((9, 0, 1), "2 of 2 means above, 1 clear, least snow +3.33 [-8.92, +15.59]", "not supported: undecided"),
        ((-2, -2, -3), "1 of 2 means above, 1 clear, least snow -2.33 [-3.77, -0.90]", "not supported: contradicted"),
    ],
)
def test_on_every_kind_of_damage_the_interval_decides(tmp_path, snow, text, verdict):
    path = pack(tmp_path, lca=(2, 2, 3))
    content = read_json(path)
    for cell, gain in zip(content["cells"], snow, strict=True):
        cell["robustness"] = [damage("none", 80, corruptions=("fog", "snow"), sequences=())]
        cell["robustness"] += [damage("lca", 90, corruptions=("fog", "snow"), sequences=())]
        cell["robustness"][1]["corrupted"]["snow"] = {"1": 70 + gain, "5": 50 + gain}
    for cell, extra in zip(content["cells"], (0, 1, 2), strict=True):
        cell["robustness"][1]["corrupted"]["fog"]["1"] += extra
    write_json(path, content)
    assert judged(path, everywhere=[["IM lca", "IM none"]]) == (f"digits {text}", f"{verdict}, on digits alone")
    two = judged(path, everywhere=[["IM lca", "IM none"], ["IM none", "IM lca"]])
    assert two[0].startswith(f"digits IM lca - IM none {text}; IM none - IM lca ")
    assert "contradicted" in two[1]


def test_claims_about_kept_models(tmp_path):
    def judged_runs(what, *runs, **limits):
        for seed, run in enumerate(runs):
            run["recipe"] = {"seed": seed, "data": {"source": "folder:$LCA_DATA/some-set"}}
        write_json(tmp_path / "runs.json", {"runs": runs})
        text, verdict = ledger.judged({"pack": tmp_path / "runs.json", "of_runs": {"what": what, **limits}})
        return text.removeprefix("some-set "), verdict.removesuffix(", on some-set alone")

    def similar(*values):
        return {"tasks": [{"similarity": {"cka": value}} for value in values]}

    def overlapping(lca, without):
        shares = {"lca": lca, "λ=0": without}
        return {
            "tasks": [{"overlap": {name: {"as_answered": {"between_tasks": each}} for name, each in shares.items()}}]
        }

    def bounded(side, images, vacuous=(), gaussians=0.05):
        losses = {"drawn": 0.01, "robustness": 0.02, "theorem_1": side, "gaussians": gaussians, "test_images": images}
        losses["vacuous"] = list(vacuous)
        return {"branches": {"lca": [{"losses": {"zero-one": losses}, "drift": [{"at_least": 0.5}]}]}}

    runs = similar(1.0, 0.96, 0.93), similar(0.95, 0.9)
    text = "CKA 0.915 after the last task, largest step 0.050"
    assert judged_runs("gradual", *runs, step=0.05) == (text, "supported")
    assert judged_runs("gradual", *runs, step=0.04)[1] == "not supported: contradicted"
    assert judged_runs("overlap", overlapping(0.02, 0.03), overlapping(0.021, 0.032))[1] == "supported"
    assert judged_runs("overlap", overlapping(0.03, 0.02), overlapping(0.02, 0.03))[1] == "not supported: undecided"
    terms = "L(D) 0.010, ε̄ 0.0200, right side 0.200"
    runs = bounded(0.3, 0.2), bounded(0.1, 0.3)
    assert judged_runs("theorem 1", *runs, error="gaussians") == (
        f"{terms}, error under the Gaussians 0.050",
        "supported",
    )
    assert judged_runs("theorem 1", *runs, error="test_images") == (
        f"{terms}, error on test images 0.250",
        "not supported: contradicted",
    )
    assert judged_runs("theorem 1", bounded(0.3, 0.2), bounded(0.4, 0.3), error="test_images")[1] == "supported"
    assert judged_runs("theorem 1", bounded(0.3, 0.2, gaussians=0.4), error="gaussians")[1] == (
        "not supported: contradicted"
    )
    assert judged_runs("theorem 2", bounded(0.3, 0.2, ["theorem_2"]), bounded(0.3, 0.2)) == (
        "vacuous in 1 of 2 runs, TV >= 0.500",
        "not supported: contradicted",
    )


def test_what_contradicts_a_conclusion_does_not_contradict_the_theorem():
    """The verdict of Theorem 1 says that it is about the Gaussians, that of the conclusion about test images."""
    rows = {claim["of_runs"]["error"]: ledger.line(claim) for claim in CLAIMS if "error" in claim.get("of_runs", {})}
    assert set(rows) == {"gaussians", "test_images"}
    assert rows["gaussians"][4].startswith("supported (about the Gaussians;")
    assert rows["test_images"][4] == "not supported: contradicted (about test images: the conclusion, not the theorem)"


def test_what_was_not_run_has_no_verdict(tmp_path):
    assert judged(tmp_path / "none.json", better=[["a", "b"]]) == ("not run yet", "")


def test_what_follows_a_command_is_a_section_with_it():
    """A chain of commands is named by the section that has them all, the claim's first."""
    chains = [claim for claim in CLAIMS if "then" in claim]
    assert {claim["pack"] for claim in CLAIMS if "of_runs" in claim} <= {claim["pack"] for claim in chains}
    for claim in chains:
        (document, anchor) = re.findall(r"\((.+)#(.+)\)", claim["then"])[0]
        heading, *_ = [
            each
            for each in re.findall("^## (.+)$", (ROOT / "docs" / document).read_text("utf-8"), re.MULTILINE)
            if re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") == anchor
        ]
        section = (ROOT / "docs" / document).read_text("utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
        assert ledger.line(claim)[-1] == f"`{claim['command']}`, then as in {claim['then']}"
        assert claim["command"] in section
        assert re.search(r"lca (robustness|theory|diagnose) ", section)


def test_the_page_states_the_limits_of_the_claims():
    rules = (ROOT / "docs" / "ledger.md").read_text("utf-8").split("<!--")[0]
    within = {claim["measure"]["within"] for claim in CLAIMS if "within" in claim.get("measure", {})}
    steps = {claim["of_runs"]["step"] for claim in CLAIMS if "step" in claim.get("of_runs", {})}
    assert within | steps == {float(each) for each in re.findall(r"(?<=above -)[\d.]+|(?<=or -)[\d.]+|0\.05", rules)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda each: each["claim"])
def test_every_claim_has_a_row_with_a_verdict(claim):
    row = ledger.line(claim)
    assert len(row) == len(ledger.HEADINGS)
    assert row[-2] or row[-3] == "not run yet"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "measure" in claim], ids=lambda each: each["claim"])
def test_the_recipe_of_a_claim_has_the_classifiers_it_compares(claim):
    name, scale = re.fullmatch(r"lca sweep (\S+)(?: --scale (\w+))?", claim["command"]).groups()
    cells = expand(read_recipe(name, scale=scale), name)
    known = {f"{cell.label} {branch.name}" for cell in cells for branch in getattr(cell.recipe.method, "align", ())}
    known |= {cell.label for cell in cells if not hasattr(cell.recipe.method, "align")}
    measure = claim["measure"]
    asked = {measure["stores"]} if "stores" in measure else {label for pair in ledger._pairs(measure) for label in pair}
    assert asked
    assert asked <= known
