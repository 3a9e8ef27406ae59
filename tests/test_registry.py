import os
import subprocess
import sys

import pytest

from lca.errors import LcaError, nearest
from lca.methods import methods
from lca.registry import Registry
from lca.tuning import tuners


def test_a_name_finds_its_thing():
    things = Registry("thing")

    @things.register("one")
    def one():
        return 1

    assert things["one"] is one
    assert list(things) == ["one"]
    assert "one" in things
    assert "two" not in things


def test_names_come_sorted():
    things = Registry("thing")
    for name in ("b", "c", "a"):
        things.register(name)(object())
    assert list(things) == ["a", "b", "c"]


def test_an_unknown_name_suggests_the_nearest_or_lists_all():
    things = Registry("thing")
    things.register("linear")(1)
    things.register("cosine")(2)
    with pytest.raises(LcaError, match="unknown thing 'liner'; did you mean 'linear'"):
        things["liner"]
    with pytest.raises(LcaError, match="known: cosine, linear"):
        things["xyz"]


def test_an_empty_registry_says_so():
    with pytest.raises(LcaError, match="there are none"):
        Registry("thing")["a"]


def test_a_name_is_taken_only_once():
    things = Registry("thing")
    thing = object()
    things.register("a")(thing)
    things.register("a")(thing)
    with pytest.raises(ValueError, match=r"thing 'a' is registered twice: by builtins.object and by .*Other"):
        things.register("a")(type("Other", (), {}))


