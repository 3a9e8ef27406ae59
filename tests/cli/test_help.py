"""What the help says: every verb has its place, a line that says what it does, and examples that are true."""

import re
import shlex
import subprocess
import sys

import pytest
import typer

import lca as package
from lca.cli import VERBS, app

COMMANDS = dict(typer.main.get_command(app).commands)
COMMANDS |= {f"datasets {name}": command for name, command in COMMANDS["datasets"].commands.items()}


def paragraphs(command):
    return [" ".join(text.split()) for text in command.help.split("\n\n")]


def test_help_shows_every_verb_once_below_its_panel(lca, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = lca("--help")
    assert code == 0
    assert list(VERBS) == ["Teach and use", "Ship", "Experiments", "Results", "Data and lists", "Paper"]
    for panel, verbs in VERBS.items():
        section = out.partition(f"\n{panel}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^  ([\w-]+)  ", section, re.MULTILINE) == list(verbs), panel
        for name in verbs:
            assert COMMANDS[name].rich_help_panel == panel
            assert paragraphs(COMMANDS[name])[0] in " ".join(section.split()), "nothing is cut off"
    assert {name for name in COMMANDS if " " not in name} == {name for verbs in VERBS.values() for name in verbs}
    assert lca("-h")[1] == out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_verb_says_what_it_does_in_a_line(name):
    said = paragraphs(COMMANDS[name])[0]
    assert re.fullmatch(r"[A-Z].{15,115}\.", said), said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_has_examples_and_every_parameter_a_help(lca, name):
    code, out, _ = lca(*name.split(), "--help")
    assert code == 0
    assert re.search(rf"^ +(\w+=\S+ )?(.* \| )?lca {name}\b", out.partition("Example")[2], re.MULTILINE)
    silent = [each.name for each in COMMANDS[name].params if each.name != "help" and not each.help]
    assert not silent


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_name_only_what_there_is(name):
    """Options of every example exist, and those that need a value have one."""
    examples = [text for text in paragraphs(COMMANDS[name]) if re.match(r"(\w+=\S+ |find |torchrun )?.*\blca \w", text)]
    lines = [line for line in examples if not line.endswith(".")]
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"\blca (?=[a-z])", line)[-1].partition(" > ")[0])
        chosen = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        command = COMMANDS[chosen]
        with command.make_context(chosen, words[len(chosen.split()) :], resilient_parsing=False):
            pass


def test_the_version(lca):
    assert lca("--version") == (0, f"lca {package.__version__}\n", "")


def test_help_and_version_start_at_once():
    """Neither needs torch, or anything else that takes long."""
    program = (
        "import sys\nfrom lca.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=True)
        imported = set(done.stderr.split())
        assert not imported & {"numpy", "timm", "torch", "pydantic", "rich"}
