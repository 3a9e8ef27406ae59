"""What can go wrong with data and settings of a run: a readable error, and nothing written that would be trusted."""

import numpy as np
import pytest
from PIL import Image

import tiny
from lca.data.options import DataOptions
from lca.data.sources import load_source
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.progress import Progress
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.experiment import run


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.fixture
def photos(tmp_path):
    """Write class folders of plain BMP files, which have the same size whatever they show."""

    def write(*names, count=5, shade=0):
        for number, name in enumerate(names):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = np.full((8, 8, 3), 40 * number + index + shade, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.bmp")
        return f"folder:{tmp_path / 'photos'}"

    return write


def recipe_for(source, **more):
    data = {"source": source, "tasks": 2, "train_limit": None}
    return tiny.recipe({"data": data, "method": {"name": "finetune"}, "training": {"epochs": 1}}, more)


def start(recipe, folder):
    with pytest.raises(BudgetSpent):
        run(recipe, folder, budget=Budget(0))


def test_classes_added_between_two_starts_are_refused(tmp_path, photos):
    recipe = recipe_for(photos("a", "b", "c", "d"))
    start(recipe, tmp_path / "run")
    photos("a", "b", "c", "d", "e", "f")
    with pytest.raises(LcaError, match="have changed since this run was begun"):
        run(recipe, tmp_path / "run")


def test_other_pixels_in_files_of_the_same_size_are_refused(tmp_path, photos):
    recipe = recipe_for(photos("a", "b", "c", "d"))
    start(recipe, tmp_path / "run")
    photos("a", "b", "c", "d", shade=9)
    with pytest.raises(LcaError, match="have changed since this run was begun"):
        run(recipe, tmp_path / "run")
    photos("a", "b", "c", "d")
    assert run(recipe, tmp_path / "run")["branches"]


def test_a_task_without_test_images_is_refused(tmp_path, photos):
    photos("a", "b")
    source = photos("c", "d", count=1)
    with pytest.raises(LcaError, match=r"task 2 has no images to evaluate on \(classes"):
        run(recipe_for(source, data={"order": "natural"}), tmp_path / "run")


@pytest.mark.parametrize("method", ["finetune", "joint", "im"])
def test_diverged_training_is_an_error_not_a_row(tmp_path, method):
    hot = {"method": tiny.method_section(method), "training": {"epochs": 2, "lr": 1e12}}
    with pytest.raises(LcaError, match="diverged"):
        run(tiny.recipe(hot), tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("key", ["lr", "rate_scale"])
def test_diverged_training_names_the_rate_to_lower(tmp_path, key):
    hot = {"method": tiny.method_section("finetune"), "training": {"epochs": 2, key: 1e14}}
    with pytest.raises(LcaError, match=rf"lower training.{key} \(it is 1"):
        run(tiny.recipe(hot), tmp_path / "run")


def test_a_diverged_alignment_is_an_error(tmp_path):
    hot = tiny.branch("hot", lr=1e30, momentum=0.99, first_task=True)
    with pytest.raises(LcaError, match="alignment of branch 'hot' diverged"):
        run(tiny.recipe(method={"name": "im", "align": [hot]}), tmp_path / "run")


def test_a_changed_view_keeps_the_rest_of_the_card():
    view = load_source(DataOptions.model_validate({"view": {"centre_crop": 0.5}}), 0, 16, Progress()).view
    assert view.centre_crop == 0.5
    assert view.augment.crop_scale == (0.6, 1.0)
    assert not view.augment.flip
    assert DataOptions().view.over(ViewOptions()) == ViewOptions()


def test_finetune_shares_no_features_with_other_runs(tmp_path):
    """It has no trunk of its own in the cache, so cached test features could come from another backbone."""
    run(recipe_for("digits"), tmp_path / "one", trunks=tmp_path / "trunks")
    assert not (tmp_path / "trunks").exists()


def test_a_run_that_trains_a_trunk_another_run_has_written_meanwhile_goes_on_with_the_other(tmp_path, monkeypatch):
    from lca.runs.trunks import TrunkCache

    recipe = tiny.recipe(method=tiny.method_section("im"), data={"tasks": 2, "train_limit": 4})
    run(recipe, tmp_path / "first", trunks=tmp_path / "trunks")
    load, taken = TrunkCache.load, []

    def late(self, task):  # not there when the task begins, there when the trunk is saved
        taken.append(task)
        return load(self, task) if taken.count(task) > 1 else None

    monkeypatch.setattr(TrunkCache, "load", late)
    run(recipe, tmp_path / "second", trunks=tmp_path / "trunks")
    assert taken == [0, 0, 1, 1]
    assert tiny.outcome(tmp_path / "first") == tiny.outcome(tmp_path / "second")
