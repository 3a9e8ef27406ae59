"""README and docs: links lead somewhere, code compiles and runs, commands exist, and every page is found."""

import ast
import re
import shlex
import shutil
from pathlib import Path
from textwrap import dedent

import pytest
import typer
import yaml
from PIL import Image

from lca.cli import app

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, ROOT / "benchmarks" / "NOTES.md"]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"<!-- (?:lca|python) [^\n]*-->\n.*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[|&;] *|-m )lca(?= )(.*)")
README_LINES = 130
RUN = ["README.md", "docs/your-own-images.md"]
"""Pages whose Python is carried out; tests of their own carry out what other pages show."""


def blocks(path, language):
    """What stands in fences of that language, without what a command printed there."""
    text = OUTPUT.sub("", path.read_text(encoding="utf-8"))
    return [dedent(code) for _, kind, code in BLOCK.findall(text) if kind == language]


def anchors(path):
    """What can be linked to behind #, as GitHub and MkDocs name headings."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken_links(path):
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    assert [*broken_links(page)] == []


def test_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n[1](#a-b-c) [2](#other) [3](none.md) [4](page.md#a-b-c) [5](https://a.b)\n")
    assert [*broken_links(page)] == ["#other", "none.md"]


def commands(path):
    """The words behind `lca` in every line of the page's commands; a backslash goes on in the next line."""
    for block in blocks(path, ""):
        for line in block.replace("\\\n", " ").splitlines():
            if command := COMMAND.search(line):
                words = shlex.shlex(command[1], posix=True, punctuation_chars=True)
                words.whitespace_split = True
                found = [*words]
                ends = [place for place, word in enumerate(found) if set(word) <= set("|&;<>")]
                yield found[: min(ends, default=len(found))]


def unknown_words(words):
    """Verbs and options of a command that do not exist."""
    command, rest = typer.main.get_command(app), [*words]
    while hasattr(command, "commands"):
        if not rest or rest[0] in ("-h", "--help", "--version"):
            return
        verb = rest.pop(0)
        if verb not in command.commands:
            yield verb
            return
        command = command.commands[verb]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"-h", "--help"}
    yield from (word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_exist(page):
    assert {" ".join(words): bad for words in commands(page) if (bad := [*unknown_words(words)])} == {}
    mentioned = re.findall(r"`lca ([a-z]\S*?)[ `]", page.read_text(encoding="utf-8").replace("\n", " "))
    assert [verb for verb in mentioned if [*unknown_words([verb])]] == []


def test_an_unknown_option_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```\nlca run best --sett a=1 | head -1   # comment\ncat x | lca predict m - --csv > y\n```\n")
    assert [*commands(page)] == [["run", "best", "--sett", "a=1"], ["predict", "m", "-", "--csv"]]
    assert [[*unknown_words(words)] for words in commands(page)] == [["--sett"], []]
    assert [*unknown_words(["teach", "m"])] == ["teach"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_code_is_valid(page):
    for code in blocks(page, "python"):
        ast.parse(code, page.name)
    for code in blocks(page, "yaml"):
        yaml.safe_load(code)


@pytest.mark.parametrize("name", RUN)
def test_python_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lca.recipe.PHOTOS", "vit_pico_patch8_64")  # which is quicker
    for folder, classes in {"photos": "cat dog", "photos/first": "cat dog", "photos/second": "bird cow"}.items():
        for number, each in enumerate(classes.split()):
            Path(folder, each).mkdir(parents=True)
            for photo in range(2):
                deviation = 20 + 60 * number + photo
                Image.effect_noise((16, 16), deviation).convert("RGB").save(Path(folder, each, f"{photo}.jpg"))
    shutil.copytree("photos/first", "test-photos")
    shutil.copytree("photos/second", "more-photos")
    shutil.copy("photos/cat/0.jpg", "cat.jpg")
    Path("broken.jpg").write_bytes(b"\xff\xd8\xff")
    if name != "README.md":
        shutil.rmtree("photos/first")
        shutil.rmtree("photos/second")
    names: dict[str, object] = {}  # a block goes on where the one before it ended
    for code in blocks(ROOT / name, "python"):
        exec(compile(code, name, "exec"), names)
    answered = {"README.md": {"cat", "dog", "bird", "cow"}, "docs/your-own-images.md": {"cat", "dog", "None"}}[name]
    assert capsys.readouterr().out.split()[0] in answered
    assert Path("my-model", "state.json").exists()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def pages_of(nav):
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages_of(value)


def test_every_page_is_in_the_index_and_in_the_site():
    nav = sorted(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert nav == [page.name for page in DOCS]
    index = {target.partition("#")[0] for target in LINK.findall((ROOT / "docs" / "index.md").read_text("utf-8"))}
    assert {page.name for page in DOCS} - {"index.md"} <= index


def test_the_site_builds(tmp_path, monkeypatch):
    build = pytest.importorskip("mkdocs.commands.build", reason="`make docs` installs what the site needs")
    pytest.importorskip("mkdocstrings_handlers.python")
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    try:
        build.build(config)
    except Abort as error:
        pytest.fail(f"`make docs` says what is wrong: {error}")
    interface = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    for name in ("ContinualClassifier.learn", "Prediction.probability", "load_recipe"):
        assert f'id="lca.{name}"' in interface
