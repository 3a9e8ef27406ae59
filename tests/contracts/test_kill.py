"""Contract 3 over every method: killed at any moment and started again, a run ends bit-equal to one left alone."""

import itertools
import random
import signal
import zlib

import pytest

import tiny
from lca.methods import Method, methods
from tiny import Kill

KILLED = -signal.SIGKILL


def recipe_of(name, **changes):
    return tiny.recipe({"method": tiny.method_section(name)}, {"keep_models": "all"}, changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The outcome of a method's run that was left alone, without a trunk cache."""
    found = {}

    def get(name):
        if name not in found:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            assert tiny.start(recipe_of(name), folder) == 0
            found[name] = tiny.outcome(folder)
            assert found[name]["files"]
        return found[name]

    return get


def any_kill(draw):
    kind = draw.choice(["files", "steps", "batches", "seconds"])
    most = {"files": 60, "steps": 12, "batches": 6}
    return Kill(kind, draw.uniform(0.05, 0.6) if kind == "seconds" else draw.randint(1, most[kind]))


def kill_often(chosen, folder, draw, kills, **options):
    """Kill a run at random moments, start it again each time, and let it end; how often it was killed."""
    killed = 0
    for number in range(kills):
        kill = any_kill(draw) if number else Kill("files", draw.randint(1, 20))
        code = tiny.start(chosen, folder, kill=kill, **options)
        assert code in {0, KILLED}, f"after {killed} kills, the run failed to go on ({kill})"
        killed += code == KILLED
        if code == 0:
            return killed
    assert tiny.start(chosen, folder, **options) == 0
    return killed


CACHES = ("no trunk cache", "an empty trunk cache", "a trunk cache that other branches filled")
WITH_A_TRUNK = [name for name in methods if methods[name].trunk_state is not Method.trunk_state]


@pytest.mark.parametrize(
    ("name", "trunks"),
    [(name, trunks) for name in methods for trunks in (CACHES if name in WITH_A_TRUNK else CACHES[:1])],
)
def test_killed_at_random_and_started_again(tmp_path, undisturbed, name, trunks):
    cache = None if trunks == "no trunk cache" else tmp_path / "trunks"
    chosen = recipe_of(name)
    if trunks.startswith("a trunk"):
        other = recipe_of(name)
        if "align" in methods[name].Options.model_fields:
            other = tiny.recipe(method={"name": name, "align": ["none"]})
        assert tiny.start(other, tmp_path / "other", trunks=cache) == 0
    draw = random.Random(zlib.crc32(f"{name} {trunks}".encode()))
    killed = kill_often(chosen, tmp_path / "run", draw, kills=3, trunks=cache)
    assert killed > 0
    assert tiny.outcome(tmp_path / "run") == undisturbed(name)


@pytest.mark.parametrize("name", list(methods))
def test_killed_with_rare_checkpoints(tmp_path, undisturbed, name):
    """With the usual interval a tiny run has no checkpoint to go on from: it starts over what lies there."""
    for kill in (Kill("batches", 6), Kill("files", 2, "predictions")):
        assert tiny.start(recipe_of(name), tmp_path / "run", every=5.0, kill=kill) == KILLED
    assert tiny.start(recipe_of(name), tmp_path / "run", every=5.0) == 0
    assert tiny.outcome(tmp_path / "run") == undisturbed(name)


POINTS = {
    "making the folder": Kill("files", 1),
    "locking it": Kill("files", 1, ".lock"),
    "writing the recipe": Kill("files", 1, "recipe.yaml"),
    "renaming the recipe": Kill("files", 2, "recipe.yaml"),
    "the first log line": Kill("files", 1, "log.jsonl"),
    "in the middle of the first epoch": Kill("steps", 2),
    "in the middle of the second epoch": Kill("steps", 5),
    "the first checkpoint's tensors": Kill("files", 2, "checkpoint"),
    "the first checkpoint's half-written file": Kill("files", 3, "checkpoint"),
    "writing a checkpoint's commit": Kill("files", 5, "checkpoint/.state.json"),
    "renaming a checkpoint's commit": Kill("files", 6, "checkpoint/.state.json"),
    "a model's tensors": Kill("files", 3, "models"),
    "the predictions": Kill("files", 1, "predictions"),
    "the predictions' rename": Kill("files", 2, "predictions"),
    "the results": Kill("files", 1, "results.json"),
    "the results' rename": Kill("files", 2, "results.json"),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(tmp_path, undisturbed, point):
    chosen = recipe_of("finetune")
    assert tiny.start(chosen, tmp_path / "run", kill=POINTS[point]) == KILLED
    assert not (tmp_path / "run" / "results.json").exists()
    assert tiny.start(chosen, tmp_path / "run") == 0
    assert tiny.outcome(tmp_path / "run") == undisturbed("finetune")


def test_what_a_kill_left_half_written_does_not_stay(tmp_path, undisturbed):
    for path in ("models/task-00", "checkpoint", "predictions", "results.json"):
        assert tiny.start(recipe_of("finetune"), tmp_path / "run", kill=Kill("files", 4, path)) in {0, KILLED}
    assert tiny.start(recipe_of("finetune"), tmp_path / "run") == 0
    assert [path.name for path in (tmp_path / "run").rglob("*.tmp")] == []
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods))
def test_killed_before_changes_on_disk(tmp_path, undisturbed, name):
    """Every fifth of them, from the first to the last, each in a run of its own."""
    for count in itertools.count(1, 5):
        folder = tmp_path / str(count)
        if tiny.start(recipe_of(name), folder, kill=Kill("files", count)) == 0:
            break
        assert tiny.start(recipe_of(name), folder) == 0, count
        assert tiny.outcome(folder) == undisturbed(name), count
    assert count > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", list(methods))
def test_a_long_campaign_of_kills(tmp_path, undisturbed, name, seed):
    cache = tmp_path / "trunks" if seed % 2 else None
    killed = kill_often(recipe_of(name), tmp_path / "run", random.Random(seed), kills=40, trunks=cache)
    assert killed > 0
    assert tiny.outcome(tmp_path / "run") == undisturbed(name)
