"""`lca diagnose` on real runs: what it measures, writes, shows and refuses."""

import copy
import itertools
import json
import re
import statistics
from unittest.mock import patch

import pytest
import torch
from PIL import Image

import tiny
from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.errors import LcaError
from lca.evaluation.overlap import overlaps
from lca.evaluation.similarity import linear_cka, mean_cosine
from lca.files import read_json, write_json
from lca.instruments.diagnosis import PAIRS, diagnose_run
from lca.progress import LineProgress, Progress
from lca.results.measured import AS_TRAINED
from lca.runs.experiment import run

lca = tiny.lca_command
BRANCHES = ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]
BASE = tiny.recipe(method={"align": BRANCHES}, data={"tasks": [3, 3, 4], "train_limit": 20}, keep_models="all")


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with tiny.tiny_backbone():
        run(BASE, folder / "all")
        run(tiny.recipe(BASE.dump(), seed=6), folder / "other")
        run(tiny.recipe(BASE.dump(), keep_models="last"), folder / "last")
        run(tiny.recipe(BASE.dump(), keep_models="none"), folder / "none")
        for name in ("simplecil", "ease", "mos"):
            run(tiny.recipe(BASE.dump(), {"method": tiny.method_section(name)}), folder / name)
    (folder / "empty" / "cells" / "a").mkdir(parents=True)
    write_json(folder / "empty" / "pack.json", {"format": 1, "runs": []})
    return folder


@pytest.fixture(scope="module")
def found(folder):
    with tiny.tiny_backbone():
        return diagnose_run(folder / "all")


def opened(folder, task):
    """A model of a run, its test images of all tasks, and their features."""
    model = ContinualClassifier.load(folder / "models" / f"task-{task:02d}")
    order = read_json(folder / "results.json")["data"]["class_order"]
    test = load_source(BASE.data, 5, 16, Progress()).test.of_classes(order)
    return model, test, model.features(test)


def test_the_similarity_to_the_first_backbone(folder, found):
    _, test, first = opened(folder / "all", 0)
    assert found["images"] == len(test)
    assert [each["task"] for each in found["tasks"]] == [1, 2, 3]
    for task, each in enumerate(found["tasks"]):
        features = opened(folder / "all", task)[2]
        assert each["similarity"] == {
            "cka": pytest.approx(linear_cka(features, first)),
            "cosine": pytest.approx(mean_cosine(features, first)),
        }
    assert found["tasks"][0]["similarity"] == {"cka": pytest.approx(1), "cosine": pytest.approx(1)}
    assert all(found["tasks"][2]["similarity"][name] < 0.999 for name in ("cka", "cosine"))


def test_the_overlap_before_and_after_alignment(folder, found):
    """As trained is what the branch without alignment answers; only classes learnt so far have an overlap."""
    for task, homes in ((0, [0] * 3), (2, [0] * 3 + [1] * 3 + [2] * 4)):
        model, test, features = opened(folder / "all", task)
        known = test.labels < len(homes)
        for name, branch in ((AS_TRAINED, "none"), ("best", "best")):
            logits = model.logits(features[known], branch)
            matrices = overlaps(logits, test.labels[known], Progress(), "test")
            for key, values in zip(("best", "as_answered"), matrices, strict=True):
                pairs = list(itertools.combinations(range(len(homes)), 2))
                same = [float(values[pair]) for pair in pairs if homes[pair[0]] == homes[pair[1]]]
                other = [float(values[pair]) for pair in pairs if homes[pair[0]] != homes[pair[1]]]
                own = found["tasks"][task]["overlap"][name][key]
                assert own["within_tasks"] == pytest.approx(sum(same) / len(same))
                assert own["between_tasks"] == (pytest.approx(sum(other) / len(other)) if other else None)
    assert list(found["tasks"][0]["overlap"]) == [AS_TRAINED, "best"]
    last = found["tasks"][2]["overlap"]
    assert last["best"]["as_answered"]["between_tasks"] < last[AS_TRAINED]["as_answered"]["between_tasks"]


def test_the_pairs_that_overlap_most(folder, found):
    model, test, features = opened(folder / "all", 2)
    matrices = [overlaps(model.logits(features, name), test.labels, Progress(), "test")[0] for name in ("none", "best")]
    most = torch.stack(matrices).nan_to_num(-1).amax(0).triu(1)
    highest = most.flatten().sort(descending=True).values[:PAIRS]
    shown = [max(each["best"] for each in pair["overlap"].values()) for pair in found["pairs"]]
    assert shown == pytest.approx(highest.tolist())
    one, two = (model.classes.index(name) for name in found["pairs"][0]["classes"])
    assert found["pairs"][0]["overlap"]["best"]["best"] == pytest.approx(float(matrices[1][one, two]))


