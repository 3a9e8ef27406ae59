"""Contract 5 over everything registered: nothing is known in advance, and tasks come in all shapes."""

import pytest

import tiny

VARIANTS = tiny.variants()
STREAMS = {
    "one class first": (
        ({"3": 5}, "3"),
        ({"1": 5, "7": 4, "4": 6}, "3174"),
        ({"9": 1}, "31749"),
        ({"0": 5, "2": 1}, "3174902"),
        ({"1": 4, "5": 5}, "31749025"),
        ({"0": 4, "3": 4}, "31749025"),
        ({"7": 3}, "31749025"),
        ({"6": 4, "8": 4}, "3174902568"),
    ),
    "one class between": (
        ({"3": 5, "1": 1, "2": 5}, "312"),
        ({"8": 4}, "3128"),
        ({"2": 1, "7": 5, "3": 4}, "31287"),
        ({"8": 1}, "31287"),
        ({"1": 1, "5": 1}, "312875"),
    ),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_tasks_of_any_shape_are_learnt(variant, stream):
    model = tiny.classifier(tiny.recipe(VARIANTS[variant], training={"epochs": 1}))
    test = tiny.images(dict.fromkeys("0123456789", 2), skip=30)
    for number, (counts, known) in enumerate(STREAMS[stream]):
        model.learn(tiny.task(number, counts))
        assert model.classes == list(known)
        features = model.features(test)
        for branch in model.method.branches():
            found = model.logits(features, branch)
            assert found.shape == (20, len(known)), (number, branch)
            assert found.isfinite().all(), (number, branch)
    assert model.tasks == len(STREAMS[stream])


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "," not in name or name.endswith("head")])
def test_a_class_that_comes_alone_does_not_get_all_answers(variant):
    model = tiny.classifier(tiny.recipe(VARIANTS[variant], training={"epochs": 3}))
    for number, counts in enumerate(({"3": 8, "7": 8}, {"1": 8}, {"4": 8, "0": 8})):
        model.learn(tiny.task(number, counts))
    features = model.features(tiny.images(dict.fromkeys("37140", 6), skip=30))
    aligned = getattr(
        getattr(model.method, "branch_set", None), "heads", {}
    )  # in these few steps alignment may do worse
    for branch in set(model.method.branches()) - set(aligned):
        alone = model.logits(features, branch).argmax(1) == 2
        assert alone.float().mean() < 0.9, branch
