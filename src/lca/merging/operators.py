"""Merge operators: pure functions of two task vectors, each with its own options.

A *task vector* is the difference between fine-tuned parameters and the base they started from. An operator takes the
merge so far (`previous`), the new task's vector (`current`) and how many vectors `previous` already holds.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from lca.errors import LcaError
from lca.options import Options, one_of
from lca.registry import Registry


class Operator(Options):
    """Merges two flat task vectors into one of the same length. What all operators have; each adds its own options."""

    operator: str
    alpha: float = 1.0
    """Coefficient of the merged vector: parameters = base + alpha * vector (Algorithm 1)."""
    from_base: ClassVar[bool] = False
    """Whether every task must start from the base, lest old vectors count twice."""

    @abstractmethod
    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        """The merge of `count` vectors so far with one more."""

    def check(self, init_from: str) -> None:
        """Refuse a start of fine-tuning that would count old vectors twice."""
        if self.from_base and init_from != "base":
            raise LcaError(
                f"merge operator {self.operator!r} with init_from {init_from!r} would count the old task vectors "
                "twice: set init_from: base, or choose another operator"
            )


operators: Registry[type[Operator]] = Registry("merge operator", group="lca.operators", needs=("from_base",))
choose_operator = one_of(operators, "agree", "operator", shared=True)
OperatorChoice = Annotated[SerializeAsAny[Operator], BeforeValidator(choose_operator)]
"""How a new task's parameters enter the running merge: an operator's name, or a mapping with its options."""


@operators.register("max_abs")
class MaxAbs(Operator):
    """The entry of larger magnitude, ties to the current one (Algorithm 1 of the paper; MagMax for two)."""

    operator: Literal["max_abs"] = "max_abs"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return torch.where(current.abs() >= previous.abs(), current, previous)


@operators.register("max")
class Maximum(Operator):
    """The larger entry, with its sign."""

    operator: Literal["max"] = "max"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return torch.maximum(previous, current)


@operators.register("min")
class Minimum(Operator):
    """The smaller entry, with its sign."""

    operator: Literal["min"] = "min"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return torch.minimum(previous, current)


@operators.register("agree")
class Agree(Operator):
    """Mean where the signs agree, zero where they oppose, the other one where one is zero.

    This is the sign election by *count* that the published code runs under the name "ties" without trimming.
    """

    operator: Literal["agree"] = "agree"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return _mean_of_elected(previous, current, torch.sign(torch.sign(previous) + torch.sign(current)))


@operators.register("budget")
class Budget(Agree):
    """Goes where `agree` goes, but no farther than a share of the length of what is there.

    v + min(1, budget |v| / |a - v|) (a - v) with a = agree(v, v'): the backbone drifts no more than that.
    """

    operator: Literal["budget"] = "budget"  # type: ignore[assignment]
    budget: float = Field(0.3, gt=0)
    """The share. A vector without any length takes the merge as it is."""

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        step = super().__call__(previous, current, count) - previous
        length = step.norm()
        limit = torch.where(previous.any(), self.budget * previous.norm(), length)
        return previous + step * (limit / length.clamp(min=1e-30)).clamp(max=1)


@operators.register("ties")
class Ties(Operator):
    """TIES merging of two vectors (Yadav et al. 2023): trim to the largest entries, elect the sign by mass, mean."""

    operator: Literal["ties"] = "ties"
    keep: float = Field(0.2, gt=0, le=1)
    """Share of the largest entries that is kept before the merge; 1 trims nothing."""

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        previous, current = trim(previous, self.keep), trim(current, self.keep)
        return _mean_of_elected(previous, current, torch.sign(previous + current))


@operators.register("mean")
class Mean(Operator):
    """The running mean over all tasks so far."""

    operator: Literal["mean"] = "mean"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return previous + (current - previous) / (count + 1)


@operators.register("slow")
class Slow(Operator):
    """A constant share of every update, so that the backbone drifts no more than that: v + step (v' - v)."""

    operator: Literal["slow"] = "slow"
    step: float = Field(0.3, gt=0, le=1)
    """The share, from the second task on; 1 is the current task's vector."""

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return previous + self.step * (current - previous)


@operators.register("sum")
class Sum(Operator):
    """Task arithmetic (Ilharco et al. 2022): the sum. Every task must start from the base."""

    operator: Literal["sum"] = "sum"
    from_base: ClassVar[bool] = True

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return previous + current


@operators.register("last")
class Last(Operator):
    """The current task's vector: plain sequential fine-tuning."""

    operator: Literal["last"] = "last"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return current


@operators.register("first")
class First(Operator):
    """The first task's vector: the backbone adapts once."""

    operator: Literal["first"] = "first"

    def __call__(self, previous: Tensor, current: Tensor, count: int) -> Tensor:
        return previous


def trim(vector: Tensor, keep: float) -> Tensor:
    """Zero all but the share `keep` of entries that are largest in magnitude."""
    kept = max(round(keep * vector.numel()), 1)
    if kept >= vector.numel():
        return vector
    largest = vector.abs().topk(kept).indices
    return torch.zeros_like(vector).index_copy(0, largest, vector[largest])


def _mean_of_elected(previous: Tensor, current: Tensor, elected: Tensor) -> Tensor:
    """Mean of the entries that carry the elected sign; zero where none was elected."""
    chosen = [(vector.sign() == elected) & (elected != 0) for vector in (previous, current)]
    summed = torch.where(chosen[0], previous, 0) + torch.where(chosen[1], current, 0)
    return summed / (chosen[0].to(summed.dtype) + chosen[1].to(summed.dtype)).clamp(min=1)
