"""The example of docs/add-a-method.md: one more file in the package of methods, and the contracts run on it."""

import multiprocessing
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import lca.methods
import tiny

ROOT = Path(__file__).parent.parent


def run_contracts(folder, say):
    """What a child process does: look for methods in that folder too, and run the contracts of the new one."""
    lca.methods.__path__.append(str(folder))
    lca.methods.methods._package = "lca.methods"  # whose modules it imports with the next look-up
    contracts = [ROOT / "tests" / "contracts" / f"test_{name}.py" for name in ("predictions", "growth", "peeking")]
    with redirect_stdout(StringIO()) as shown:
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-k", "nearest_mean", *map(str, contracts)])
    say.send((code, shown.getvalue()))


def test_the_documented_example_keeps_the_contracts(tmp_path):
    document = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", document, re.DOTALL)[1]
    assert len(example.splitlines()) < 200
    (tmp_path / "nearest_mean.py").write_text(example, encoding="utf-8")
    hear, say = multiprocessing.Pipe(duplex=False)
    process = tiny.started(run_contracts, tmp_path, say)
    say.close()
    code, shown = hear.recv()
    process.join()
    assert code == 0, shown[-3000:]
    assert int(re.search(r"(\d+) passed", shown)[1]) >= 10


def test_the_documented_comparison_runs(capsys):
    document = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(.*?)```", document, re.DOTALL)[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["finetune", "0"], ["finetune", "1"], ["keep", "0"]]
    assert "'loss': 0.693" in lines[0], "a head of zeros knows nothing"