@pytest.mark.parametrize("name", ["simplecil", "ease", "mos"])
def test_other_methods(folder, name):
    """A frozen backbone is what it was; where features grow by a part a task, only CKA compares them."""
    tasks = diagnose_run(folder / name)["tasks"]
    last = tasks[-1]
    if name == "simplecil":
        assert last["similarity"] == {"cka": pytest.approx(1), "cosine": pytest.approx(1)}
        assert list(last["overlap"]) == ["default"]
    else:
        assert last["width"] == 3 * tasks[0]["width"]
        assert last["similarity"]["cosine"] is None
        assert 0 < last["similarity"]["cka"] < 1
    if name == "mos":
        model, test, features = opened(folder / name, 2)
        matrix = overlaps(model.logits(features, "none"), test.labels, Progress(), "test")[1]
        expected = float(matrix.triu(1).nansum() / 45)
        own = last["overlap"][AS_TRAINED]["as_answered"]
        assert (12 * own["within_tasks"] + 33 * own["between_tasks"]) / 45 == pytest.approx(expected)


def test_it_is_shown_written_and_drawn(folder, tmp_path):
    shown, _ = lca("diagnose", folder / "all", "--quiet")
    assert "Backbone similarity to the first task's" in shown
    assert re.search(r"1 +3 +24 +1.000 +1.000\n", shown)
    assert re.search(r"1 +as trained +0.\d{3} +[01].\d{3} +- +-\n", shown)
    file = folder / "all" / "diagnosis.json"
    assert lca("diagnose", file)[0] == shown
    markdown, _ = lca("diagnose", file, "--markdown", "--out", tmp_path / "there")
    assert "**Class overlap, mean over pairs of classes**\n\n| task | classifier |" in markdown
    assert (
        json.loads(lca("diagnose", file, "--json")[0])
        == read_json(file)
        == read_json(tmp_path / "there/diagnosis.json")
    )
    for place in (folder / "all", tmp_path / "there"):
        assert Image.open(place / "diagnosis.png").size > (1000, 400)
        assert "linear CKA" in (place / "diagnosis.svg").read_text()


def test_a_run_with_its_last_model_only_has_no_similarity(folder, tmp_path):
    shown, told = lca("diagnose", folder / "last", "--quiet", "--out", tmp_path)
    assert "after task 1, 2 were not kept" in told
    assert re.search(r"3 +10 +24 +- +-\n", shown)
    assert read_json(tmp_path / "diagnosis.json")["tasks"][0]["similarity"] is None
    assert (tmp_path / "diagnosis.png").exists()
    assert not (folder / "last" / "diagnosis.json").exists()


@pytest.fixture(scope="module")
def sweep(folder, found):
    """A sweep: two seeds of the run above, the second with half of its overlaps, and another data set."""
    sweep = folder / "sweep"
    for name, seed, source, scale in (("a", 5, "digits", 1), ("b", 6, "digits", 0.5), ("c", 5, "folder:x/mini", 1)):
        facts = copy.deepcopy(found)
        facts["recipe"] |= {"seed": seed, "data": {**facts["recipe"]["data"], "source": source}}
        for task in facts["tasks"]:
            task["overlap"]["best"]["as_answered"]["between_tasks"] = scale * 0.25
        (sweep / "cells" / name).mkdir(parents=True)
        write_json(sweep / "cells" / name / "diagnosis.json", facts)
    (sweep / "cells" / "d").mkdir()
    return sweep


