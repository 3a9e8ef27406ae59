import time

import pytest

from lca.errors import LcaError
from lca.runs.budget import Budget


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("9m", 540), ("1.5h", 5400), ("0s", 0), (" 2 m ", 120), ("0.25s", 0.25)],
)
def test_times_are_read(monkeypatch, text, seconds):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    budget = Budget.parse(text)
    for after, spent in ((seconds - 0.01, False), (seconds, True), (seconds + 1, True)):
        monkeypatch.setattr(time, "monotonic", lambda now=1000.0 + after: now)
        assert budget.spent() is spent


def test_no_budget_is_never_spent(monkeypatch):
    budget = Budget.parse(None)
    monkeypatch.setattr(time, "monotonic", lambda: 1e12)
    assert not budget.spent()


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 days", "1h30m", "m", "1,5h", "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(LcaError, match=r"--budget takes a time such as 90s, 9m or 1\.5h; got"):
        Budget.parse(text)
