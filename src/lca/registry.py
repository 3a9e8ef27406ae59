"""One name, one thing: the tables of methods, tuners, heads, merge operators, drift models and data sources.

A registry with a package imports every module of that package on its first look-up, so a new method is one new
file in `methods/` and no other edit.

A thing registered as `FAMILY:NAME` answers to every name that starts with `FAMILY:`, such as `peft:ia3`, and reads the
rest of the name itself. Iteration lists the plain names only.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from lca.errors import LcaError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to things; an unknown name is an error that suggests the nearest known one."""

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: enter a thing under a name. A name can be taken only once."""

        def enter(thing: T) -> T:
            if self._things.get(name, thing) is not thing:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._things[name] = thing
            return thing

        return enter

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise LcaError(f"unknown {self.kind} {name!r}; {nearest(_entry(name), self._things)}")
        return self._things[_entry(name)]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(name for name in self._things if ":" not in name))

    def __contains__(self, name: object) -> bool:
        self._discover()
        return isinstance(name, str) and _entry(name) in self._things

    def _discover(self) -> None:
        if self._package is None:
            return
        package, self._package = importlib.import_module(self._package), None
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def _entry(name: str) -> str:
    """Under which name a thing is registered: `peft:ia3` is found as `peft:NAME`."""
    family, colon, _ = name.partition(":")
    return f"{family}:NAME" if colon else name
