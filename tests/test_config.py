import pytest
import yaml

from lca.data.options import DataOptions
from lca.data.views import ViewOptions
from lca.errors import LcaError
from lca.methods import methods
from lca.methods.im import ImOptions
from lca.options import validate
from lca.recipe import Recipe, differences, load_recipe, merge_mappings, read_recipe, validate_recipe
from lca.recipe_files import parse_override
from lca.tuning import tuners
from lca.tuning.lora import LoraOptions


def write(path, content):
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize(
    ("content", "place", "hint"),
    [
        ({"sed": 1}, "the top level", "unknown key 'sed'; did you mean 'seed'"),
        ({"training": {"epoch": 3}}, "training", "unknown key 'epoch'; did you mean 'epochs'"),
        ({"tuning": {"name": "lora", "rnk": 3}}, "tuning", "unknown key 'rnk'; did you mean 'rank'"),
        ({"method": {"align": {"preset": "lca", "robustnes": 1}}}, "method.align.0", "did you mean 'robustness'"),
        ({"data": {"view": {"flipp": True}}}, "data.view", "did you mean 'flip'"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(content, place, hint):
    with pytest.raises(LcaError) as caught:
        validate_recipe(content, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: 1 mistake(s)\n")
    assert f"{place}: " in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"training": {"epochs": "many"}}, "training.epochs: .*got 'many'"),
        ({"training": {"epochs": 0}}, "training.epochs: .*greater than or equal to 1, got 0"),
        ({"training": {"epochs": 1.5}}, "training.epochs"),
        ({"training": {"optimiser": "adam"}}, "training.optimiser: .*'sgd' or 'adamw', got 'adam'"),
        ({"training": 3}, "training: .*got 3"),
        ({"method": 3}, "method: expected a name, or a mapping in which `name` is one; got 3"),
        ({"method": "in"}, "method: unknown method 'in'; did you mean .*'im'"),
        ({"tuning": {"name": "lorra"}}, "tuning: unknown tuner 'lorra'; did you mean 'lora'"),
        ({"tuning": {"name": "lora", "rank": 0}}, "tuning.rank"),
        ({"method": {"align": ["lka"]}}, "method.align: unknown branch 'lka'"),
        ({"method": {"align": ["lca", "lca"]}}, "every branch needs a name of its own"),
        ({"method": {"align": []}}, "align needs at least one branch"),
        ({"method": {"merge": {"operator": "agre"}}}, "did you mean 'agree'"),
        ({"method": {"merge": {"operator": "sum"}}}, "init_from: base"),
        ({"method": {"align": {"name": "a", "drift": {"model": "afine"}}}}, "did you mean 'affine'"),
        ({"data": {"base": 3}}, "base and increment go together"),
        ({"data": {"base": 3, "increment": 2, "tasks": 4}}, "either tasks or base"),
        ({"data": {"tasks": 0}}, "tasks must be at least 1, got 0"),
        ({"data": {"tasks": [2, 0]}}, "at least one class"),
        ({"data": {"tasks": []}}, "at least one class"),
        ({"data": {"evaluate": "validation"}}, "needs a validation share"),
        ({"data": {"view": {"crop_scale": [0.9, 0.5]}}}, "0 < smallest <= largest"),
        ({"data": {"view": {"centre_crop": 0}}}, "data.view.centre_crop"),
    ],
)
def test_mistakes_name_the_key_and_what_is_expected(content, message):
    with pytest.raises(LcaError, match=message):
        validate_recipe(content)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(LcaError, match=r"2 mistake\(s\)"):
        validate_recipe({"seed": "x", "training": {"lr": -1}})


def test_the_default_recipe_is_im_with_lora():
    recipe = Recipe()
    assert isinstance(recipe.method, ImOptions)
    assert isinstance(recipe.tuning, LoraOptions)
    assert [each.name for each in recipe.method.align] == ["best"]


def test_recipes_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().seed = 3


