"""Markdown, LaTeX and CSV of a report."""

import csv
import re

import pytest

from lca.errors import LcaError
from lca.report.formats import as_csv, as_latex, as_markdown
from lca.report.page import Report
from lca.report.tables import OVERALL, SHOWN, latex_text
from lca.results.classifiers import classifiers
from lca.results.metrics import columns, summary
from lca.results.reading import Run, collect
from lca.results.stored import same_tasks, same_test_images
from packs import damage, made, packed

GOOD = {1: [[9, 9], [7, 7, 7, 7]], 2: [[8, 8], [6, 6, 7, 7]]}
POOR = {1: [[9, 9], [5, 5, 7, 7]], 2: [[8, 8], [5, 5, 6, 6]]}
NASTY = r"50 % of λ_{max} & $x^2$ \end{tabular} <b>"


@pytest.fixture
def found():
    return classifiers(
        [
            Run(label, made({"default": rows}, seed=seed))
            for label, by_seed in ((NASTY, POOR), ("good", GOOD))
            for seed, rows in by_seed.items()
        ]
    )


def test_csv_comes_back_with_all_digits(found):
    read = list(csv.DictReader(as_csv(found).splitlines()))
    assert [(line["classifier"], line["seed"]) for line in read] == [
        (NASTY, "1"),
        (NASTY, "2"),
        ("good", "1"),
        ("good", "2"),
    ]
    for line, (row, place) in zip(read, [(r, p) for r in found["digits"] for p in (0, 1)], strict=True):
        expected = summary(row.records[place])
        assert {name: float(line[name]) for name in columns().values()} == {
            name: expected[name] for name in columns().values()
        }
        assert (int(line["bytes"]), float(line["seconds"])) == (1_500_000, 17.0)


def test_a_metric_that_is_not_defined_is_empty_in_csv():
    (line,) = csv.DictReader(as_csv(classifiers([Run("a", made({"default": [[9]]}, sizes=(1,)))])).splitlines())
    assert line["forgetting"] == ""
    assert float(line["last accuracy"]) == 90.0


def cells(latex):
    """The cells of a table's rows, as LaTeX separates them."""
    body = latex[latex.index(r"\midrule") + len(r"\midrule") : latex.index(r"\bottomrule")]
    *rows, rest = body.split("\\\\\n")
    assert not rest
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in rows]


