"""The card of a model, read back as Markdown."""

import re
from dataclasses import asdict
from importlib.metadata import version

import pytest

import tiny
from lca.card import facts_of, model_card
from lca.classifier import ContinualClassifier
from lca.files import read_json
from lca.history import Improvement

NASTY = [
    "plain",
    "a|b",
    "two\nlines",
    "<script>alert(1)</script>",
    "back\\|slash",
    "ends in \\",
    "&lt;",
    "# heading",
    "`code|span`",
    "![image](https://example.org/a.png)",
    "---",
    "  spaces  ",
    "ÄÖ 猫",
]


def meta(classes, history=(), **more):
    return {
        "recipe": {
            "method": {"name": "im"},
            "tuning": {"name": "lora"},
            "seed": 3,
            "backbone": {"name": "vit_x.y", "weights": None},
        },
        "history": list(history),
        "classes": list(classes),
        "temperatures": {},
        "backbone": "ab" * 32,
        "preprocessing": {"size": 224},
        "licence": "Apache\n2.0",
        "versions": {"torch": "9.9", "lca": "1.2"},
        **more,
    }


def lesson(kind, new, images=None, **more):
    empty = {
        "when": None,
        "held_out": 0,
        "right": 0,
        "called_unknown": 0,
        "left_out": 0,
        "seconds": None,
        "calibration_error": None,
    }
    return {**empty, "kind": kind, "new": list(new), "images": images or {}, **more}


def tables(card):
    """Cells of every table, as GitHub's Markdown splits them: a pipe separates unless a backslash escapes it."""
    found, current = [], []
    for line in [*card.splitlines(), ""]:
        if line.startswith("|"):
            current.append([cell.strip() for cell in re.findall(r"((?:\\.|[^|\\])*)\|", line[1:])])
        elif current:
            found.append(current)
            current = []
    return found


def text(cell):
    """What a cell shows."""
    cell = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell)
    return cell.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_no_class_name_breaks_a_table():
    images = dict.fromkeys(NASTY, 2)
    history = [lesson("learn", NASTY[:5], dict.fromkeys(NASTY[:5], 2)), lesson("forget", ["a|b\n<i>"])]
    card = model_card(facts_of(meta(NASTY, [*history, lesson("learn", NASTY, images)]), {"heads|x": 5}, False))
    found = tables(card)
    assert [len(table) - 2 for table in found] == [len(NASTY), 3, 1, 5]
    for table in found:
        assert {len(row) for row in table} == {len(table[0])}, table
    assert [text(row[0]) for row in found[0][2:]] == [" ".join(name.split()) for name in NASTY]
    assert not re.search(r"<\w", card), "HTML"
    assert card.count("\n# ") == 1


def test_images_are_counted_over_lessons_and_a_forgotten_class_starts_anew():
    history = [
        lesson("learn", ["a", "b"], {"a": 3, "b": 4}, held_out=10, right=9, called_unknown=1, calibration_error=3.0),
        lesson(
            "learn",
            ["c"],
            {"a": 2, "c": 5},
            held_out=4,
            right=1,
            called_unknown=1,
            calibration_error=7.25,
            seconds=1.5,
            effort="instant",
            improvement=asdict(Improvement(False, "held out", 25.0, 0.0)),
        ),
        lesson("forget", ["a"]),
        lesson(
            "learn",
            ["a"],
            {"a": 7},
            effort="thorough",
            improvement=asdict(Improvement(True, "left one out", 60.0, 75.0, 91.25, 90.86, 0.9, 3.0)),
        ),
    ]
    facts = facts_of(meta(["b", "c", "a"], history), {}, True)
    assert facts["classes"] == {"b": 4, "c": 5, "a": 7}
    assert (facts["held_out"], facts["last_accuracy"]) == (14, 25)
    assert facts["held_out_called_unknown"] == pytest.approx(200 / 14)
    rows = tables(model_card(facts))[1][2:]
    assert [row[1] for row in rows] == ["2 new: a, b", "1 new: c; 1 known", "forgot a", "1 new: a"]
    assert [row[2:] for row in rows] == [
        ["7", "10", "90.0 % (60 to 98)", "", "0", ""],
        ["7", "4", "25.0 % (5 to 70)", "instant (training: 25.0 to 0.0 %)", "0", "1.5"],
        ["", "", "", "", "", ""],
        ["7", "0", "not measured", "thorough (training: 60.0 to 75.0 %, known classes 91.2 to 90.9 %)", "0", ""],
    ]
    assert "the calibration error was 7.2 %" in model_card(facts)


def test_an_empty_and_an_unmeasured_model_have_a_card():
    card = model_card(facts_of(meta([]), {}, False))
    assert "It knows 0 classes, learnt in 0 step(s)" in card
    assert "the probabilities are not calibrated" in card
    assert "The backbone: Apache 2.0" in card
    assert "It knows 1 class," in model_card(facts_of(meta(["a"]), {}, False))


def test_the_card_of_a_saved_model(tmp_path):
    model = tiny.classifier(tiny.recipe(method={"align": ["none", tiny.branch("a")]}))
    model.learn(tiny.images({"3": 20, "7": 12}))
    model.learn(tiny.images({"1": 8, "3": 8}, skip=30))
    model.save(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    classes, history, costs, origin = tables(card)
    assert classes[2:] == [["3", "25"], ["7", "11"], ["1", "7"]]
    for row, entry in zip(history[2:], model.history, strict=True):
        expected = [entry.when, sum(entry.images.values()), entry.held_out, 0, entry.seconds]
        assert [row[0], *row[2:4], *row[6:]] == [str(each) for each in expected]
        assert row[5].startswith(entry.effort)
        assert row[4].startswith(f"{entry.accuracy:.1f} % (")
    assert {row[0]: int(row[1].replace(",", "")) for row in costs[2:]} == model.memory()
    assert f"{sum(model.memory().values()):,} bytes" in card
    facts = {row[0]: row[1] for row in origin[2:]}
    assert facts["SHA-256 of the weights"] == f"`{model.backbone.fingerprint}`"
    assert f"torch {version('torch')}" in facts["versions"]
    assert "not in this folder" in facts["backbone"]
    for branch, temperature in model.temperatures.items():
        assert f"{branch} {temperature:.2f}" in card
    held_out = sum(entry.held_out for entry in model.history)
    unknown = 100 * sum(entry.called_unknown for entry in model.history) / held_out
    assert f"({held_out} over all steps)" in card
    assert f"calibration error was {model.history[-1].calibration_error:.1f} %" in card
    assert f"Of all of them {unknown:.1f} %" in card
    model.bundle = True
    model.forget("7")
    model.save(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "carried in this folder" in card
    assert "forgot 7" in card
    assert [row[0] for row in tables(card)[0][2:]] == ["3", "1"]
    parts = read_json(tmp_path / "state.json")["parts"]
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "README.md", *parts.values()}


def test_a_model_whose_class_names_are_nasty_is_saved_and_loaded(tmp_path):
    from lca.data.images import ImageSet

    digits = tiny.images(dict.fromkeys("0123456789", 3))
    named = ImageSet(digits.pixels, digits.labels, tuple(NASTY[:10]))
    model = tiny.classifier(tiny.recipe(method="finetune"))
    model.learn(named)
    model.save(tmp_path)
    with tiny.tiny_backbone():
        assert ContinualClassifier.load(tmp_path).classes == NASTY[:10]
    assert len(tables((tmp_path / "README.md").read_text(encoding="utf-8"))[0]) == 12