ROUND_TRIPS = [
    {},
    {
        "method": {
            "align": ["none", "ca", {"preset": "lca", "name": "newest", "train_heads": [-1]}],
            "init_from": "base",
        }
    },
    {"tuning": {"name": "lora", "targets": ["qkv", "fc1"], "feature_norm": True}, "seed": 7},
    {"backbone": {"name": "vit_tiny_patch16_224", "weights": "some/file.safetensors"}},
    {"data": {"source": "folder:x", "tasks": [2, 3], "view": {"centre_crop": 1.0}}},
    *[{"method": name} for name in methods],
    *[{"tuning": name} for name in tuners],
]


@pytest.mark.parametrize("content", ROUND_TRIPS, ids=str)
def test_dump_and_validate_are_inverse(content):
    recipe = validate_recipe(content)
    text = yaml.safe_dump(recipe.dump())
    assert validate_recipe(yaml.safe_load(text)) == recipe
    assert validate_recipe(yaml.safe_load(text)).dump() == recipe.dump()


def test_the_trunk_does_not_depend_on_branch_keys():
    base = validate_recipe({"method": {"align": ["none"]}}).trunk()
    assert base == validate_recipe({"method": {"align": ["lca", "ca"]}, "name": "x", "keep_models": "all"}).trunk()
    for other in (
        {"method": {"merge": {"alpha": 0.5}}},
        {"method": "finetune"},
        {"seed": 1},
        {"training": {"lr": 0.5}},
        {"tuning": {"name": "lora", "rank": 3}},
        {"data": {"tasks": 2}},
        {"backbone": {"preprocessing": "raw"}},
    ):
        assert validate_recipe(other).trunk() != base, other


def test_extends_a_file_beside(tmp_path):
    write(tmp_path / "below.yaml", {"seed": 5, "training": {"lr": 0.5, "epochs": 3}})
    path = write(tmp_path / "above.yaml", {"extends": "below.yaml", "training": {"epochs": 4}})
    recipe = load_recipe(path)
    assert (recipe.seed, recipe.training.lr, recipe.training.epochs, recipe.name) == (5, 0.5, 4, "above")


def test_extends_through_several_files(tmp_path):
    write(tmp_path / "a.yaml", {"seed": 5, "method": "finetune"})
    write(tmp_path / "b.yaml", {"extends": "a.yaml", "tuning": "full"})
    recipe = load_recipe(write(tmp_path / "c.yaml", {"extends": "b.yaml", "exact": True}))
    assert (recipe.seed, recipe.method.name, recipe.tuning.name, recipe.exact) == (5, "finetune", "full", True)


def test_extending_oneself_is_an_error(tmp_path):
    write(tmp_path / "a.yaml", {"extends": "b.yaml"})
    path = write(tmp_path / "b.yaml", {"extends": "a.yaml"})
    with pytest.raises(LcaError, match="extends itself"):
        load_recipe(path)


def test_a_missing_recipe_and_a_missing_file(tmp_path):
    own = r"A recipe of your own is given as a path that ends in \.yaml\."
    with pytest.raises(LcaError, match=rf"there is no recipe 'zzz'; known: .*\w\. {own}$"):
        read_recipe("zzz")
    with pytest.raises(LcaError, match=rf"there is no recipe 'pape'; did you mean 'paper' or .*\? {own}$"):
        read_recipe("pape")
    with pytest.raises(LcaError, match="there is no recipe file"):
        read_recipe(str(tmp_path / "nothing.yaml"))


