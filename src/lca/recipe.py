"""Recipes: a section of options from every room, put together from files and overrides.

The resolved recipe is written into the run folder, and its hash names what may be reused. Recipe files are YAML: the
ones that come with the package and a user's own. `extends: NAME` starts from another recipe, `--set a.b=c` changes one
key. A section named after a scale (`mini`) holds what is different there, and `--scale` chooses it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from lca.arguments import expect
from lca.backbones import PHOTOS, BackboneOptions
from lca.data.options import DataOptions
from lca.errors import LcaError, nearest
from lca.files import hash_json
from lca.methods import MethodOptions, methods
from lca.options import Options, one_of, shown, validate
from lca.recipe_files import DEEPEST, parse_override, read_yaml, recipe_names, shipped_recipes
from lca.training.options import TrainingOptions
from lca.tuning import TuningOptions, tuners

DEFAULT_NAMES = {"method": "im", "tuning": "lora"}
"""Sections that name a registered thing, and the thing they mean when they do not say."""

AnyMethod = Annotated[SerializeAsAny[MethodOptions], BeforeValidator(one_of(methods, DEFAULT_NAMES["method"]))]
AnyTuning = Annotated[SerializeAsAny[TuningOptions], BeforeValidator(one_of(tuners, DEFAULT_NAMES["tuning"]))]


class Recipe(Options):
    """One run: everything that influences a number, and where it may not."""

    name: str = Field("run", min_length=1, max_length=200, pattern=r"^[^/\\\x00]*$")
    """Names the run folder; not part of what the numbers depend on. It is no path."""
    method: AnyMethod = "im"  # type: ignore[assignment]
    backbone: BackboneOptions = BackboneOptions()
    tuning: AnyTuning = "lora"  # type: ignore[assignment]
    training: TrainingOptions = TrainingOptions()
    data: DataOptions = DataOptions()
    seed: int = Field(1993, ge=0, lt=2**32)
    device: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:1`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the backbone; `auto` is bf16 on a GPU that computes in it and fp32 elsewhere."""
    exact: bool = False
    """Deterministic algorithms in fp32: a resumed run on a GPU is bit-equal, at a price in speed."""
    compile: bool | None = None
    """Whether the backbone is compiled (torch.compile), which takes a minute once and then trains faster. By default on
    a GPU when a task is large enough for that to pay, and never with `exact`."""
    keep_models: Literal["none", "last", "all"] = "last"
    """Which of the models after each task stay in the run folder."""
    ood: bool = False
    """Score the test images of the tasks to come as well, to measure how well unknown things are told. One more pass
    over them after each task."""
    forward_transfer: bool = False
    """Measure what the features are worth for the next task before it is learnt. Two passes over its images, which the
    method does not see."""

    @field_validator("name")
    @classmethod
    def _in_its_folder(cls, name: str) -> str:
        if name in (".", ".."):
            raise ValueError(f"expected a name for a folder, got {name!r}")
        return name

    @model_validator(mode="before")
    @classmethod
    def _as_the_method_is_published(cls, value: Any) -> Any:
        """What a recipe leaves open is as the method's own `defaults` say. Earlier versions wrote `strangers` for
        `ood`."""
        if not isinstance(value, Mapping):
            return value
        if "strangers" in value and "ood" in value:
            raise ValueError("strangers is the old name of ood; give only ood")
        value = {"ood" if key == "strangers" else key: given for key, given in value.items()}
        section = value.get("method", DEFAULT_NAMES["method"])
        named = section.get("name", DEFAULT_NAMES["method"]) if isinstance(section, Mapping) else section
        name = str(getattr(named, "name", named))
        return merge_mappings(methods[name].defaults, value) if name in methods else value

    def dump(self) -> dict[str, Any]:
        """Plain JSON values; `Recipe.model_validate` is its inverse."""
        return self.model_dump(mode="json")

    @property
    def key(self) -> str:
        """Names it: a hash of everything but its name, the same on every machine."""
        content = self.dump()
        del content["name"]
        return hash_json(content)[:12]

    def trunk(self) -> dict[str, Any]:
        """The keys that influence the backbone; the others only change heads and Gaussians on top of it."""
        content = self.dump()
        for key in ("name", "keep_models", "ood", "forward_transfer"):
            del content[key]
        for key in methods[self.method.name].branch_keys:
            content["method"].pop(key, None)
        return content


def validate_recipe(content: Mapping[str, Any], origin: str = "recipe") -> Recipe:
    return validate(Recipe, content, origin)


def merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, recursively. A section that names another thing replaces the section as a whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if key in DEFAULT_NAMES:
            named = {"name": value} if isinstance(value, str) else value
            before = {"name": old} if isinstance(old, str) else old or {}
            if isinstance(named, Mapping) and isinstance(before, Mapping):
                name = before.get("name", DEFAULT_NAMES[key])
                same = named.get("name", name) == name
                value, old = dict(named), before if same else {}
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_mappings(old, value)
        else:
            merged[key] = value
    return merged


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two dumped recipes differ, one readable line each."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        left, right = old.get(key, "(absent)"), new.get(key, "(absent)")
        left, right = _by_place(left, right)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            lines += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            lines.append(f"{prefix}{key}: {left} -> {right}")
    return lines


