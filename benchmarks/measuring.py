"""What every subject shares: settings, one comparison of our way with the plain way, the clock, made-up
transformers and images.

Time is reported and never asserted; values are. Both ways run in turn, so that other work on the machine meets both,
and the best of the repeats counts: it is the one that other work disturbed least.
"""

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from timm.models import VisionTransformer

from lca.backbones import untrained
from lca.data.images import ImageSet
from lca.data.options import DataOptions
from lca.data.sources import load_source
from lca.progress import Progress

Size = Literal["tiny", "small", "full"]
Work = Callable[[], object]
Numbers = dict[str, int | str]


@dataclass(frozen=True)
class Settings:
    """How large, where, and how often."""

    size: Size = "small"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    repeats: int = 5
    """Repeats of a comparison; short ones repeat more often, for half a second."""
    patience: float = 4.0
    """Seconds after which one comparison starts no further repeat."""
    matrix_rate: float | None = None
    """FLOP/s of a large matrix product on this machine, to give rates as shares of it."""


@dataclass(frozen=True)
class Agreement:
    """How far the results of both ways are apart, and how far they may be."""

    difference: float
    tolerance: float
    of: str

    @property
    def holds(self) -> bool:
        return math.isfinite(self.difference) and self.difference <= self.tolerance


@dataclass(frozen=True)
class Cost:
    """Seconds (best and median of the repeats) or bytes (both the same)."""

    best: float
    median: float
    repeats: int = 1


@dataclass(frozen=True)
class Comparison:
    """One row: what our way and the plain way cost for the same result."""

    subject: str
    case: str
    unit: Literal["seconds", "bytes"]
    ours: Cost
    plain: Cost
    sizes: Numbers
    agreement: Agreement | None = None
    rates: dict[str, float] = field(default_factory=dict)
    """What our way reaches, by unit: images/s and so on."""

    @property
    def ratio(self) -> float:
        """How many times the plain way costs what ours costs; below 1 the plain way is the cheaper one."""
        return self.plain.best / self.ours.best

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def time_both(ours: Work, plain: Work, settings: Settings) -> tuple[Cost, Cost]:
    """Seconds of our way and of the plain one."""
    first, second = time_in_turn([ours, plain], settings)
    return first, second


def time_in_turn(works: Sequence[Work], settings: Settings) -> list[Cost]:
    """Seconds of each, in turn, after one run of each that does not count (caches, captured graphs)."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    started = time.perf_counter()
    while not _enough(len(seconds[0]), time.perf_counter() - started, settings):
        for work, taken in zip(works, seconds, strict=True):
            taken.append(_seconds(work, settings))
    return [Cost(min(taken), statistics.median(taken), len(taken)) for taken in seconds]


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def quantity(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def size_of(count: int) -> Cost:
    """A cost in bytes."""
    return Cost(count, count)


def _enough(repeats: int, elapsed: float, settings: Settings) -> bool:
    if repeats < settings.repeats:
        return repeats > 0 and elapsed > settings.patience
    return settings.repeats == 1 or elapsed > 0.5


def _seconds(work: Work, settings: Settings) -> float:
    now = clock_of(settings)
    started = now()
    work()
    return now() - started


def clock_of(settings: Settings) -> Callable[[], float]:
    """A clock that waits for the device."""

    def now() -> float:
        synchronise(settings.device)
        return time.perf_counter()

    return now


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def threads_beside(device: torch.device) -> int:
    """Torch's. A GPU's program has the machine for itself; on a busy one two threads wait for each other."""
    return min(8, os.cpu_count() or 1) if device.type == "cuda" else 1


def transformer(name: str) -> VisionTransformer:
    """With random weights, which are drawn once."""
    return copy.deepcopy(_untrained(name))


_untrained = cache(untrained)


def synthetic(count: int, side: int = 32) -> ImageSet:
    """So many images in ten classes; after 50 they repeat."""
    source = f"synthetic:classes=10,train=5,test=1,size={side}"
    train = load_source(DataOptions(source=source), 0, side, Progress()).train
    return train.subset(torch.arange(count) % len(train))
