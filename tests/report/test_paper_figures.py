"""The figures of docs/paper.md."""

import importlib.util
import re
from hashlib import sha256
from pathlib import Path

import pytest
from PIL import Image

DOCS = Path(__file__).parent.parent.parent / "docs"
SPECIFICATION = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
figures = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(figures)


def names(folder):
    return sorted(path.name for path in folder.glob("paper-*.png"))


def test_the_committed_figures_are_of_the_packs_as_they_are():
    asked = [
        (pack, figures.image(pack, name))
        for pack, chosen in figures.FIGURES.items()
        for each in chosen.values()
        for name in each
    ]
    assert sorted(name for _, name in asked) == names(DOCS / "images"), "python docs/figures.py draws them"
    for pack, name in asked:
        source = sha256(figures.path(pack).read_bytes()).hexdigest()
        with Image.open(DOCS / "images" / name) as committed:
            assert committed.text["Source"] == source, f"python docs/figures.py draws {name} anew"
        assert (DOCS / "images" / name).stat().st_size < 100_000


@pytest.mark.slow
def test_the_committed_figures_are_those_that_are_drawn(tmp_path):
    """Of the same size; other releases of matplotlib differ in the pixels."""
    figures.main(tmp_path)
    assert names(DOCS / "images") == names(tmp_path)
    for name in names(tmp_path):
        with Image.open(DOCS / "images" / name) as committed, Image.open(tmp_path / name) as drawn:
            assert committed.size == drawn.size, name


def test_the_paper_page_shows_them_all_and_names_their_classifiers():
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(images/(paper-[^)]+)\)", text)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").glob("paper-*.png"))
    commands = re.findall(r"lca report results/(\S+)\.json ((?:\\\n|.)*)", text)
    asked = [(pack, tuple(a or b for a, b in re.findall(r"--only (?:'([^']+)'|(\S+))", end))) for pack, end in commands]
    assert asked == [(pack, only) for pack, chosen in figures.FIGURES.items() for only in chosen]