@pytest.mark.parametrize(("text", "message"), [("a: [", "cannot be read as YAML"), ("- a", "mapping"), ("", "mapping")])
def test_files_that_are_no_recipe(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(LcaError, match=message):
        read_recipe(str(path))


def test_overrides_win_in_order(tmp_path):
    path = write(tmp_path / "a.yaml", {"training": {"lr": 0.5, "epochs": 3}, "method": "im", "tuning": {"rank": 2}})
    recipe = load_recipe(
        path,
        ["training.lr=1e-4", "training.lr=2e-4", "method.merge.alpha=0.5", "data.tasks=[4, 6]", "tuning.dropout=0.1"],
    )
    assert (recipe.training.lr, recipe.training.epochs) == (2e-4, 3)
    assert recipe.method.merge.alpha == 0.5
    assert recipe.data.tasks == [4, 6]
    assert (recipe.tuning.rank, recipe.tuning.dropout) == (2, 0.1)


def test_another_name_replaces_the_section():
    below = {"tuning": {"name": "lora", "rank": 3}, "method": "im", "data": {"tasks": 3}}
    assert merge_mappings(below, {"tuning": {"name": "full"}})["tuning"] == {"name": "full"}
    assert merge_mappings(below, {"tuning": {"name": "lora", "alpha": 1}})["tuning"] == {
        "name": "lora",
        "rank": 3,
        "alpha": 1,
    }
    assert merge_mappings(below, {"method": {"init_from": "base"}})["method"] == {"name": "im", "init_from": "base"}
    assert merge_mappings(below, {"data": {"source": "x"}})["data"] == {"tasks": 3, "source": "x"}
    assert below == {"tuning": {"name": "lora", "rank": 3}, "method": "im", "data": {"tasks": 3}}


def test_parsing_overrides():
    assert parse_override("a.b=1") == {"a": {"b": 1}}
    assert parse_override("a=b=c") == {"a": "b=c"}
    assert parse_override("a=") == {"a": None}
    for text in ("a", "=3"):
        with pytest.raises(LcaError, match="--set takes key=value"):
            parse_override(text)
    with pytest.raises(LcaError, match="not YAML"):
        parse_override("a=[1")


def test_differences_are_named():
    old, new = (validate_recipe(each).dump() for each in ({}, {"seed": 4, "method": {"merge": {"alpha": 0.5}}}))
    assert differences(old, new) == ["method.merge.alpha: 1.0 -> 0.5", "seed: 1993 -> 4"]
    assert differences(old, old) == []
    assert differences({"a": 1}, {"b": 1}) == ["a: 1 -> (absent)", "b: (absent) -> 1"]


def test_any_options_can_be_validated():
    assert validate(ViewOptions, {"centre_crop": 0.5}, "here").centre_crop == 0.5
    with pytest.raises(LcaError, match="here: "):
        validate(DataOptions, {"tasks": "x"}, "here")


def test_what_a_recipe_leaves_open_is_as_the_method_says():
    aper = validate_recipe({"method": "aper", "training": {"lr": 0.5}})
    assert (aper.tuning.name, aper.training.epochs, aper.training.lr) == ("adapter", 20, 0.5)
    changed = validate_recipe({"method": {"name": "aper"}, "tuning": {"bottleneck": 3}})
    assert (changed.tuning.name, changed.tuning.bottleneck) == ("adapter", 3)
    assert validate_recipe({"method": "aper", "tuning": "lora"}).tuning.rank == 16
    assert validate_recipe(aper.dump()) == aper
    assert validate_recipe({"method": aper.method}).tuning.name == "adapter"


def test_a_method_is_a_recipe_and_replaces_another_with_its_defaults():
    assert load_recipe("aper") == load_recipe("im", ["method=aper", "name=aper"])
    assert load_recipe("aper", ["training.epochs=3"]).training.epochs == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"robustness": 0.5}}, "robustness is for loss: lca; with cross_entropy it would do nothing"),
        ({"method": {"name": "im", "head": {"name": "linear", "hidden": 7}}}, "hidden is for mlp; with name: linear"),
        ({"method": {"name": "im", "head": {"name": "mlp", "scale": 3.0}}}, "scale is for cosine and prototype"),
        ({"method": {"name": "im", "head": {"train_scale": False}}}, "train_scale is for cosine and prototype"),
    ],
)
def test_options_that_would_do_nothing_are_refused(change, message):
    with pytest.raises(LcaError, match=message):
        validate_recipe(change)
