"""The incremental merge: it keeps the base and one running vector, never one vector per task."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lca.merging.operators import Operator


@dataclass(frozen=True)
class IncrementalMerge:
    """The running merge (Algorithm 1): a base, one vector, and how many tasks the vector holds."""

    operator: Operator
    base: Mapping[str, Tensor]
    vector: Mapping[str, Tensor]
    count: int = 0

    @classmethod
    def start(cls, operator: Operator, base: Mapping[str, Tensor]) -> "IncrementalMerge":
        base = {name: tensor.detach().clone() for name, tensor in base.items()}
        return cls(operator, base, {name: torch.zeros_like(tensor) for name, tensor in base.items()})

    def add(self, tuned: Mapping[str, Tensor]) -> "IncrementalMerge":
        """Merge the parameters of one more task; the first task enters unchanged."""
        current = {name: tuned[name].detach() - base for name, base in self.base.items()}
        if self.count == 0 or not current:
            return IncrementalMerge(self.operator, self.base, current, self.count + 1)
        merged = self.operator(_flatten(self.vector, self.base), _flatten(current, self.base), self.count)
        return IncrementalMerge(self.operator, self.base, _unflatten(merged, self.base), self.count + 1)

    def parameters(self) -> dict[str, Tensor]:
        """base + alpha * vector; the base itself before the first task."""
        alpha = self.operator.alpha
        return {name: base + alpha * self.vector[name] for name, base in self.base.items()}


def _flatten(tensors: Mapping[str, Tensor], order: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in order])


def _unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {
        name: piece.reshape(tensor.shape).clone() for (name, tensor), piece in zip(like.items(), pieces, strict=True)
    }
