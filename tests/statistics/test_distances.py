"""What is called unknown: scores and their distributions by their definitions, and on data whose truth is known."""

import json

import numpy as np
import pytest
import torch

from lca.statistics import surroundings as surroundings_module
from lca.statistics.distances import MIDDLE, PRIOR, STEADINESS, KnownDistances
from lca.statistics.drift import Transport
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from lca.statistics.quantiles import KEPT
from lca.statistics.surroundings import left_out_surroundings, surroundings, typical_surroundings

WIDTH = 16
BACKGROUND = 2 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(5))


def drawing(classes, seed=0, apart=6.0):
    """Draws of Gaussians with one covariance and means apart from each other."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=random) / 2
    means = apart * torch.randn(classes, WIDTH, generator=random)
    return lambda label, count: means[label] + torch.randn(count, WIDTH, generator=random) @ mixing


class Taught:
    """As a branch teaches: all classes of a lesson first, then what is typical, then their images."""

    def __init__(self, *lessons, background=BACKGROUND, **options):
        self.memory, self.known = GaussianMemory(CovarianceOptions(**options)), KnownDistances()
        for number, lesson in enumerate(lessons):
            self.teach(lesson, background if number == 0 else None)

    def teach(self, lesson, background=None):
        rows, counts = torch.cat(list(lesson.values())), torch.tensor([len(some) for some in lesson.values()])
        for label, some in lesson.items():
            self.memory.observe(label, some)
        self.known.see(background)
        self.known.rescale(self.memory)
        self.known.learn(self.memory, rows, torch.tensor(list(lesson)).repeat_interleave(counts))
        return self

    def ask(self, features):
        return self.known.percentiles(self.memory, features)


def lesson(draw, counts, first=0):
    return {first + label: draw(first + label, count) for label, count in enumerate(counts)}


def scores(where):
    return where.classes - MIDDLE * where.centre[:, None], (where.classes - where.background[:, None]) / 2


def share_above(values, asked, spread):
    values = np.sort(values)
    heights = (np.arange(len(values)) + 0.5) / (len(values) + 1)
    over = (1 - heights[-1]) * np.exp(-2 / spread * np.clip(asked - values[-1], 0, None))
    under = heights[0] * np.exp(-2 / spread * np.clip(values[0] - asked, 0, None))
    below = np.where(asked < values[0], under, np.interp(asked, values, heights))
    return np.where(asked > values[-1], over, 1 - below)


def test_the_distance_is_that_of_the_definition():
    """z = (s - m_c) / σ_c with 30 images of no class, J = (d - b) / 2, and 100 (1 - min(1, 2 min(p_z, p_J)))."""
    draw = drawing(3, apart=0.6)
    classes = lesson(draw, (9, 14, 6))
    taught = Taught(classes)
    rows, labels = torch.cat(list(classes.values())), torch.arange(3).repeat_interleave(torch.tensor([9, 14, 6]))
    learnt = left_out_surroundings(taught.memory, rows, labels, BACKGROUND)
    near = learnt.classes.argmin(1)
    assert (near != labels).any(), "some are nearer to another class, and count there"
    s, j = (each.gather(1, near[:, None])[:, 0].numpy() for each in scores(learnt))
    own = [s[near == label] for label in range(3)]
    pooled = sum(((some - some.mean()) ** 2).sum() for some in own) / (len(s) - 3)
    means = np.array([(some.sum() + PRIOR * s.mean()) / (len(some) + PRIOR) for some in own])
    variances = [(len(some) * some.var() + PRIOR * pooled) / (len(some) + PRIOR) for some in own]
    z = (s - means[near]) / np.sqrt(variances)[near]
    asked = torch.cat([draw(0, 20), draw(2, 20), BACKGROUND, 20 * torch.randn(20, WIDTH)])
    where = surroundings(taught.memory, asked, BACKGROUND)
    new_s, new_j = (each.numpy() for each in scores(where))
    p = np.minimum(share_above(z, (new_s - means) / np.sqrt(variances), z.std()), share_above(j, new_j, j.std()))
    expected = 100 * (1 - np.minimum(1, 2 * p)).clip(max=0.99999)
    nearest = where.classes.argmin(1).numpy()
    found = taught.ask(asked).numpy()
    np.testing.assert_allclose(found.min(1), expected[np.arange(len(asked)), nearest], atol=0.02)
    np.testing.assert_allclose(found, np.maximum(expected, found.min(1)[:, None]), atol=0.02)
    assert (found >= 0).all()
    assert (found < 100).all(), "a limit of 100 calls nothing unknown"
    assert 5 < found.min(1)[:40].mean() < 70
    assert (found.min(1)[40:] > 90).all()


def test_a_class_without_a_spread_of_its_own_has_that_of_all():
    draw = drawing(3)
    taught = Taught(lesson(draw, (9, 1, 6)))
    tables = taught.known.tables(3)
    values, counts = [taught.known._values[label][0].double() for label in (0, 2)], torch.tensor([9.0, 6.0])
    assert [taught.known._values[label][1].unique().tolist() for label in (0, 2)] == [[0], [2]]
    middle = sum(each.sum() for each in values) / counts.sum()
    pooled = sum((each - each.mean()).square().sum() for each in values) / (15 - 2)
    torch.testing.assert_close(tables.means[1], middle)
    torch.testing.assert_close(tables.deviations[1], pooled.sqrt())
    assert taught.ask(draw(1, 3)).isfinite().all()


def test_nothing_to_compare_with_gives_no_answer():
    memory = GaussianMemory(CovarianceOptions())
    assert KnownDistances().percentiles(memory, torch.ones(2, WIDTH)) is None
    single = Taught({0: torch.randn(1, WIDTH), 1: torch.randn(1, WIDTH)})
    assert not single.known.can_tell
    assert single.ask(torch.ones(2, WIDTH)) is None


@pytest.mark.parametrize("counts", [(2,), (2, 2), (3, 1), (40,), (2, 50)])
def test_lessons_of_any_shape_are_answered(counts):
    draw = drawing(len(counts))
    taught = Taught(lesson(draw, counts))
    found = taught.ask(torch.cat([draw(0, 10), BACKGROUND, 1e4 * torch.ones(1, WIDTH)]))
    if counts == (2,):
        assert found is None, "two images of one class are nothing to measure with"
        return
    assert found.shape == (17, len(counts))
    assert found.isfinite().all()
    assert found[-1].min() > 98


def test_scores_follow_what_is_typical_of_their_class():
    """A new lesson changes covariance, middle and counts; what is kept of old classes moves by the change alone, and is
    drawn together as d² / q is."""
    draw = drawing(5)
    taught = Taught(lesson(draw, (6, 9)))
    before = {label: values.clone() for label, values in taught.known._values.items()}

    def typical():
        where = typical_surroundings(taught.memory, BACKGROUND)
        spread = where.classes[:, 0].square() / taught.memory.typical_spreads()
        return [torch.stack([each[label] for each in scores(where)]) for label in (0, 1)], spread

    (centres, spreads), _ = typical(), taught.teach(lesson(draw, (20, 8, 3), first=2))
    now, closer = typical()
    for label in (0, 1):
        share, kept = closer[label] / spreads[label], before[label].double()
        assert (now[label] - centres[label]).abs().min() > 0.1
        assert abs(float(share) - 1) > 0.02
        expected = now[label] + share * (kept[[0, 2]] - centres[label])
        torch.testing.assert_close(taught.known._values[label][[0, 2]].double(), expected, rtol=1e-4, atol=1e-3)
        assert torch.equal(taught.known._values[label][1], before[label][1])


def test_scores_that_were_shifted_are_near_those_of_a_model_that_saw_all_at_once():
    draw = drawing(6)
    lessons = [lesson(draw, (40, 40), first) for first in (0, 2, 4)]
    slowly, at_once = Taught(*lessons), Taught({k: v for each in lessons for k, v in each.items()})
    asked = torch.cat([draw(label, 200) for label in range(6)])
    apart = (slowly.ask(asked).amin(1) - at_once.ask(asked).amin(1)).abs()
    assert apart.mean() < 6
    untouched = Taught(*lessons)
    for label in (0, 1):
        untouched.known._values[label] = Taught(lessons[0]).known._values[label]
    untouched.known._tables = None
    assert (untouched.ask(asked).amin(1) - at_once.ask(asked).amin(1)).abs().mean() > 2 * apart.mean()


def test_a_class_that_returns_adds_to_what_is_kept():
    draw = drawing(2)
    taught = Taught(lesson(draw, (10, 50)))
    taught.teach({0: draw(0, 7)})
    part, meta = taught.known.state()
    assert part["0"].shape == (3, 17)
    assert part["1"].shape == (3, KEPT)
    assert [meta["counts and typical scores"][label][0] for label in "01"] == [17, 50]
    assert (part["0"][[0, 2]].diff() >= 0).all(), "both scores in order"


def test_spoilt_photos_are_a_running_mean_that_moves_with_the_backbone():
    known, random = KnownDistances(), torch.Generator().manual_seed(0)
    first, second = (torch.randn(3, WIDTH, generator=random) for _ in range(2))
    known.see(BACKGROUND, first, 4)
    known.see(None, second, 12)
    torch.testing.assert_close(known.background, torch.cat([BACKGROUND, (4 * first + 12 * second) / 16]))
    known.transport(Transport(lambda means: 2 * means + 1, lambda rows: 2 * rows))
    torch.testing.assert_close(known.spoilt, 2 * (4 * first + 12 * second) / 16 + 1)
    assert torch.equal(known.families, BACKGROUND)
    known.see(BACKGROUND + 1)
    assert torch.equal(known.families, BACKGROUND + 1)


def test_forgetting_a_class_moves_the_labels_above_down():
    draw = drawing(4)
    taught = Taught(lesson(draw, (4, 50, 1, 9)))
    kept = taught.known._values
    kept[0][1], kept[3][1] = torch.tensor([0.0, 1, 2, 3]), torch.tensor([3.0, 3, 1, 1, 3, 3, 3, 2, 2])
    taught.known.forget(1)
    assert {label: len(each[0]) for label, each in taught.known._values.items()} == {0: 4, 2: 9}
    assert torch.equal(taught.known._values[2][[0, 2]], kept[3][[0, 2]])
    assert taught.known._values[0][1].tolist() == [0, 0, 1, 2]
    assert taught.known._values[2][1].tolist() == [2, 2, 2, 2, 2, 2, 2, 1, 1], "the nearest is now their own"
    assert sorted(taught.known.state()[1]["counts and typical scores"]) == ["0", "2"]
    for _ in range(3):
        taught.known.forget(0)
    assert not taught.known.can_tell


def test_state_and_load_are_inverse():
    draw = drawing(4)
    taught = Taught(lesson(draw, (100, 5, 1)))
    taught.known.see(None, torch.ones(3, WIDTH), 3)
    part, meta = taught.known.state()
    twin = KnownDistances()
    twin.load({name: tensor.clone() for name, tensor in part.items()}, json.loads(json.dumps(meta, allow_nan=False)))
    asked, new = torch.cat([draw(0, 20), BACKGROUND]), lesson(draw, (6,), first=3)
    assert torch.equal(twin.percentiles(taught.memory, asked), taught.ask(asked))
    expected = taught.teach(new).ask(asked)
    other = Taught(lesson(drawing(4), (100, 5, 1)))
    other.known = twin
    assert torch.equal(other.teach(new).ask(asked), expected)


def test_distances_of_an_earlier_version_become_scores():
    """Kept were d of every image; e and b are those typical of its class."""
    draw = drawing(2)
    taught = Taught(lesson(draw, (20, 20)))
    old, kept = KnownDistances(), torch.sort(torch.rand(20) * 30 + 5).values
    typical = taught.memory.typical_distances().tolist()
    old.load({"0": kept}, {"counts and typical distances": {"0": [20, typical[0]]}})
    old.adopt(taught.memory, BACKGROUND)
    d, where = kept.double(), typical_surroundings(taught.memory, BACKGROUND)
    torch.testing.assert_close(old._values[0][0].double(), d - MIDDLE * where.centre[0], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(old._values[0][2].double(), (d - where.background[0]) / 2, rtol=1e-4, atol=1e-3)
    assert old.percentiles(taught.memory, BACKGROUND).amin(1).min() > 90
    assert sorted(old.state()[0]) == ["0", "families"]
    old.rescale(taught.memory)
    torch.testing.assert_close(old._values[0][0].double(), d - MIDDLE * where.centre[0], rtol=1e-4, atol=1e-3)


def test_held_out_images_shift_the_scores_of_their_classes():
    draw = drawing(3)
    taught = Taught(lesson(draw, (5, 40, 9)))
    before = {label: values.clone() for label, values in taught.known._values.items()}
    held_out, labels = torch.cat([draw(0, 4), draw(1, 6), draw(2, 5)]) + 1.5, torch.tensor([0] * 4 + [1] * 6 + [7] * 5)
    taught.known.correct(taught.memory, held_out, labels)  # nothing is known of class 7
    where = surroundings(taught.memory, held_out[:10], BACKGROUND)
    nearest = where.classes.argmin(1, keepdim=True)
    measured = torch.stack([each.gather(1, nearest)[:, 0] for each in scores(where)]).mean(1)
    counted = torch.cat([torch.ones(5), torch.tensor(40 * np.diff(edges()))])
    expected = (torch.cat([before[0], before[1]], dim=1)[[0, 2]].double() * counted).sum(1) / counted.sum()
    shift = ((measured - expected) * 10 / (10 + STEADINESS)).float()
    assert shift.abs().min() > 0.1
    for label in (0, 1):
        found = taught.known._values[label]
        torch.testing.assert_close(found[[0, 2]], before[label][[0, 2]] + shift[:, None], rtol=1e-4, atol=1e-3)
        assert torch.equal(found[1], before[label][1])
    assert torch.equal(taught.known._values[2], before[2])
    kept = taught.known._values[0]
    taught.known.correct(taught.memory, held_out[10:], labels[10:])
    taught.known.correct(taught.memory, held_out[:0], labels[:0])
    assert taught.known._values[0] is kept


def edges():
    from lca.statistics.quantiles import EDGES

    return EDGES.numpy()


@pytest.mark.parametrize("kind", ["full", "shared", "diagonal"])
def test_about_two_of_100_fresh_images_are_called_unknown_and_nearly_all_strange_ones(kind):
    """2 % are meant; 40 classes of 30 images in four lessons, and 4000 fresh ones, allow 1 to 3.5 %."""
    draw = drawing(40, apart=3.0)
    taught = Taught(*(lesson(draw, (30,) * 10, first) for first in range(0, 40, 10)), kind=kind)
    fresh = taught.ask(torch.cat([draw(label, 100) for label in range(40)])).amin(1)
    assert 0.01 < float((fresh >= 98).double().mean()) < 0.035
    empty = BACKGROUND + 0.3 * torch.randn(50, 6, WIDTH, generator=torch.Generator().manual_seed(1))
    assert float((taught.ask(empty.flatten(0, 1)).amin(1) >= 98).double().mean()) > 0.97
    far = 9 * torch.randn(500, WIDTH, generator=torch.Generator().manual_seed(2))
    assert float((taught.ask(far).amin(1) >= 98).double().mean()) > 0.95


def test_emptiness_in_the_middle_is_told_by_the_background_alone():
    """What lies in the middle of all classes is no farther from them than they from each other."""
    draw = drawing(30, apart=1.0)
    lessons, middle = lesson(draw, (30,) * 30), torch.zeros(200, WIDTH)
    middle += 0.1 * torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(1))
    beside, without = Taught(lessons, background=torch.zeros(1, WIDTH)), Taught(lessons, background=BACKGROUND + 99)
    assert (beside.ask(middle).amin(1) >= 98).double().mean() > 0.9
    assert (without.ask(middle).amin(1) >= 98).double().mean() < 0.5


def test_images_of_a_large_lesson_are_left_out_in_parts(monkeypatch):
    memory, rows, labels = GaussianMemory(CovarianceOptions()), torch.randn(20, WIDTH), torch.arange(20) % 3
    for label in range(3):
        memory.observe(label, rows[labels == label])
    together = left_out_surroundings(memory, rows, labels, BACKGROUND)
    monkeypatch.setattr(surroundings_module, "AT_ONCE", 6)
    parts = left_out_surroundings(memory, rows, labels, BACKGROUND)
    torch.testing.assert_close(parts.classes, together.classes)
    torch.testing.assert_close(parts.centre, together.centre)
    torch.testing.assert_close(parts.background, together.background)


def test_two_classes_made_one_keep_the_scores_of_both():
    draw = drawing(4, apart=3.0)
    known = Taught(lesson(draw, (8, 5, 12, 9))).known
    before = {label: values.clone() for label, values in known._values.items()}
    held, counts = {**known._values}, dict(known._counts)
    known.merge(0, 2)
    assert known._counts == {0: counts[0] + counts[2], 1: counts[1], 2: counts[3]}
    both = torch.cat([before[0], before[2]], dim=1)
    assert known._values[0][0].tolist() == both[0].sort().values.tolist()
    assert known._values[0][2].tolist() == both[2].sort().values.tolist()
    assert set(torch.cat([each[1] for each in known._values.values()]).tolist()) <= {0.0, 1.0, 2.0}
    for label, values in before.items():
        assert torch.equal(held[label], values), "an earlier state may hold the same tensor"
