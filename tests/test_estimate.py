"""The estimate of a lesson, against a clock that is turned by hand."""

import pytest

from lca.estimate import Estimate, Stage, duration
from lca.progress import LineProgress, Progress

PLAN = [Stage("observe", 10), *[Stage("finetune", 30)] * 3, Stage("merge", 20, tasks=2), Stage("measuring", 5)]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("time.monotonic", made)
    return made


def test_the_first_stages_tell_the_others(clock):
    estimate = Estimate("lesson 1", clock=clock)
    estimate.plan(PLAN)
    assert (estimate.left, str(estimate), estimate.share) == (None, "", 0)
    clock.now = 5
    estimate.advance(0.5)  # a second for a unit of work
    assert estimate.left == 5 + 3 * 30 + 20 + 5
    assert str(estimate) == "about 2 min, 2 min left"
    clock.now = 10
    estimate.end_stage("observe")
    clock.now = 16
    estimate.advance(0.1)  # twice as slow
    assert estimate.left == pytest.approx(54 + (2 * 30 + 20 + 5) * 16 / 13)
    clock.now = 70
    estimate.end_stage("finetune")  # an epoch takes a minute
    assert estimate.left == pytest.approx(2 * 60 + (20 + 5) * 70 / 40)
    clock.now = 130
    estimate.end_stage("finetune")
    clock.now = 200
    estimate.end_stage("finetune")
    estimate.advance(1)  # the first of two tasks
    clock.now = 220
    assert estimate.left == pytest.approx(20 + 5 * 220 / 110)
    clock.now = 240
    estimate.end_stage("merge")
    estimate.end_stage("measuring")
    assert (estimate.left, estimate.share) == (0, 1)
    assert estimate.pace == 240 / 125


def test_an_earlier_lesson_tells_a_later_one(clock):
    estimate = Estimate("lesson 2", pace=0.1, clock=clock)
    estimate.plan(PLAN)
    assert estimate.left == pytest.approx(12.5)
    assert str(estimate) == "about 12 s, 12 s left"
    clock.now = 3
    assert estimate.left == pytest.approx(11.5), "the first stage should be over, and is not"


def test_stages_that_were_passed_over_and_unknown_ones(clock):
    estimate = Estimate("lesson", pace=1, clock=clock)
    estimate.plan([Stage("a", 1), Stage("b", 2), Stage("c", 4)])
    clock.now = 6
    estimate.end_stage("b")
    assert estimate.left == 12, "three seconds for a unit"
    estimate.end_stage("d")
    assert estimate.left == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_lines_of_a_lesson(clock, capsys):
    """One when it begins, one as soon as something tells, then one every ten seconds, whatever its tasks are."""
    progress = LineProgress()
    with progress.lesson("lesson 1", "20 images of 2 classes"):
        assert capsys.readouterr().err == "lesson 1: 20 images of 2 classes\n"
        progress.plan([Stage("finetune", 60)] * 4)
        for epoch in range(4):
            with progress.stage("finetune"), progress.task(f"epoch {epoch + 1}/4", 20) as advance:
                for _ in range(20):
                    clock.now += 0.5
                    advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "lesson 1: about 40 s, 38 s left (epoch 1/4)",
        "lesson 1: about 40 s, 28 s left (epoch 2/4)",
        "lesson 1: about 40 s, 18 s left (epoch 3/4)",
        "lesson 1: about 40 s, 8 s left (epoch 4/4)",
    ]
    with progress.lesson("lesson 2", "1 image of 1 class"):
        clock.now += 1.5
        progress.plan([Stage("observe", 60)])
    assert "lesson 2: about 12 s, 10 s left" in capsys.readouterr().err, "it knows how long a unit of work takes"
    with progress.within("task 3"), progress.task("epoch 1/5", 10) as advance:
        clock.now += 2
        advance(4)
    assert capsys.readouterr().err == "task 3, epoch 1/5: 4/10, 2/s, 3 s left\n"


def test_a_lesson_belongs_to_its_thread(capsys):
    """What another thread asks meanwhile is no part of it."""
    from threading import Thread

    def ask():
        with progress.task("features", 4) as advance:
            advance(1)

    progress = LineProgress(every=0)
    with progress.lesson("lesson 1", "4 images of 2 classes"):
        progress.plan([Stage("observe", 4)])
        other = Thread(target=ask)
        other.start()
        other.join()
    assert "features: 1/4" in capsys.readouterr().err


def test_silence_has_lessons_too():
    progress = Progress()
    with progress.lesson("lesson 1", "nothing"), progress.stage("a"), progress.task("b", 0) as advance:
        advance(1)
    assert progress._lesson is None
