"""What is missing in a pack is said where its results are shown."""

import json

import pytest

from packs import made, packed


@pytest.fixture
def pack(tmp_path):
    path = packed(tmp_path / "p.json", ("a", made({"default": [[9, 9], [7, 7, 7, 7]]})))
    content = json.loads(path.read_text())
    failed = {
        "status": "failed",
        "error": "LcaError: training diverged in task 1, epoch 2/10: the loss is nan; lower it",
    }
    content["cells"] += [{"key": str(n), "label": f"rate=`{n}`", "seed": 7, **failed} for n in range(10)]
    content["cells"].append({"key": "x", "label": "later", "seed": 7, "status": "open"})
    path.write_text(json.dumps(content))
    return path


def test_cells_that_failed_are_named(lca, pack):
    code, out, _ = lca("show", pack)
    assert code == 0
    failed, still_open = out.splitlines()[-2:]
    assert failed.startswith("10 cells failed: rate=`0`, seed 7 (training diverged in task 1); rate=`1`, seed 7 (")
    assert failed.endswith("; and 2 more")
    assert still_open == "1 cell is open: later, seed 7"


@pytest.mark.parametrize(
    "words", [("show", "--markdown"), ("show", "--pivot"), ("report", "--markdown"), ("report", "--latex")]
)
def test_in_tables_for_elsewhere_too(lca, pack, words):
    verb, option = words
    code, out, _ = lca(verb, pack, option)
    assert code == 0
    start = "% 10 cells failed: rate=`0`" if option == "--latex" else r"10 cells failed: rate=\`0\`"
    (place,) = [number for number, line in enumerate(out.splitlines()) if line.startswith(start)]
    if option != "--latex":
        assert not out.splitlines()[place - 1], "a paragraph of its own, below the table"


def test_what_another_part_of_the_sweep_has_is_not_missing(lca, pack, tmp_path):
    content = json.loads(pack.read_text())
    finished, *missing = content["cells"]
    content["cells"] = [{**finished, "status": "open"}, *missing]
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert lca("show", pack, tmp_path / "other.json", "--markdown") == lca("show", pack, "--markdown")
