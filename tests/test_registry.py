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
    with pytest.raises(ValueError, match="registered twice"):
        things.register("a")(object())


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
