"""`lca theory` on real runs: what it measures, writes, shows and refuses."""

import copy
import json
import re
import shutil
from unittest.mock import patch

import pytest
import torch

import tiny
from lca.classifier import ContinualClassifier
from lca.errors import LcaError
from lca.files import read_json, write_json
from lca.instruments.theory.divergence import covariance
from lca.instruments.theory.measure import Settings, Subject
from lca.instruments.theory.runs import theory_of_run
from lca.progress import LineProgress
from lca.results.stored import read_run
from lca.runs.experiment import run
from lca.statistics.gaussians import GaussianMemory

lca = tiny.lca_command
BRANCHES = ["none", {"preset": "lca", **tiny.QUICK}, {"preset": "balanced", "name": "best", **tiny.QUICK}]
BRANCHES += [{"preset": preset, "drift": {"model": "affine"}} for preset in ("lda", "quadratic")]
BASE = tiny.recipe(method={"align": BRANCHES}, training={"epochs": 1}, data={"tasks": [3, 3, 4]}, keep_models="all")
QUICKLY = ("--samples", 64, "--quiet")


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.fixture(scope="module")
def drawn():
    """All samples that the alignments of the run below drew, in the order they drew them."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, drawn):
    """Runs of several kinds; their theory.json comes and goes."""
    folder = tmp_path_factory.mktemp("runs")
    sample = GaussianMemory.sample

    def recorded(memory, count, generator):
        found = sample(memory, count, generator)
        drawn.append(found[0])
        return found

    with tiny.tiny_backbone():
        with patch.object(GaussianMemory, "sample", recorded):
            run(BASE, folder / "all")
        run(tiny.recipe(BASE.dump(), keep_models="last"), folder / "last")
        run(tiny.recipe(BASE.dump(), keep_models="none"), folder / "none")
        for name in ("simplecil", "mos", "tuna"):
            run(tiny.recipe(BASE.dump(), {"method": tiny.method_section(name)}), folder / name)
        run(tiny.recipe(BASE.dump(), method={"align": ["lda"], "second_pass": "mirror"}), folder / "mirror")
    return folder


@pytest.fixture(scope="module")
def measured(folder):
    with tiny.tiny_backbone():
        return theory_of_run(folder / "all", Settings(samples=2000), old_data=True)


def after(measured, task, branch="best"):
    return measured["branches"][branch][task]


def test_everything_is_there_for_every_task_and_branch_with_gaussians(measured):
    assert list(measured["branches"]) == ["lca", "best", "lda", "quadratic"], "`none` has no Gaussians"
    for tasks in measured["branches"].values():
        assert [each["task"] for each in tasks] == [1, 2, 3]
        assert [each["classes"] for each in tasks] == [3, 6, 10]
        for each in tasks:
            assert set(each["losses"]) == {"clipped", "zero-one"}
            assert each["losses"]["clipped"]["maximum"] == 5
            assert 0 < each["inside_own_cell"] <= 1


def test_the_samples_are_those_of_the_alignment(folder, drawn, measured):
    model = ContinualClassifier.load(folder / "all" / "models" / "task-02")
    options = model.method.branch_set.options["best"]
    memory, _ = model.method.statistics("best")
    subject = Subject(2, lambda rows: model.logits(rows, "best"), memory, options, [3, 3, 4], model.recipe.seed, "cpu")
    again = subject.drawn()
    assert any(torch.equal(again, each) for each in drawn)
    loss = torch.nn.functional.cross_entropy(
        model.logits(again.flatten(0, 1), "best"), torch.arange(10).repeat_interleave(16)
    )
    assert after(measured, 2)["alignment_loss"] == pytest.approx(float(loss), abs=1e-5), "λ is 0, all classes alike"


def test_heads_that_never_saw_the_samples_are_said_to_be_so(measured):
    learnt = {
        name: [each["heads_learnt_from_samples"] for each in tasks] for name, tasks in measured["branches"].items()
    }
    closed_forms = {"lda": [False] * 3, "quadratic": [False] * 3}
    assert learnt == {"lca": [False, True, True], "best": [True] * 3, **closed_forms}


def test_another_kind_of_device_draws_other_samples(folder, tmp_path, caplog):
    shutil.copytree(folder / "last", tmp_path / "run")
    results = read_json(folder / "last" / "results.json")
    results["machine"]["device"] = "cuda"
    write_json(tmp_path / "run" / "results.json", results)
    lca("theory", tmp_path / "run", *QUICKLY, "--device", "cpu")
    assert "the run was computed on cuda, and cpu draws other samples" in caplog.text
    found = read_json(tmp_path / "run" / "theory.json")
    assert not any(each["heads_learnt_from_samples"] for tasks in found["branches"].values() for each in tasks)
    assert found["measured_on"]["device"] == "cpu"


def test_test_images_cost_what_the_run_says(folder, measured):
    _, answers = read_run(folder / "all")
    for name, tasks in measured["branches"].items():
        record = answers[name].record()
        for right, each in zip(record.correct, tasks, strict=True):
            shares = [1 - hits / total for hits, total in zip(right, record.total, strict=False)][: each["classes"]]
            assert each["losses"]["zero-one"]["test_images"] == pytest.approx(sum(shares) / len(shares))


def test_new_classes_have_not_drifted_and_old_ones_have(measured):
    first, last = after(measured, 0)["drift"][0], after(measured, 2)["drift"][0]
    assert first["at_most"] < 0.01, "stored after the merge, so they are the true ones"
    assert last["at_most"] > 0.1
    losses = after(measured, 0)["losses"]["zero-one"]
    assert losses["true_gaussians"] == pytest.approx(losses["gaussians"], abs=0.05)


def test_the_distance_shrinks_with_the_variance(measured):
    for tasks in measured["branches"].values():
        for each in tasks:
            assert [line["added"] for line in each["drift"]] == [0, *Settings().added]
            for name in ("at_least", "hellinger", "pinsker", "at_most"):
                values = [line[name] for line in each["drift"]]
                assert values == sorted(values, reverse=True)


def test_the_right_sides_are_sums_of_the_terms(measured):
    for tasks in measured["branches"].values():
        for each in tasks:
            for own in each["losses"].values():
                sides = own["drawn"] + own["robustness"] + own["uncertainty"]
                assert own["theorem_1"] == pytest.approx(sides) == pytest.approx(own["corollary_1"])
                distance = own["maximum"] * each["drift"][0]["at_most"]
                assert own["theorem_2"] == pytest.approx(sides + 2 * distance)
                best = min(own["within_cells"], own["without_cells"])
                assert own["theorem_2_corrected"] == pytest.approx(best + distance)
                names = ("theorem_1", "corollary_1", "within_cells", "without_cells")
                above = {name for name in (*names, "theorem_2", "theorem_2_corrected") if own[name] >= own["maximum"]}
                assert set(own["vacuous"]) == above
                tolerance = 5 * own["gaussians_standard_error"] + 1e-6
                assert own["gaussians"] <= own["without_cells"] + tolerance
                assert own["true_gaussians"] <= own["theorem_2_corrected"] + 2 * tolerance


def test_of_another_kind_of_covariance_the_distance_counts_too(tmp_path):
    shared = {"name": "shared", "covariance": {"kind": "shared"}, **tiny.QUICK}
    run(tiny.recipe(BASE.dump(), {"method": {"align": [shared]}, "data": {"tasks": [5, 5]}}), tmp_path / "shared")
    first = theory_of_run(tmp_path / "shared", Settings(samples=64), old_data=True)["branches"]["shared"][0]
    assert first["drift"][0]["at_most"] > 0.5, "one covariance for all classes is none of theirs"
    model = ContinualClassifier.load(tmp_path / "shared" / "models" / "task-00")
    memory, _ = model.method.statistics("shared")
    assert torch.equal(covariance(memory, 0), covariance(memory, 1))


def test_singular_gaussians_have_no_bound_until_variance_is_added(tmp_path):
    thin = {"preset": "lca", "covariance": {"ridge": 0.0}, **tiny.QUICK}
    run(tiny.recipe(BASE.dump(), {"method": {"align": [thin]}, "data": {"tasks": [5, 5]}}), tmp_path)
    last = theory_of_run(tmp_path, Settings(samples=64, added=(1.0,)), old_data=True)["branches"]["lca"][1]
    alone, widened = last["drift"]
    assert (alone["at_most"], alone["at_least"], alone["estimate"], alone["vacuous"]) == (1, 0, None, True)
    assert alone["classes_at_1"] == 10
    assert widened["at_most"] < 1
    assert {"theorem_2", "theorem_2_corrected"} <= set(last["losses"]["zero-one"]["vacuous"])
    assert " - " in lca("theory", tmp_path / "theory.json", "--loss", "zero-one")[0]


def test_it_is_shown_and_written(folder):
    shown, _ = lca("theory", folder / "all", *QUICKLY, "--branch", "best", "--loss", "zero-one", "--old-data")
    assert "best, zero-one loss (at most 1): Theorem 1" in shown
    assert "Theorem 2" in shown
    assert re.search(r"Theorem 2\n(.*\n)+? .*\d\)? vacuous", shown)
    assert "clipped loss" not in shown
    file = folder / "all" / "theory.json"
    written = read_json(file)
    assert list(written["branches"]) == ["best"]
    assert lca("theory", file, "--loss", "zero-one")[0] == shown
    markdown, _ = lca("theory", file, "--loss", "clipped", "--markdown")
    assert markdown.startswith("**best, clipped loss (at most 5): Theorem 1**\n\n| task |")
    assert json.loads(lca("theory", file, "--json")[0]) == written


def test_of_several_seeds_the_mean_is_shown_and_in_how_many_a_bound_says_nothing(measured, tmp_path):
    other = copy.deepcopy(measured)
    other["recipe"]["seed"] = 6
    last = other["branches"]["lca"][2]
    own = last["losses"]["zero-one"]
    own["vacuous"].remove("theorem_2")
    own["test_images"] += 0.2
    last["drift"][0]["classes_at_1"] += 4
    for number, facts in enumerate((measured, other)):
        (tmp_path / "cells" / str(number)).mkdir(parents=True)
        write_json(tmp_path / "cells" / str(number) / "theory.json", facts)
    words = ("--branch", "lca", "--loss", "zero-one")
    shown, told = lca("theory", tmp_path, *words, "--pack", tmp_path / "pack.json")
    assert "digits, 2 seeds: lca, zero-one loss (at most 1): Theorem 1" in shown
    assert not told
    before, far = after(measured, 2, "lca")["losses"]["zero-one"], after(measured, 2, "lca")["drift"][0]["classes_at_1"]
    assert re.search(rf"3 +10 +16 .* {before['test_images'] + 0.1:.3f} ± 0.141\n", shown)
    assert re.search(rf"3 .* {far + 2}.0 ± 2.8 of 10 +{before['theorem_2']:.3f} \(0\.00\d\) vacuous in 1 of 2 ", shown)
    assert re.search(r"2 .* \d of 6 +\d\.\d+( \(0\.\d+\))? vacuous ", shown)
    assert lca("theory", tmp_path / "pack.json", *words)[0] == shown
    packed = read_json(tmp_path / "pack.json")["runs"][0]["branches"]["lca"]
    assert [len(each["drift"]) for each in packed] == [1, 1, 6], "only the last task's table shows added variance"
    other["settings"]["samples"] = 9
    write_json(tmp_path / "cells" / "1" / "theory.json", other)
    with pytest.raises(LcaError, match=r"no seeds of one recipe:\n  settings\.samples: 2000 -> 9"):
        lca("theory", tmp_path)


def shown_of(tmp_path, facts, *words):
    write_json(tmp_path / "theory.json", facts)
    return lca("theory", tmp_path / "theory.json", "--loss", "zero-one", *words)[0]


def test_the_caption_says_what_the_heads_learnt_from(measured, tmp_path):
    aligned = "L(D): mean loss of the n_i samples of every class that the heads were aligned on"
    assert f"{aligned}.\n" in shown_of(tmp_path, measured, "--branch", "best")
    partly = shown_of(tmp_path, measured, "--branch", "lca")
    assert f"{aligned}; with a star, of as many from which" in partly
    assert re.search(r"\n +1 +3 +16\* ", partly)
    assert re.search(r"\n +2 +6 +16 ", partly)
    closed = shown_of(tmp_path, measured, "--branch", "lda")
    assert "because the heads did not learn from these" in closed
    assert aligned not in closed
    assert len(re.findall(r"\n +\d +\d+ +512\* ", closed)) == 3


def test_no_digit_is_shown_that_chance_decides(measured, tmp_path):
    facts = copy.deepcopy(measured)
    last = after(facts, 2)
    losses, drift = last["losses"]["zero-one"], last["drift"][0]
    last |= {"inside_own_cell": 0.91234, "inside_own_cell_standard_error": 0.031}
    losses |= {"theorem_1": 0.71239, "theorem_1_standard_error": 0.0231, "gaussians": 0.13579}
    losses |= {"gaussians_standard_error": 0.0042, "true_gaussians": 0.2468, "true_gaussians_standard_error": 4e-4}
    losses["vacuous"] = ["theorem_2"]
    drift |= {"estimate": 0.45678, "estimate_standard_error": 0.3}
    shown = shown_of(tmp_path, facts, "--branch", "best")
    for number in ("91 (3) %", "0.71 (0.02)", "0.136 (0.004)", "0.247", "0.5 (0.3)"):
        assert f" {number} " in shown, number
    for each in (losses, last, *last["drift"]):  # as files of earlier versions have it
        for key in [key for key in each if key.endswith("_standard_error") and key != "gaussians_standard_error"]:
            del each[key]
    facts["branches"] = {"best": [last]}
    shown = shown_of(tmp_path, facts)
    for number in ("91.2 %", "0.712", "0.136 (0.004)", "0.247", "0.457"):
        assert f" {number} " in shown, number


def test_without_old_data_nothing_is_said_about_drift(folder):
    shown, _ = lca("theory", folder / "all", *QUICKLY)
    assert "Theorem 2" not in shown
    assert all("drift" not in each for each in read_json(folder / "all" / "theory.json")["branches"]["best"])


def test_the_options_count(folder):
    def measured(*words):
        shown, _ = lca("theory", folder / "all", *QUICKLY, "--branch", "best", "--json", *words)
        return json.loads(shown)["branches"]["best"][2]

    plain = measured()
    own = plain["losses"]["clipped"]
    assert measured() == plain
    assert measured("--seed", 1)["losses"]["clipped"]["gaussians"] != own["gaussians"]
    assert measured("--samples", 65)["losses"]["clipped"]["gaussians"] != own["gaussians"]
    assert measured("--clip", 1)["losses"]["clipped"]["maximum"] == 1
    assert measured("--delta", 0.5)["losses"]["clipped"]["uncertainty"] < own["uncertainty"]
    drift = measured("--old-data", "--add", 3, "--add", 2)["drift"]
    assert [(line["ridge"], line["added"]) for line in drift] == [(1e-4, 0), (1e-4, 2), (1e-4, 3)]


def test_progress_is_shown_and_classifiers_with_the_same_gaussians_share_their_drift(folder):
    with patch("lca.progress.LineProgress.task", autospec=True, side_effect=LineProgress.task) as task:
        lca("theory", folder / "all", "--samples", 64, "--old-data")
    told = [call.args[1] for call in task.call_args_list]
    assert {"task 3, best, samples of stored Gaussians", "task 3, lca, samples of stored Gaussians"} <= set(told)
    assert told.count("task 3, drift") == 2, "best and lda keep the same Gaussians, lca others"
    assert "task 3, images of task 1" in told


def test_a_run_with_its_last_model_only_says_what_is_missing(folder):
    _, told = lca("theory", folder / "last", *QUICKLY)
    assert "after task 1, 2 were not kept" in told
    assert "keep_models=all" in told
    assert [each["task"] for each in read_json(folder / "last" / "theory.json")["branches"]["best"]] == [3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none",), "kept no model"),
        (("simplecil",), "no classifier of this run keeps Gaussians"),
        (("mos",), "mos keeps the Gaussians of every task's classes in a feature space of their own"),
        (("tuna",), "tuna keeps the Gaussians of every task's classes in a feature space of their own"),
        (("mirror",), "im answers in two passes here"),
        (("nowhere",), "does not exist"),
        (("all", "--branch", "none"), "'none' keeps no Gaussians"),
        (("all", "--branch", "bets"), "did you mean 'best'?"),
        (("all/results.json", "--samples", 9), "--samples measures anew"),
        (("all/results.json", "--old-data"), "--old-data measures anew"),
        (("all/results.json",), "is no file that `lca theory RUN` wrote"),
    ],
)
def test_what_cannot_be_measured_is_refused(folder, words, message):
    with pytest.raises(LcaError, match=re.escape(message)):
        lca("theory", folder / words[0], *words[1:])


def test_changed_images_are_refused(folder, tmp_path):
    shutil.copytree(folder / "last", tmp_path / "run")
    results = read_json(folder / "last" / "results.json")
    results["data"]["sha256"] = "0" * 64
    write_json(tmp_path / "run" / "results.json", results)
    with pytest.raises(LcaError, match="they were changed since"):
        lca("theory", tmp_path / "run", *QUICKLY)
