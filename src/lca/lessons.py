"""How much effort a lesson takes: an instant answer, and then, where it is likely to pay, a thorough one to compare.

An instant lesson trains nothing: class statistics and the heads that follow from them, on the backbone as it is. A
thorough one trains the backbone as well. It is worth its time with many images a class, and can do harm with few: to
the new classes by overfitting, to the old ones by moving the backbone away from their statistics. So it has to prove
itself.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lca.arguments import expect_one_of
from lca.data.streams import Task
from lca.estimate import Stage
from lca.history import Change, Improvement, Lesson, OldClasses
from lca.methods import Method, Step
from lca.statistics.gaussians import GaussianMemory

Part = Literal["instant", "thorough"]
Effort = Literal["auto", "instant", "improve", "thorough"]
"""`instant` trains nothing, `thorough` trains at once, `improve` does one after the other and keeps what is better, and
`auto` improves where that is likely to pay."""
EFFORTS: tuple[Effort, ...] = ("auto", "instant", "improve", "thorough")
PARTS: tuple[Part, ...] = ("instant", "thorough")
PAYS_ABOVE = 10
"""Images of a class. Measured on five streams of real photos with two backbones: up to ten a class training changed
what the features are worth by 0.4 points at most, at thirty by 0 to 2, with hundreds by much."""
SAMPLES = 2000
"""Drawn from the Gaussians of all known classes together to see whether they are still told apart."""
MOST_SAMPLES, MOST_OF_EACH, FEWEST_OF_EACH = 20_000, 200, 20
"""Drawn to see which class a lesson changes: of all classes together, and at most and at least of each."""
WORTH_TELLING = 5.0
"""Points by which a class has to change to be named."""
Answer = Callable[[Tensor], Tensor]
"""The logits of features."""


def parts_of(effort: Effort, method: Method, task: Task) -> tuple[Part, ...]:
    """What a lesson is made of. A method that does not train on these classes has nothing but the instant part."""
    expect_one_of("effort", effort, EFFORTS)
    if not method.trains(task):
        return ("instant",)
    if effort == "auto":
        pays = len(task.train) > PAYS_ABOVE * len(task.classes)
        effort = "thorough" if not method.instant else "improve" if pays else "instant"
    return ("instant", "thorough") if effort == "improve" else (effort,)


MEASURING = "measuring"
"""The last stage of a lesson: the held-out images are asked."""


def stages_of(steps: Sequence[Step], task: Task) -> list[Stage]:
    """What a lesson consists of, in forward passes of an image; a backward pass takes about two of them. It is the
    beginning of an estimate that learns from what stages take."""
    images = len(task.train)
    work = {"finetune": 3.0 * images, "merge": 2.0 * images, "statistics": 0.1 * images}
    stages = [
        Stage(step.phase, work.get(step.phase, float(images)), 2 if step.phase == "merge" else 1) for step in steps
    ]
    return stages if task.validation is None else [*stages, Stage(MEASURING, float(len(task.validation)))]


@dataclass(frozen=True)
class Worth:
    """What a model is worth after a lesson: for the lesson's classes and, by an estimate, for those known before."""

    measured_on: Literal["held out", "left one out"]
    accuracy: float
    """Of the lesson's classes, in per cent."""
    known: float | None
    """Of the classes known before, in per cent; None where there were none."""
    samples: int
    """On which `known` was measured."""

    @classmethod
    def of(
        cls,
        lesson: Lesson,
        known: int,
        memory: GaussianMemory | None,
        answer: Answer,
        draws: torch.Generator,
    ) -> "Worth | None":
        """Right after a lesson of a model that knew so many classes before; None where there is nothing to measure on.

        The images of the classes known before are gone. Samples of their Gaussians, as these are now, stand for them,
        with what the move of the backbone left unexplained; `answer` gives the logits of features.
        """
        accuracy = lesson.left_one_out_accuracy if lesson.accuracy is None else lesson.accuracy
        if accuracy is None or (known and memory is None):
            return None
        measured_on: Literal["held out", "left one out"] = "left one out" if lesson.accuracy is None else "held out"
        if not known or memory is None:
            return cls(measured_on, accuracy, None, 0)
        count = -(-SAMPLES // known)
        labels = torch.arange(known)[:, None]
        right = answers_of_samples(known, count, memory, answer, draws) == labels
        return cls(measured_on, accuracy, 100 * float(right.double().mean()), right.numel())


def answers_of_samples(
    known: int, count: int, memory: GaussianMemory, answer: Answer, draws: torch.Generator
) -> Tensor:
    """What samples of the Gaussians of the first classes are called now: labels (known, count)."""
    samples, _ = memory.sample(count, draws, known)
    samples = memory.with_residual(samples, draws)
    return answer(samples.flatten(0, 1)).argmax(1).cpu().reshape(known, count)


def samples_of_each(known: int) -> int:
    """How many samples of every class tell what a lesson changes for it."""
    return max(FEWEST_OF_EACH, min(MOST_OF_EACH, MOST_SAMPLES // max(known, 1)))


def changes(names: Sequence[str], before: Tensor, after: Tensor, taught: Collection[str]) -> OldClasses | None:
    """What became of the classes known before a lesson that are not among those `taught`: answers (known, count) to
    samples of their Gaussians before and after it. `names` are of all classes afterwards. None without such classes.

    With shares p and q right of n samples, two standard errors, 2 sqrt(p (1 - p) / n + q (1 - q) / n), are what chance
    explains; a change is told from `WORTH_TELLING` points on.
    """
    places = [place for place, name in enumerate(names[: len(before)]) if name not in taught]
    if not places:
        return None
    count, changed, shares = before.shape[1], {}, []
    for place in places:
        p, q = (float((each[place] == place).double().mean()) for each in (before, after))
        shares.append((p, q))
        chance = 2 * math.sqrt((p * (1 - p) + q * (1 - q)) / count)
        if abs(q - p) > max(chance, WORTH_TELLING / 100):
            others = after[place][after[place] != place]
            taken_for = names[int(others.mode().values)] if len(others) else None
            changed[names[place]] = Change(100 * p, 100 * q, taken_for)
    mean_before, mean_after = (100 * sum(each) / len(each) for each in zip(*shares, strict=True))
    return OldClasses(mean_before, mean_after, count, changed)


def compared(instant: Worth, thorough: Worth, seconds: float) -> Improvement:
    """Whether the thorough lesson is kept: neither number may fall, the estimated one by no more than chance explains.

    With shares p and q right of n samples, chance explains one standard error: sqrt(p (1 - p) / n + q (1 - q) / n).
    """
    kept = thorough.accuracy >= instant.accuracy
    margin = None
    if instant.known is not None and thorough.known is not None:
        variances = (
            share * (100 - share) / each.samples for each in (instant, thorough) for share in [each.known or 0]
        )
        margin = sum(variances) ** 0.5
        kept = kept and thorough.known >= instant.known - margin
    return Improvement(
        kept, instant.measured_on, instant.accuracy, thorough.accuracy, instant.known, thorough.known, margin, seconds
    )
