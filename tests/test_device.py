"""Choosing a device and a precision."""

import pytest
import torch

from lca.device import Compute, replayed, versions
from lca.errors import LcaError


@pytest.mark.parametrize("device", ["mps", "gpu", "cuda:x", ""])
def test_unknown_devices(device):
    with pytest.raises(LcaError, match="expected auto, cpu, cuda"):
        Compute.choose(device)


def test_a_gpu_that_is_not_there():
    with pytest.raises(LcaError, match=r"torch sees \d+ GPU"):
        Compute.choose("cuda:99")


def test_exact_is_fp32():
    assert Compute.choose("cpu", exact=True).precision == "fp32"
    with pytest.raises(LcaError, match="exact: true computes in fp32"):
        Compute.choose("cpu", "bf16", exact=True)


def test_bf16_changes_the_numbers():
    layer, rows = torch.nn.Linear(8, 8), torch.randn(2, 8)
    with Compute.choose("cpu", "bf16").autocast():
        assert layer(rows).dtype == torch.bfloat16
    with Compute.choose("cpu", "fp32").autocast():
        assert layer(rows).dtype == torch.float32


def test_determinism_is_switched_on_and_off_again():
    with Compute.choose("cpu", exact=True).determinism():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_on_a_cpu_a_step_is_the_step_itself():
    def step(index):
        raise AssertionError

    assert replayed(step, torch.zeros(3), []) is step


def test_versions_name_what_numbers_depend_on():
    assert {"torch", "timm", "pillow", "lca", "python"} <= versions().keys()
