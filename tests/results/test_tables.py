"""Rows, cells and Markdown, by hand."""

import math
import re

import pytest

from lca.errors import LcaError
from lca.report import ranking, terminal
from lca.report.formats import as_markdown
from lca.report.tables import OVERALL, SHOWN, legend, overall_table, pivot_table, results_table
from lca.results.classifiers import Classifier, classifiers
from lca.results.reading import Run
from packs import made, results, rows_of

HEADER = ("classifier", "runs", "AA", "AA task", "last", "forgets", "MB", "s")


def by_set(pairs):
    return classifiers([Run(*pair) for pair in pairs])


def markdown(pairs):
    return as_markdown(by_set(pairs), style=SHOWN)


def pivot(pairs):
    return pivot_table([Run(*pair) for pair in pairs]).markdown()


def texts(row):
    return {column: each.text() for column, each in row.plain.items()}


def test_seeds_are_averaged_with_their_standard_deviation():
    seeds = [results({"default": [90.0, 60.0]}), results({"default": [80.0, 50.0]}), results({"default": [85.0, 61.0]})]
    (row,) = rows_of([("im", each) for each in seeds])
    last = [60.0, 50.0, 61.0]
    deviation = math.sqrt(sum((value - 57) ** 2 for value in last) / 2)
    assert texts(row)["last"] == f"57.0 ± {deviation:.1f}" == "57.0 ± 6.1"
    assert texts(row)["AA"] == "71.0 ± 5.3"  # of 75, 65, 73
    assert texts(row)["forgets"] == "28.0 ± 3.5"  # of 30, 30, 24
    assert row.curve() == pytest.approx([85.0, 57.0])
    assert row.label == "im"


def test_one_seed_has_no_deviation_and_one_task_no_forgetting():
    (row,) = rows_of([("joint", results({"default": [70.04]}))])
    assert results_table([row], SHOWN).lines == [["joint", "1", "70.0", "70.0", "70.0", "-", "2.00", "4"]]


def test_every_branch_is_a_row_and_labels_keep_apart():
    one = results({"none": [50.0], "lca": [60.0]})
    rows = rows_of([("agree", one), ("max_abs", one), ("agree", one), ("", one)])
    assert [(row.label, len(row.runs)) for row in rows] == [
        *(("agree none", 2), ("agree lca", 2), ("max_abs none", 1), ("max_abs lca", 1), ("none", 1), ("lca", 1)),
    ]


def test_a_branch_that_is_called_as_its_run_is_named_once():
    rows = rows_of([("best", results({"best": [50.0], "lca": [60.0]})), ("", results({"default": [50.0]}))])
    assert [row.label for row in rows] == ["best", "best lca", "default"]


def test_another_branchs_alignment_is_not_this_ones_time():
    seconds = {"finetune": 10.0, "align lca": 5.0, "align ca": 2.0}
    rows = rows_of([("", results({"none": [1.0], "ca": [1.0], "lca": [1.0]}, seconds))])
    assert [row.seconds for row in rows] == [10.0, 12.0, 15.0]
    slower = results({"none": [1.0]}, {"finetune": 30.0})
    assert rows_of([("", slower), ("", results({"none": [1.0]}, seconds))])[0].seconds == 17.0, "the fastest seed"


def test_a_markdown_table():
    record = {"default": [[90], [40, 70, 70]]}
    text = markdown([("a", made(record, sizes=(1, 2), images=100, seconds={"x": 41.6}))])
    lines = text.splitlines()
    assert lines[0] == "| " + " | ".join(HEADER) + " |"
    assert lines[1] == "| " + " | ".join(["---"] * len(HEADER)) + " |"
    assert lines[2] == "| a | 1 | 75.0 | 72.5 | 60.0 | 50.0 | 1.50 | 42 |"
    assert lines[-1].startswith("AA: mean over tasks of the accuracy on all test images seen so far; AA task:")
    assert text.endswith("\n")


def test_the_legend_says_what_was_measured_on(capsys):
    tuned = ("a", results({"default": [50.0]}, evaluate="validation"))
    assert "accuracy on all validation images seen so far" in markdown([tuned])
    both = [tuned, ("b", results({"default": [50.0]}))]
    assert "accuracy on all validation or test images seen so far" in markdown(both)
    terminal.show(by_set([tuned]), "t")
    assert "all validation images" in capsys.readouterr().out


