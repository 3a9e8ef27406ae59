"""What `lca methods` says a method costs, over every method: the bytes it stores, and its passes per answer."""

from functools import cache

import pytest

import tiny
from lca.methods import methods

VARIANTS = tiny.variants()
TASKS = ({"3": 5, "7": 5}, {"4": 5, "8": 5}, {"0": 5, "1": 5})
PASSES = {"1": 1, "2": 2, "one per task": len(TASKS), "one per task and one more": len(TASKS) + 1}


@cache
def taught(variant):
    """Three tasks; tests must not teach it further."""
    chosen = tiny.recipe(VARIANTS[variant], training={"epochs": 1})
    model = tiny.classifier(chosen)
    if methods[chosen.method.name].info.needs_all_data:
        model.learn(tiny.task(0, {name: count for counts in TASKS for name, count in counts.items()}))
    else:
        for number, counts in enumerate(TASKS):
            model.learn(tiny.task(number, counts))
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bytes_are_foretold(variant):
    model = taught(variant)
    expected = model.method.expected_bytes(len(TASKS), 6, 5)
    if expected is None:
        pytest.skip("this method does not say")
    assert sum(model.memory().values()) == expected


@pytest.mark.parametrize("name", list(methods))
def test_the_passes_are_as_many_as_said(name):
    model = taught(name)
    with tiny.counted_passes(training=True) as passes:
        model.features(tiny.images({"3": 4}, skip=20))
    assert passes["calls"] == PASSES[methods[name].info.passes]
