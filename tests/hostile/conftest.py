"""What a stranger's files can do. `make test` runs the fast part, `make attack` all of it, with counts."""

from collections import Counter

import pytest

import tiny

COUNTS = pytest.StashKey[Counter]()


def pytest_configure(config):
    config.stash[COUNTS] = Counter()


def pytest_terminal_summary(terminalreporter, config):
    if counts := config.stash[COUNTS]:
        outcomes = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
        terminalreporter.write_line(f"attack: {sum(counts.values()):,} tries: {outcomes}")


@pytest.fixture
def tries(request):
    """Counts what came of every try."""
    return request.config.stash[COUNTS]


@pytest.fixture(scope="session")
def model():
    """Four branches, two lessons and one class forgotten."""
    branches = ["none", {"preset": "lca", **tiny.QUICK}, "lda", "best"]
    model = tiny.classifier(tiny.recipe(training={"epochs": 1}, method={"align": branches}))
    model.learn(tiny.task(0, {"0": 6, "1": 6, "2": 4}))
    model.learn(tiny.task(1, {"3": 6, "4": 6}))
    model.forget("1")
    model.temperatures = dict.fromkeys(model.method.branches(), 1.5)
    return model


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"
