"""`lca report`: where things go, and what is refused."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from packs import made, packed


@pytest.fixture
def pack(tmp_path):
    good, poor = ([[9, 9], [7, 7, 7, 7]], [[8, 8], [5, 5, 6, 6]])
    return packed(tmp_path / "pack.json", ("good", made({"default": good})), ("poor", made({"default": poor})))


def test_the_page_and_its_figures(lca, pack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = lca("report", pack, "--figures", "figures")
    assert (code, out.splitlines()[0]) == (0, f"the report is {tmp_path / 'pack-report.html'}"), "beside the pack"
    assert "<h1>pack.json</h1>" in (tmp_path / "pack-report.html").read_text(encoding="utf-8")
    names = {path.name for path in Path("figures").iterdir()}
    assert {"digits-curves.png", "digits-curves.svg", "digits-minus-good.png"} <= names
    with Image.open("figures/digits-curves.png") as image:
        image.verify()
    lca("report", pack, "--title", "My title", "--out", "other.html", "--reference", "poor")
    text = Path("other.html").read_text(encoding="utf-8")
    assert "<h1>My title</h1>" in text
    assert "Compared with poor" in text


def test_tables_are_printed_or_written(lca, pack, tmp_path):
    printed = lca("report", pack, "--csv")[1]
    assert [line["classifier"] for line in csv.DictReader(printed.splitlines())] == ["good", "poor"]
    only = lca("report", pack, "--csv", "--only", "poor")[1]
    assert [line["classifier"] for line in csv.DictReader(only.splitlines())] == ["poor"]
    assert r"\toprule" in lca("report", pack, "--latex")[1]
    assert "Minus poor" in lca("report", pack, "--markdown", "--reference", "poor")[1]
    assert lca("report", pack, "--csv", "--out", tmp_path / "t.csv")[1] == ""
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == printed


def test_the_table_of_all_data_sets_alone(lca, tmp_path):
    cells = [
        ("a", made({"default": [[n, n], [n] * 4]}, source=source)) for source, n in (("one", 8), ("folder:x/two", 5))
    ]
    pack = packed(tmp_path / "p.json", *cells)
    code, table, _ = lca("report", pack, "--markdown", "--overall")
    assert (code, table.splitlines()[::2]) == (
        0,
        ["| AA | one | two | Overall | rank |", "| a | 80.0 | 50.0 | 65.0 | 1.0 |"],
    )
    assert table in lca("report", pack, "--markdown")[1]
    latex = lca("report", pack, "--latex", "--overall")[1]
    assert latex.startswith("% all data sets, AA\n")
    assert lca("report", pack, "--latex")[1].endswith(latex)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--csv", "--latex"], "one format each"),
        (["--csv", "--overall"], "--overall is a part of --markdown or --latex"),
        (["--markdown", "--overall"], "--overall needs several data sets"),
        (["--csv", "--images"], "belong to the page"),
        (["--only", "god"], "there is no classifier 'god'; did you mean 'good'?"),
        (["--reference", "god"], "there is no classifier 'god'; did you mean 'good'?"),
    ],
)
def test_what_does_not_go_together_is_refused(lca, pack, words, message):
    code, _, err = lca("report", pack, *words)
    assert code == 2
    assert message in err


def test_what_is_no_run_is_refused(lca, tmp_path):
    code, _, err = lca("report", tmp_path / "none")
    assert code == 2
    assert "there is no file" in err
    (tmp_path / "other.json").write_text("[]")
    assert "neither a run folder nor a pack" in lca("report", tmp_path / "other.json")[2]


@pytest.mark.parametrize(
    "words", [["nowhere"], [".", "--csv", "--latex"], [".", "--out", "."], [".", "--out", "no/r.html"]]
)
def test_cheap_mistakes_are_told_at_once(words, tmp_path):
    program = f"""
import sys
import lca.cli
sys.argv = ["lca", "report", *{words}]
try:
    lca.cli.main()
except SystemExit as end:
    print(end.code, *({{"torch", "matplotlib"}} & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr
