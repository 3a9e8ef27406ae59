"""Closed-form heads: against the formulas in full, with a d x d matrix for every class, in double precision."""

import time

import pytest
import torch

import lca.heads.quadratic
from lca.heads.branches import BranchSet
from lca.heads.discriminant import Discriminant, DiscriminantOptions
from lca.heads.growing import GrowingHeads, choose_head
from lca.heads.lda import LdaBranch, lda_heads
from lca.heads.quadratic import QuadraticBranch
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory


def quadratic(**changes):
    return QuadraticBranch(name="test", **changes)


def classes_of(counts, width=6, seed=0, views=1, centre=0.0):
    """Features of classes with so many images: views of an image are less apart than images."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=random, dtype=torch.float64)
    found = []
    for count in counts:
        mean = 2 * torch.randn(width, generator=random, dtype=torch.float64)
        images = torch.randn(count, 1, width, generator=random, dtype=torch.float64)
        noise = 0.3 * torch.randn(count, views, width, generator=random, dtype=torch.float64) if views > 1 else 0
        rows = (images + noise) @ mixing + mean + centre
        found.append(rows.float().reshape(count, views, width))
    return found


def learnt(classes, order=None, **options):
    memory = GaussianMemory(CovarianceOptions(**options))
    for label in range(len(classes)) if order is None else order:
        memory.observe(label, classes[label].flatten(0, 1), classes[label].shape[1])
    return memory


def points(count=40, width=6, seed=9):
    return 3 * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


class Dense:
    """The formulas as they are written, from the features of every class (images, views, d)."""

    def __init__(self, classes, options, unbiased=True, ridge=1e-4, diagonal=False):
        self.rows = [each.double() for each in classes]
        self.counts = [len(each) for each in classes]
        self.size = classes[0].shape[2]
        self.plain = torch.stack([each.mean((0, 1)) for each in self.rows])
        scatters = [
            sum(torch.outer(x - mean, x - mean) for x in rows.flatten(0, 1)) / rows.shape[1]
            for rows, mean in zip(self.rows, self.plain, strict=True)
        ]
        scatters = [each.diag().diag() if diagonal else each for each in scatters]
        several = [label for label, count in enumerate(self.counts) if count > 1] or range(len(self.rows))
        freedom = sum(count - unbiased for count in self.counts) or len(self.rows)
        self.pooled = sum(scatters[label] for label in several) / freedom
        self.own = [each / max(n - unbiased, 1) for each, n in zip(scatters, self.counts, strict=True)]
        harmonic = len(self.counts) / sum(1 / n for n in self.counts)
        self.s = min(0.7, max(0.1, 3 / harmonic)) if options.shrinkage is None else options.shrinkage
        level = self.s * self.pooled.trace() / self.size + ridge + 1e-8
        self.shared = (1 - self.s) * self.pooled + level * torch.eye(self.size).double()
        self.inverse = torch.linalg.inv(self.shared)
        self.means, self.worth = self.plain, None
        if options.means == "bayes" and len(self.plain) > 1:
            self._draw_to_the_centre()

    def _draw_to_the_centre(self):
        apart = self.plain - self.plain.mean(0)
        total = sum(x @ self.inverse @ x for x in apart) / ((len(apart) - 1) * self.size)
        self.w = (self.inverse @ self.pooled).trace() / self.size
        chance = self.w * sum(1 / n for n in self.counts) / len(self.counts)
        self.psi = max(0.02 * total, total - chance)
        self.worth = [n * self.psi / (n * self.psi + self.w) for n in self.counts]
        self.g = sum(w * mean for w, mean in zip(self.worth, self.plain, strict=True)) / sum(self.worth)
        self.means = torch.stack([self.g + w * (m - self.g) for w, m in zip(self.worth, self.plain, strict=True)])

    def covariance(self, label, share, rank=None):
        own = self.own[label]
        if rank is not None:  # in coordinates in which the shared covariance is the identity
            root = torch.linalg.cholesky(self.shared)
            white = torch.linalg.solve(root, torch.linalg.solve(root, own).T)
            values, axes = torch.linalg.eigh(white)
            lost = values[:-rank].sum() / self.size
            kept = (axes[:, -rank:] * values[-rank:]) @ axes[:, -rank:].T
            own = root @ (kept + lost * torch.eye(self.size).double()) @ root.T
        return (1 - share) * self.shared + share * own

    def scores(self, features, shares, rank=None):
        columns = []
        for label, share in enumerate(shares):
            spread, apart = self.covariance(label, share, rank), features.double() - self.means[label]
            distances = (apart @ torch.linalg.inv(spread) * apart).sum(1)
            columns.append(-distances / 2 - torch.logdet(spread) / 2)
        return torch.stack(columns, dim=1)


def rule(counts, width):
    return [0.0 if n == 1 else min(0.2, max(0.1 * (n - 1) / (n + 1), (n - 1) / (n - 1 + 4 * width))) for n in counts]


def differences(scores):
    return scores.double() - scores.double()[:, :1]


def assert_scores(head, features, expected, tolerance=1e-4):
    found, expected = differences(head(features)), differences(expected)
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=tolerance)


OPTIONS = {
    "as it is": {},
    "share given": {"share": 0.6},
    "no share": {"share": 0.0},
    "shrinkage given": {"shrinkage": 0.4},
    "no shrinkage": {"shrinkage": 0.0},
    "plain means": {"means": "plain"},
    "of two directions": {"rank": 2, "share": 0.5},
    "of more directions than there are": {"rank": 50},
}


@pytest.mark.parametrize("at_once", [8192, 4])
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("counts", [(1, 2, 3, 9, 30, 2, 17, 5), (5, 5, 5), (1, 40)], ids=str)
def test_the_quadratic_head_is_the_formula(monkeypatch, counts, case, at_once):
    """Of classes with fewer and with more images than features, many ranks, in one product and in many."""
    monkeypatch.setattr(lca.heads.quadratic, "_AT_ONCE", at_once)
    classes, chosen = classes_of(counts), quadratic(**OPTIONS[case])
    head = chosen.derive(learnt(classes))
    shares = rule(counts, 6) if chosen.share is None else [chosen.share * (n > 1) for n in counts]
    assert_scores(head, points(), Dense(classes, chosen).scores(points(), shares, chosen.rank))


@pytest.mark.parametrize("seed", range(4))
def test_the_formula_in_other_widths(seed):
    width = (2, 5, 11, 24)[seed]
    counts = [1 + (7 * seed + 5 * label) % (3 * width) for label in range(6)]
    classes = classes_of(counts, width, seed)
    expected = Dense(classes, quadratic()).scores(points(width=width), rule(counts, width))
    assert_scores(quadratic().derive(learnt(classes)), points(width=width), expected)


def test_a_biased_covariance_is_divided_by_all_images():
    counts = (4, 2, 9)
    classes, shares = classes_of(counts), rule(counts, 6)
    memory = learnt(classes, unbiased=False, ridge=0.01)
    expected = Dense(classes, quadratic(), unbiased=False, ridge=0.01).scores(points(), shares)
    assert_scores(quadratic().derive(memory), points(), expected)


def test_views_tell_of_the_spread_and_are_no_more_evidence():
    counts = (3, 1, 6)
    classes = classes_of(counts, views=4)
    assert_scores(
        quadratic().derive(learnt(classes)), points(), Dense(classes, quadratic()).scores(points(), rule(counts, 6))
    )


@pytest.mark.parametrize("views", [1, 5])
def test_classes_of_one_image_each(views):
    """Without views nothing is known of the spread, so the nearest mean answers."""
    counts = (1, 1, 1, 1)
    classes = classes_of(counts, views=views)
    chosen = quadratic()
    dense = Dense(classes, chosen)
    head = chosen.derive(learnt(classes))
    assert_scores(head, points(), dense.scores(points(), rule(counts, 6)))
    if views == 1:
        nearest = torch.cdist(points(), torch.cat([each[:, 0] for each in classes])).argmin(1)
        assert head(points()).argmax(1).tolist() == nearest.tolist()
        assert torch.equal(dense.means, dense.plain)


def test_one_class_and_one_image():
    for counts in ((7,), (1,)):
        head = quadratic().derive(learnt(classes_of(counts)))
        assert head(points()).shape == (40, 1)
        assert head(points()).isfinite().all()


def test_classes_answer_in_the_order_of_their_labels_also_after_one_was_forgotten():
    counts = (3, 8, 20, 1, 5)
    classes = classes_of(counts)
    memory = learnt(classes, order=[4, 2, 0, 3, 1])
    memory.forget(2)
    rest = [rows for label, rows in enumerate(classes) if label != 2]
    shares = rule([n for label, n in enumerate(counts) if label != 2], 6)
    assert_scores(quadratic().derive(memory), points(), Dense(rest, quadratic()).scores(points(), shares))


def test_a_large_common_mean_costs_no_digits():
    """A thousand deviations from the origin; what images have in common is taken off before float32 counts it."""
    counts = (4, 9, 20)
    classes = classes_of(counts, centre=1000.0)
    expected = Dense(classes, quadratic()).scores(points() + 1000, rule(counts, 6))
    assert_scores(quadratic().derive(learnt(classes)), points() + 1000, expected, tolerance=1e-3)


def test_without_a_share_it_is_linear_discriminant_analysis():
    classes, same = classes_of((3, 1, 9, 4)), {"shrinkage": None, "means": "bayes"}
    memory, heads = learnt(classes), GrowingHeads(6, choose_head("linear"))
    heads.append(heads.new_head(4, torch.Generator()))
    lda = lda_heads(memory, heads, DiscriminantOptions(**same))(points())
    assert_scores(quadratic(share=0.0, **same).derive(memory), points(), lda)


@pytest.mark.parametrize("kind", ["shared", "diagonal"])
def test_other_statistics_of_a_class(kind):
    """Where all share one covariance no class has its own; of a diagonal one only the axes are known."""
    classes, chosen = classes_of((4, 9, 20)), quadratic(share=0.5, covariance={"kind": kind})
    dense, memory = Dense(classes, chosen, diagonal=kind == "diagonal"), learnt(classes, kind=kind)
    shares = [0.0] * 3 if kind == "shared" else [0.5] * 3
    assert_scores(chosen.derive(memory), points(), dense.scores(points(), shares))


def test_a_thousand_classes_take_no_matrix_each():
    random, memory = torch.Generator().manual_seed(0), GaussianMemory(CovarianceOptions())
    for label in range(1000):
        memory.observe(label, torch.randn(8, 192, generator=random) + torch.randn(192, generator=random))
    began = time.process_time()
    head = quadratic().derive(memory)
    answers = head(memory.means()).argmax(1)
    assert time.process_time() - began < 3, "a factorisation of 192 x 192 numbers for every class takes longer"
    assert (answers == torch.arange(1000)).float().mean() > 0.99
    assert sum(each.nbytes for each in head.buffers()) < 1.4 * 1000 * 8 * 192 * 4


# Means of few images


def test_empirical_bayes_by_hand():
    """Two features, three classes of two, four and one images: s = 0.7, for K = 3 / (1/2 + 1/4 + 1) = 12/7."""
    rows = [[[1.0, 0.0], [3.0, 2.0]], [[-4.0, 1.0], [-2.0, 1.0], [-2.0, 3.0], [-4.0, 3.0]], [[0.0, -5.0]]]
    memory = GaussianMemory(CovarianceOptions(ridge=0.0))
    for label, each in enumerate(rows):
        memory.observe(label, torch.tensor(each))
    built = Discriminant.of(memory, DiscriminantOptions())
    pooled = torch.tensor([[2.0 + 4, 2], [2, 2 + 4]]).double() / 4  # of 1 + 3 + 0 degrees of freedom
    shared = 0.3 * pooled + 0.7 * 1.5 * torch.eye(2).double()
    torch.testing.assert_close(built.root @ built.root.T, shared, rtol=1e-5, atol=1e-5)
    inverse = torch.linalg.inv(shared)
    apart = torch.tensor([[2.0, 1], [-3, 2], [0, -5]]).double()
    apart -= apart.mean(0)
    total = float((apart @ inverse * apart).sum()) / (2 * 2)
    within = float((inverse @ pooled).trace()) / 2
    assert built.within == pytest.approx(within, rel=1e-5)
    assert built.between == pytest.approx(total - within * 1.75 / 3, rel=1e-5)
    worth = [n * built.between / (n * built.between + within) for n in (2, 4, 1)]
    assert built.worth(built.counts).tolist() == pytest.approx(worth, rel=1e-5)
    centre = [sum(w * mean[axis] for w, mean in zip(worth, ((2, 1), (-3, 2), (0, -5)), strict=True)) for axis in (0, 1)]
    assert built.origin.tolist() == pytest.approx([each / sum(worth) for each in centre], rel=1e-5)
    third = [g + worth[2] * (m - g) for g, m in zip(built.origin.tolist(), (0.0, -5.0), strict=True)]
    assert built.means[2].tolist() == pytest.approx(third, rel=1e-5)


@pytest.mark.parametrize(("count", "share"), [(1, 0.7), (4, 0.7), (6, 0.5), (15, 0.2), (40, 0.1)])
def test_the_shrinkage_follows_the_images_per_class(count, share):
    classes = classes_of((count + 1, count + 1) if count == 1 else (count, count))
    memory = learnt(classes, ridge=0.0)
    expected = min(0.7, max(0.1, 3 / len(classes[0])))
    assert expected == pytest.approx(share)
    root = Discriminant.of(memory, DiscriminantOptions()).root
    torch.testing.assert_close(root @ root.T, memory.pooled().shrunk(share, 0.0))


def test_means_that_chance_explains_keep_a_fiftieth_of_their_spread():
    random, memory = torch.Generator().manual_seed(0), GaussianMemory(CovarianceOptions())
    for label in range(30):  # nearer to each other than chance would have them
        rows = torch.randn(3, 4, generator=random)
        memory.observe(label, rows - 0.8 * rows.mean(0))
    built = Discriminant.of(memory, DiscriminantOptions())
    spread = torch.linalg.solve_triangular(built.root, (built.plain - built.plain.mean(0)).T, upper=False)
    total = float(spread.square().sum()) / (29 * 4)
    assert built.within / 3 > total
    assert built.between == pytest.approx(0.02 * total, rel=1e-6)
    assert float(built.worth(torch.tensor(3.0))) < 0.1


def test_equal_means_and_one_class_stay():
    memory = GaussianMemory(CovarianceOptions())
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    memory.observe(0, rows)
    assert torch.equal(Discriminant.of(memory, DiscriminantOptions()).means, memory.means().double())
    memory.observe(1, rows.flip(0) - rows.flip(0).mean(0) + memory.means()[0])
    memory.classes[1] = type(memory.classes[1])(5, memory.classes[0].mean, memory.classes[1].factor)
    assert torch.equal(Discriminant.of(memory, DiscriminantOptions()).means, memory.means().double())


# Leaving one image out


def score_without(classes, chosen, label, image, views, point=None):
    """The formula for one class, fitted without one image, with what all share and psi as they are: for its plain view,
    or another point."""
    dense = Dense(classes, chosen)
    rows = dense.rows[label]
    rest = torch.cat([rows[:image], rows[image + 1 :]])
    mean, count = rest.mean((0, 1)), len(rest)
    if dense.worth is not None:
        mean = dense.g + count * dense.psi / (count * dense.psi + dense.w) * (mean - dense.g)
    scatter = sum(torch.outer(x - rest.mean((0, 1)), x - rest.mean((0, 1))) for x in rest.flatten(0, 1)) / views
    if isinstance(chosen, LdaBranch):
        share = 0.0
    else:
        share = rule([count], dense.size)[0] if chosen.share is None else chosen.share * (count > 1)
    spread = (1 - share) * dense.shared + share * scatter / max(count - 1, 1)
    point = rows[image, 0] if point is None else point
    apart = point - mean
    common = (point - dense.means.mean(0)) @ dense.inverse @ (point - dense.means.mean(0)) / 2
    return (
        common - apart @ torch.linalg.inv(spread) @ apart / 2 - (torch.logdet(spread) - torch.logdet(dense.shared)) / 2
    )


@pytest.mark.parametrize(("views", "asked"), [(1, False), (3, False), (1, True), (3, True)])
@pytest.mark.parametrize(
    "chosen",
    [
        quadratic(),
        quadratic(share=0.5, means="plain"),
        LdaBranch(name="l"),
        LdaBranch(name="l", means="bayes", shrinkage=None),
    ],
    ids=lambda each: f"{each.kind} {each.means}",
)
def test_the_score_of_a_left_out_image_is_that_of_a_head_without_it(chosen, views, asked):
    """Whether its plain view is asked or something else of it."""
    classes = classes_of((4, 2, 9, 1), views=views)
    memory = learnt(classes)
    rows, labels, images = rows_of_a_task(classes)
    others = points(16) if asked else None
    found = chosen.left_out(memory, rows, labels, images if views > 1 else None, others)
    places = [(label, image) for label, each in enumerate(classes) for image in range(len(each))]
    expected = [
        torch.tensor(torch.nan)
        if len(classes[label]) == 1
        else score_without(classes, chosen, label, image, views, others[row].double() if asked else None)
        for row, (label, image) in enumerate(places)
    ]
    torch.testing.assert_close(found, torch.stack(expected).double(), rtol=1e-4, atol=1e-4, equal_nan=True)


def rows_of_a_task(classes):
    """Features, labels and images of all rows, the plain views first."""
    every = torch.cat(classes)  # (images, views, d)
    labels = torch.cat([torch.full((len(each),), label) for label, each in enumerate(classes)])
    views = every.shape[1]
    return every.transpose(0, 1).flatten(0, 1), labels.repeat(views), torch.arange(len(every)).repeat(views)


@pytest.mark.parametrize("chosen", [quadratic(), LdaBranch(name="test", means="bayes")], ids=["quadratic", "lda"])
def test_left_out_logits_differ_in_the_class_of_the_image_alone(chosen):
    """By what an image is worth to its own class: it is told less sure, and never of a class it is alone in."""
    classes = classes_of((4, 6, 1, 9))
    trunk = GrowingHeads(6, choose_head("linear"))
    branches = BranchSet([chosen], trunk)
    rows, labels, _ = rows_of_a_task(classes)
    anchors = torch.full((3,), -1)
    branches.observe(torch.cat([labels, anchors]), *[torch.cat([rows, points(3)])] * 3, families=points(5))
    if not chosen.derived:
        trunk.append(trunk.new_head(4, torch.Generator()))
        branches.heads["test"] = chosen.fit(trunk, branches.memory("test"), None)[0]
    seen = torch.cat([rows, points(3)]), torch.cat([labels, anchors])
    several = labels != 2
    for asked in (None, rows + 0.01):
        told, of = branches.left_out_logits("test", *seen, asked=asked)
        assert torch.equal(of, labels[several])
        plainly = branches.logits(rows if asked is None else asked, "test")[several]
        own = torch.zeros_like(plainly).scatter(1, of[:, None], 1).bool()
        assert torch.equal(told[~own], plainly[~own])
        assert (told[own] < plainly[own]).float().mean() > 0.9