def _by_place(left: Any, right: Any) -> tuple[Any, Any]:
    """Two lists of sections with as many in each, such as the branches, as mappings by number; all else as it is."""
    lists = isinstance(left, list) and isinstance(right, list) and len(left) == len(right)
    if not lists or not all(isinstance(each, Mapping) for each in [*left, *right]):
        return left, right
    return {str(number): each for number, each in enumerate(left)}, {str(n): each for n, each in enumerate(right)}


def of_all_seeds(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the seeds of one classifier have in common: a dumped recipe without the seed, and without what is not meant
    to change a number."""
    own = {"seed", "name", "device", "keep_models", "ood", "forward_transfer"}
    return {key: value for key, value in recipe.items() if key not in own}


SCALES = ("mini",)
"""Sections that a recipe may have beside its keys."""


def read_recipe(name_or_path: str, overrides: Iterable[str] = (), scale: str | None = None) -> dict[str, Any]:
    """The mapping of a shipped recipe or a YAML file: with what it extends, what its section of that scale changes, and
    the `a.b=c` overrides applied.

    A method's name is a recipe as well: the method with its defaults.
    """
    content = _read(name_or_path)
    sections = {each: content.pop(each, None) for each in SCALES}
    if scale is not None:
        if scale not in SCALES:
            raise LcaError(f"there is no scale {scale!r}; {nearest(scale, SCALES)}")
        if not isinstance(sections[scale], Mapping):
            raise LcaError(f"{name_or_path} has no section `{scale}` that says what is different at this scale")
        content = _over(content, sections[scale])
    for override in overrides:
        content = merge_mappings(content, parse_override(override))
    return content


def load_recipe(
    name_or_path: str | Path, overrides: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> Recipe:
    """A validated recipe, with overrides as text and then `changes` as a mapping; every mistake is an `LcaError` that
    names the key."""
    expect("a recipe", name_or_path, (str, Path), "a name (see `lca recipes`) or the path of a .yaml file")
    name_or_path = str(name_or_path)
    if isinstance(overrides, str):
        raise LcaError(f"overrides are a list of texts, such as ['training.lr=0.02']; got {overrides!r}")
    for override in overrides:
        expect("an override", override, str, "a text such as 'training.lr=0.02'")
    expect("changes", changes or {}, Mapping, "a mapping of recipe keys")
    content = merge_mappings(read_recipe(name_or_path, overrides), changes or {})
    content.setdefault("name", Path(name_or_path).stem)
    if "cells" in content or "grid" in content:
        raise LcaError(f"{name_or_path} is a sweep of several runs: use `lca sweep {name_or_path}`")
    return validate_recipe(content, name_or_path)


def recipe_for_photos(
    name_or_path: str | Path = "best", overrides: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> Recipe:
    """How a model for a person's photos learns, as `load_recipe`: where nobody says which, on the backbone for photos,
    which sees more of them than that of recipes does."""
    chosen = load_recipe(name_or_path, overrides, changes)
    if "name" in chosen.backbone.model_fields_set:
        return chosen
    return chosen.model_copy(update={"backbone": chosen.backbone.model_copy(update={"name": PHOTOS})})


def named_recipe(recipe: Recipe | str | Path | None, backbone: object = None) -> Recipe:
    """A recipe, or the one for photos of that name; on the backbone that is named, if one is."""
    expect("recipe", recipe, (Recipe, str, Path, type(None)), "a Recipe, or the name of one (see `lca recipes`)")
    if not isinstance(recipe, Recipe):
        recipe = recipe_for_photos("best" if recipe is None else recipe)
    if not isinstance(backbone, str):
        return recipe
    return recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"name": backbone})})


def _read(name_or_path: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe over what it extends; `above` are the files that led here."""
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = shipped_recipes() / f"{name_or_path}.yaml"
        if not os.path.isfile(path):
            if name_or_path in methods:
                return {"method": name_or_path}
            hint = nearest(name_or_path, [*recipe_names(), *methods])
            raise LcaError(
                f"there is no recipe {shown(name_or_path)}; {hint}{'' if hint.endswith('?') else '.'} "
                "A recipe of your own is given as a path that ends in .yaml."
            )
    content = read_yaml(path)
    if (place := path.resolve()) in above:
        raise LcaError(f"{path} extends itself, by way of {', '.join(str(each) for each in above)}")
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str) or len(above) == DEEPEST:
        raise LcaError(f"{path}: extends names one recipe, in at most {DEEPEST} steps; got {shown(parent)}")
    beside = path.parent / parent
    return _over(_read(str(beside) if beside.suffix else parent, (*above, place)), content)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`. An axis of the grid is replaced as a whole: its values are a choice, not sections."""
    merged = merge_mappings(below, above)
    for key in ("grid", *SCALES):
        old, new = below.get(key), above.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            merged[key] = {**old, **new} if key == "grid" else _over(old, new)
    return merged
