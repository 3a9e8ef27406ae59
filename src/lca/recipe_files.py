"""Recipe files, in YAML: the ones that come with the package and a user's own.

`extends: NAME` starts from another recipe, `--set a.b=c` changes one key.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from lca.config import Recipe, merge_mappings, nest, validate_recipe
from lca.errors import LcaError, nearest


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in _shipped_recipes().glob("*.yaml"))


def recipe_summary(name: str) -> str:
    """The comment at the top of a shipped recipe."""
    first = (_shipped_recipes() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def read_recipe(name_or_path: str, overrides: Iterable[str] = (), _above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping of a shipped recipe or a YAML file, with what it extends and the `a.b=c` overrides applied.

    A method's name is a recipe as well: the method with its defaults.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = _shipped_recipes() / f"{name_or_path}.yaml"
        if not path.is_file():
            from lca.methods import methods

            if name_or_path in methods:
                return _overridden({"method": name_or_path}, overrides)
            hint = nearest(name_or_path, [*recipe_names(), *methods])
            raise LcaError(
                f"there is no recipe {name_or_path!r}; {hint}{'' if hint.endswith('?') else '.'} "
                "A recipe of your own is given as a path that ends in .yaml."
            )
    if path.resolve() in _above:
        raise LcaError(f"{path} extends itself, by way of {', '.join(str(each) for each in _above)}")
    content = _read_yaml(path)
    parent = content.pop("extends", None)
    if parent is not None:
        beside = path.parent / str(parent)
        below = read_recipe(str(beside) if beside.suffix else str(parent), (), (*_above, path.resolve()))
        content = merge_mappings(below, content)
    return _overridden(content, overrides)


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


def _overridden(content: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for override in overrides:
        content = merge_mappings(content, parse_override(override))
    return content


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
