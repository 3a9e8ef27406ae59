"""Learning-rate schedules."""

import math


def cosine(start: float, end: float, progress: float) -> float:
    """Cosine annealing from start to end, `progress` running from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
