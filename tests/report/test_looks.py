"""A classifier looks the same in all pictures of a report."""

import pytest
from matplotlib.colors import to_hex

from lca.report.drawing import PALETTE
from lca.report.looks import ALIGNMENTS
from lca.report.page import Report
from lca.results.reading import collect
from packs import damage, made, packed

COLOURS = dict(zip(ALIGNMENTS, PALETTE, strict=False))


def cell(label, rights, source="one", **more):
    """A label with branches that are right for so many of ten images of every class."""
    return label, made({branch: [[n, n], [n] * 4] for branch, n in rights.items()}, source=source, **more)


@pytest.fixture
def drawn(tmp_path):
    def draw(*cells, only=()):
        report = Report("title", 10, detail=0, only=only)
        report.page(collect([packed(tmp_path / "p.json", *cells)]))
        return report.figures

    return draw


def curves(figure):
    """Colour, marker and kind of line by label."""
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    return {
        line.get_label(): (to_hex(line.get_color()).upper(), line.get_marker(), line.get_linestyle()) for line in lines
    }


def bars(figure):
    """Colours by what the legend calls them, or else by the label beside the bar."""
    if figure.legends:
        texts, patches = figure.legends[0].get_texts(), figure.legends[0].get_patches()
    else:
        texts, patches = figure.axes[0].get_yticklabels(), figure.axes[0].patches
    return {text.get_text(): to_hex(patch.get_facecolor()).upper() for text, patch in zip(texts, patches, strict=True)}


def test_a_method_has_one_colour_on_all_data_sets(drawn):
    rights = {
        "one": dict(zip("abcdef", (9, 8, 7, 6, 5, 4), strict=True)),
        "two": dict(zip("abcdef", range(6), strict=True)),
    }
    figures = drawn(
        *(cell(label, {"default": n}, source) for source, each in rights.items() for label, n in each.items())
    )
    one, two = curves(figures["one-curves"]), curves(figures["two-curves"])
    assert one == two == curves(figures["one-running-means"])
    assert len(set(one.values())) == 6
    assert [*one] == [*two] == ["a", "b", "c", "d", "e", "f"], "by the mean over data sets: 4.5 all, as they came"


def test_the_order_is_the_one_asked_for_or_else_the_rank_over_all_data_sets(drawn):
    cells = [
        cell(label, {"default": n}, source)
        for source in ("one", "two")
        for label, n in zip("abcdef", range(3, 9), strict=True)
    ]
    assert [*curves(drawn(*cells)["one-curves"])] == ["f", "e", "d", "c", "b", "a"]
    asked = curves(drawn(*cells, only=("c", "f", "a", "b", "d"))["two-curves"])
    assert [*asked] == ["c", "f", "a", "b", "d"]
    assert [colour for colour, *_ in asked.values()] == [*PALETTE[:5]]


def test_the_same_eight_have_names_on_all_data_sets(drawn):
    rights = {"one": range(10), "two": reversed(range(9))}
    figures = drawn(
        *(cell(str(place), {"default": n}, source) for source, each in rights.items() for place, n in enumerate(each))
    )
    one, two = curves(figures["one-curves"]), curves(figures["two-curves"])
    assert len(one) == 8
    assert one == two
    assert "9" not in one, "it was run on one of them only"


def test_alignments_have_their_colours_in_all_pictures_of_all_reports(drawn):
    branches = {"none": 3, "best": 8, "lca": 6, "ca": 5}
    both = drawn(cell("IM", branches), cell("MOS", {"mos": 7, "lca": 4}, method="mos"))
    assert bars(both["one-bars"]) == COLOURS
    alone = drawn(cell("IM", branches), cell("MOS", {"mos": 7, "lca": 4}, method="mos"), only=["IM"])
    named = {f"IM {branch}": COLOURS[branch] for branch in branches}
    assert bars(alone["one-bars"]) == named, "the labels of the bars name them: no legend"
    assert not alone["one-bars"].legends
    for figure, ours in ((both, {**named, "MOS mos": COLOURS["its own"], "MOS lca": COLOURS["lca"]}), (alone, named)):
        assert {label: colour for label, (colour, *_) in curves(figure["one-curves"]).items()} == ours
    looks = curves(both["one-curves"])
    assert looks["IM lca"][1:] != looks["MOS lca"][1:], "methods differ in marker and line"


def test_no_other_alignment_has_their_colours(drawn):
    others = ["all heads", "oldest half", "newest half", "random half"]
    figures = drawn(cell("IM", {"none": 3, **dict.fromkeys(others, 5)}))
    assert bars(figures["one-bars"])["IM none"] == COLOURS["none"]
    looks = curves(figures["one-curves"])
    assert {looks[f"IM {name}"][0] for name in others} == {*PALETTE[5:]}
    assert len({*looks.values()}) == 5, "the fourth has another marker and line"


def test_what_depends_on_a_number_has_the_colour_of_its_alignment(drawn):
    numbers = [cell(f"IM α={n}", {"lca": 4 + n, "none": 3 - n}) for n in range(3)]
    figures = drawn(*numbers, cell("plain", {"none": 2, "twice": 1}))
    axes = figures["one-over-α"].axes[0]
    lines = {line.get_label(): line.lines[0].get_color() for line in axes.containers if line.get_label()[0] != "_"}
    lines |= {label: colour for label, (colour, *_) in curves(axes.figure).items()}
    assert lines == {
        "IM α lca": COLOURS["lca"],
        "IM α none": COLOURS["none"],
        "plain none": COLOURS["none"],
        "plain twice": PALETTE[5],
    }
    assert {label: colour for label, (colour, *_) in curves(figures["one-curves"]).items()} == {
        "IM α=2 lca": COLOURS["lca"],
        "IM α=0 none": COLOURS["none"],
        "plain none": COLOURS["none"],
        "plain twice": PALETTE[5],
    }


def test_a_radar_has_the_colours_of_its_classifiers(drawn):
    label, results = cell("IM", {"none": 3, "lca": 6})
    figures = drawn((label, results, [damage("none", 50.0), damage("lca", 90.0)]))
    (radar,) = [figure for name, figure in figures.items() if name.endswith("-corruptions")]
    assert {label: colour for label, (colour, *_) in curves(radar).items()} == {
        "IM lca": COLOURS["lca"],
        "IM none": COLOURS["none"],
    }
    assert {name.get_color() for name in radar.axes[0].get_xticklabels()} == {COLOURS["lca"]}
