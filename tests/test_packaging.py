"""What says the same in two files agrees: versions, supported Pythons, licence, what installs what."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import lca

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_version_stands_in_the_package_alone():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert "version" not in read("CITATION.cff")
    assert f"\n## {lca.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_tests_every_python_that_is_promised():
    listed = [row.rpartition(" ")[2] for row in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", row)]
    jobs = read(".github/workflows/ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == listed
    assert PROJECT["requires-python"] == f">={listed[0]}"


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", "CONTRIBUTING.md", "Makefile", "pyproject.toml"])
def test_extras_that_are_asked_for_exist(name):
    asked = re.findall(r"(?:'\.|lca-learn)\[([\w,]+)\]", (ROOT / name).read_text(encoding="utf-8"))
    assert asked
    assert {extra for extras in asked for extra in extras.split(",")} <= set(PROJECT["optional-dependencies"])


def test_files_and_targets_that_are_named_exist():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert [path for path in re.findall(r"tests/[\w/.]+", workflow) if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = workflow + "".join((ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "README.md"))
    targets = set(re.findall(r"(?:^|run: |`)make ([a-z][a-z-]+)", told, re.MULTILINE))
    assert len(targets) >= 6
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_hooks_are_local_and_know_the_tools_of_the_environment():
    repositories = read(".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    assert all(hook["language"] == "system" for hook in repositories[0]["hooks"])


def test_the_citation_is_of_the_paper():
    citation = read("CITATION.cff")
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Tran", "Vargas", "Than"]
    assert paper["title"] in (ROOT / "docs" / "method.md").read_text(encoding="utf-8").replace("\n", " ")
