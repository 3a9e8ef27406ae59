"""Several processes that train one model: each computes its share of every batch, and all hold the same tensors.

torch's own launcher starts them and tells each its place in the environment:

    torchrun --nproc_per_node 2 -m lca run best

Gradients are summed by one `all_reduce` a step, weighted by the images behind them, so that an update is that of one
process with the whole batch. torch's DDP takes the mean over ranks instead, and wants a module that all that is trained
belongs to; prompts and heads are outside of ours.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from lca.errors import LcaError

T = TypeVar("T")

_PATIENCE = timedelta(days=1)
"""How long a rank waits for the others, who may be decoding images; one that has ended is noticed at once."""


class Ranks:
    """A process that is alone: it has all images, and what several must tell each other it knows."""

    rank, count = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this is the one process that writes and shows."""
        return self.rank == 0

    def counts(self, total: int) -> list[int]:
        """How many of so many rows belong to every rank."""
        return [len(each) for each in torch.arange(total).tensor_split(self.count)]

    def share(self, rows: Tensor) -> tuple[Tensor, int]:
        """This rank's part of the rows, and how many of it count.

        All do, but where there are fewer rows than ranks: then those without any get the first one, which does not
        count, so that all ranks take the same steps.
        """
        return rows, len(rows)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """All rows in their order, from what every rank made of its share of so many."""
        return rows

    def sum(self, values: Tensor) -> None:
        """Sum values over the ranks, in place."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter], weight: float) -> None:
        """Replace gradients by their sum over the ranks, each with its weight."""

    def first(self, work: Callable[[], T]) -> T:
        """What rank 0 alone does, and every rank gets; an error that the user can mend is one on every rank."""
        return work()

    def check_same(self, value: Callable[[], Any], what: str) -> None:
        """What must be the same on every rank, or going on would give nonsense."""


class _Several(Ranks):
    def __init__(self) -> None:
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()

    def share(self, rows: Tensor) -> tuple[Tensor, int]:
        own = rows.tensor_split(self.count)[self.rank]
        return (own, len(own)) if len(own) else (rows[:1], 0)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        counts = self.counts(total)
        own = rows.new_zeros(counts[0], *rows.shape[1:])  # all as long as the longest
        own[: len(rows)] = rows
        parts = [torch.empty_like(own) for _ in counts]
        with _together():
            distributed.all_gather(parts, own)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def sum(self, values: Tensor) -> None:
        with _together():
            distributed.all_reduce(values)

    def sum_gradients(self, parameters: Iterable[nn.Parameter], weight: float) -> None:
        gradients = [each.grad for each in parameters if each.grad is not None]
        together = weight * torch.cat([each.flatten() for each in gradients])
        self.sum(together)
        for gradient, own in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(own.view_as(gradient))

    def first(self, work: Callable[[], T]) -> T:
        told: list[Any] = [None]
        if self.leads:
            try:
                told = [work()]
            except LcaError as error:
                told = [error]
        with _together():
            distributed.broadcast_object_list(told)
        if isinstance(told[0], LcaError):
            raise told[0]
        result: T = told[0]
        return result

    def check_same(self, value: Callable[[], Any], what: str) -> None:
        values: list[Any] = [None] * self.count
        with _together():
            distributed.all_gather_object(values, repr(value()))  # as a text: nan is not equal to itself
        others = [str(rank) for rank, each in enumerate(values) if each != values[0]]
        if others:
            raise LcaError(f"{what} must be the same on all ranks, but differ from rank 0 on rank {', '.join(others)}")


_current = Ranks()


def current() -> Ranks:
    """This process's place among those that train together."""
    return _current


def launched() -> int:
    """How many processes `torchrun` has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Train together with the other processes that `torchrun` has started, each on a GPU of its own or on the CPU."""
    global _current
    if launched() == 1:
        yield _current
        return
    if device.type == "cuda":
        own, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if str(device) != "cuda":
            raise LcaError(f"every rank has a GPU of its own; set device to cuda instead of {device}")
        if own >= there:
            raise LcaError(f"every rank needs a GPU of its own, and here are {there}; use --nproc_per_node {there}")
        torch.cuda.set_device(own)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    _current = _Several()
    try:
        yield _current
    finally:
        _current = Ranks()
    distributed.destroy_process_group()  # not after an error: the others may be waiting, and would not answer


@contextmanager
def _together() -> Iterator[None]:
    """A rank that has ended is no mistake of this one."""
    try:
        yield
    except RuntimeError as error:
        raise LcaError(
            "another rank has ended or cannot be reached; if it gave no reason, it was killed. Everything up to the "
            f"last checkpoint is saved: give the same command again. ({str(error).splitlines()[0]})"
        ) from error
