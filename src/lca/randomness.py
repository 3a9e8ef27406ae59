"""Randomness is derived, never stored: every draw comes from (seed, purpose, task, epoch).

A run that is resumed therefore draws what the uninterrupted run would have drawn, without saving any generator.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, purpose: str, task: int = 0, epoch: int = 0) -> int:
    """A 63-bit seed by hashing, so that neighbouring seeds, tasks and epochs are unrelated."""
    text = f"{seed}/{purpose}/{task}/{epoch}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(
    seed: int, purpose: str, task: int = 0, epoch: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """The generator for one purpose, for example ("shuffle", task 3, epoch 1)."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, purpose, task, epoch))


@contextmanager
def global_randomness(
    seed: int, purpose: str, task: int = 0, epoch: int = 0, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Seed torch's global generators for code that takes none (dropout), and put them back afterwards."""
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(derive_seed(seed, purpose, task, epoch))
        yield
