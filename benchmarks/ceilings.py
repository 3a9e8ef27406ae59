"""What the machine can do at most, measured in the same run: its matrix rate and its copy bandwidth."""

from dataclasses import dataclass

import torch

from measuring import Settings, time_in_turn

PRODUCTS = 20
"""One after another, so that starting the first and waiting for the last hardly count."""


@dataclass(frozen=True)
class Ceilings:
    """`matrix`: FLOP/s of a large square product (bf16 on a GPU, fp32 on a CPU); `copy`: bytes/s read and written."""

    matrix: float
    copy: float


def measure(settings: Settings) -> Ceilings:
    on_gpu = settings.device.type == "cuda"
    side, count = (8192, 2**28) if on_gpu else (1024, 2**24)
    kind = torch.bfloat16 if on_gpu else torch.float32
    left, right = (torch.randn(side, side, device=settings.device).to(kind) for _ in range(2))
    source = torch.zeros(count, dtype=torch.float32, device=settings.device)
    target = torch.empty_like(source)

    def products() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, right)

    product, copy = time_in_turn([products, lambda: target.copy_(source)], settings)
    return Ceilings(PRODUCTS * 2 * side**3 / product.best, 2 * source.nbytes / copy.best)
