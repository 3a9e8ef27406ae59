import pytest
from PIL import Image

from lca.report.drawing import PALETTE, Look, file_name, save, signature, titled
from lca.report.figures import (
    accuracy_curves,
    drift_curves,
    forest,
    forgetting_by_task,
    grouped_bars,
    heat_map,
    named_curves,
    over_numbers,
    reliability_diagram,
)
from lca.report.radars import radar
from lca.results.classifiers import Measured
from packs import results, rows_of


def colours(path):
    with Image.open(path) as image:
        image.verify()
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.size, {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 24)}


def test_the_curves_are_a_valid_image_with_a_colour_each(tmp_path):
    rows = rows_of([("a", results({"none": [90.0, 40.0, 20.0], "lca": [90.0, 80.0, 70.0]}))])
    looks = {"a none": Look(0), "a lca": Look(1)}
    accuracy_curves(rows, looks, tmp_path / "new" / "accuracy.png", "title")
    size, found = colours(tmp_path / "new" / "accuracy.png")
    assert size == (1050, 630)
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= found
    assert (0x00, 0x9E, 0x73) not in found
    accuracy_curves(rows, {**looks, "a lca": Look(2)}, tmp_path / "other.png", "title")
    assert (0x00, 0x9E, 0x73) in colours(tmp_path / "other.png")[1], "as the page has it"


def test_more_curves_than_colours(tmp_path):
    """The legend then stands beside the plot, which grows with it."""
    for count, size in ((10, (1050, 630)), (12, (1650, 630)), (40, (1650, 1200))):
        many = {f"branch {number}": [50.0 + number, 40.0] for number in range(count)}
        looks = {name: Look.of(number) for number, name in enumerate(many)}
        accuracy_curves(rows_of([("", results(many))]), looks, tmp_path / "a.png", "")
        assert colours(tmp_path / "a.png")[0] == size


def test_a_radar_of_two_says_how_much_the_first_is_better():
    ours, theirs = {"fog": 60.0, "zoom_blur": 40.0, "snow": 0.0}, {"fog": 50.0, "zoom_blur": 50.0, "snow": 0.0}
    (axes,) = radar({"a": ours, "b": theirs}, relative=True).axes
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["fog\n+20.0 %", "zoom blur\n-20.0 %", "snow\n–"]
    assert [label.get_color() for label in labels] == [PALETTE[0], PALETTE[1], "black"]
    assert axes.figure.legends[0].get_title().get_text() == "a relative to b"
    (between,) = axes.patches
    assert len(between.get_xy()) >= 2 * 3 + 2
    (plain,) = radar({"a": ours, "b": theirs}).axes
    assert [label.get_text() for label in plain.get_xticklabels()] == ["fog", "zoom blur", "snow"]
    assert plain.get_ylim() == (0, 100)


def test_bars_of_more_classifiers_than_colours_are_hatched_and_have_names():
    bars = {label: {f"kind {n}": (50.0 + n, 1.0) for n in range(10)} for label in ("a", "b")}
    figure = grouped_bars({"one": bars, "two": bars}, "%", {f"kind {n}": Look.of(n) for n in range(10)})
    looks = [(patch.get_facecolor(), patch.get_hatch()) for patch in figure.axes[0].patches]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [f"kind {n}" for n in range(10)] * 2
    assert not figure.legends, "names stand beside the bars"
    middles = [patch.get_y() + patch.get_height() / 2 for patch in figure.axes[0].patches]
    assert [*figure.axes[0].get_yticks()] == pytest.approx(middles)
    assert len({colour for colour, _ in looks}) == len(PALETTE)
    assert len(set(looks)) == 10
    assert len(figure.axes[0].patches) == 20


def test_rings_of_a_radar_are_few_and_end_behind_the_lines():
    for low, high, rings in ((22.0, 28.0, [20, 30]), (31.0, 68.0, [40, 60]), (5.0, 99.0, [20, 40, 60, 80, 100])):
        lines = {"a": {"fog": low, "snow": high, "frost": high}, "b": {"fog": high, "snow": low, "frost": low}}
        (axes,) = radar(lines, relative=True).axes
        assert [*axes.get_yticks()] == rings
        assert axes.get_ylim()[0] <= low
        assert high <= axes.get_ylim()[1]


