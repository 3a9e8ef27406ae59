"""Where and how tensors are computed: device, precision, and the exact mode.

Several processes are torch's own `torchrun` and DDP, not Lightning Fabric: the loop here overwrites parameters in
place and keeps the heads outside of what is compiled, so Fabric's wrappers would have to be unwrapped again, and
importing it costs start-up time (see benchmarks/NOTES.md).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from lca.errors import LcaError


@dataclass(frozen=True)
class Compute:
    """A device and the precision of the backbone on it."""

    device: torch.device
    precision: str = "fp32"
    exact: bool = False

    @classmethod
    def choose(cls, device: str = "auto", precision: str = "auto", exact: bool = False) -> "Compute":
        """Resolve `auto`: a GPU when there is one, bf16 where the GPU computes in it."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise LcaError(f"unknown device {device!r}; expected auto, cpu, cuda or cuda:0") from error
        if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
            raise LcaError(f"device {device!r} was asked for, but torch sees {torch.cuda.device_count()} GPU(s)")
        if exact:
            precision = "fp32"
        if precision == "auto":
            fast = chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "bf16" if fast else "fp32"
        return cls(chosen, precision, exact)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """bf16 for the backbone's matrix products, where chosen."""
        lower = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        with lower:
            yield

    @contextmanager
    def determinism(self) -> Iterator[None]:
        """In exact mode: deterministic algorithms, restored afterwards."""
        if not self.exact:
            yield
            return
        # cuBLAS reads this when its first handle is made, so it must be set before any GPU work
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                yield
        finally:
            torch.use_deterministic_algorithms(before)

    def describe(self) -> dict[str, str]:
        """For results: what computed them."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else _processor()
        return {
            "device": self.device.type,
            "name": name,
            "precision": self.precision,
            "exact": str(self.exact).lower(),
        }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return f"{models[0] if models else 'CPU'}, {torch.get_num_threads()} threads"
