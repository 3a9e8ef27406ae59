"""Recipe files, in YAML: the ones that come with the package and a user's own."""

from pathlib import Path
from typing import Any

import yaml

from lca.errors import LcaError


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package; those in a folder are named with it."""
    root = shipped_recipes()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def recipe_summary(name: str) -> str:
    """The comment at the top of a shipped recipe."""
    first = (shipped_recipes() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def parse_override(text: str) -> dict[str, Any]:
    """`training.lr=0.02` as a nested mapping; the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise LcaError(f"--set takes key=value, for example --set training.lr=0.02; got {text!r}")
    try:
        return nest(key.strip(), yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise LcaError(f"--set {text}: the value is not YAML ({error})") from error


def nest(dotted: str, value: Any) -> dict[str, Any]:
    """("a.b", 1) as {"a": {"b": 1}}."""
    for step in reversed(dotted.split(".")):
        value = {step: value}
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LcaError(f"there is no recipe file {path}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LcaError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise LcaError(f"{path} must hold a mapping of recipe keys, got {type(content).__name__}")
    return content


def shipped_recipes() -> Path:
    return Path(__file__).parent / "recipes"
