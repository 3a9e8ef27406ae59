"""Learning-rate schedules."""

import math


def quarter_cosine(start: float, epoch: int, epochs: int) -> float:
    """CODA-Prompt's: a quarter of a cosine down to nearly 0, which begins an epoch late."""
    return start * math.cos(99 * math.pi * max(epoch - 1, 0) / (200 * max(epochs - 1, 1)))


def cosine(start: float, end: float, progress: float) -> float:
    """Cosine annealing from start to end, `progress` running from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
