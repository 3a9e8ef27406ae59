import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn import functional

import lca.heads.alignment
from allocations import LargestTensor
from lca.errors import LcaError
from lca.heads.alignment import AlignBranch, _batches, align, chosen_heads, full_rate, nearest_mean_mask
from lca.heads.branch import choose_branch
from lca.heads.branches import BranchSet
from lca.heads.discriminant import DiscriminantOptions
from lca.heads.growing import GrowingHeads, choose_head
from lca.heads.lda import lda_heads
from lca.heads.loss import lca_loss, pairwise_weights
from lca.methods._branched import branch, presets
from lca.progress import Progress
from lca.randomness import generator
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory


def options(**changes):
    return AlignBranch(**{"name": "test", **changes})


# The pairwise term


def slow_pairwise(losses, labels, classes):
    terms = []
    for label in range(classes):
        own = [loss for loss, each in zip(losses, labels, strict=True) if each == label]
        pairs = [abs(own[i] - own[j]) for i in range(len(own)) for j in range(len(own)) if i != j]
        terms.append(sum(pairs) / len(pairs) if pairs else 0.0)
    return terms


batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 0.5, 1.0]) | st.floats(0, 10, width=32), st.integers(0, 4)),
    min_size=1,
    max_size=25,
)


def pairwise_term(losses, labels, classes):
    weighted = pairwise_weights(losses.detach(), labels, classes) * losses
    return weighted.new_zeros(classes).index_add(0, labels, weighted)


@given(batch=batches)
def test_the_pairwise_term_is_the_mean_over_all_pairs(batch):
    losses, labels = zip(*batch, strict=True)
    fast = pairwise_term(torch.tensor(losses, dtype=torch.float64), torch.tensor(labels), 6)
    assert fast.tolist() == pytest.approx(slow_pairwise(losses, labels, 6), abs=1e-9)


def test_the_pairwise_term_is_exact_for_close_losses_of_many_classes():
    """In single precision a label of 999 would leave no digits for losses of 0.001."""
    labels = torch.arange(1000).repeat_interleave(8)
    losses = 1e-3 * torch.rand(8000, generator=torch.Generator().manual_seed(0))
    losses[0] = 15.0
    own = losses.double().view(1000, 8)
    expected = (own[:, :, None] - own[:, None]).abs().sum((1, 2)) / (8 * 7)
    torch.testing.assert_close(pairwise_term(losses, labels, 1000).double(), expected, rtol=1e-4, atol=0)


def test_the_pairwise_term_of_none_one_and_equal_losses():
    term = pairwise_term(torch.tensor([3.0, 2.0, 2.0, 2.0]), torch.tensor([1, 2, 2, 2]), 3)
    assert term.tolist() == [0, 0, 0]


def test_the_gradient_of_the_pairwise_term():
    random = torch.Generator().manual_seed(0)
    losses = torch.rand(30, generator=random, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 5, (30,), generator=random)
    weights = torch.rand(5, generator=random, dtype=torch.float64)
    (fast,) = torch.autograd.grad((weights * pairwise_term(losses, labels, 5)).sum(), losses)
    slow_terms = slow_pairwise(list(losses), labels.tolist(), 5)
    (slow,) = torch.autograd.grad(sum(w * term for w, term in zip(weights, slow_terms, strict=True)), losses)
    torch.testing.assert_close(fast, slow)


# The loss


def slow_loss(logits, labels, settings, sizes, keep=None):
    """The definition, class by class and sample by sample, for `average: classes`."""
    losses, entropies = [], []
    for row, label in zip(logits, labels.tolist(), strict=True):
        divisor = 1.0
        if settings.logit_norm is not None:
            norms = [part.square().sum().sqrt() + 1e-7 for part in row.split(sizes)]
            divisor = (sum(norms) / len(norms) + 1e-7) * settings.logit_norm
        scaled = row / divisor
        losses.append(torch.log(torch.exp(scaled).sum()) - scaled[label])
        probabilities = torch.exp(row) / torch.exp(row).sum()
        entropies.append(-sum(p * torch.log(p + 1e-8) for p in probabilities))
    terms = []
    for label in sorted(set(labels.tolist())):
        own = [i for i in range(len(labels)) if labels[i] == label]
        kept = [i for i in own if keep is None or keep[i]]
        if not kept:
            terms.append(sum(losses[i] for i in own) / len(own))
            continue
        term = sum(losses[i] for i in kept) / len(kept)
        if len(kept) > 1:
            pairs = sum(abs(losses[i] - losses[j]) for i in kept for j in kept if i != j)
            term = term + settings.robustness * pairs / (len(kept) * (len(kept) - 1))
        terms.append(term + settings.entropy * sum(entropies[i] for i in kept) / len(kept))
    return sum(terms) / len(terms)