def test_a_package_is_discovered_on_first_use(tmp_path, monkeypatch):
    package = tmp_path / "plugged_methods"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from lca.registry import Registry\nthings = Registry('thing', package='plugged_methods')\n"
    )
    (package / "mine.py").write_text("from plugged_methods import things\nthings.register('mine')(42)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import plugged_methods

    assert plugged_methods.things["mine"] == 42


def install(folder, distribution, group, points, code):
    """What an installer leaves of a package of one module."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    record = folder / f"{module}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (record / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package whose entry points are of the group `door.things`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install_here(distribution, points, code):
        install(tmp_path, distribution, "door.things", points, code)

    return install_here


def things_of_all_packages():
    return Registry("thing", group="door.things", needs=("colour",))


def test_what_other_packages_name_is_found_on_first_use(installed):
    code = "class Mine:\n    colour = 1\n"
    installed("mine-package", {"mine": "mine_package:Mine", "family:NAME": "mine_package:Mine"}, code)
    things = things_of_all_packages()
    things.register("own")(type("Own", (), {"colour": 2}))
    assert list(things) == ["mine", "own"]
    assert things["mine"].colour == things["family:any"].colour == 1


def test_a_module_of_another_package_registers_by_itself(installed, monkeypatch):
    things = things_of_all_packages()
    monkeypatch.setattr("lca.registry.shared", things, raising=False)
    code = "from lca.registry import shared\n@shared.register('two')\nclass Two:\n    colour = 2\n"
    installed("self-service", {"anything": "self_service"}, code)
    assert list(things) == ["two"]


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        ("broken_one:Mine", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken_one:Mine", "other = 1", "AttributeError: module 'broken_one' has no attribute 'Mine'"),
        ("broken_one:Mine", "class Mine:\n    pass", "TypeError: broken_one.Mine is no thing: it has no colour"),
        ("broken_one", "import lca.registry\nlca.registry.none", "AttributeError: "),
        ("broken_one", "1 / 0", "ZeroDivisionError: division by zero"),
        ("broken_one", "1 +", "SyntaxError: invalid syntax"),
    ],
)
def test_a_broken_package_is_told_in_a_line_and_breaks_nothing_else(installed, monkeypatch, value, code, reason):
    monkeypatch.delitem(sys.modules, "broken_one", raising=False)
    installed("broken-one", {"mine": value}, code)
    things = things_of_all_packages()
    things.register("own")(type("Own", (), {"colour": 2}))
    with pytest.warns(UserWarning, match="'mine' of the installed package broken-one 1.0") as told:
        assert list(things) == ["own"]
    assert len(told) == 1
    line = str(told[0].message)
    assert f"({value}) cannot be used: {reason}" in line
    assert "\n" not in line
    assert things["own"].colour == 2
    with pytest.raises(LcaError, match=r"'mine' of the installed package broken-one 1\.0"):
        things["mine"]
    with pytest.raises(LcaError, match="unknown thing 'min'"):
        things["min"]


def test_two_packages_of_one_name_are_told_who_they_are(installed, monkeypatch):
    for distribution in ("a-first", "b-second"):
        module = distribution.replace("-", "_")
        monkeypatch.delitem(sys.modules, module, raising=False)
        installed(distribution, {"mine": f"{module}:Mine"}, "class Mine:\n    colour = 1\n")
    things = things_of_all_packages()
    words = r"b-second 1.0 .*'mine' is registered twice: by a_first.Mine and by b_second.Mine"
    with pytest.warns(UserWarning, match=words):
        assert list(things) == ["mine"]
    assert things["mine"].__module__ == "a_first"


def test_no_other_package_can_take_one_of_our_names(tmp_path, monkeypatch):
    ours = methods["im"]
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "class Mine:\n    info = Options = 1"
    install(tmp_path, "thief-package", "lca.methods", {"im": "thief_package:Mine"}, code)
    again = Registry("method", package="lca.methods", group="lca.methods")
    again.register("im")(ours)
    with pytest.warns(UserWarning, match=r"by lca.methods.im.*and by thief_package.Mine"):
        assert again["im"] is ours


SOURCE = """
from dataclasses import replace

from lca.data.sources import sources

def halves(argument, options, seed, working_size, progress):
    \"\"\"`halves:N`: the digits, in N tasks.\"\"\"
    return replace(sources["digits"]("", options, seed, working_size, progress), name="halves", tasks=int(argument))
"""


def test_the_command_line_uses_what_is_installed_and_tells_what_is_broken_in_a_line(tmp_path):
    install(tmp_path, "broken-here", "lca.sources", {"mine": "broken_here:Mine"}, "import no_such_module")
    install(tmp_path, "lca-halves", "lca.sources", {"halves": "lca_halves:halves"}, SOURCE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = "import sys; from lca.cli import main; sys.argv = ['lca', 'datasets']; main()"
    reading = (
        "from lca.data.sources import *; from lca.progress import Progress; from lca.data.options import DataOptions"
    )
    reading += "; print(load_source(DataOptions(source='halves:2'), 0, 16, Progress()).tasks, 'tasks')"
    done = subprocess.run(
        [sys.executable, "-c", f"{reading}; {program}"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 tasks\n")
    assert "`halves:N`: the digits, in N tasks." in " ".join(done.stdout.split())
    assert "folder" in done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "data source 'mine' of the installed package broken-here 1.0" in done.stderr


def test_a_thing_can_stand_in_for_another_for_a_while():
    things = Registry("thing", needs=("colour",))
    old, new = (type("Thing", (), {"colour": number}) for number in range(2))
    things.register("a")(old)
    for name in ("a", "b"):
        with things.standing_in(name, new):
            assert things[name] is new
        assert list(things) == ["a"]
        assert things["a"] is old
    with pytest.raises(TypeError, match="no thing: it has no colour"), things.standing_in("a", object()):
        pass
    assert things["a"] is old


def test_the_shipped_methods_and_tuners_are_found():
    assert {"im", "finetune", "joint"} <= set(methods)
    assert {"lora", "full", "none", "adapter", "ssf", "vpt", "prefix", "prompt"} == set(tuners)
    assert "peft:ia3" in tuners


def test_nearest_gives_at_most_three():
    assert nearest("aaa", ["aab", "aac", "aad", "aae"]).count(" or ") == 2


def test_a_family_answers_to_every_name_that_begins_with_it():
    things = Registry("thing")
    things.register("plain")(1)
    things.register("family:NAME")(2)
    assert things["family:any"] == things["family:other:name"] == 2
    assert "family:any" in things
    assert "family" not in things
    assert "other:any" not in things
    assert 3 not in things
    assert list(things) == ["plain"]
    with pytest.raises(LcaError, match="unknown thing 'famly:any'; did you mean 'family:NAME'"):
        things["famly:any"]
    with pytest.raises(LcaError, match="unknown thing 'plain:any'"):
        things["plain:any"]
