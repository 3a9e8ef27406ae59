"""Every benchmark at its smallest size: our way and the plain way give the same results. Time is never judged."""

import importlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tiny
from lca.backbones import untrained
from lca.data import folders
from lca.device import Compute
from lca.errors import LcaError
from lca.methods import methods
from lca.progress import Progress

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """A module of the benchmarks, which are scripts in a folder and no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture(scope="module")
def rows():
    """Of the benchmarks that were run, by their names."""
    return {}


@pytest.fixture
def compared(load, rows):
    """What a benchmark finds at its smallest size, where it is run once."""

    def get(name):
        if name not in rows:
            rows[name] = load(name).compare(load("measuring").Settings(size="tiny", repeats=1))
        return rows[name]

    return get


@pytest.mark.parametrize(
    "name",
    ["alignment_loss", "backbone_speed", "gaussian_sampling", "augmentation", "merging", "checkpoints", "lessons"],
)
def test_both_ways_agree(compared, name):
    rows = compared(name)
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
    assert module.gigaflops(vit, 64, training=False) == pytest.approx(35.1, abs=0.05)
    assert module.gigaflops(vit, 64, training=True) == pytest.approx(2 * 35.1 + 3 * 0.93, abs=0.1)


@pytest.mark.parametrize("training", [True, False])
def test_useful_work_is_what_torch_counts(load, training):
    """By what eight images take more than four: LoRA is folded into the weights once, whatever their number."""
    module, measuring = load("backbone_speed"), load("measuring")
    extractor = module.build(module.Case(module.PICO, 16, 4, 8), measuring.Settings()).train(training)

    def work(count):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
            features = extractor(torch.rand(count, 3, 64, 64))
            if training:
                features.sum().backward()
        return counter.get_total_flops()

    counted, vit = (work(8) - work(4)) / 4 / 1e9, extractor.vit
    claimed = module.gigaflops(vit, 16, training)
    if training:
        patches, width = vit.patch_embed.num_patches, vit.embed_dim
        never_computed = (patches + 1) * width * (3 * width + 16) + vit.patch_embed.proj.weight.numel() * patches
        attention = 2 * len(vit.blocks) * (patches + 1) ** 2 * width
        claimed += 2 * (1.5 * attention - never_computed) / 1e9  # two more products, and one computed again
    assert claimed == pytest.approx(counted, rel=1e-6)


def test_rows_say_how_the_plain_ways_were_measured(compared):
    rows = compared("backbone_speed")
    shapes = [(row.sizes["side"], row.case.partition("(")[2].partition(":")[0]) for row in rows]
    assert shapes == [(32, "plain"), (32, "published"), (256, "plain"), (32, "plain"), (32, "published")]
    for row in rows:
        assert (row.sizes["plain batch"], row.sizes["plain workers"], row.sizes["plain rounds"]) == (4, 0, 12)
    assert len({row.ours.best for row in rows}) == 3


@pytest.mark.parametrize(("seconds", "rounds"), [(0.01, 12), (1.8, 2), (6.0, 1)])
def test_plain_ways_count_whole_rounds_as_long_as_they_are_short(load, monkeypatch, seconds, rounds):
    """Two workers that take their time for every batch, a step that takes none."""
    module, measuring = load("plain_ways"), load("measuring")
    now, taken = [0.0], []

    def loader(images, batch, **_):
        for number in range(len(images) // batch):
            now[0] += 2 * seconds if number % 2 == 0 else 0
            yield number, None

    monkeypatch.setattr(module, "DataLoader", loader)
    monkeypatch.setattr(module, "clock_of", lambda settings: lambda: now[0])
    monkeypatch.setattr(module, "_extraction", lambda *_: (None, lambda views, labels: taken.append(views)))
    way = module.Way(f"{seconds} s a batch", workers=2, second_view=False, largest_batch=4)
    measured = module.measure("extraction", "vit_pico_patch8_64", 4, 16, way, measuring.Settings())
    assert (measured.batch, measured.workers, measured.rounds) == (4, 2, rounds)
    assert measured.seconds == pytest.approx(seconds / 4)
    assert taken[2:] == list(range(1 + 2 * rounds))


def test_the_loop_is_scaled_to_all_steps_and_set_up_once(load, monkeypatch):
    module, measuring = load("alignment_loss"), load("measuring")
    now = [0.0]

    def passes(seconds, result=None):
        now[0] += seconds
        return result

    class Loop:
        def __init__(self, *_):
            self.steps = 0
            passes(5.0)

        def batches(self, epoch):
            return passes(0.5, [torch.zeros(1)] * 3)

        def step(self, index):
            self.steps += 1
            return passes(100.0 if self.steps == 1 else 0.01, 0.0)

    monkeypatch.setattr(module, "LoopAlignment", Loop)
    monkeypatch.setattr(module, "clock_of", lambda settings: lambda: now[0])
    found = module.scaled_loop(None, None, module.options_of("random", 8, 10), measuring.Settings())
    assert found.steps == 30
    assert found.seconds == pytest.approx(5.0 + 10 * 0.5 + 30 * 0.01)


def test_all_tasks_take_as_many_steps_on_both_sides_and_say_how_many(compared):
    rows = compared("alignment_loss")
    steps = {row.sizes["batches"]: row.sizes["steps"] for row in rows if row.case.startswith("all tasks")}
    assert steps == {"balanced": 10 * 16 // 8, "random": 10 * 3}  # 20 classes of 16 samples


def test_a_whole_run_is_measured(load):
    rows = load("whole_run").compare(load("measuring").Settings(size="tiny", repeats=1))
    assert [row.case.partition("(")[2] for row in rows] == [
        "plain, scaled from a part)",
        "published, scaled from a part)",
    ]
    assert {"s finetune", "s evaluate", "s align lca"} <= rows[0].rates.keys()
    assert all(row.plain.best > 0 for row in rows)


def test_the_plain_ways_of_a_whole_run_are_scaled_to_its_images(load, monkeypatch):
    """Four classes of five images in two tasks, one epoch; two, then four are tested."""
    module, measured = load("whole_run"), load("plain_ways").Measured
    monkeypatch.setattr(module, "_run", lambda *_: (1.0, {}))
    monkeypatch.setattr(module, "_loops", lambda *_: 1000.0)
    monkeypatch.setitem(module.SIZES, "tiny", replace(module.SIZES["tiny"], epochs=3))
    costs = {"training": 0.01, "extraction": 0.1}
    monkeypatch.setattr(module, "measure", lambda kind, *_: measured(costs[kind], 4, 0, 1))
    for row in module.compare(load("measuring").Settings(size="tiny", repeats=1)):
        assert row.plain.best == pytest.approx(3 * 20 * 0.01 + (20 + 2 + 4) * 0.1 + 1000)
        assert row.sizes["plain training seconds"] == 0.6
        assert row.sizes["plain extraction seconds"] == 2.6


def test_growth_is_measured_and_drawn(load, tmp_path):
    module = load("growth")
    sizes = {"classes": (10, 20), "aligned": 40, "width": 8, "samples": 8}
    sizes |= {"tasks": (2, 3), "split": (6, 3), "images": (2, 4)}
    sizes |= {"vits": ("vit_pico_patch8_64",), "batch": 2, "trained": 4}
    settings = load("measuring").Settings()
    with tiny.tiny_backbone():
        growth = {name: module.measure(name, sizes, settings) for name in module.AXES}
    assert [point["classes"] for point in growth["classes"]] == [10, 20]
    assert [point["epochs"] for point in growth["classes"]] == [5, 3]
    assert [point["images"] for point in growth["images"]] == [8, 16]
    assert [(point["tasks"], point["classes"], point["images"]) for point in growth["tasks"]] == [
        (2, 6, 18),
        (3, 6, 18),
    ]
    assert growth["classes"][1]["stored MB"] == 2 * growth["classes"][0]["stored MB"]
    results = {name: {"machine": {"name": "a machine"}, "points": points} for name, points in growth.items()}
    for point in growth["classes"]:
        point["peak GB"] = 1.0  # which only a GPU tells
    paths = module.plot(results, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert [path.stem.removeprefix("growth-") for path in paths] == [
        "classes",
        "classes-stored",
        "classes-peak",
        "tasks",
        "tasks-stored",
        "images",
        "images-stored",
        "width",
    ]


def test_the_package_and_its_help_leave_torch_alone(load, monkeypatch, tmp_path):
    module = load("start_up")
    assert module.torch_stays_out(*module.CASES["import lca"]).holds
    assert module.torch_stays_out(*module.CASES["lca --help"]).holds
    for name in ("torch", "timm"):  # what is imported is told by its name, so that empty ones do
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not module.torch_stays_out("-c", module.YARDSTICK).holds


def test_start_up_says_how_much_predicting_takes_over_the_yardstick(load, monkeypatch):
    module, measuring = load("start_up"), load("measuring")
    costs, over = [measuring.Cost(seconds, seconds, 2) for seconds in (0.01, 0.02, 0.2, 5.0, 4.0)], iter([0.8, 0.7])
    monkeypatch.setattr(module, "make_model", lambda folder: ["model", "image"])
    monkeypatch.setattr(module, "torch_stays_out", lambda *_: measuring.Agreement(0, 0, ""))
    monkeypatch.setattr(module, "time_in_turn", lambda works, settings: costs)
    monkeypatch.setattr(module, "seconds_afterwards", lambda *words: next(over) if len(words) == 3 else None)
    rows = {row.case.partition(" (")[0]: row.rates for row in module.compare(measuring.Settings())}
    assert rows == {"bare interpreter": {}, "import lca": {}, "lca --help": {}, "lca predict": {module.OVER: 0.7}}


def test_what_a_command_takes_afterwards_leaves_the_imports_out(load, monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("import time; time.perf_counter = iter([10.0, 10.25]).__next__")
    (tmp_path / "timm.py").touch()
    package = tmp_path / "lca"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:]); sys.exit()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert load("start_up").seconds_afterwards("predict", "model") == 0.25


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
    assert {"machine", "versions", "command", "size", "ceilings"} <= set(result)
    assert result["subjects"] == list(result["finished"]) == ["x"]
    assert result["machine"]["precision"] == "fp32"
    assert str(tmp_path) not in result["command"]
    assert run.main(["--markdown", str(out)]) == 0
    assert "| x | case | 1.00 s | 1.00 s | 1.00 |  | 2.0e+00 (1) |" in capsys.readouterr().out


def test_what_was_measured_stays_when_a_later_subject_fails(load, monkeypatch, tmp_path):
    measuring, run = load("measuring"), load("run")
    cost = measuring.Cost(1.0, 1.0)
    row = measuring.Comparison("x", "case", "seconds", cost, cost, {})

    def fails(settings):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run, "SUBJECTS", {"x": lambda settings: [row], "y": fails})
    with pytest.raises(RuntimeError):
        run.main(["--out", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["subjects"], list(result["finished"])) == (["x", "y"], ["x"])
    assert len(result["comparisons"]) == 1


def test_beside_a_gpu_there_are_more_threads_and_its_driver_is_named(load, monkeypatch):
    run = load("run")
    monkeypatch.setattr(run.os, "cpu_count", lambda: 16)
    assert run.threads_beside(torch.device("cuda")) == 8
    assert run.threads_beside(torch.device("cpu")) == 1
    told = subprocess.CompletedProcess([], 0, "570.86.15\n570.86.15\n")
    monkeypatch.setattr(run.subprocess, "run", lambda *_, **__: told)
    assert run.driver()["driver"] == "570.86.15"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    described = run.machine(Compute(torch.device("cuda"), "bf16"))
    assert described["precision"] == "bf16 in the backbone, fp32 elsewhere"
    assert (described["name"], described["driver"]) == ("a GPU", "570.86.15")


def test_the_summary_has_a_row_for_every_target_measured_or_not(load, tmp_path, capsys):
    run, summary = load("run"), load("summary")
    trained = {
        "unit": "seconds",
        "ours": {"best": 0.2},
        "rates": {"images/s": 4422, summary.SHARE: 40.9, "peak GB": 9.5},
    }
    vit = "training, vit_base_patch16_224, batch"
    rows = [
        {"subject": "backbone", "case": f"{vit} 256 (plain: 16 workers)", "ratio": 8.13, **trained},
        {"subject": "backbone", "case": f"{vit} 256 (published: 4 workers)", "ratio": 70.6, **trained},
        {"subject": "backbone", "case": f"{vit} 64, from 256 px (plain: 16 workers)", "ratio": 9.0, **trained},
        {
            "subject": "start-up",
            "case": "lca predict (plain: x)",
            "ratio": 0.8,
            "ours": {},
            "rates": {summary.OVER: 1.2},
        },
    ]
    aligned = {"subject": "alignment", "ours": {"best": 2.82}, "ratio": 226.6, "rates": {}}
    rows += [
        {**aligned, "case": f"all tasks, 100 classes, {batches} batches", "sizes": {"samples": samples}}
        for batches, samples in (("balanced", 32), ("random", 512))
    ]
    most = {"matrix_tflops": 790.1, "copy_gb_per_s": 4188.0}
    content = {"machine": {"device": "cuda", "name": "NVIDIA X"}, "ceilings": most, "comparisons": rows}
    (tmp_path / "result.json").write_text(json.dumps(content))
    assert run.main(["--summary", str(tmp_path / "result.json")]) == 0
    ceilings, _, _, _, *lines = capsys.readouterr().out.splitlines()
    assert ceilings.startswith("**NVIDIA X**: 790.1 TFLOP/s in a large bf16 matrix product, 4,188.0 GB/s")
    assert len(lines) == len(summary.TARGETS)
    measured = [line for line in lines if "not measured" not in line]
    assert [line.split(" | ", 2)[2] for line in measured] == [
        "4,422 images/s | 40.9 | 8.1 | 70.6 | 9.5 |",
        "2.82 s |  | 226.6 |  |  |",
        "1.20 s |  |  |  |  |",
    ]
    later = {**content, "comparisons": [{**rows[3], "rates": {summary.OVER: 0.7}}]}
    (tmp_path / "later.json").write_text(json.dumps(later))
    assert run.main(["--summary", str(tmp_path / "result.json"), str(tmp_path / "later.json")]) == 0
    again = [line for line in capsys.readouterr().out.splitlines()[4:] if "not measured" not in line]
    assert again[:-1] == measured[:-1]
    assert "0.70 s" in again[-1]
    (tmp_path / "later.json").write_text(json.dumps({**later, "machine": {"device": "cpu", "name": "a CPU"}}))
    with pytest.raises(LcaError, match="NVIDIA X and of a CPU do not belong"):
        run.main(["--summary", str(tmp_path / "result.json"), str(tmp_path / "later.json")])


def test_the_summary_finds_what_the_benchmarks_measure(load):
    """At full size their cases have the names that the targets look for."""
    summary, sizes = load("summary"), load("backbone_speed").SIZES["full"]
    cases = [f"training, {case.vit}, batch {case.batch} (" for case in sizes.training]
    cases += [f"extraction, {case.vit}, batch {case.batch} (" for case in sizes.extraction]
    whole = load("whole_run").SIZES["full"]
    cases.append(f"{whole.tasks} tasks, {whole.classes} classes, {whole.vit} (")
    cases += [
        f"all tasks, {load('alignment_loss').SIZES['full'].classes[-1]} classes, {each}"
        for each in ("balanced", "random")
    ]
    assert {target.samples for target in summary.TARGETS} == {None, load("alignment_loss").SIZES["full"].all_samples}
    cases += [f"memory, d={width}, {images} images" for width, images in load("gaussian_sampling").SIZES["full"].shapes]
    cases += [*load("start_up").CASES, "lca predict"]
    assert {target.case for target in summary.TARGETS} <= set(cases)
    assert {target.subject for target in summary.TARGETS} <= set(load("run").SUBJECTS)


def test_an_unknown_subject_is_a_readable_error(load, capsys):
    with pytest.raises(SystemExit):
        load("run").main(["speed"])
    assert "unknown subject speed" in capsys.readouterr().err


def test_disagreement_includes_nan(load):
    assert not load("measuring").Agreement(float("nan"), 1.0, "values").holds


def test_the_robustness_benchmark_measures_everything_and_shows_it(load):
    module = load("robustness")
    with tiny.tiny_backbone():
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


def test_a_large_lesson_is_painted_and_read_from_its_file(load, tmp_path, monkeypatch):
    module = load("large_lesson")
    monkeypatch.setattr(folders, "IN_MEMORY", folders.IN_MEMORY)  # the module changes it in a process of its own
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for label in (0, 1):
        module.paint(tmp_path, 7, label)
    small = module.lesson(tmp_path, None, reading=True)
    large = module.lesson(tmp_path, 1e4, reading=False)
    assert (small["in a file"], large["in a file"]) == (False, True)
    assert small["pixels GB"] == large["pixels GB"] == round(14 * 3 * 73 * 97 / 1e9, 3)
    assert (large["learnt"], "learnt" in small) == (12, False)
    assert large["resident GB before"] <= large["resident GB after reading"] <= large["resident GB at most"]
