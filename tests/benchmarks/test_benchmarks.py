"""Every benchmark at its smallest size: our way and the plain way give the same results. Time is never judged."""

import importlib
import json
from pathlib import Path

import pytest
import torch

import tiny
from lca.backbones import untrained
from lca.methods import methods
from lca.progress import Progress

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """A module of the benchmarks, which are scripts in a folder and no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize(
    "name",
    ["alignment_loss", "backbone_speed", "gaussian_sampling", "augmentation", "merging", "checkpoints"],
)
def test_both_ways_agree(load, name):
    settings = load("measuring").Settings(size="tiny", repeats=1)
    rows = load(name).compare(settings)
    assert rows
    assert any(row.agreement for row in rows)
    for row in rows:
        assert row.agreement is None or row.agreement.holds, (row.case, row.agreement)
        assert row.ours.best > 0
        assert row.plain.best > 0


def test_useful_work_is_that_of_the_literature(load):
    """ViT-B/16 at 224 pixels: 17.6 G multiplications forward."""
    module = load("backbone_speed")
    vit = untrained("vit_base_patch16_224")
    assert module.gigaflops(vit, 64, training=False) == pytest.approx(35.1 + 0.93, abs=0.1)
    assert module.gigaflops(vit, 64, training=True) == pytest.approx(2 * 35.1 + 3 * 0.93, abs=0.1)


def test_a_whole_run_is_measured(load):
    rows = load("whole_run").compare(load("measuring").Settings(size="tiny", repeats=1))
    assert [row.case.partition("(")[2] for row in rows] == [
        "plain, scaled from a part)",
        "published, scaled from a part)",
    ]
    assert {"s finetune", "s evaluate", "s align lca"} <= rows[0].rates.keys()
    assert all(row.plain.best > 0 for row in rows)


def test_growth_is_measured_and_drawn(load, tmp_path):
    module = load("growth")
    sizes = {"classes": (10, 20), "width": 8, "samples": 8, "tasks": (2,), "images": (2, 4)}
    sizes |= {"vits": ("vit_pico_patch8_64",), "batch": 2, "trained": 4}
    settings = load("measuring").Settings()
    growth = {name: module.measure(name, sizes, settings) for name in module.AXES}
    assert [point["classes"] for point in growth["classes"]] == [10, 20]
    assert [point["images"] for point in growth["images"]] == [8, 16]
    assert growth["classes"][1]["stored MB"] == 2 * growth["classes"][0]["stored MB"]
    results = {name: {"machine": {"name": "a machine"}, "points": points} for name, points in growth.items()}
    paths = module.plot(results, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert len(paths) == 4


def test_importing_the_package_leaves_torch_alone(load):
    assert load("start_up").torch_stays_out().holds


def test_the_plain_loss_is_the_written_definition(load):
    """Two classes by hand: logits of zero give a loss of log 2 each, shifted ones a known pairwise term."""
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    labels = torch.tensor([0, 0, 1])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = ((losses[0] + losses[1]) / 2 + 0.5 * (losses[0] - losses[1]) + losses[2]) / 2
    torch.testing.assert_close(load("alignment_loss").loss_by_loop(logits, labels, 0.5), expected)


def test_the_check_of_the_loss_would_see_a_missing_pairwise_term(load, monkeypatch):
    """The real difference is rounding only, so the check must be shown to see more than that."""
    module, measuring = load("alignment_loss"), load("measuring")
    written = module.loss_by_loop
    monkeypatch.setattr(module, "loss_by_loop", lambda logits, labels, robustness: written(logits, labels, 0.0))
    rows = module.compare(measuring.Settings(size="tiny", repeats=1))
    assert not any(row.agreement.holds for row in rows if row.agreement)


def test_the_check_of_the_samples_would_see_a_missing_ridge(load):
    module = load("gaussian_sampling")
    features = module._features(3, 5, 16, torch.device("cpu"))
    memory = module.GaussianMemory(module.CovarianceOptions(ridge=0.0))
    for label, rows in enumerate(features):
        memory.observe(label, rows)
    samples = memory.sample(200, torch.Generator().manual_seed(0))[0]
    assert not module.sample_agreement(samples, [module.FullGaussian.of(rows) for rows in features]).holds


def test_results_that_disagree_are_named_and_fail(load, monkeypatch, tmp_path, capsys):
    measuring, run = load("measuring"), load("run")
    cost = measuring.Cost(1.0, 1.0)
    wrong = measuring.Comparison("x", "case", "seconds", cost, cost, {}, measuring.Agreement(2.0, 1.0, "values"))
    monkeypatch.setattr(run, "SUBJECTS", {"x": lambda settings: [wrong]})
    out = tmp_path / "result.json"
    assert run.main(["--out", str(out)]) == 1
    assert "results disagree" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["comparisons"][0]["ratio"] == 1.0
    assert {"machine", "versions", "command", "size"} <= set(result)
    assert str(tmp_path) not in result["command"]
    assert run.main(["--markdown", str(out)]) == 0
    assert "| x | case | 1.00 s | 1.00 s | 1.00 |  | 2.0e+00 (1) |" in capsys.readouterr().out


def test_an_unknown_subject_is_a_readable_error(load, capsys):
    with pytest.raises(SystemExit):
        load("run").main(["speed"])
    assert "unknown subject speed" in capsys.readouterr().err


def test_disagreement_includes_nan(load):
    assert not load("measuring").Agreement(float("nan"), 1.0, "values").holds


def test_the_robustness_benchmark_measures_everything_and_shows_it(load):
    module = load("robustness")
    results = module.measure({"name": "vit_pico_patch8_64"}, 4, 1, "cpu", Progress(), classes=2)
    assert len(results["seconds_generating"]["corruptions"]) == 19
    assert len(results["seconds_generating"]["sequences"]) == 10
    shown = module.show({**results, "seconds": {"corruptions": 8.0, "sequences": 3.0}})
    assert "| 95 cells of 4 images, generated and answered | 8 |" in shown
    assert "| 95 cells of 10,000 images, extrapolated | 20000 |" in shown
    assert "| 10 sequences of 10,000 images, extrapolated | 30000 |" in shown
    assert "extrapolated" not in module.show({**results, "images": 10_000, "images_of_sequences": 10_000})


def test_the_methods_benchmark_runs_every_method_as_the_demo_does(load):
    module = load("methods")
    assert set(methods) < set(module.names())
    assert {"aper-ssf", "mos", "paper"} <= set(module.names())
    assert not {"demo", "compare-mini"} & set(module.names())
    for name in module.names():
        recipe = module.recipe(name, "cpu")
        assert (recipe.data.source, recipe.data.tasks, recipe.data.train_limit) == ("digits", 5, 100)
        assert (recipe.training.epochs, recipe.training.batch_size) == (3, 32)
    assert module.recipe("mos", "cpu").tuning.name == "adapter"
    assert len(module.recipe("mos", "cpu").method.align) == 4
    assert module.recipe("l2p", "cpu").training.lr == 0.001875


def test_the_methods_benchmark_shows_what_it_measured_slowest_first(load):
    module = load("methods")
    with tiny.tiny_backbone():
        measured = module.measure("simplecil", "cpu")
    assert measured["cpu_seconds"] > 0
    assert {"means", "evaluate"} <= set(measured["phases"])
    slow = {
        **measured,
        "cpu_seconds": 500.0,
        "phases": {"finetune": 7.0, "align a": 2.0, "align b": 1.0, "evaluate": 4},
    }
    lines = module.show({"simplecil": measured, "other": slow}).splitlines()
    assert lines[2].startswith("| other |")
    assert " 500 | 7 | 3 | 4 | " in lines[2]
    assert lines[3].startswith("| simplecil |")
