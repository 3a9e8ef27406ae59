"""Recipe files, in YAML: the ones that come with the package and a user's own.

A recipe may have been sent by somebody else. What is read is a regular file of bounded size, as text, numbers, lists
and mappings of bounded depth; no key is there twice, and aliases may not make more of a file than a recipe ever needs.
"""

import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from lca.errors import LcaError

LARGEST = 2**20
"""Bytes of a recipe file."""
DEEPEST = 20
"""Levels of lists and mappings in one another."""
MOST = 20_000
"""Values of a recipe, those of an alias counted wherever it stands."""
LONGEST, DIGITS = 4096, 60
"""Characters of a text, which may be a path, and of a number."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "merge", "seq", "map")}
_AS_TEXT = {f"{_TAG}{kind}" for kind in ("timestamp", "value")}


class _Loader(yaml.SafeLoader):
    """YAML's plain values alone, within the bounds above."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        self._expect(self._depth <= DEEPEST, f"lists and mappings lie more than {DEEPEST} levels deep in one another")
        named = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and named:
            self._expect(id(node) in self._sizes, "an alias stands within what it names", node)
        elif node is not None:
            self._sizes[id(node)] = self._size(node)
        return node

    def _size(self, node: Node) -> int:
        """How many values it holds, those of an alias wherever it stands."""
        if isinstance(node, ScalarNode):
            self._check(node)
            return 1
        self._expect(node.tag in _PLAIN, f"{node.tag} is no list and no mapping", node)
        inner = [each for pair in node.value for each in (pair if isinstance(pair, tuple) else (pair,))]
        size = 1 + sum(self._sizes[id(each)] for each in inner)
        self._expect(size <= MOST, f"there are more than {MOST:,} values, aliases counted where they stand", node)
        return size

    def _check(self, node: ScalarNode) -> None:
        if node.tag in _AS_TEXT:
            node.tag = f"{_TAG}str"
        self._expect(node.tag in _PLAIN, f"{node.tag} is no text, number or truth value", node)
        kind = "number" if node.tag in (f"{_TAG}int", f"{_TAG}float") else "text"
        limit = DIGITS if kind == "number" else LONGEST
        self._expect(len(node.value) <= limit, f"a {kind} has {len(node.value):,} characters, at most {limit:,}", node)
        strange = any(each == "\0" or "\ud800" <= each <= "\udfff" for each in node.value)
        self._expect(not strange, "a text holds a zero character or half of one", node)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for place, _ in node.value:  # before what `<<` brings is added, which keys of its own may replace
            self._expect(isinstance(place, ScalarNode), "a key is a list or a mapping", place)
            key = self.construct_object(place)
            self._expect(key not in keys, f"the key {key!r} is there twice", place)
            keys.add(key)
        return super().construct_mapping(node, deep)

    def _expect(self, holds: bool, problem: str, node: Node | None = None) -> None:
        if not holds:
            raise yaml.constructor.ConstructorError(
                problem=problem, problem_mark=None if node is None else node.start_mark
            )


_Loader.add_constructor(f"{_TAG}merge", lambda loader, node: str(node.value))  # as a key, to compare it with others


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; what is none, or not within bounds, is a `YAMLError`."""
    try:
        return yaml.load(text, _Loader)  # a safe loader
    except (ValueError, OverflowError, RecursionError) as error:  # such as the number 0x or 1__
        raise yaml.YAMLError(str(error)) from None


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
        raise LcaError(f"--set takes key=value, for example --set training.lr=0.02; got {text[:200]!r}")
    try:
        return nest(key.strip(), parse_yaml(value))
    except yaml.YAMLError as error:
        raise LcaError(f"--set {text[:200]}: the value is not YAML ({error})") from error


def nest(dotted: str, value: Any) -> dict[str, Any]:
    """("a.b", 1) as {"a": {"b": 1}}."""
    steps = dotted.split(".") if isinstance(dotted, str) else []
    if not 1 <= len(steps) <= DEEPEST:
        raise LcaError(f"a key is written like training.lr, at most {DEEPEST} steps; got {str(dotted)[:200]!r}")
    for step in reversed(steps):
        value = {step: value}
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(_text_of(path))
    except FileNotFoundError:
        raise LcaError(f"there is no recipe file {path}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # a ValueError for what is no UTF-8, or no name of a file
        raise LcaError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise LcaError(f"{path} must hold a mapping of recipe keys, got {type(content).__name__}")
    return content


def _text_of(path: Path) -> str:
    """Of a regular file; opening a pipe would wait for ever, and reading a device never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(f"it has more than {LARGEST:,} bytes, which no recipe needs")
    return content.decode("utf-8")


def shipped_recipes() -> Path:
    return Path(__file__).parent / "recipes"
