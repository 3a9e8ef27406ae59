"""Every damaged copy of a model fails with one error or gives the same answers, to the bit. What a stranger wrote, with
hashes that fit, fails with one error or gives finite answers."""

import json
import os
import random

import pytest
from attacks import NASTY, answers, finite, leaves, load, refused, reseal, same, swapped, with_value

from lca import LcaError
from lca.files import load_state, read_manifest, save_state


def unharmed(folder, expected, tries):
    """The damage was noticed, or changes nothing."""
    with refused(tries):
        model = load(folder)
        assert same(answers(model), expected)
        tries["answered alike"] += 1


def flipped(folder, count, seed):
    """Copies in place of every file with a changed, a missing or an inserted piece; the file is put back after each."""
    draws = random.Random(seed)
    for path in sorted(folder.iterdir()):
        original = path.read_bytes()
        for number in range(count):
            content, place = bytearray(original), draws.randrange(len(original))
            if number % 4 == 3:
                del content[place : place + draws.randrange(1, 20)]
            elif number % 4 == 2:
                content[place:place] = original[place : place + 3] * draws.randrange(1, 4)
            else:
                content[place] ^= 1 << draws.randrange(8)
            path.write_bytes(content)
            yield path
        path.write_bytes(original)


def damage_bytes(folder, model, tries, count, seed):
    expected = answers(model)
    for _ in flipped(folder, count, seed):
        unharmed(folder, expected, tries)
    assert same(answers(load(folder)), expected)


def test_changed_bytes(folder, model, tries):
    damage_bytes(folder, model, tries, 12, 0)


@pytest.mark.attack
def test_changed_bytes_at_length(folder, model, tries):
    damage_bytes(folder, model, tries, 80, 1)


def test_changed_fields_do_not_match_the_hash(folder, model, tries):
    """Each field as bit rot, an editor or a merge of two copies might leave it."""
    expected, path = answers(model), folder / "state.json"
    content, draws = json.loads(path.read_text()), random.Random(2)
    for place in leaves(content):
        if place:
            path.write_text(json.dumps(with_value(content, place, draws.choice(NASTY))))
            unharmed(folder, expected, tries)
    path.write_text(json.dumps({**content, "format": 2}))  # a hash that is there counts
    unharmed(folder, expected, tries)
    path.write_text(json.dumps({key: content[key] for key in ("format", "parts", "meta")}))
    with pytest.raises(LcaError, match="does not match the hash in it"):
        load(folder)


def strange_fields(folder, tries, every, per_field, seal):
    content, draws = json.loads((folder / "state.json").read_text()), random.Random(3)
    original = (folder / "state.json").read_bytes()
    places = [place for place in leaves(content) if place and place[0] == "meta"]
    for place in places[::every]:
        for value in draws.sample(NASTY, per_field):
            reseal(folder, lambda old, place=place, value=value: with_value(old, place, value), seal)
            finite(folder, tries)
            (folder / "state.json").write_bytes(original)


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "old format"])
def test_fields_that_a_stranger_wrote(folder, tries, seal):
    strange_fields(folder, tries, 4, 1, seal)


@pytest.mark.attack
@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "old format"])
def test_fields_that_a_stranger_wrote_at_length(folder, tries, seal):
    strange_fields(folder, tries, 1, 6, seal)


def strange_tensors(folder, tries, rounds):
    state, draws = load_state(folder), random.Random(4)
    for _ in range(rounds):
        for part, tensors in state.parts.items():
            for name in tensors:
                changed = {**tensors, name: swapped(tensors[name], draws)}
                if draws.random() < 0.2:
                    del changed[name]
                save_state(folder, type(state)(state.parts | {part: changed}, state.meta))
                finite(folder, tries)


def test_tensors_that_a_stranger_wrote(folder, tries):
    strange_tensors(folder, tries, 1)


@pytest.mark.attack
def test_tensors_that_a_stranger_wrote_at_length(folder, tries):
    strange_tensors(folder, tries, 12)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("meta", "temperatures", "lda"), -1.5, "temperatures.lda"),
        (("meta", "temperatures", "lda"), 1e999, "temperatures.lda|not valid JSON|number of JSON"),
        (("meta", "classes"), ["a"] * 4, "a class is named twice"),
        (("meta", "classes"), ["0", "2", "3"], "no finite numbers for each of 3 classes"),
        (("meta", "tasks"), 10**7, "tasks"),
        (("meta", "preprocessing", "size"), 10**6, "preprocessing.size"),
        (("meta", "preprocessing", "std"), [0.0, 1.0, 1.0], "standard deviation"),
        (("meta", "history", 0, "right"), 7, "no more may be right than were held out"),
        (("meta", "recipe", "tuning", "rank"), 10**9, "tuning.rank is 1000000000; at most 4096"),
        (("meta", "recipe", "method", "align"), ["none"] * 5000, "too many entries"),
        (("meta", "method", "heads", "heads", 0, "classes"), 10**12, "head 0 has 2 rows for 1000000000000 classes"),
        (("meta", "method", "gaussians/lca", "counts", "0"), -4, "whole number of at least 1"),
        (("meta", "view", "centre_crop"), 0, "centre_crop"),
    ],
)
def test_what_is_wrong_is_named(folder, place, value, message):
    reseal(folder, lambda content: with_value(content, place, value))
    with pytest.raises(LcaError, match=message):
        load(folder)


def test_a_loaded_model_owns_its_tensors(folder, model):
    """Files that are cut off or overwritten afterwards change nothing; a memory map would end the process."""
    loaded = load(folder)
    for path in folder.iterdir():
        with path.open("r+b") as file:
            file.write(os.urandom(path.stat().st_size))
            file.truncate(1)
    assert same(answers(loaded), answers(model))
    loaded.save(folder.parent / "again")
    assert same(answers(load(folder.parent / "again")), answers(model))


def test_files_that_are_too_large_are_not_read(folder):
    part = next(iter(read_manifest(folder)[0].values()))
    for path, message in ((part, "bytes, and more than"), (folder / "state.json", "bytes, and more than")):
        content = path.read_bytes()
        os.truncate(path, 2**40)  # takes no room on the disk
        with pytest.raises(LcaError, match=message):
            load(folder)
        path.write_bytes(content)
    load(folder)
