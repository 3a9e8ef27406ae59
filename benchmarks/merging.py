"""The incremental merge, which keeps the base and one vector, beside keeping the vectors of all tasks.

The plain way merges all vectors afresh after every task. The two operators compared give the same result either way
(the largest magnitude and the mean of all do not depend on grouping). Bytes are what is kept between tasks, the base
included; while merging, both need working copies besides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lca.merging.incremental import IncrementalMerge
from lca.merging.operators import operators
from lca.randomness import generator
from measuring import Agreement, Comparison, Numbers, Settings, Size, size_of, time_both

SUBJECT = "merging"

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    tasks: tuple[int, ...]
    width: int
    rank: int
    blocks: int = 12


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(tasks=(3,), width=8, rank=2, blocks=2),
    "small": Sizes(tasks=(10, 50), width=192, rank=16),
    "full": Sizes(tasks=(10, 50), width=768, rank=64),
}


@dataclass
class KeepAll:
    """The plain way: a base and every task's vector."""

    base: Tensors
    combine: Callable[[Tensor], Tensor]
    vectors: list[Tensors]

    def add(self, tuned: Tensors) -> None:
        self.vectors.append({name: tuned[name] - base for name, base in self.base.items()})

    def parameters(self) -> Tensors:
        return {
            name: base + self.combine(torch.stack([vector[name] for vector in self.vectors]))
            for name, base in self.base.items()
        }


def largest_magnitude(vectors: Tensor) -> Tensor:
    """(tasks, ...) -> (...). Of the largest and the smallest entry; argmax and gather are far slower on a CPU."""
    largest, smallest = vectors.amax(0), vectors.amin(0)
    return torch.where(largest >= -smallest, largest, smallest)


def mean_of_all(vectors: Tensor) -> Tensor:
    return vectors.mean(0)


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    return [
        row
        for tasks in sizes.tasks
        for operator, combine in (("max_abs", largest_magnitude), ("mean", mean_of_all))
        for row in _compare_operator(tasks, operator, combine, sizes, settings)
    ]


def _compare_operator(
    tasks: int, operator: str, combine: Callable[[Tensor], Tensor], sizes: Sizes, settings: Settings
) -> list[Comparison]:
    base = _lora_tensors(sizes, 0, settings.device)
    tuned = [_lora_tensors(sizes, task + 1, settings.device) for task in range(tasks)]

    def ours() -> tuple[Tensors, int]:
        merge = IncrementalMerge.start(operators[operator](), base)
        parameters: Tensors = {}
        for each in tuned:
            merge = merge.add(each)
            parameters = merge.parameters()
        return parameters, _bytes(merge.base, merge.vector)

    def plain() -> tuple[Tensors, int]:
        merge = KeepAll(base, combine, [])
        parameters: Tensors = {}
        for each in tuned:
            merge.add(each)
            parameters = merge.parameters()
        return parameters, _bytes(merge.base, *merge.vectors)

    (our_parameters, our_bytes), (plain_parameters, plain_bytes) = ours(), plain()
    difference = max(float((our_parameters[name] - plain_parameters[name]).abs().max()) for name in base)
    agreement = Agreement(difference, 1e-5, "largest difference of a merged parameter")
    count = sum(tensor.numel() for tensor in base.values())
    numbers: Numbers = {"tasks": tasks, "parameters": count, "operator": operator}
    case = f"{operator}, {tasks} tasks of {count / 1e6:.2f} M parameters"
    return [
        Comparison(SUBJECT, f"kept, {case}", "bytes", size_of(our_bytes), size_of(plain_bytes), numbers, agreement),
        Comparison(SUBJECT, f"all merges, {case}", "seconds", *time_both(ours, plain, settings), numbers, agreement),
    ]


def _lora_tensors(sizes: Sizes, task: int, device: torch.device) -> Tensors:
    """LoRA on the joint query, key and value projection of every block."""
    draws = generator(0, "benchmark tuned", task)
    shapes = {"down": (sizes.rank, sizes.width), "up": (3 * sizes.width, sizes.rank)}
    return {
        f"blocks.{block}.{name}": torch.randn(shape, generator=draws).to(device)
        for block in range(sizes.blocks)
        for name, shape in shapes.items()
    }


def _bytes(*tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for each in tensors for tensor in each.values())