CASES = {
    "plain": {"robustness": 0.0},
    "pairwise": {"robustness": 0.7},
    "entropy": {"robustness": 0.0, "entropy": 0.4},
    "logit norm": {"robustness": 0.3, "logit_norm": 0.1},
    "all": {"robustness": 0.2, "entropy": 0.5, "logit_norm": 0.3},
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_and_its_gradient_follow_the_definition(case, filtered, seed):
    random = torch.Generator().manual_seed(seed)
    sizes = [2, 3, 2]
    logits = torch.randn(20, 7, generator=random, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 6, (20,), generator=random)  # class 6 never occurs
    keep = torch.rand(20, generator=random) < 0.6 if filtered else None
    if keep is not None:
        keep[labels == labels[0]] = False  # one class with nothing left
    settings = options(**CASES[case])
    fast, slow = (each(logits, labels, settings, sizes, keep) for each in (lca_loss, slow_loss))
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(torch.autograd.grad(fast, logits)[0], torch.autograd.grad(slow, logits)[0])


def test_classifier_alignment_is_plain_cross_entropy():
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(30, 6, generator=random), torch.randint(0, 5, (30,), generator=random)
    settings = options(**presets["ca"])
    torch.testing.assert_close(lca_loss(logits, labels, settings, [3, 3]), functional.cross_entropy(logits, labels))
    by_class = options(robustness=0.0)
    means = [functional.cross_entropy(logits[labels == k], labels[labels == k]) for k in labels.unique()]
    torch.testing.assert_close(lca_loss(logits, labels, by_class, [3, 3]), torch.stack(means).mean())


def test_filtered_samples_do_not_count():
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(12, 4, generator=random), torch.arange(12) % 4
    keep = torch.arange(12) < 8
    settings = options(robustness=0.5, entropy=0.5)
    changed = torch.cat([logits[:8], 100 * logits[8:]])
    torch.testing.assert_close(
        lca_loss(logits, labels, settings, [4], keep), lca_loss(changed, labels, settings, [4], keep)
    )
    by_samples = options(robustness=0.0, average="samples")
    torch.testing.assert_close(
        lca_loss(logits, labels, by_samples, [4], keep), functional.cross_entropy(logits[:8], labels[:8])
    )


def test_losses_far_out_give_no_nan():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4], [0.0, 0.0]], requires_grad=True)
    settings = options(robustness=0.1, entropy=0.1, logit_norm=0.1)
    loss = lca_loss(logits, torch.tensor([1, 1, 0]), settings, [2], torch.tensor([True, False, True]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient[:2].isfinite().all()


def test_the_nearest_mean_mask():
    means = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    samples = torch.tensor([[1.0, 5.0], [3.0, 0.0], [3.0, 0.0], [1.9, 0.0]])
    assert nearest_mean_mask(samples, torch.tensor([0, 0, 1, 1]), means).tolist() == [True, False, True, False]


# Batches


@pytest.mark.parametrize(("samples", "per_class"), [(12, 4), (10, 4), (3, 8)])
def test_balanced_batches_hold_the_same_number_of_every_class(samples, per_class):
    settings = options(samples=samples, per_class=per_class)
    drawn = list(_batches(5, settings, torch.Generator(), torch.device("cpu")))
    assert sorted(torch.cat(drawn).tolist()) == list(range(5 * samples))
    for number, index in enumerate(drawn):
        expected = min(per_class, samples - number * per_class)
        assert torch.bincount(index // samples, minlength=5).tolist() == [expected] * 5


def test_random_batches_hold_every_sample_once():
    settings = options(samples=10, batches="random", batch_size=16)
    drawn = list(_batches(5, settings, torch.Generator(), torch.device("cpu")))
    assert [len(index) for index in drawn] == [16, 16, 16, 2]
    assert sorted(torch.cat(drawn).tolist()) == list(range(50))
    assert drawn[0].tolist() != list(range(16))


# The aligner


def separable(classes=6, width=8, count=40, seed=0, kind="full", distance=3.0):
    random = torch.Generator().manual_seed(seed)
    memory = GaussianMemory(CovarianceOptions(kind=kind))
    features = distance * torch.randn(classes, 1, width, generator=random) + torch.randn(
        classes, count, width, generator=random
    )
    for label, rows in enumerate(features):
        memory.observe(label, rows)
    return memory, features.flatten(0, 1), torch.arange(classes).repeat_interleave(count)


def random_heads(sizes=(2, 4), width=8, name="linear"):
    heads = GrowingHeads(width, choose_head(name))
    for number, size in enumerate(sizes):
        heads.append(heads.new_head(size, torch.Generator().manual_seed(number)))
    return heads


def randomness(purpose, epoch, device):
    return generator(5, purpose, 0, epoch, device)


def plain(shrinkage):
    return DiscriminantOptions(shrinkage=shrinkage, means="plain")


def accuracy(heads, features, labels):
    return float((heads(features).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("preset", ["ca", "lca", "balanced", "lda"])
@pytest.mark.parametrize("kind", ["linear", "mlp", "cosine"])
def test_alignment_learns_separable_gaussians_and_leaves_its_input(preset, kind):
    memory, features, labels = separable()
    heads = random_heads(name=kind)
    before = {name: tensor.clone() for name, tensor in heads.state()[0].items()}
    calls = []
    lr = 0.01 if kind == "cosine" else 0.1
    steps = {} if preset == "lda" else {"epochs": 5, "lr": lr, "samples": 256, "batch_size": 16}
    settings = choose_branch({"name": "test", **presets[preset], **steps})
    aligned, measured = settings.fit(heads, memory, randomness, lambda: calls.append(1))
    assert accuracy(heads, features, labels) < 0.6
    assert accuracy(aligned, features, labels) > 0.9
    assert aligned.sizes == [2, 4]
    assert all(torch.equal(tensor, before[name]) for name, tensor in heads.state()[0].items())
    assert not any(parameter.requires_grad for parameter in aligned.parameters())
    if preset != "lda":
        assert len(calls) == 5
        assert 0 < measured["loss"] < 1
        assert (measured["kept"] < 1) == settings.nearest_mean_filter


def test_alignment_is_plain_sgd_with_a_cosine_schedule():
    """The same by hand, with torch's own optimiser and schedule."""
    memory, features, _ = separable()
    settings = options(samples=16, per_class=4, epochs=3, lr=0.2, nearest_mean_filter=True)
    aligned = align(random_heads(), memory, settings, randomness)[0]
    heads = random_heads().requires_grad_(True)
    drawn, labels = memory.sample(16, randomness("samples", 0, "cpu"))
    rows, truth = drawn.flatten(0, 1), labels.repeat_interleave(16)
    keep = nearest_mean_mask(rows, truth, memory.means())
    optimiser = torch.optim.SGD(heads.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=3, eta_min=0.0)
    for epoch in range(3):
        for index in _batches(6, settings, randomness("batches", epoch, "cpu"), torch.device("cpu")):
            loss = lca_loss(heads(rows[index]), truth[index], settings, [2, 4], keep[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    torch.testing.assert_close(aligned(features), heads(features).detach(), rtol=1e-5, atol=1e-5)


def test_alignment_follows_its_randomness_only():
    memory, features, _ = separable()
    once, again = (align(random_heads(), memory, options(epochs=1), randomness)[0] for _ in range(2))
    assert torch.equal(once(features), again(features))
    other = align(random_heads(), memory, options(epochs=1), lambda p, e, d: generator(6, p, 0, e, d))[0]
    assert not torch.equal(once(features), other(features))


@pytest.mark.parametrize(("chosen", "moved"), [("all", [0, 1, 2]), ("none", []), ((-1,), [2]), ((0, 1), [0, 1])])
def test_only_the_chosen_heads_move(chosen, moved):
    memory, _, _ = separable()
    heads = random_heads((2, 2, 2))
    aligned = align(heads, memory, options(train_heads=chosen, epochs=1), randomness)[0]
    changed = [not torch.equal(old.weight, new.weight) for old, new in zip(heads.tasks, aligned.tasks, strict=True)]
    assert [number for number, each in enumerate(changed) if each] == moved


@pytest.mark.parametrize(
    ("choice", "heads", "chosen"),
    [
        ("oldest", 10, (0, 1, 2, 3, 4)),  # the paper's "half": five of ten and three of five
        ("newest", 10, (5, 6, 7, 8, 9)),
        ("oldest", 5, (0, 1, 2)),
        ("newest", 5, (2, 3, 4)),
        ("oldest", 1, (0,)),
        ("newest", 1, (0,)),
        ("random", 1, (0,)),
        ("all", 5, "all"),
        ("none", 5, "none"),
        ((-1, 0), 5, (-1, 0)),
    ],
)
def test_half_of_the_heads(choice, heads, chosen):
    assert chosen_heads(choice, heads, generator(5, "heads")) == chosen


def test_a_random_half_is_the_seeds_and_the_tasks():
    """Drawn from nothing else, a resumed run draws it again."""
    halves = [set(chosen_heads("random", 9, generator(5, "heads", task))) for task in range(60)]
    again = [set(chosen_heads("random", 9, generator(5, "heads", task))) for task in range(60)]
    assert halves == again
    assert {len(half) for half in halves} == {5}
    assert set.union(*halves) == set(range(9))
    assert set.intersection(*halves) == set()


@pytest.mark.parametrize("choice", ["oldest", "newest", "random"])
@pytest.mark.parametrize("kind", ["linear", "cosine", "mlp"])
def test_the_other_half_of_the_heads_stays_exactly_as_it_was(choice, kind):
    """Also where momentum and weight decay would move heads whose gradient is 0."""
    memory, _, _ = separable()
    heads = random_heads((1, 2, 1, 1, 1), name=kind)
    aligned = align(heads, memory, options(train_heads=choice, epochs=2, weight_decay=0.1), randomness)[0]
    moved = {
        number
        for number, (old, new) in enumerate(zip(heads.tasks, aligned.tasks, strict=True))
        if any(not torch.equal(old.state_dict()[name], each) for name, each in new.state_dict().items())
    }
    drawn = chosen_heads("random", 5, randomness("heads to align", 0, "cpu"))
    assert moved == {"oldest": {0, 1, 2}, "newest": {2, 3, 4}, "random": set(drawn)}[choice]


def test_an_alignment_that_made_things_worse_warns(recwarn):
    memory, heads = separable(distance=0.5)[0], random_heads()
    align(heads, memory, options(epochs=3, lr=0.05), randomness)
    assert not [each for each in recwarn if "larger" in str(each.message)]
    with pytest.warns(UserWarning, match=r"the alignment made the loss of its first batch larger .* its lr \(30.0\)"):
        align(heads, memory, options(epochs=3, lr=30.0, start="lda"), randomness)


def test_prototypes_become_the_class_means_and_take_no_steps():
    memory, features, _ = separable()
    heads = random_heads(name="prototype")
    before = heads(features)
    aligned = align(heads, memory, options(), randomness)[0]
    rows = torch.cat([head.weight for head in aligned.tasks])
    torch.testing.assert_close(rows, functional.normalize(memory.means(), dim=1))
    assert torch.equal(heads(features), before)


@pytest.mark.parametrize("at_once", [1, 100])  # a class in every part, and two of the six
@pytest.mark.parametrize("changes", [{}, {"nearest_mean_filter": True, "entropy": 0.1}, {"average": "samples"}])
def test_batches_of_very_many_classes_are_taken_in_parts(monkeypatch, changes, at_once):
    memory, _, _ = separable(distance=0.7)
    settings = options(robustness=0.5, epochs=2, per_class=8, samples=20, **changes)
    whole, loss = align(random_heads(), memory, settings, randomness)
    monkeypatch.setattr(lca.heads.alignment, "_LOGITS_AT_ONCE", at_once)
    parts = lca.heads.alignment._parts(torch.arange(48), 6, settings)
    assert [len(part) for part in parts] == [8 * max(1, at_once // 48)] * (6 // max(1, at_once // 48))
    in_parts, same_loss = align(random_heads(), memory, settings, randomness)
    for one, two in zip(whole.parameters(), in_parts.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert same_loss["loss"] == pytest.approx(loss["loss"], rel=1e-5)


def test_a_thousand_classes_of_few_images_take_no_matrix_each():
    """Every fourth class has one image and borrows the pooled covariance. Nothing is larger than the features drawn."""
    random = torch.Generator().manual_seed(0)
    memory, width = GaussianMemory(CovarianceOptions()), 768
    settings = options(samples=8, per_class=4, epochs=2, lr=5.0)
    for label in range(1000):
        memory.observe(label, torch.randn(1 + label % 4, width, generator=random))
    heads = random_heads((500, 500), width)
    with LargestTensor() as largest:
        aligned, _ = align(heads, memory, settings, randomness)
    assert largest.bytes <= 1000 * settings.samples * width * 4
    labels = torch.arange(1000)
    assert accuracy(heads, memory.means(), labels) < 0.1
    assert accuracy(aligned, memory.means(), labels) > 0.5


def test_the_robust_term_is_what_is_minimised():
    memory, _, _ = separable(distance=0.7)
    drawn, labels = memory.sample(200, torch.Generator().manual_seed(1))
    truth = labels.repeat_interleave(200)
    objectives = {}
    for weight in (0.0, 1.0):
        settings = options(robustness=weight, epochs=8, lr=0.05, weight_decay=0.0)
        aligned = align(random_heads(), memory, settings, randomness)[0]
        losses = functional.cross_entropy(aligned(drawn.flatten(0, 1)), truth, reduction="none")
        objectives[weight] = float(losses.mean()), float((losses.mean() + pairwise_term(losses, truth, 6)).mean())
    assert objectives[0.0][0] < objectives[1.0][0]
    assert objectives[1.0][1] < objectives[0.0][1]


# A rate that grows with the classes


@pytest.mark.parametrize(
    ("classes", "at", "rate"), [(10, None, 0.01), (5, 10, 0.01), (10, 10, 0.01), (25, 10, 0.025), (999, 10, 0.2)]
)
def test_the_rate_grows_with_the_classes_up_to_twenty_times(classes, at, rate):
    assert full_rate(options(classes_at_lr=at), classes) == pytest.approx(rate)


def test_the_rate_that_grew_is_the_one_steps_are_taken_with():
    memory, features, _ = separable()
    grown, same = (
        align(random_heads(), memory, options(epochs=1, classes_at_lr=2, lr=lr), randomness)[0] for lr in (0.01, 0.03)
    )
    plainly = align(random_heads(), memory, options(epochs=1, lr=0.03), randomness)[0]
    torch.testing.assert_close(grown(features), plainly(features), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(same(features), plainly(features), atol=1e-3)


def test_the_newest_of_many_classes_are_as_good_as_the_first():
    """After 17 lessons of ten classes, whose rows begin short. At a rate that stays, the newest ones are never right:
    the gradient of a row falls as the classes grow in number."""
    random, lessons, width = torch.Generator().manual_seed(0), 17, 32
    chosen = choose_branch(branch({"preset": "balanced", "samples": 64, "drift": {"model": "none"}}))
    trunk = GrowingHeads(width, choose_head("linear"))
    branches, means = (
        BranchSet([chosen], trunk, keep_distances=False),
        torch.randn(lessons, 10, width, generator=random),
    )
    for number, new in enumerate(means):
        rows = new[:, None] + torch.randn(10, 8, width, generator=random)
        head, features = trunk.new_head(10, random), rows.flatten(0, 1)
        branches.observe(10 * number + torch.arange(10).repeat_interleave(8), features, features, features)
        head.weight.data = 0.35 * functional.normalize(rows.mean(1), dim=1)
        trunk.append(head)
        branches.align(chosen.name, number, first=not number, seed=5, device=torch.device("cpu"), progress=Progress())
    right = {}
    for number in (0, lessons - 1):
        test = means[number].repeat(20, 1) + torch.randn(200, width, generator=random)
        answers = branches.logits(test, chosen.name).argmax(1)
        right[number] = float((answers == 10 * number + torch.arange(10).repeat(20)).float().mean())
    assert right[lessons - 1] >= right[0] - 0.05
    assert right[0] > 0.85


# Linear discriminant analysis


@pytest.mark.parametrize("kind", ["full", "shared"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_lda_by_hand(kind, shrinkage):
    memory, features, labels = separable(kind=kind)
    rows = features.double()
    means = torch.stack([rows[labels == label].mean(0) for label in range(6)])
    within = (rows - means[labels]).T @ (rows - means[labels]) / (len(rows) - 6)
    covariance = (1 - shrinkage) * within + (shrinkage * within.trace() / 8 + 1e-4) * torch.eye(8).double()
    inverse = torch.linalg.inv(covariance)
    scores = rows @ inverse @ means.T - 0.5 * (means @ inverse * means).sum(1)
    built = lda_heads(memory, random_heads(), plain(shrinkage))
    found = built(features).double()  # the same up to what an image's logits have in common
    torch.testing.assert_close(
        found - found.mean(1, keepdim=True), scores - scores.mean(1, keepdim=True), rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_lda_agrees_with_scikit_learn(shrinkage):
    """scikit-learn divides the scatter by n, we by n - classes: with a covariance scaled by s, the log-odds scale
    by 1 / s. Its own shrinkage standardises features first, so the common scale is given to it as the same matrix."""
    memory, features, labels = separable()

    class Shrunk:
        def fit(self, rows):
            covariance = np.cov(rows.T, bias=True)
            level = shrinkage * np.trace(covariance) / len(covariance)
            self.covariance_ = (1 - shrinkage) * covariance + level * np.eye(len(covariance))
            return self

    theirs = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 6] * 6, covariance_estimator=Shrunk())
    theirs.fit(features.double().numpy(), labels.numpy())
    memory.options = CovarianceOptions(ridge=0.0)
    ours = lda_heads(memory, random_heads(), plain(shrinkage))(features).double().numpy()
    scores = theirs.decision_function(features.double().numpy()) * (240 - 6) / 240
    np.testing.assert_allclose(ours - ours.mean(1, keepdims=True), scores - scores.mean(1, keepdims=True), atol=0.02)


def test_start_lda_begins_from_the_closed_form():
    memory, features, _ = separable()
    nearly = align(random_heads(), memory, options(start="lda", epochs=1, lr=1e-9), randomness)[0]
    torch.testing.assert_close(nearly(features), lda_heads(memory, random_heads(), plain(0.1))(features))
    frozen = align(random_heads(), memory, options(start="lda", train_heads="none"), randomness)[0]
    torch.testing.assert_close(frozen(features), nearly(features), rtol=1e-3, atol=1e-3)


# The options


def test_presets_by_name_and_as_a_start():
    assert branch("lca") == {"name": "lca", **presets["lca"]}
    own = branch({"preset": "lca", "name": "strong", "robustness": 1.0})
    assert choose_branch(own) == options(**{**presets["lca"], "name": "strong", "robustness": 1.0})
    with pytest.raises(ValueError, match="unknown branch 'xlca'"):
        branch("xlca")


def test_every_preset_is_valid():
    assert {name: choose_branch(branch(name)).name for name in presets} == {name: name for name in presets}


def test_drift_needs_statistics_after_the_merge():
    with pytest.raises(LcaError, match="needs statistics: after"):
        options(statistics="before", drift={"model": "affine"})


def test_lda_has_nothing_to_start():
    with pytest.raises(ValueError, match="start is for align; with kind: lda it would do nothing"):
        choose_branch({"name": "a", "kind": "lda", "start": "lda"})


def test_branches_with_the_same_statistics_share_them():
    assert options(robustness=1.0, lr=0.5).memory_key == options(name="other").memory_key
    keys = {
        each.memory_key
        for each in (
            options(),
            options(statistics="before"),
            options(covariance={"kind": "shared"}),
            options(drift={"model": "affine"}),
        )
    }
    assert len(keys) == 4


def test_the_published_ca_and_lca_differ_where_the_code_does():
    ca, lca = (choose_branch(branch(name)) for name in ("ca", "lca"))
    assert (ca.robustness, ca.nearest_mean_filter, ca.average) == (0.0, False, "samples")
    assert (lca.robustness, lca.nearest_mean_filter, lca.average) == (0.1, True, "classes")
    assert ca.memory_key == lca.memory_key
    assert math.isclose(ca.weight_decay, 5e-4)


def test_old_means_can_be_shortened(monkeypatch):
    """With classes without any spread, the samples are the scaled means themselves."""
    memory = GaussianMemory(CovarianceOptions(ridge=0.0))
    means = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for label, mean in enumerate(means):
        memory.observe(label, mean.repeat(3, 1))
    at_once, seen = GrowingHeads.at_once, []
    monkeypatch.setattr(GrowingHeads, "at_once", lambda heads, rows: seen.append(rows) or at_once(heads, rows))
    settings = options(mean_decay=0.3, samples=1, epochs=1, per_class=1)
    align(random_heads((1, 2, 3)), memory, settings, randomness)
    factors = torch.tensor([1 - 0.3 * (1 - task / 3) for task in (1, 2, 2, 3, 3, 3)])
    torch.testing.assert_close(seen[0], factors[:, None] * means, rtol=0, atol=1e-5)


def test_features_can_be_drawn_anew_for_every_epoch():
    memory = separable()[0]
    once, again = (
        align(random_heads(), memory, options(epochs=epochs, redraw=redraw), randomness)[0]
        for epochs, redraw in ((2, False), (2, True))
    )
    features = memory.means()
    assert not torch.allclose(once(features), again(features), atol=1e-5)
    one, other = (
        align(random_heads(), memory, options(epochs=1, redraw=redraw), randomness)[0] for redraw in (False, True)
    )
    assert torch.equal(one(features), other(features))  # the first epoch's draw is the same
