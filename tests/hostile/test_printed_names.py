"""Names of classes and files that carry commands: no output takes them for anything but text."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from lca.card import facts_of, model_card
from lca.files import read_manifest
from lca.text import csv_text, json_text, markdown_text, terminal_lines, terminal_text

FORGED = [
    "\x1b[2J\x1b]0;x\x07cat",
    "cat\nerror: all is lost",
    "\x9b31mred",
    "\u202egpj.exe",
    '=HYPERLINK("x")',
    "a|b<i>`",
]


@pytest.fixture
def forged(model, tmp_path):
    """A model whose classes have such names."""
    other = tiny.classifier(model.recipe)
    other.load_state(model.state())
    names = dict(zip(other.classes, FORGED, strict=False))
    other.classes = [names[name] for name in other.classes]
    other.save(tmp_path / "forged")
    return tmp_path / "forged"


def plain(text):
    assert not set(text) & ({chr(code) for code in (*range(32), *range(127, 160), 0x202E)} - {"\n"})
    return text


def test_no_output_obeys_a_name(forged, tmp_path):
    image = tmp_path / "\x1b[31m=photo.png"
    from PIL import Image

    Image.new("RGB", (16, 16), "red").save(image, format="PNG")
    with tiny.tiny_backbone():
        outputs = [tiny.lca_command("predict", forged, image, *words)[0] for words in ([], ["--csv"], ["--json"])]
    told = [*outputs, tiny.lca_command("info", forged)[0], tiny.lca_command("info", forged, "--json")[0]]
    for text in told:
        assert not any(line.startswith("error:") for line in plain(text).splitlines())
    assert len(outputs[0].splitlines()) == 1
    assert {each["label"] for each in json.loads(outputs[2])[0]["top"]} <= set(FORGED)  # JSON holds the very names
    for row in csv.reader(io.StringIO(outputs[1])):
        assert not any(cell[:1] in set("=+-@") for cell in row)


def test_the_card_shows_names_as_they_are(forged):
    files, meta = read_manifest(forged)
    card = plain(model_card(facts_of(meta, dict.fromkeys(files, 1), False)))
    assert "error: all is lost" not in [line.strip("| ") for line in card.splitlines()]


@given(st.text())
def test_texts_are_safe_for_their_outputs(text):
    assert "\n" not in plain(terminal_text(text))
    assert plain(terminal_lines(text)).count("\n") == text.count("\n")
    assert json.loads(plain(json_text({text: [text]}))) == {text: [text]}
    assert csv_text(text)[:1] not in set("=+-@\t\r") or not text
    assert "\n" not in plain(markdown_text(text))
    assert "<" not in markdown_text(text)


def test_numbers_that_are_not_finite_are_no_json():
    with pytest.raises(ValueError, match="Out of range"):
        json_text({"probability": float("nan")})
