"""The contracts of a merge operator, alone and in incremental merging."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lca.merging.operators import Operator, choose_operator, operators
from lca.testing.contracts import Contracts, contract, expect, expect_equal, expect_sentence, run_contracts
from lca.testing.methods import METHOD_CONTRACTS, MethodSubject

OPERATOR_CONTRACTS: Contracts["OperatorSubject"] = {}
"""What every merge operator promises, by name."""


def check_operator(operator: type[Operator] | str, *, contracts: Iterable[str] | None = None, **options: Any) -> None:
    """Check that an operator, by its class or name and with these options, keeps all contracts or those named."""
    subject = partial(OperatorSubject, options=options)
    run_contracts(OPERATOR_CONTRACTS, operators, operator, subject, contracts, tag="operator")


class OperatorSubject:
    """An operator with its options."""

    def __init__(self, operator: str, options: dict[str, Any]) -> None:
        self.name = f"merge operator {operator!r}"
        self.section = {**options, "operator": operator}
        self.operator: Operator = choose_operator(self.section)


@contract(OPERATOR_CONTRACTS, "two vectors become one of the same length")
def _length(subject: OperatorSubject) -> None:
    for length in (1, 2, 1000):
        for count in (1, 2, 30):
            merged = subject.operator(*_vectors(length), count)
            expect_equal((merged.shape, merged.dtype), (torch.Size([length]), torch.float32), "shape and type")
            expect(merged.isfinite().all(), "expected finite values")
    nothing = torch.zeros(8)
    expect(subject.operator(nothing, nothing, 1).isfinite().all(), "expected finite values from vectors of zeros")


@contract(OPERATOR_CONTRACTS, "it draws nothing and leaves what it is given as it was")
def _pure(subject: OperatorSubject) -> None:
    previous, current = _vectors(100)
    first = subject.operator(previous, current, 3).clone()
    expect(torch.equal(subject.operator(previous, current, 3), first), "expected the same from the same vectors")
    given = {"previous": previous, "current": current}
    expect_equal(given, dict(zip(given, _vectors(100), strict=True)), "the vectors that it got")


@contract(OPERATOR_CONTRACTS, "the docstring begins with a line for lists")
def _docstring(subject: OperatorSubject) -> None:
    expect_sentence(type(subject.operator).__doc__)


@contract(OPERATOR_CONTRACTS, "incremental merging with it keeps its contract", METHOD_CONTRACTS)
def _merging(subject: OperatorSubject, of_method: str) -> None:
    start = "base" if subject.operator.from_base else "previous"
    section = {"merge": subject.section, "init_from": start, "align": ["none"]}
    METHOD_CONTRACTS[of_method](MethodSubject("im", {"method": section}))


def _vectors(length: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(length)
    return torch.randn(length, generator=random), torch.randn(length, generator=random)
