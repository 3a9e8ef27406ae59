"""How long a piece of work of many stages takes, from what is done so far: one estimate for all of it."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident


@dataclass(frozen=True)
class Stage:
    """One of many; those of a kind take about as long as one another."""

    kind: str
    work: float
    """How much there is to do, in any unit that is the same for all stages."""
    tasks: int = 1
    """Into how many tasks it falls, each as long as the others."""


class Estimate:
    """Seconds left = what is left of this stage + those to come. A stage takes what stages of its kind took on average;
    the first of a kind, its work times the seconds that a unit of work has taken so far."""

    def __init__(self, name: str, pace: float | None = None, clock: Callable[[], float] | None = None) -> None:
        """`pace` is the seconds that a unit took in earlier pieces of work."""
        self.name, self.what, self.thread = name, "", get_ident()
        self._pace, self._clock = pace, clock or time.monotonic
        self._stages: list[Stage] = []
        self._took: dict[str, list[float]] = defaultdict(list)
        self._done, self._share, self._tasks = 0.0, 0.0, 0
        self.began = self._stage_began = self._clock()

    def plan(self, stages: Sequence[Stage]) -> None:
        """What is to be done, in this order."""
        self._stages, self._stage_began = list(stages), self._clock()

    def begin_task(self, what: str) -> None:
        self.what = what

    def advance(self, share: float) -> None:
        """So much more of a task of this stage is done."""
        self._share += share

    def end_stage(self, kind: str) -> None:
        """A stage of this kind is over; those before it were passed over."""
        now = self._clock()
        while self._stages:
            stage = self._stages.pop(0)
            if stage.kind == kind:
                self._took[kind].append(now - self._stage_began)
                self._done += stage.work
                break
        self._share, self._stage_began = 0.0, now

    @property
    def elapsed(self) -> float:
        return self._clock() - self.began

    @property
    def pace(self) -> float | None:
        """Seconds for a unit of work, by all that is done."""
        done = self._done + self._of_stage() * (self._stages[0].work if self._stages else 0)
        return self.elapsed / done if done > 0 else self._pace

    @property
    def left(self) -> float | None:
        """Seconds; None as long as nothing tells."""
        pace = self.pace
        if pace is None or not self._stages:
            return None if self._stages or not self._done else 0.0
        here, *later = self._stages
        spent, share = self._clock() - self._stage_began, self._of_stage()
        now = spent * (1 - share) / share if share else max(0.0, self._expected(here, pace) - spent)
        return now + sum(self._expected(stage, pace) for stage in later)

    @property
    def share(self) -> float:
        """How much of the whole time is over, from 0 to 1."""
        left = self.left
        return 0.0 if left is None else self.elapsed / max(self.elapsed + left, 1e-9)

    def __str__(self) -> str:
        """`about 40 s, 12 s left`; nothing as long as nothing tells."""
        left = self.left
        return "" if left is None else f"about {duration(self.elapsed + left)}, {duration(left)} left"

    def _of_stage(self) -> float:
        """How much of the present stage is done; it is over only when it says so."""
        return min(self._share / self._stages[0].tasks, 0.95) if self._stages else 0.0

    def _expected(self, stage: Stage, pace: float) -> float:
        took = self._took.get(stage.kind)
        return sum(took) / len(took) if took else stage.work * pace


def duration(seconds: float) -> str:
    """In words as short as they are exact: `12 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
