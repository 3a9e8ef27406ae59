"""The pictures of the documents are those that would be drawn now."""

import importlib
import re
from hashlib import sha256
from pathlib import Path

import pytest
from PIL import Image

from lca.files import read_json
from lca.report import page
from lca.report.drawing import signature
from paper import figures

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
ASKED = "python paper/figures.py draws it anew"


EVERY = [(pack, only) for pack, chosen in figures.FIGURES.items() for only in chosen]
OF_EVERY_KIND = [("compare-mini", figures.PUBLISHED), ("paper-merge-coefficient", ()), ("paper-robustness", ())]
"""Curves; lines over a number; bars and radars."""


def text_of(path):
    with Image.open(path) as picture:
        return picture.text


def names(folder):
    return sorted(path.name for kind in ("paper", "diagnosis") for path in folder.glob(f"{kind}-*.png"))


def test_the_committed_figures_are_of_the_packs_as_they_are():
    asked = {figures.image(pack, only, name): pack for pack, only in EVERY for name in figures.FIGURES[pack][only]}
    asked |= {f"diagnosis-{data}.png": "diagnosis-mini" for data in ("cifar100-mini", "vtab-mini")}
    assert sorted(asked) == names(IMAGES), "python paper/figures.py draws them"
    for name, pack in asked.items():
        assert text_of(IMAGES / name)["Source"] == sha256(figures.path(pack).read_bytes()).hexdigest(), (
            f"{name}: {ASKED}"
        )
        assert (IMAGES / name).stat().st_size < 100_000


@pytest.mark.parametrize(
    ("pack", "only"),
    [pytest.param(*each, marks=[] if each in OF_EVERY_KIND else pytest.mark.slow) for each in EVERY],
    ids=[f"{pack} {only[0]}" if only else pack for pack, only in EVERY],
)
def test_the_committed_figures_are_drawn_as_they_would_be_now(pack, only, monkeypatch):
    monkeypatch.setattr(page.drawing, "inline_svg", lambda figure, name: "")  # half of the time
    drawn = figures.drawn(pack, only)
    for name in figures.FIGURES[pack][only]:
        assert text_of(IMAGES / figures.image(pack, only, name))["Signature"] == signature(drawn[name]), (
            f"{name}: {ASKED}"
        )


def test_the_diagnosis_is_drawn_as_it_would_be_now(tmp_path):
    figures.diagnosis(tmp_path)
    assert [*map(text_of, sorted(tmp_path.iterdir()))] == [*map(text_of, sorted(IMAGES.glob("diagnosis-*.png")))], ASKED


def test_growth_is_drawn_as_it_would_be_now(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    results = ROOT / "benchmarks" / "results" / "growth-h200.json"
    importlib.import_module("growth").plot(read_json(results), tmp_path)
    drawn, committed = (
        {path.name: text_of(path)["Signature"] for path in folder.glob("growth-*.png")} for folder in (tmp_path, IMAGES)
    )
    assert drawn == committed, f"python benchmarks/growth.py --plot {results.relative_to(ROOT)} draws them anew"


def test_the_paper_page_shows_them_all_and_names_their_classifiers():
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(images/(paper-[^)]+)\)", text)
    assert sorted(shown) == sorted(path.name for path in IMAGES.glob("paper-*.png"))
    commands = re.findall(r"lca report results/(\S+)\.json ((?:\\\n|.)*--figures(?:\\\n|.)*)", text)
    asked = [(pack, tuple(a or b for a, b in re.findall(r"--only (?:'([^']+)'|(\S+))", end))) for pack, end in commands]
    assert asked == EVERY
