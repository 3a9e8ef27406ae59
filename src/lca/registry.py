"""One name, one thing: the tables of methods, tuners, heads, merge operators, drift models and data sources.

A registry with a package imports every module of that package on its first look-up, so a new method is one new
file in `methods/` and no other edit. A registry with a group does the same for other installed packages: what they
name as entry points of that group stands beside our own (`docs/add-a-method.md`).

A thing registered as `FAMILY:NAME` answers to every name that starts with `FAMILY:`, such as `peft:ia3`, and reads the
rest of the name itself. Iteration lists the plain names only.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, TypeVar

from lca.errors import LcaError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to things; an unknown name is an error that suggests the nearest known one."""

    def __init__(
        self, kind: str, package: str | None = None, group: str | None = None, needs: Sequence[str] = ()
    ) -> None:
        """`needs` are the attributes without which a thing is none of this kind."""
        self.kind = kind
        self._package = package
        self._group = group
        self._needs = needs
        self._things: dict[str, T] = {}
        self._broken: dict[str, str] = {}  # why an installed package's thing cannot be used

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: enter a thing under a name. A name can be taken only once."""

        def enter(thing: T) -> T:
            if missing := [attribute for attribute in self._needs if not hasattr(thing, attribute)]:
                raise TypeError(f"{_origin(thing)} is no {self.kind}: it has no {' and no '.join(missing)}")
            if self._things.get(name, thing) is not thing:
                owners = f"by {_origin(self._things[name])} and by {_origin(thing)}"
                raise ValueError(f"{self.kind} {name!r} is registered twice: {owners}")
            self._things[name] = thing
            return thing

        return enter

    @contextmanager
    def standing_in(self, name: str, thing: T) -> Iterator[None]:
        """Within, the name means this thing, whatever it means outside: for tests, and for what is still written."""
        self._discover()
        before = dict(self._things)
        self._things.pop(name, None)
        try:
            self.register(name)(thing)
            yield
        finally:
            self._things = before

    def __getitem__(self, name: str) -> T:
        if name not in self:
            if name in self._broken:
                raise LcaError(self._broken[name])
            raise LcaError(f"unknown {self.kind} {name!r}; {nearest(_entry(name), self._things)}")
        return self._things[_entry(name)]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(name for name in self._things if ":" not in name))

    def __contains__(self, name: object) -> bool:
        self._discover()
        return isinstance(name, str) and _entry(name) in self._things

    def _discover(self) -> None:
        """Our own modules come first, so that no other package can take one of our names."""
        if self._package is not None:
            package, self._package = importlib.import_module(self._package), None
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
        if self._group is not None:
            points, self._group = entry_points(group=self._group), None
            for point in sorted(points, key=lambda point: (_distribution(point), point.name)):
                self._load(point)

    def _load(self, point: EntryPoint) -> None:
        """Enter what another package offers; a module registers by itself. What is wrong with that package is told
        in one line, and again when the name is asked for: all else goes on without it."""
        try:
            thing = point.load()
            if not isinstance(thing, ModuleType):
                self.register(point.name)(thing)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._broken[point.name] = (
                f"{self.kind} {point.name!r} of the installed package {_distribution(point)} ({point.value}) cannot be "
                f"used: {reason}. Mend, update or uninstall that package"
            )
            warnings.warn_explicit(self._broken[point.name], UserWarning, _distribution(point), 1)


def _entry(name: str) -> str:
    """Under which name a thing is registered: `peft:ia3` is found as `peft:NAME`."""
    family, colon, _ = name.partition(":")
    return f"{family}:NAME" if colon else name


def _origin(thing: object) -> str:
    """Where a thing was written."""
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{owner.__module__}.{owner.__qualname__}"


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of unknown name"
