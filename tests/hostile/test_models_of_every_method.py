"""Models of every registered method, with tensors and fields that a stranger wrote."""

import random

import pytest
from attacks import NASTY, finite, leaves, reseal, swapped, with_value

import tiny
from lca.files import load_state, read_json, save_state
from lca.methods import methods


@pytest.mark.attack
@pytest.mark.parametrize("name", methods)
def test_models_of_every_method(name, tmp_path, tries):
    model = tiny.classifier(tiny.recipe(training={"epochs": 1}, method=tiny.method_section(name)))
    model.learn(tiny.task(0, {"0": 6, "1": 6, "3": 6}))
    if not model.method.info.needs_all_data:
        model.learn(tiny.task(1, {"2": 6}))
    folder, draws = tmp_path / "model", random.Random(5)
    model.save(folder)
    assert finite(folder, tries), "the model itself is refused"
    state = load_state(folder)
    for part, tensors in state.parts.items():
        for tensor in tensors:
            changed = {**tensors, tensor: swapped(tensors[tensor], draws)}
            save_state(folder, type(state)(state.parts | {part: changed}, state.meta))
            finite(folder, tries)
    model.save(folder)
    content, original = read_json(folder / "state.json"), (folder / "state.json").read_bytes()
    places = [place for place in leaves(content) if place[:2] == ("meta", "method") or place[2:3] == ("method",)]
    for place in places:
        for value in draws.sample(NASTY, 2):
            reseal(folder, lambda old, place=place, value=value: with_value(old, place, value))
            finite(folder, tries)
            (folder / "state.json").write_bytes(original)
