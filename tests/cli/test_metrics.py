"""`lca metrics`: what it prints, what it compares, and what it refuses."""

import json

import pytest

import tiny
from lca.results.metrics import metrics_of, summary
from lca.results.stored import read_run
from lca.runs.experiment import run

BASE = tiny.recipe(
    method={"align": ["none", {"preset": "balanced", "name": "best", **tiny.QUICK}]},
    training={"epochs": 1},
    data={"tasks": [3, 3, 4], "order": "natural"},
    keep_models="none",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of several kinds, for reading only."""
    folder = tmp_path_factory.mktemp("runs")
    with tiny.tiny_backbone():
        run(tiny.recipe(BASE.dump(), ood=True, forward_transfer=True), folder / "im")
        run(tiny.recipe(BASE.dump(), seed=6), folder / "im-6")
        run(tiny.recipe(BASE.dump(), {"method": {"name": "joint"}}), folder / "joint")
        run(tiny.recipe(BASE.dump(), {"method": {"name": "finetune"}}), folder / "finetune")
        run(tiny.recipe(BASE.dump(), {"data": {"tasks": [5, 5]}, "method": {"name": "joint"}}), folder / "other")
    return folder


@pytest.fixture
def as_json(lca):
    def go(*words):
        code, out, err = lca("metrics", *words, "--json")
        assert code == 0, err
        return json.loads(out)["branches"]

    return go


def test_everything_is_shown(lca, folder):
    code, out, _ = lca("metrics", folder / "im", "--draws", 20)
    assert code == 0
    none, _, best = out.partition(f"{folder / 'im'}: best")
    assert f"{folder / 'im'}: none" in none
    for text in ("average accuracy", "backward transfer", "task known", "calibration error", "taken for", "Wilson"):
        assert text in none
        assert text in best
    assert "unknown detection                   - (not measured" in none, "`none` keeps no class statistics"
    metrics = metrics_of(read_run(folder / "im")[1]["best"])
    assert f"unknown: AUROC                      {metrics['unknown_detection']['auroc']:.1f}" in best
    assert f"forward transfer                    {metrics['forward_transfer']['mean']:.1f}" in best
    assert "intransigence                       - (needs --joint RUN)" in best


def test_what_was_not_measured_is_said(lca, folder):
    out = lca("metrics", folder / "im-6", "--branch", "best", "--draws", 20)[1]
    assert "forward transfer                    - (not measured: forward_transfer is false in the recipe)" in out
    assert "unknown detection                   - (not measured: ood is false" in out
    assert ": none" not in out


def test_as_json(as_json, folder):
    found = as_json(folder / "im", "--branch", "best")
    assert list(found) == ["best"]
    facts, answers = found["best"], read_run(folder / "im")[1]["best"]
    assert facts["metrics"] == metrics_of(answers)
    assert facts["confusion"] == answers.confusion().tolist()
    assert {name: each["value"] for name, each in facts["summary"].items()} == summary(answers.record())
    for each in facts["summary"].values():
        low, high = each["bootstrap_interval_95"]
        assert low <= each["value"] <= high
    record = answers.record()
    assert [each["right"] for each in facts["by_class"].values()] == record.correct[-1]
    for task, each in enumerate(facts["by_task"]):
        low, high = each["last_interval_95"]
        assert low <= each["last"] <= high
        assert each["learnt"] == record.matrix()[task][task] <= each["best"]
        assert each["last_task_known"] == answers.task_known().matrix()[-1][task]


def test_a_handful_of_test_images_has_no_bootstrap_interval(lca, as_json, tmp_path):
    data = {
        "data": {"source": "synthetic:classes=4,train=4,test=2,size=16", "tasks": 2},
        "method": {"name": "simplecil"},
    }
    with tiny.tiny_backbone():
        run(tiny.recipe(BASE.dump(), data), tmp_path / "few")
    facts = as_json(tmp_path / "few")["default"]
    assert {each["bootstrap_interval_95"] for each in facts["summary"].values()} == {None}
    low, high = facts["last_accuracy_interval_95"]
    assert high - low > 30
    out = lca("metrics", tmp_path / "few", "--against", tmp_path / "few")[1]
    assert "-: too few images, or nothing varies; the last accuracy's Wilson interval is" in out
    assert "+0.0" in out


def test_the_number_of_draws(as_json, folder):
    few, many = (as_json(folder / "im", "--draws", draws)["best"]["summary"] for draws in (10, 500))
    assert few != many


def test_seeds_become_one_row(lca, as_json, folder):
    found = as_json(folder / "im", folder / "im-6", "--branch", "best")["best"]
    values = [summary(read_run(folder / name)[1]["best"].record())["last accuracy"] for name in ("im", "im-6")]
    last = found["summary"]["last accuracy"]
    assert (found["seeds"], found["same_test_images"]) == ([5, 6], True)
    assert last["values"] == values
    assert last["mean"] == pytest.approx(sum(values) / 2)
    assert last["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert last["bootstrap_interval_95"][0] <= min(values) <= max(values) <= last["bootstrap_interval_95"][1]
    out = lca("metrics", folder / "im", folder / "im-6")[1]
    assert "seeds 5, 6, on the same test images" in out
    assert f"{last['mean']:.1f}" in out


def test_validation_images_of_two_seeds_are_not_the_same(as_json, tmp_path):
    data = {"data": {"validation": 0.34, "evaluate": "validation", "tasks": 2}, "method": {"name": "simplecil"}}
    with tiny.tiny_backbone():
        for seed in (5, 6):
            run(tiny.recipe(BASE.dump(), data, seed=seed), tmp_path / str(seed))
    assert as_json(tmp_path / "5", tmp_path / "6")["default"]["same_test_images"] is False


def test_intransigence_against_the_joint_run(lca, as_json, folder):
    from lca.evaluation.accuracy import intransigence

    found = as_json(folder / "im", "--joint", folder / "joint")
    joint = read_run(folder / "joint")[1]["none"].record()
    for branch, answers in read_run(folder / "im")[1].items():
        assert found[branch]["intransigence"] == intransigence(answers.record(), joint)
    out = lca("metrics", folder / "im", "--branch", "best", "--joint", folder / "joint")[1]
    assert f"intransigence                       {found['best']['intransigence']:.1f}" in out


def test_a_comparison_image_by_image(lca, as_json, folder):
    found = as_json(folder / "im", "--branch", "best", "--against", folder / "finetune")["best"]["difference"]
    last = [
        summary(read_run(folder / run)[1][branch].record())["last accuracy"]
        for run, branch in (("im", "best"), ("finetune", "default"))
    ]
    value, (low, high) = found["summary"]["last accuracy"].values()
    assert value == pytest.approx(last[0] - last[1])
    assert low <= value <= high
    same = as_json(folder / "im", "--branch", "best", "--against", folder / "im")["best"]["difference"]
    assert same["branch"] == "best"
    assert same["summary"]["forgetting"] == {"value": 0, "bootstrap_interval_95": [0, 0]}
    out = lca("metrics", folder / "im", "--branch", "best", "--against", folder / "im", "--against-branch", "none")[1]
    assert f"minus {folder / 'im'}: none, on the same test images" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["im", "--branch", "bset"], "no branch 'bset'; did you mean 'best'?"),
        (["im", "--joint", "finetune"], "is one of finetune"),
        (["im", "--joint", "other"], "has other tasks, class order or test images"),
        (["finetune", "--against", "im"], "no branch 'default'"),
        (["im", "im"], "a seed was given twice: 5, 5"),
        (["joint", "other"], "data.tasks: [3, 3, 4] -> [5, 5]"),
        (["im", "finetune"], "no branch"),
        (["im", "im-6", "--joint", "joint"], "take one run, not several"),
        (["nothing"], "does not exist"),
    ],
)
def test_mistakes_are_named(lca, folder, words, message):
    runs = {path.name for path in folder.iterdir()} | {"nothing"}
    code, out, err = lca("metrics", *(folder / word if word in runs else word for word in words))
    assert (code, out) == (2, "")
    assert message in err
