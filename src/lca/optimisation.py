"""Optimisers whose step can be captured on a GPU (fused, the learning rate a tensor that changes in place), and
schedules of learning rates."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_optimiser(
    name: str, groups: Iterable[tuple[Sequence[nn.Parameter], float]], momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """SGD or AdamW (whose first beta is the momentum) over groups of parameters, each with its full learning rate.

    A group's `full_lr` stays; `set_rate` changes what is in effect.
    """
    filled: list[dict[str, Any]] = [
        {"params": list(each), "lr": rate, "full_lr": rate} for each, rate in groups if len(each)
    ]
    device = filled[0]["params"][0].device
    on_gpu = device.type == "cuda"
    if on_gpu:
        for group in filled:
            group["lr"] = torch.tensor(group["lr"], device=device)
    if name == "adamw":
        betas = (momentum, 0.999)
        return torch.optim.AdamW(filled, betas=betas, weight_decay=weight_decay, fused=on_gpu, capturable=on_gpu)
    return torch.optim.SGD(filled, momentum=momentum, weight_decay=weight_decay, fused=on_gpu)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set a group's learning rate; in place where a captured step reads it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def quarter_cosine(start: float, epoch: int, epochs: int) -> float:
    """CODA-Prompt's: a quarter of a cosine down to nearly 0, which begins an epoch late."""
    return start * math.cos(99 * math.pi * max(epoch - 1, 0) / (200 * max(epochs - 1, 1)))


def cosine(start: float, end: float, progress: float) -> float:
    """Cosine annealing from start to end, `progress` running from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
