"""Labels with numbers."""

import math

import pytest

from lca.report.ablation import ablation
from lca.report.page import Report
from lca.results.classifiers import classifiers
from lca.results.reading import Run, collect
from packs import made, packed


def rows_of(*labels, right=8):
    runs = [Run(label, made({branch: [[right, right], [right] * 4]})) for label, branch in labels]
    return classifiers(runs)["digits"]


def shape(found):
    return found.name, {label: [*points] for label, points in found.lines.items()}, [row.label for row in found.others]


def test_numbers_in_branches():
    rows = rows_of(*((f"IM {n}", branch) for n, branch in enumerate(("none", "λ=0", "λ=0.1", "λ=10", "balanced λ=1"))))
    assert ablation(rows) is None, "the labels differ, so no line has three points"
    labels = [("IM", branch) for branch in ("none", "λ=0", "λ=0.1", "λ=10", "balanced λ=1")]
    (rows,) = classifiers([Run("IM", made({branch: [[8, 8], [8] * 4] for _, branch in labels}))]).values()
    assert shape(ablation(rows)) == ("λ", {"IM λ": [0.0, 0.1, 10.0]}, ["IM none", "IM balanced λ=1"])


def test_numbers_in_labels():
    runs = [Run(f"IM α={a}", made({"none": [[8, 8], [8] * 4], "lca": [[9, 9], [9] * 4]})) for a in (0.25, 1, 1.5)]
    (rows,) = classifiers(runs).values()
    assert shape(ablation(rows)) == ("α", {"IM α none": [0.25, 1.0, 1.5], "IM α lca": [0.25, 1.0, 1.5]}, [])


def test_the_number_with_most_values_is_the_axis():
    (rows,) = classifiers([Run(f"m={m} k=2", made({"x": [[8, 8], [8] * 4]})) for m in (1, 2, 4)]).values()
    assert shape(ablation(rows)) == ("m", {"m k=2 x": [1.0, 2.0, 4.0]}, [])


def test_words_are_no_numbers():
    assert ablation(rows_of(("a=b", "x"), ("a=1x", "y"), ("k=3", "z"))) is None
    assert ablation([]) is None


@pytest.fixture
def drawn(tmp_path):
    def draw(**right):
        names = {name.replace("_", "."): n for name, n in right.items()}
        cells = [
            ("IM", made({name.replace("eq", "="): [[n - s, n - s], [n - s] * 4] for name, n in names.items()}, seed=s))
            for s in (0, 1)
        ]
        report = Report("title", 20)
        page = report.page(collect([packed(tmp_path / "p.json", *cells)]))
        return page, report.figures

    return draw


def test_accuracy_over_a_number_that_spans_decades(drawn):
    page, figures = drawn(none=4, λeq0=9, λeq0_01=8, λeq1=7, λeq100=6)
    assert "Accuracy over λ" in page
    figure = figures["digits-over-λ"]
    assert figure.get_suptitle() == "Accuracy over λ, digits, ± standard deviation over seeds"
    average, last = figure.axes
    assert (average.get_ylabel(), last.get_ylabel()) == ("average accuracy (%)", "last accuracy (%)")
    assert [label.get_text() for label in last.get_xticklabels()] == ["0", "0.01", "1", "100"]
    assert [*last.get_xticks()][1:] == pytest.approx([-2.0, 0.0, 2.0])
    assert last.get_xticks()[0] < -2
    joined, apart = last.containers
    assert [*joined.lines[0].get_ydata()] == [75.0, 65.0, 55.0], "means of 80 and 70, and so on"
    assert [*apart.lines[0].get_ydata()] == [85.0], "zero is not joined to the others"
    ends = joined.lines[2][0].get_segments()[0][:, 1]
    assert ends == pytest.approx([75 - math.sqrt(50), 75 + math.sqrt(50)])
    (level,) = [line for line in last.lines if line.get_label() == "IM none"]
    assert {*level.get_ydata()} == {35.0}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["IM λ", "IM none"]
    assert "digits-bars" not in figures
    curves = [line.get_label() for line in figures["digits-curves"].axes[0].lines]
    assert curves == ["IM λ=0", "IM none"], "the best λ stands for all"


def test_a_short_span_is_linear(drawn):
    _, figures = drawn(αeq0_25=4, αeq0_5=5, αeq1_5=6)
    assert [*figures["digits-over-α"].axes[0].get_xticks()] == [0.25, 0.5, 1.5]