def test_latex_is_a_booktabs_table_with_the_best_in_bold(found):
    text, minus = as_latex(found).split("\n\n")
    assert minus.startswith("% digits, minus good\n")
    assert cells(minus)[0][1:4] == ["2", "-5.0", "-5.0"], (
        "75 and 67.5 instead of 80 and 72.5: no spread, so no interval"
    )
    assert re.findall(r"\\(begin|end)\{tabular\}", text) == ["begin", "end"]
    assert all(text.count(rule) == 1 for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    bare = re.sub(r"\\[{}$&%#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    columns = re.search(r"\{tabular\}\{(\w+)\}", text)[1]
    poor, good = cells(text)
    assert len(poor) == len(good) == len(columns)
    assert good[0] == "good"
    means = [(each.mean, each.deviation) for each in found["digits"][1].measured.values()]
    assert good[1:5] == [rf"\textbf{{{mean:.1f} $\pm$ {deviation:.1f}}}" for mean, deviation in means]
    assert good[3] == r"\textbf{67.5 $\pm$ 3.5}", "70 and 65"
    assert all(cell.startswith(r"\textit{") for cell in poor[1:5])
    assert good[5:] == poor[5:] == ["1.50", "17"]


def test_latex_prints_names_as_they_are():
    assert latex_text("a_b & 50 % {x} #1 $2") == r"a\_b \& 50 \% \{x\} \#1 \$2"
    assert latex_text("λ=0.1 ±") == r"\ensuremath{\lambda}=0.1 \ensuremath{\pm}"
    assert latex_text("\\~^<>\n") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}\textless{}\textgreater{} "


def test_markdown_has_intervals_ranks_and_differences(found):
    lines = as_markdown(found).splitlines()
    (good,) = [line for line in lines if line.startswith("| good")]
    ends = found["digits"][1].measured["last"].interval
    assert f"**67.5 ± 3.5** ({ends[0]:.1f} to {ends[1]:.1f})" in good
    assert good.endswith("| 1.0 | 1.50 | 17 |")
    assert "Minus good, on the same seeds:" in lines
    (poor,) = [line for line in lines[lines.index("Minus good, on the same seeds:") :] if "λ" in line]
    assert "| -10.0 |" in poor, "60 and 55 are both ten below: there is no spread, so no interval"
    assert r"$x^2$ \\end{tabular} &lt;b>" in poor


def test_several_data_sets_come_together_in_one_table():
    right = {("a", "one"): 8, ("b", "one"): 6, ("c", "one"): 1, ("a", "folder:x_y"): 5, ("b", "folder:x_y"): 9}
    right |= {("joint", "one"): 10, ("joint", "folder:x_y"): 10}
    runs = [
        Run(label, made({"default": [[n, n], [n] * 4]}, source=source, method="joint" if label == "joint" else "im"))
        for (label, source), n in right.items()
    ]
    found = classifiers(runs)
    lines = as_markdown(found).splitlines()
    assert lines[lines.index("**all data sets**") + 2 : -2] == [
        "| AA | one | x_y | Overall | rank |",
        "| --- | --- | --- | --- | --- |",
        "| a | **80.0** | *50.0* | *65.0* | 1.5 |",
        "| b | *60.0* | **90.0** | **75.0** | 1.5 |",
        "| joint | 100.0 | 100.0 | 100.0 | - |",
    ]
    assert lines[-1].endswith(OVERALL)
    latex = as_latex(found).partition("% all data sets, AA\n")[2]
    assert r"Classifier & one & x\_y & Overall & rank \\" in latex
    assert cells(latex)[1] == ["b", r"\textit{60.0}", r"\textbf{90.0}", r"\textbf{75.0}", "1.5"]


ASKED = "10 test images, generated damage or 11 test images, generated damage"


@pytest.fixture
def damaged(tmp_path):
    """Two branches on damaged images with two seeds, and one that was measured on other images."""
    rows = {"none": GOOD[1], "lca": GOOD[1], "best": GOOD[1]}
    cells = [
        ("IM", made(rows, seed=seed), [damage("none", low), damage("lca", high), damage("best", 99.0, images=11)])
        for seed, low, high in ((1, 60.0, 70.0), (2, 64.0, 72.0))
    ]
    return classifiers(collect([packed(tmp_path / "p.json", *cells)]).runs)


def test_damaged_images_in_markdown(damaged):
    lines = as_markdown(damaged, "IM none").splitlines()
    table = lines[lines.index(f"Damaged images ({ASKED}):") + 2 :]
    assert table[0] == "| classifier | seeds | clean | C | C at 5 | P | score | flips |"
    # 62 ± 2.8, Student's t of two values being 12.7
    assert table[2].startswith("| IM none | 1, 2 | 62.0 ± 2.8 (36.6 to 87.4) | 42.0 ± 2.8 (16.6 to 67.4) | 32.0 ± 2.8")
    assert table[2].endswith("| 57.0 ± 2.8 (31.6 to 82.4) | 49.5 ± 2.8 (24.1 to 74.9) | 3.8 ± 0.3 (1.3 to 6.3) |")
    assert "score: the mean of C and P, the LCA paper's overall robustness" in lines[-1]
    minus = lines[lines.index("Damaged images, minus IM none, on the same seeds:") + 4 :]
    assert minus[0] == "| IM lca | 2 | " + "+9.0 (-3.7 to +21.7) | " * 5 + "-0.9 (-2.2 to +0.4) |"
    assert minus[1] == "| IM best | 0 | other damage | - | - | - | - | - |"


def test_damaged_images_in_latex(damaged):
    names = re.findall("^% (.*)", as_latex(damaged, "IM none"), re.MULTILINE)
    assert names == [
        f"digits{end}"
        for end in (
            "",
            ", minus IM none",
            f", damaged images ({ASKED})",
            ", damaged images, minus IM none",
        )
    ]
    tables = as_latex(damaged, "IM none").split("\n\n")
    assert cells(tables[2])[1][:3] == ["IM lca", "1, 2", r"71.0 $\pm$ 1.4"], "not marked: one was asked otherwise"
    assert cells(tables[3])[0][:3] == ["IM lca", "2", "+9.0 (-3.7 to +21.7)"]


def test_damaged_images_in_csv(damaged):
    read = list(csv.DictReader(as_csv(damaged).splitlines()))
    (line,) = [each for each in read if (each["branch"], each["seed"]) == ("lca", "2")]
    names = ("clean", "accuracy_c", "at_severity_5", "accuracy_p", "score", "flip_rate")
    assert [float(line[name]) for name in names] == pytest.approx([72.0, 52.0, 42.0, 67.0, 59.5, 2.8])


def test_the_best_on_damaged_images_is_marked_where_all_are_asked_alike(damaged):
    rows = {source: [row for row in rows if row.branch != "best"] for source, rows in damaged.items()}
    table = as_latex(rows).split("\n\n")[2]
    assert cells(table)[1][2] == r"\textbf{71.0 $\pm$ 1.4}"
    assert cells(table)[1][7] == r"\textbf{2.9 $\pm$ 0.1}", "fewer flips are better"


def test_why_there_is_no_difference():
    other = made({"default": POOR[1]}, seed=1, data={**made({"default": POOR[1]})["data"], "sha256": "e" * 64})
    runs = [Run("good", made({"default": GOOD[1]}, seed=1)), Run("elsewhere", other)]
    runs += [Run("later", made({"default": GOOD[1]}, seed=2))]
    lines = as_markdown(classifiers(runs), "good").splitlines()
    assert "| elsewhere | 0 | other test images | - | - | - |" in lines
    assert "| later | 0 | no seed in common | - | - | - |" in lines
    assert "rank" not in "".join(lines), "no seed is common to all"


@pytest.mark.parametrize(
    ("backbone", "images", "why"),
    [
        ("vit_pico_patch8_64", 10, "seen at another size"),
        ("deit_small_patch16_224", 10, "other test images"),
        ("no such backbone", 10, "other test images"),
        ("vit_pico_patch8_64", 11, "other test images"),
    ],
)
def test_a_backbone_that_sees_images_at_another_size(backbone, images, why):
    """Images are hashed as they are decoded, at the size of the backbone."""
    large = made({"default": GOOD[1]}, backbone={"name": "deit_tiny_patch16_224.fb_in1k", "sha256": "b"})
    other = made({"default": POOR[1]}, images=images, backbone={"name": backbone, "sha256": "c"})
    other["data"]["sha256"] = "e" * 64
    lines = as_markdown(classifiers([Run("large", large), Run("other", other)]), "large").splitlines()
    assert f"| other | 0 | {why} | - | - | - |" in lines


def test_a_reference_that_one_data_set_lacks(tmp_path):
    cells = [("good", "one", 8), ("poor", "one", 5), ("good", "two", 8), ("fair", "two", 6)]
    pack = packed(
        tmp_path / "p.json",
        *((label, made({"default": [[n, n], [n] * 4]}, source=source)) for label, source, n in cells),
    )
    found = classifiers(collect([pack]).runs)
    minus = [line for line in as_markdown(found, "poor").splitlines() if line.startswith("Minus")]
    assert minus == [
        "Minus poor, on the same seeds:",
        "Minus good (the best, as poor is not there), on the same seeds:",
    ]
    titles = re.findall("^% (.*minus.*)", as_latex(found, "poor"), re.MULTILINE)
    assert titles == ["one, minus poor", "two, minus good (the best, as poor is not there)"]
    page = Report("t", 10, "poor").page(collect([pack]))
    assert ">Compared with poor</h3>" in page
    assert ">Compared with good (the best, as poor is not there)</h3>" in page
    for write in (as_markdown, as_latex, lambda _, name: Report("t", 10, name).page(collect([pack]))):
        with pytest.raises(LcaError, match=r"no classifier 'pour'; did you mean 'poor'"):
            write(found, "pour")


def test_a_table_of_every_domain():
    """Seeds have them in other orders; who has none is not in it."""
    one = made({"default": [[5, 5], [4, 4, 9, 9]]}, domains=("ink", "oil"))
    two = made({"default": [[7, 7], [9, 9, 2, 4]]}, domains=("oil", "ink"), seed=2)
    rows = [Run("a", one), Run("a", two), Run("alone", made({"default": [[1, 1], [1, 1, 1, 1]]}))]
    text = as_markdown(classifiers(rows), style=SHOWN)
    assert "Accuracy on every domain after the last task (%):" in text
    assert "| classifier | ink | oil | mean |" in text
    assert "| a | 35.0 ± 7.1 | 90.0 ± 0.0 | 62.5 ± 3.5 |" in text
    assert "| a | 5.0 ± 7.1 | 0.0 ± 0.0 |" in text, "forgotten: 10 and 0 of ink, nothing of oil"
    assert "| alone |" not in text[text.index("Accuracy on every domain") :]
    assert r"\textbf" not in as_latex(classifiers(rows)).split("accuracy on every domain")[1].split("tabular")[1]
    assert "every domain" not in as_markdown(classifiers(rows[2:]), style=SHOWN)


def test_seeds_of_domains_are_compared_image_by_image():
    runs = [Run("a", made({"default": [[5, 5], [4, 4, 9, 9]]}, domains=("ink", "oil"))) for _ in range(2)]
    assert same_test_images(runs[0].results, runs[1].results)
    assert same_tasks(runs[0].results, runs[1].results)
    swapped = made({"default": [[5, 5], [4, 4, 9, 9]]}, domains=("oil", "ink"))
    assert same_test_images(runs[0].results, swapped)
    assert not same_tasks(runs[0].results, swapped)
    other = {**swapped, "data": {**swapped["data"], "test_images": [10, 10, 10, 9]}}
    assert not same_test_images(runs[0].results, other)