def test_of_several_seeds_the_mean_is_shown_for_every_data_set(sweep, tmp_path):
    shown, told = lca("diagnose", sweep, "--out", tmp_path / "there", "--pack", tmp_path / "pack.json")
    assert "1 of 4 cells of" in told
    assert "digits, 2 seeds: Backbone similarity" in shown
    assert "mini, seed 5: Backbone similarity" in shown
    assert re.search(r"3 +best .* 0.188 ± 0.088\n", shown)
    assert re.search(r"3 +best .* 0.250\n", shown)
    less = re.search(r"one classifier less another\n.*\n +best +as trained .* (\S+) ± (\S+)\n", shown)
    before = read_json(sweep / "cells/a/diagnosis.json")["tasks"][2]["overlap"][AS_TRAINED]["as_answered"]
    assert float(less[1]) == pytest.approx(0.1875 - before["between_tasks"], abs=1e-4)
    assert float(less[2]) == pytest.approx(0.0884, abs=1e-4), "the seeds differ in one classifier, so in the difference"
    assert shown.count("less another") == 1, "one seed has no deviation"
    assert "0.188 ± 0.088 |" in lca("diagnose", sweep, "--markdown")[0]
    figures = {path.name for path in (tmp_path / "there").glob("*.png")}
    assert figures == {"diagnosis-digits.png", "diagnosis-mini.png"}
    cells = [sweep / "cells" / name / "diagnosis.json" for name in "bac"]
    assert lca("diagnose", *cells)[0] == shown
    for again in (tmp_path / "pack.json", tmp_path / "there" / "diagnosis.json"):
        assert lca("diagnose", again)[0] == shown
    assert json.loads(lca("diagnose", *cells[::-1], "--json")[0])["runs"][::-1] == [read_json(path) for path in cells]


def test_several_runs_are_measured_each_into_its_own_folder(folder, tmp_path):
    shown, _ = lca("diagnose", folder / "all", folder / "other", "--quiet", "--out", tmp_path)
    both = [read_json(folder / name / "diagnosis.json") for name in ("all", "other")]
    assert read_json(tmp_path / "diagnosis.json")["runs"] == both
    similar = [facts["tasks"][2]["similarity"]["cka"] for facts in both]
    assert "digits, 2 seeds: Class overlap" in shown
    assert re.search(rf"3 +10 +24 +{statistics.fmean(similar):.3f} ± {statistics.stdev(similar):.3f} ", shown)
    assert all((place / "diagnosis.png").exists() for place in (folder / "other", tmp_path))


def test_the_same_data_with_another_recipe_has_its_name(sweep, tmp_path):
    facts = read_json(sweep / "cells/b/diagnosis.json")
    facts["recipe"] |= {"name": "else", "precision": "bf16"}
    write_json(tmp_path / "else.json", facts)
    shown, _ = lca("diagnose", sweep / "cells/a/diagnosis.json", tmp_path / "else.json", "--out", tmp_path)
    assert "digits, tiny, seed 5: Class overlap" in shown
    assert "digits, else, seed 6: Class overlap" in shown
    assert (tmp_path / "diagnosis-digits-else.svg").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "digits with seed 5 is given 2 times"),
        ({"recipe.seed": 6, "recipe.precision": "bf16"}, "no seeds of one recipe:\n  recipe.precision: auto -> bf16"),
        ({"recipe.seed": 6, "tasks": []}, "not measured alike: tasks of one has other parts"),
        ({"recipe.seed": 6, "tasks.2.task": 4}, "not measured alike: 3 and 4 at one place"),
        ({"recipe.seed": 6, "tasks.2.similarity": {"cka": 1}}, "not measured alike: tasks.similarity"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(sweep, tmp_path, change, message):
    facts = read_json(sweep / "cells/a/diagnosis.json")
    for path, value in change.items():
        *way, last = path.split(".")
        place = facts
        for step in way:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
    write_json(tmp_path / "changed.json", facts)
    with pytest.raises(LcaError, match=re.escape(message)):
        lca("diagnose", sweep / "cells/a/diagnosis.json", tmp_path / "changed.json", "--pack", tmp_path / "pack.json")
    assert not (tmp_path / "pack.json").exists()


def test_progress_is_shown(folder, tmp_path):
    with patch("lca.progress.LineProgress.task", autospec=True, side_effect=LineProgress.task) as task:
        lca("diagnose", folder / "all", "--out", tmp_path)
    told = [call.args[1] for call in task.call_args_list]
    assert {"task 3, test", "task 3, as trained, overlap", "task 3, best, overlap"} <= set(told)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none",), "kept no model"),
        (("nowhere",), "does not exist"),
        (("all/results.json",), "is no file that `lca diagnose RUN` wrote"),
        (("all/results.json", "--device", "cpu"), "is only shown"),
        (("empty",), "no cell of"),
        (("empty", "--device", "cpu"), "is only shown"),
        (("empty/pack.json",), "is no file that `lca diagnose RUN` wrote"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(folder, words, message):
    with pytest.raises(LcaError, match=re.escape(message)):
        lca("diagnose", folder / words[0], *words[1:])


def test_a_file_of_another_format_is_refused(tmp_path):
    write_json(tmp_path / "diagnosis.json", {"format": 0, "recipe": {}, "tasks": [], "pairs": []})
    with pytest.raises(LcaError, match="has format 0"):
        lca("diagnose", tmp_path / "diagnosis.json")
