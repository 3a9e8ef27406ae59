"""docs/add-a-method.md is a package: it is written from the document's blocks, installed, tested and used."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
FILES = {"pyproject.toml": "toml", "lca_nearest_mean.py": "python", "test_lca_nearest_mean.py": "python"}
QUICK = [
    "--set",
    "training={epochs: 1, batch_size: 8}",
    "--set",
    "data={tasks: 3, train_limit: 3}",
    "--set",
    "device=cpu",
]
LISTS = {"methods": ["lca", "methods", "nearest_mean"], "tuners": ["lca", "tuners"], "operators": ["lca", "operators"]}
PROGRAM = """
import contextlib, io, json, sys
import lca.cli

def shown(words):
    sys.argv, output = words, io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        lca.cli.main()
    return output.getvalue()

print(json.dumps({name: shown(words) for name, words in json.loads(sys.argv[1]).items()}))
"""
"""Runs several command lines in one process, which takes long to start."""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def commands(word):
    """The lines of the document's shell block that begin with this word, as lists of words."""
    lines = [shlex.split(line) for line in blocks("bash")[0].splitlines()]
    return [line for line in lines if line[0] == word]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package's sources, and a function that runs a command where the package is installed."""
    root = tmp_path_factory.mktemp("package")
    (root / "sources").mkdir()
    for name, language in FILES.items():
        block = next(block for block in blocks(language) if DOCUMENT.index(block) > DOCUMENT.index(f"`{name}`"))
        (root / "sources" / name).write_text(block, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    where = ["--no-build-isolation", "--target", root / "installed", root / "sources"]
    built = subprocess.run([*pip, *where], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    path = os.pathsep.join([str(root / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return root / "sources", run


def test_the_package_passes_its_tests(installed):
    """The method keeps every contract, and so do the tuner and the operator; nothing of the kind is written twice."""
    sources, run = installed
    shown = run("-m", "pytest", "-q", "-p", "no:cacheprovider", sources / "test_lca_nearest_mean.py")
    assert int(re.search(r"(\d+) passed", shown)[1]) >= 15
    assert len((sources / "lca_nearest_mean.py").read_text().splitlines()) < 200
    assert commands("pip") == [["pip", "install", ".", "pytest", "scikit-learn"]]
    assert commands("pytest") == [["pytest"]]


@pytest.fixture(scope="module")
def used(installed):
    """What the document's commands print, and lists; the folder holds their runs."""
    sources, run = installed
    runs = {words[2]: [*words, *QUICK, "--quiet", "--out", words[2]] for words in commands("lca") if words[1] == "run"}
    assert [words for words in commands("lca") if words[1] != "run"] == [LISTS["methods"]]
    printed = json.loads(run("-c", PROGRAM, json.dumps(LISTS | runs)).splitlines()[-1])
    return sources.parent, {name: " ".join(text.split()) for name, text in printed.items()}


def test_the_lists_name_what_the_package_brings(used):
    _, printed = used
    assert "Nearest class mean (an example)" in printed["methods"]
    assert (
        "method.sharpness Factor on the squared distances, for the probabilities. By default 1.0." in printed["methods"]
    )
    assert "The biases of the transformer, nothing else (BitFit)." in printed["tuners"]
    assert "The mean of all tasks, where larger entries weigh more." in printed["operators"]


@pytest.mark.parametrize(
    ("run", "section"),
    [
        ("nearest_mean", {"name": "nearest_mean", "sharpness": 2.0}),
        ("im", {"merge": {"operator": "by_magnitude", "alpha": 1.0, "power": 2.0}}),
    ],
)
def test_a_run_names_its_parts(used, run, section):
    results = json.loads((used[0] / run / "results.json").read_text())
    assert results["recipe"]["tuning"] == {"name": "biases", "feature_norm": False}
    assert results["versions"]["lca-nearest-mean"].startswith("1.0, sources ")
    assert section.items() <= results["recipe"]["method"].items()
    assert all(sum(branch["correct"][-1]) > 0 for branch in results["branches"].values())


def test_the_documented_comparison_runs(capsys):
    (block,) = [block for block in blocks("python") if "given = Given(" in block]
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["finetune", "0"], ["finetune", "1"], ["keep", "0"]]
    assert "'loss': 0.693" in lines[0], "a head of zeros knows nothing"
