"""What a contract is: a named check that says what it expected when it fails."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar
from unittest import SkipTest

import torch
from torch import Tensor

from lca.errors import LcaError, nearest
from lca.options import options_of
from lca.registry import Registry


class Subject(Protocol):
    """What is checked."""

    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Subject)
Contracts = dict[str, Callable[[S], None]]
"""Checks by what they promise. One that does not apply raises SkipTest, which pytest understands as well."""


def contract(table: Contracts[S], promise: str, cases: Iterable[str] = ()) -> Callable[[Callable[..., None]], None]:
    """Decorator: enter a check into a table; one that takes a case is entered for each of the cases."""

    def enter(check: Callable[..., None]) -> None:
        for title, arguments in {f"{promise}: {case}": (case,) for case in cases}.items() or [(promise, ())]:
            table[title] = _told(check, title, arguments)

    return enter


def _told(check: Callable[..., None], title: str, arguments: tuple[str, ...]) -> Callable[[S], None]:
    def kept(subject: S) -> None:
        try:
            check(subject, *arguments)
        except Exception as error:
            if isinstance(error, SkipTest):
                raise
            what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{subject.name} does not keep the contract '{title}'. {what}") from error

    return kept


def run_contracts(
    table: Contracts[S],
    registry: Registry[Any],
    thing: Any,
    subject: Callable[[str], S],
    chosen: Iterable[str] | None,
    tag: str = "name",
) -> None:
    """Check that a thing keeps all contracts, or those chosen. `thing` is a name, or a class that stands in for what
    the registry has under the class's own name: the default of its option `tag`."""
    name = thing if isinstance(thing, str) else str(options_of(thing).model_fields[tag].default)
    with nullcontext() if isinstance(thing, str) else registry.standing_in(name, thing):
        checked = subject(name)
        for title in table if chosen is None else chosen:
            if title not in table:
                raise LcaError(f"there is no contract {title!r}; {nearest(title, table)}")
            try:
                table[title](checked)
            except SkipTest:
                if chosen is not None:
                    raise


def expect(kept: bool | Tensor, message: str) -> None:
    if not kept:
        raise AssertionError(message)


def expect_sentence(docstring: str | None) -> None:
    """What lists show of a thing is the first line of its docstring."""
    line = (docstring or "").partition("\n")[0].strip()
    expect(line.endswith("."), f"expected a docstring whose first line is a sentence, got {line!r}")


def expect_equal(found: Any, expected: Any, what: str) -> None:
    """Equal values, or tensors by name that are equal to the last bit."""
    if isinstance(expected, dict) and any(isinstance(each, Tensor) for each in expected.values()):
        expect_equal(list(found), list(expected), f"{what}: names")
        wrong = [name for name, each in expected.items() if not torch.equal(found[name], each)]
        expect(not wrong, f"{what}: expected equal to the last bit, but these differ: {wrong}")
    else:
        expect(found == expected, f"{what}: expected {expected}, got {found}")


def expect_near(found: Tensor, expected: Tensor, what: str, atol: float = 1e-5, rtol: float = 0) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda difference: f"{what}: {difference}")
