"""Optimisers whose step can be captured on a GPU: fused, and the learning rate is a tensor that changes in place."""

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