def test_rings_are_labelled_where_no_line_runs():
    line = dict(zip(("fog", "snow", "frost", "zoom_blur"), (41.0, 49.0, 45.0, 45.0), strict=True))
    (axes,) = radar({"a": line, "b": line}, relative=True).axes
    assert [*axes.get_yticks()] == [40, 50]
    assert axes.get_rlabel_position() == pytest.approx(90 * 2.5), (
        "between frost and zoom blur, midway between two rings"
    )


def test_a_figure_to_stand_alone_has_room_for_its_title():
    figure = grouped_bars({"one": {"a": {"x": (50.0, None)}}}, "%", {"x": Look(0)})
    before = figure.get_figheight()
    titled(figure, "a title " * 20)
    assert "\n" in figure.get_suptitle()
    assert figure.get_figheight() > before + 0.2


def test_names_of_files():
    assert file_name("vtab-mini", "IM λ=0.1", "relative to", "<b>/..") == "vtab-mini-IM-λ-0-1-relative-to-b"


BLUE, RED = Look(0), Look(1)
BIN = {"low": 0.0, "high": 50.0, "images": 5, "mean_probability": 40.0}


def kinds(value=60.0, word="a", look=BLUE):
    """One of every kind of figure, all showing a value, a word and a look."""
    point = (value, 1.0)
    return {
        "bars": grouped_bars({"one": {"x": {word: point}}}, "%", {word: look}),
        "curves": named_curves({word: [[90.0, value], [80.0, 70.0]]}, "%", {word: look}),
        "numbers": over_numbers(
            {"one": ({word: {0.1: point, 1.0: (2.0, None)}}, {"b": point})}, "x", {word: look, "b": RED}
        ),
        "radar": radar({word: {"fog": value, "snow": 1.0, "frost": 2.0}}, word, looks={word: look}),
        "forest": forest({word: Measured([value], (0.0, 1.0))}, {word: look}),
        "heat map": heat_map([[90.0], [value, 70.0]]),
        "tasks": forgetting_by_task([[90.0], [value, 70.0]], look.colour),
        "drift": drift_curves([[1.0, value], [1.0]], look.colour),
        "reliability": reliability_diagram([{**BIN, "accuracy": value}], look.colour),
    }


def test_a_signature_tells_what_is_drawn(tmp_path):
    first, again = ({kind: signature(figure) for kind, figure in kinds().items()} for _ in range(2))
    assert first == again
    named = {"bars", "curves", "numbers", "radar", "forest"}
    for changed, which in (
        (kinds(value=60.1), {*first}),
        (kinds(look=RED), {*first} - {"heat map"}),
        (kinds(word="c"), named),
    ):
        assert {kind for kind, figure in changed.items() if signature(figure) != first[kind]} == which
    for kind, figure in kinds().items():
        save(figure, tmp_path / "drawn.png", dpi=30)
        assert signature(figure) == first[kind], f"{kind}: drawing changes nothing"
        with Image.open(tmp_path / "drawn.png") as picture:
            assert picture.text["Signature"] == first[kind]


def test_long_names_have_room_and_keep_their_ends():
    names = [f"IM (paper-selective-heads) {branch}" for branch in ("none", "newest half", "training.rate_scale=0.3")]
    looks = {name: Look.of(n) for n, name in enumerate(names)}
    points = {0.1: (50.0, 1.0), 1.0: (60.0, 1.0)}
    figures = {
        "numbers": over_numbers({"one": ({names[0]: points}, dict.fromkeys(names[1:], (55.0, 1.0)))}, "x", looks),
        "curves": named_curves({name: [[90.0, 80.0]] for name in names}, "%", looks),
    }
    for kind, figure in figures.items():
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0, kind
        assert box.x1 <= figure.bbox.width, kind
        ends = [text.get_text()[-8:] for text in legend.get_texts()]
        assert ends == [name[-8:] for name in names], kind
