"""The example of docs/add-a-method.md: one file in a copy of the package, and the contracts run on it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_documented_example_keeps_the_contracts(tmp_path):
    document = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", document, re.DOTALL)[1]
    assert len(example.splitlines()) < 200
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src" / "lca" / "methods" / "nearest_mean.py").write_text(example, encoding="utf-8")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    chosen = [
        tmp_path / "tests" / "contracts" / name for name in ("test_predictions.py", "test_growth.py", "test_peeking.py")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "nearest_mean", *map(str, chosen)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) >= 10


def test_the_documented_comparison_runs(capsys):
    document = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(.*?)```", document, re.DOTALL)[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["finetune", "0"], ["finetune", "1"], ["keep", "0"]]
    assert "'loss': 0.693" in lines[0], "a head of zeros knows nothing"
