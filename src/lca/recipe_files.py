"""Recipe files, in YAML: the ones that come with the package and a user's own.

`extends: NAME` starts from another recipe, `--set a.b=c` changes one key. A section named after a scale (`mini`) holds
what is different there, and `--scale` chooses it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lca.config import Recipe, merge_mappings, nest, validate_recipe
from lca.errors import LcaError, nearest

SCALES = ("mini",)
"""Sections that a recipe may have beside its keys."""


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package; those in a folder are named with it."""
    root = _shipped_recipes()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def recipe_summary(name: str) -> str:
    """The comment at the top of a shipped recipe."""
    first = (_shipped_recipes() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


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


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> Recipe:
    """A validated recipe; every mistake is an `LcaError` that names the key."""
    content = read_recipe(name_or_path, overrides)
    content.setdefault("name", Path(name_or_path).stem)
    if "cells" in content or "grid" in content:
        raise LcaError(f"{name_or_path} is a sweep of several runs: use `lca sweep {name_or_path}`")
    return validate_recipe(content, name_or_path)


def parse_override(text: str) -> dict[str, Any]:
    """`training.lr=0.02` as a nested mapping; the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise LcaError(f"--set takes key=value, for example --set training.lr=0.02; came {text!r}")
    try:
        return nest(key.strip(), yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise LcaError(f"--set {text}: the value is not YAML ({error})") from error


def _read(name_or_path: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe over what it extends; `above` are the files that led here."""
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = _shipped_recipes() / f"{name_or_path}.yaml"
        if not path.is_file():
            from lca.methods import methods

            if name_or_path in methods:
                return {"method": name_or_path}
            hint = nearest(name_or_path, [*recipe_names(), *methods])
            raise LcaError(
                f"there is no recipe {name_or_path!r}; {hint}{'' if hint.endswith('?') else '.'} "
                "A recipe of your own is given as a path that ends in .yaml."
            )
    if path.resolve() in above:
        raise LcaError(f"{path} extends itself, by way of {', '.join(str(each) for each in above)}")
    content = _read_yaml(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    beside = path.parent / str(parent)
    return _over(_read(str(beside) if beside.suffix else str(parent), (*above, path.resolve())), content)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`. An axis of the grid is replaced as a whole: its values are a choice, not sections."""
    merged = merge_mappings(below, above)
    for key in ("grid", *SCALES):
        old, new = below.get(key), above.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            merged[key] = {**old, **new} if key == "grid" else _over(old, new)
    return merged


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LcaError(f"there is no recipe file {path}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LcaError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise LcaError(f"{path} must hold a mapping of recipe keys, came {type(content).__name__}")
    return content


def _shipped_recipes() -> Path:
    return Path(__file__).parent / "recipes"
