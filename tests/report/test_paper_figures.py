"""The figures of docs/paper.md."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

DOCS = Path(__file__).parent.parent.parent / "docs"
SPECIFICATION = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
figures = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(figures)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    figures.main(folder)
    return folder


def test_the_committed_figures_are_those_that_are_drawn(drawn):
    """From the same pack and of the same size; other releases of matplotlib differ in the pixels."""
    committed = sorted(path.name for path in (DOCS / "images").glob("paper-*.png"))
    assert committed == sorted(path.name for path in drawn.iterdir()), "python docs/figures.py draws them"
    for name in committed:
        with Image.open(DOCS / "images" / name) as old, Image.open(drawn / name) as new:
            same = (old.size, old.text["Source"]) == (new.size, new.text["Source"])
            assert same, f"python docs/figures.py draws {name} anew"
        assert (DOCS / "images" / name).stat().st_size < 100_000


def test_the_paper_page_shows_them_all_and_names_their_classifiers():
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(images/(paper-[^)]+)\)", text)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").glob("paper-*.png"))
    commands = re.findall(r"lca report results/(\S+)\.json ((?:\\\n|.)*)", text)
    asked = [(pack, tuple(a or b for a, b in re.findall(r"--only (?:'([^']+)'|(\S+))", end))) for pack, end in commands]
    assert asked == [(pack, only) for pack, chosen in figures.FIGURES.items() for only in chosen]
