"""The core runs without the packages that only some features need, and says by their own names what is missing."""

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
BLOCKED = ("jinja2", "matplotlib", "peft", "scipy", "sklearn", "transformers")
FAST = ["--set", "training={epochs: 1, batch_size: 8, lr: 0.05}", "--set", "tuning={name: lora, rank: 2}"]
FAST += ["--set", "method.align=[none, best]", "--set", "device=cpu", "--quiet"]
PROGRAM = f"""
import sys

for name in {BLOCKED}:
    sys.modules[name] = None  # an import of it fails

import lca.cli

def run(code, *words):
    sys.argv = ["lca", *words]
    try:
        lca.cli.main()
        ended = 0
    except SystemExit as end:
        ended = end.code or 0
    assert ended == code, (words, ended)

run(0, "learn", "model", "photos", "--backbone", "vit_pico_patch8_64", *{FAST})
run(0, "predict", "model", "photos/0/0.png", "--json")
run(0, "evaluate", "model", "photos", "--quiet")
run(0, "run", "best", "--set", "data.source=folder:photos", "--set", "data.tasks=1", "--out", "run", *{FAST})
run(0, "show", "run")
run(2, "report", "run", "--quiet")
run(2, "run", "best", "--out", "digits", *{FAST})
"""


def test_the_core_runs_without_optional_packages(tmp_path):
    for name, deviation in {"0": 10, "1": 90}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.effect_noise((8, 8), deviation + number).save(tmp_path / "photos" / name / f"{number}.png")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"image": "photos/0/0.png"' in done.stdout
    assert "results and table.md are in run" in done.stdout
    assert (tmp_path / "run" / "results.json").exists()
    missing = re.findall(r"(.*) needs more than is installed here .*: (pip install .*)", done.stderr)
    assert missing == [
        ("there is no accuracy.png: a figure", "pip install matplotlib"),
        ("error: a page", "pip install jinja2 matplotlib scipy"),
        ("error: data.source=digits", "pip install scikit-learn"),
    ]


def test_no_text_installs_by_a_name_that_may_be_somebody_elses():
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert [path.name for path in texts if re.search(r"pip install \W*lca\b", path.read_text(encoding="utf-8"))] == []
