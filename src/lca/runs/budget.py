"""A budget of time: work stops cleanly between two steps and goes on from there next time."""

import re
import time

from lca.errors import LcaError


class BudgetSpent(Exception):  # noqa: N818  # it is no error
    """The time is up; what is done is kept."""


class Budget:
    """Seconds from now, or no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @classmethod
    def parse(cls, text: str | None) -> "Budget":
        """`90s`, `9m`, `1.5h`; a bare number is seconds."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
        if match is None:
            raise LcaError(f"--budget takes a time such as 90s, 9m or 1.5h; got {text!r}")
        return cls(float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]])

    def spent(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end
