"""One classifier: heads that really learnt from D, in many dimensions, against a large fresh sample."""

from dataclasses import replace

import pytest
import torch

from lca.heads.alignment import AlignBranch, align
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.heads.lda import LdaBranch
from lca.instruments.theory.measure import Settings, Subject, Truth, measure, true_gaussians
from lca.progress import Progress
from lca.randomness import generator
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

WIDTH, SIZES = 6, [3, 2]
OPTIONS = AlignBranch(name="few", samples=8, per_class=4, epochs=20, lr=0.3, robustness=0.0)


def features(seed, images=12):
    """Of classes that overlap: (classes * images, width), and labels."""
    source = torch.Generator().manual_seed(seed)
    means = torch.randn(sum(SIZES), 1, WIDTH, generator=source)
    spread = torch.randn(sum(SIZES), WIDTH, WIDTH, generator=source) / WIDTH**0.5
    rows = means + torch.randn(sum(SIZES), images, WIDTH, generator=source) @ spread
    return rows.flatten(0, 1), torch.arange(sum(SIZES)).repeat_interleave(images)


def subject(seed, options=OPTIONS):
    """Heads aligned, on the eight samples of every class, as a branch does it after its second task."""
    memory = true_gaussians(*features(seed), CovarianceOptions())
    heads = GrowingHeads(WIDTH, LinearOptions())
    for size in SIZES:
        heads.append(heads.new_head(size, torch.Generator().manual_seed(seed)))
    aligned, _ = align(heads, memory, options, lambda what, epoch, on: generator(seed, what, 1, epoch, on))
    return Subject(1, aligned, memory, options, SIZES, seed, "cpu")


def test_the_bounds_hold_for_heads_that_learnt_from_the_samples():
    too_low = 0
    for seed in range(30):
        found = measure(subject(seed), features(seed + 100), None, Settings(samples=4000, seed=seed), Progress())
        for own in found["losses"].values():
            tolerance = 0.03 * own["maximum"]
            assert own["gaussians"] <= own["theorem_1"]
            assert own["gaussians"] <= own["within_cells"] + tolerance
            assert own["gaussians"] <= own["without_cells"] + tolerance
            too_low += own["gaussians"] > own["drawn"] + tolerance
    assert too_low > 30, "they overfit: the loss of their samples alone is no bound"


def test_theorem_2_holds_for_gaussians_that_moved():
    for seed in range(10):
        rows, labels = features(seed)
        moved = (rows + 0.3 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)), labels)
        settings, classifier = Settings(samples=2000, added=()), subject(seed)
        truth = Truth.about(classifier, *moved, settings, Progress())
        found = measure(classifier, (rows, labels), truth, settings, Progress())
        (line,) = found["drift"]
        assert line["at_least"] <= line["estimate"] + 0.03 <= line["at_most"] + 0.06
        for own in found["losses"].values():
            assert own["true_gaussians"] <= own["theorem_2_corrected"] + 0.03 * own["maximum"]
            assert own["true_gaussians"] <= own["theorem_2"]


def test_redrawn_samples_are_those_of_all_epochs():
    options = OPTIONS.model_copy(update={"redraw": True, "epochs": 3})
    drawn = subject(0, options).drawn()
    assert drawn.shape == (5, 24, WIDTH)
    assert torch.equal(drawn[:, :8], subject(0).drawn())
    assert not torch.equal(drawn[:, :8], drawn[:, 8:16])


@pytest.mark.parametrize(
    ("changes", "aligned"),
    [({}, True), (None, False), ({"mean_decay": 0.1}, False), ({"train_heads": "none"}, False)],
)
def test_whether_the_heads_saw_the_samples(changes, aligned):
    memory = GaussianMemory(CovarianceOptions())
    memory.observe(0, torch.randn(3, WIDTH))
    options = LdaBranch(name="few") if changes is None else OPTIONS.model_copy(update=changes)

    def learnt(task, trained_on="cpu"):
        return Subject(task, lambda rows: rows, memory, options, SIZES, 0, trained_on).learnt_from_drawn

    assert learnt(1) == aligned
    assert not learnt(0), "the first task is not aligned"
    assert not learnt(1, "cuda"), "a CPU draws other samples"


def test_the_alignment_loss_is_the_one_of_the_branch():
    options = OPTIONS.model_copy(update={"robustness": 0.5})
    found = subject(0, options)
    drawn = found.drawn()
    with torch.no_grad():
        logits = found.logits(drawn.flatten(0, 1))
        losses = torch.nn.functional.cross_entropy(logits, torch.arange(5).repeat_interleave(8), reduction="none")
        pairs = (losses.view(5, 8, 1) - losses.view(5, 1, 8)).abs().sum((1, 2)) / (8 * 7)
        expected = losses.mean() + 0.5 * pairs.mean()
        assert found.alignment_loss(drawn) == pytest.approx(float(expected), abs=1e-5)


def losses(settings, **changes):
    """Everything with fresh samples, of a classifier whose Gaussians moved."""
    classifier = replace(subject(0), **changes)
    rows, labels = features(0)
    truth = Truth.about(classifier, rows + 0.2, labels, settings, Progress())
    return measure(classifier, (rows, labels), truth, settings, Progress())


def test_every_number_from_fresh_samples_says_how_far_it_moves():
    """Its standard error is what it spreads by over draws of other seeds."""
    drawn = [losses(Settings(samples=300, seed=seed, added=())) for seed in range(40)]

    def check(values):
        names = {name.removesuffix("_standard_error") for name in values[0] if name.endswith("_standard_error")}
        for name in names:
            spread = torch.tensor([each[name] for each in values]).double().std()
            said = torch.tensor([each[f"{name}_standard_error"] for each in values]).double().mean()
            assert 0.6 * spread < said < 1.7 * spread, name
        return names

    bound = {"theorem_1", "corollary_1", "within_cells", "without_cells", "theorem_2", "theorem_2_corrected"}
    for name in ("clipped", "zero-one"):
        found = check([each["losses"][name] for each in drawn])
        assert found == {"robustness", "gaussians", "true_gaussians", *bound}
    assert check(drawn) == {"inside_own_cell"}
    assert check([each["drift"][0] for each in drawn]) == {"estimate"}


def test_seeds_draw_for_themselves_and_classifiers_of_a_task_alike():
    usual = losses(Settings(samples=100, added=()))
    assert losses(Settings(samples=100, added=())) == usual
    assert losses(Settings(samples=100, added=()), branch=OPTIONS.model_copy(update={"name": "other"})) == usual
    other = losses(Settings(samples=100, added=()), seed=1)
    assert other["losses"]["clipped"]["gaussians"] != usual["losses"]["clipped"]["gaussians"]
    assert other["losses"]["clipped"]["true_gaussians"] != usual["losses"]["clipped"]["true_gaussians"]
    assert other["drift"][0]["estimate"] != usual["drift"][0]["estimate"]
    assert other["drift"][0]["at_most"] == usual["drift"][0]["at_most"]
