"""A classifier looks the same in all pictures of a report."""

import pytest
from matplotlib.colors import to_hex
from PIL import Image

from lca.report.drawing import PALETTE
from lca.report.looks import looks_of
from lca.report.page import Report
from lca.report.terminal import present
from lca.results.classifiers import classifiers
from lca.results.reading import Run, collect
from packs import damage, made, packed


def cell(label, rights, source="one", **more):
    """A label with branches that are right for so many of ten images of every class."""
    return label, made({branch: [[n, n], [n] * 4] for branch, n in rights.items()}, source=source, **more)


@pytest.fixture
def drawn(tmp_path):
    def draw(*cells, only=(), detail=0):
        report = Report("title", 10, detail=detail, only=only)
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
    """Colours by the names beside the bars, which have no legend."""
    assert not figure.legends
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


def test_a_classifier_has_one_colour_in_all_pictures(drawn):
    """Methods with several alignments, too: bars, curves, differences, and what is shown in detail."""
    branches = {"none": 3, "best": 8, "lca": 6, "ca": 5}
    cells = cell("IM", branches), cell("MOS", {"mos": 7, "lca": 4}, method="mos")
    both = drawn(*cells, detail=2)
    order = ["IM best", "MOS mos", "IM lca", "IM ca", "MOS lca", "IM none"]
    expected = dict(zip(order, PALETTE, strict=False))
    assert bars(both["one-bars"]) == expected
    for name in ("one-curves", "one-running-means"):
        assert {label: colour for label, (colour, *_) in curves(both[name]).items()} == expected
    forest = both["one-minus-IM-best"].axes[0]
    points = [to_hex(line.get_color()).upper() for line in forest.lines[1:]]
    assert points == [expected[text.get_text()] for text in forest.get_yticklabels()]
    for label in ("IM best", "MOS mos"):
        last = both[f"one-{label.replace(' ', '-')}-tasks"].axes[0].collections[-1]
        assert to_hex(last.get_facecolor()[0]).upper() == expected[label]


def test_more_classifiers_than_colours_differ_in_marker_and_line(drawn):
    figures = drawn(cell("IM", {str(number): 9 - number for number in range(9)}))
    assert len({*bars(figures["one-bars"]).values()}) == len(PALETTE)
    looks = looks_of({"one": classifiers_of("IM", 9)}).labels
    assert len({tuple(look.curve.values()) for look in looks.values()}) == 9


def classifiers_of(label, count):
    run = Run(label, made({str(number): [[9 - number] * 2, [9 - number] * 4] for number in range(count)}))
    return classifiers([run])["digits"]


def test_what_depends_on_a_number_has_one_colour_a_line(drawn):
    numbers = [cell(f"IM α={n}", {"lca": 4 + n, "none": 3 - n}) for n in range(3)]
    figures = drawn(*numbers, cell("plain", {"none": 2, "twice": 1}))
    axes = figures["one-over-α"].axes[0]
    lines = {line.get_label(): line.lines[0].get_color() for line in axes.containers if line.get_label()[0] != "_"}
    lines |= {label: colour for label, (colour, *_) in curves(axes.figure).items()}
    assert lines == {
        "IM α lca": PALETTE[0],
        "IM α none": PALETTE[1],
        "plain none": PALETTE[2],
        "plain twice": PALETTE[3],
    }
    assert {label: colour for label, (colour, *_) in curves(figures["one-curves"]).items()} == {
        "IM α=2 lca": PALETTE[0],
        "IM α=0 none": PALETTE[1],
        "plain none": PALETTE[2],
        "plain twice": PALETTE[3],
    }


def test_a_radar_has_the_colours_of_its_classifiers(drawn):
    label, results = cell("IM", {"none": 3, "lca": 6})
    figures = drawn((label, results, [damage("none", 50.0), damage("lca", 90.0)]), detail=2)
    (radar,) = [figure for name, figure in figures.items() if name.endswith("-corruptions")]
    expected = {"IM lca": PALETTE[0], "IM none": PALETTE[1]}
    assert {label: colour for label, (colour, *_) in curves(radar).items()} == expected
    assert {name.get_color() for name in radar.axes[0].get_xticklabels()} == {PALETTE[0]}
    (alone,) = [figure for name, figure in figures.items() if "IM-none-robustness" in name]
    assert [colour for colour, *_ in curves(alone).values()] == [PALETTE[1]]


def test_a_run_is_drawn_in_the_colours_of_its_page(drawn, tmp_path, capsys):
    label, results = cell("IM", {"none": 3, "lca": 6})
    present([Run(label, results)], tmp_path, "title")
    with Image.open(tmp_path / "accuracy.png") as image:
        found = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 24)}
    assert {to_rgb_bytes(PALETTE[0]), to_rgb_bytes(PALETTE[1])} <= found
    looks = looks_of(classifiers([Run(label, results)])).labels
    assert {name: look.colour for name, look in looks.items()} == {"IM lca": PALETTE[0], "IM none": PALETTE[1]}
    page = curves(drawn((label, results))["one-curves"])
    assert {name: colour for name, (colour, *_) in page.items()} == {name: look.colour for name, look in looks.items()}


def to_rgb_bytes(colour):
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
