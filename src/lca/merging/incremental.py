"""Merging task vectors: pure operators on two vectors, and the incremental merge that uses them.

A *task vector* is the difference between fine-tuned parameters and the base they started from. An operator takes
the merge so far (`previous`), the new task's vector (`current`) and how many vectors `previous` already holds. The
incremental merge keeps the base and one running vector, never one vector per task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lca.errors import LcaError
from lca.options import Options
from lca.registry import Registry


class Operator(Protocol):
    """Merge two flat task vectors into one of the same length."""

    def __call__(self, previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor: ...


operators: Registry[Operator] = Registry("merge operator")


class MergeOptions(Options):
    """How a new task's parameters enter the running merge."""

    operator: str = "agree"
    """One of the registered operators."""
    alpha: float = 1.0
    """Coefficient of the merged vector: parameters = base + alpha * vector (Algorithm 1)."""
    keep: float = Field(0.2, gt=0, le=1)
    """Share of the largest entries that `ties` keeps before it merges; 1 trims nothing."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.operator != "ties" and self.keep != 0.2:
            raise ValueError(f"keep is for operator: ties; with {self.operator} it would do nothing")
        return self


@operators.register("max_abs")
def max_abs(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The entry of larger magnitude, ties to the current one (Algorithm 1 of the paper; MagMax for two)."""
    return torch.where(current.abs() >= previous.abs(), current, previous)


@operators.register("max")
def maximum(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The larger entry, with its sign."""
    return torch.maximum(previous, current)


@operators.register("min")
def minimum(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The smaller entry, with its sign."""
    return torch.minimum(previous, current)


@operators.register("agree")
def agree(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """Mean where the signs agree, zero where they oppose, the other one where one is zero.

    This is the sign election by *count* that the published code runs under the name "ties" without trimming.
    """
    elected = torch.sign(torch.sign(previous) + torch.sign(current))
    return _mean_of_elected(previous, current, elected)


@operators.register("ties")
def ties(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """TIES merging of two vectors (Yadav et al. 2023): trim to the largest entries, elect the sign by mass, mean."""
    previous, current = trim(previous, keep), trim(current, keep)
    return _mean_of_elected(previous, current, torch.sign(previous + current))


@operators.register("mean")
def mean(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The running mean over all tasks so far."""
    return previous + (current - previous) / (count + 1)


@operators.register("sum")
def total(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """Task arithmetic (Ilharco et al. 2022): the sum. Every task must start from the base."""
    return previous + current


@operators.register("last")
def last(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The current task's vector: plain sequential fine-tuning."""
    return current


@operators.register("first")
def first(previous: Tensor, current: Tensor, *, count: int, keep: float) -> Tensor:
    """The first task's vector: the backbone adapts once."""
    return previous


def trim(vector: Tensor, keep: float) -> Tensor:
    """Zero all but the share `keep` of entries that are largest in magnitude."""
    kept = max(round(keep * vector.numel()), 1)
    if kept >= vector.numel():
        return vector
    largest = vector.abs().topk(kept).indices
    return torch.zeros_like(vector).index_copy(0, largest, vector[largest])


def check_merge(options: MergeOptions, init_from: str) -> None:
    """Refuse an unknown operator, and the combinations that would count old vectors twice."""
    operators[options.operator]
    if options.operator == "sum" and init_from != "base":
        raise LcaError(
            f"merge operator 'sum' with init_from '{init_from}' would count the old task vectors twice: "
            "set init_from: base, or choose another operator"
        )


@dataclass(frozen=True)
class IncrementalMerge:
    """The running merge (Algorithm 1): a base, one vector, and how many tasks the vector holds."""

    options: MergeOptions
    base: Mapping[str, Tensor]
    vector: Mapping[str, Tensor]
    count: int = 0

    @classmethod
    def start(cls, options: MergeOptions, base: Mapping[str, Tensor]) -> "IncrementalMerge":
        base = {name: tensor.detach().clone() for name, tensor in base.items()}
        return cls(options, base, {name: torch.zeros_like(tensor) for name, tensor in base.items()})

    def add(self, tuned: Mapping[str, Tensor]) -> "IncrementalMerge":
        """Merge the parameters of one more task; the first task enters unchanged."""
        current = {name: tuned[name].detach() - base for name, base in self.base.items()}
        if self.count == 0 or not current:
            return IncrementalMerge(self.options, self.base, current, self.count + 1)
        merged = operators[self.options.operator](
            _flatten(self.vector, self.base),
            _flatten(current, self.base),
            count=self.count,
            keep=self.options.keep,
        )
        return IncrementalMerge(self.options, self.base, _unflatten(merged, self.base), self.count + 1)

    def parameters(self) -> dict[str, Tensor]:
        """base + alpha * vector; the base itself before the first task."""
        alpha = self.options.alpha
        return {name: base + alpha * self.vector[name] for name, base in self.base.items()}


def _mean_of_elected(previous: Tensor, current: Tensor, elected: Tensor) -> Tensor:
    """Mean of the entries that carry the elected sign; zero where none was elected."""
    chosen = [(vector.sign() == elected) & (elected != 0) for vector in (previous, current)]
    summed = torch.where(chosen[0], previous, 0) + torch.where(chosen[1], current, 0)
    return summed / (chosen[0].to(summed.dtype) + chosen[1].to(summed.dtype)).clamp(min=1)


def _flatten(tensors: Mapping[str, Tensor], order: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in order])


def _unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {
        name: piece.reshape(tensor.shape).clone() for (name, tensor), piece in zip(like.items(), pieces, strict=True)
    }