def test_a_pivot_table_has_gaps_where_nothing_was_run():
    one, two = results({"none": [90.0, 60.0], "lca": [80.0, 70.0]}), results({"none": [50.0, 40.0]})
    assert pivot([("x", one), ("y", two)]).splitlines() == [
        "| AA / last | x | y |",
        "| --- | --- | --- |",
        "| none | 75.0 / 60.0 | 45.0 / 40.0 |",
        "| lca | 75.0 / 70.0 |  |",
    ]


def test_a_pivot_table_of_other_numbers():
    run = Run("x", results({"none": [90.0, 60.0]}))
    names = ["oldest", "newest", "last accuracy"]
    assert pivot_table([run], names).header == ["oldest / newest / last", "x"]
    (line,) = pivot_table([run], names).lines
    assert line == ["none", " / ".join(Classifier("x", "none", [run]).number(name).text() for name in names)]
    with pytest.raises(LcaError, match=r"no number 'old'; .*oldest"):
        pivot_table([run], ["old"])


def test_a_pivot_table_keeps_data_sets_apart():
    one, two = (results({"none": [accuracy]}, source=f"folder:{name}") for name, accuracy in (("a", 90.0), ("b", 50.0)))
    assert pivot([("x", one), ("x", two), ("y", results({"none": [50.0]}, source="folder:b"))]).splitlines() == [
        "| AA / last | x, a | x, b | y |",
        "| --- | --- | --- | --- |",
        "| none | 90.0 / 90.0 | 50.0 / 50.0 | 50.0 / 50.0 |",
    ]


def test_the_printed_table_shows_all_numbers_and_the_curve(capsys):
    terminal.show(by_set([("im", results({"none": [100.0, 50.0, 0.0]}))]), "my title")
    out = capsys.readouterr().out
    assert "my title" in out
    assert "im none  █▅▁  100.0  50.0   0.0" in out
    assert all(name in out for name in HEADER)


@pytest.mark.parametrize("label", ["a [bold]label[/bold]", "a very long label that goes on and on and on " * 3])
def test_labels_are_printed_as_they_are(capsys, label):
    label = label.strip()
    terminal.show(by_set([(label, results({"default": [50.0, 40.0]}))]), "t")
    out = "".join(capsys.readouterr().out.split())
    assert "".join(label.split()) in out


def test_every_data_set_has_a_table_of_its_own():
    runs = [("a", results({"default": [50.0]})), ("a", results({"default": [70.0]}, source="folder:x"))]
    pairs = [*runs, ("a", results({"default": [60.0]}))]
    rows = rows_of(pairs)
    assert [(row.source, texts(row)["last"]) for row in rows] == [
        ("digits", "55.0 ± 7.1"),
        ("folder:x", "70.0"),
    ]
    text = markdown(pairs)
    assert text.index("**digits**") < text.index("55.0") < text.index("**folder:x**") < text.index("70.0")
    assert text.count(legend(rows)) == 1
    assert "**" not in markdown(pairs[:1])
    assert OVERALL not in markdown(pairs[:1])


def test_several_data_sets_have_a_table_of_all_together(capsys):
    one = [("a", results({"none": [50.0], "lca": [60.0]})), ("a", results({"none": [70.0], "lca": [60.0]}))]
    two = [("a", results({"none": [30.0]}, source="folder:x")), ("b", results({"none": [90.0]}, source="folder:x"))]
    table = overall_table(ranking.overall(by_set([*one, *two])), SHOWN)
    assert [[*table.header], *table.lines] == [
        ["AA", "digits", "x", "Overall"],
        ["a none", "60.0 ± 14.1", "30.0", "45.0"],
    ]
    text = markdown([*one, *two])
    assert "**all data sets**\n\n| AA | digits | x | Overall |\n" in text
    assert text.endswith(f"{legend(rows_of(one))} {OVERALL}\n")
    terminal.show(by_set([*one, *two]), "mine")
    shown = capsys.readouterr().out
    assert re.search(r"a none\W+60\.0 ± 14\.1\W+30\.0\W+45\.0", shown)
    assert "mine, all data sets" in shown
    terminal.show(by_set(one), "mine")
    assert "all data sets" not in capsys.readouterr().out, "one data set"
    assert not ranking.overall(by_set([one[0], two[1]])), "no classifier has been run on both"
