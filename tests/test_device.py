"""Choosing a device and a precision."""

import importlib
from pathlib import Path

import pytest
import torch

import lca.device
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


def test_left_open_a_cpu_computes_in_fp32():
    assert Compute.choose("cpu").precision == "fp32"
    assert Compute.choose("cpu", compiled=True).precision == "fp32"


@pytest.mark.parametrize("instructions", [True, False])
def test_bf16_on_a_processor_without_it_warns(instructions, monkeypatch, recwarn):
    monkeypatch.setattr(lca.device, "_cpu_computes_in_bf16", lambda: instructions)
    Compute.choose("cpu", "fp32")
    assert not recwarn
    assert Compute.choose("cpu", "bf16").precision == "bf16"
    assert [str(each.message) for each in recwarn] == [
        "this processor only emulates bf16; precision: fp32 is faster on it"
    ] * (not instructions)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the kernel does not name the processor's instructions")
def test_what_the_processor_says_of_bf16():
    named = Path("/proc/cpuinfo").read_text().split()
    assert lca.device._cpu_computes_in_bf16() == any(each in named for each in ("avx512_bf16", "amx_bf16", "bf16"))


def test_determinism_is_switched_on_and_off_again():
    with Compute.choose("cpu", exact=True).determinism():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_on_a_cpu_a_step_is_the_step_itself():
    def step(index):
        raise AssertionError

    assert replayed(step, torch.zeros(3), []) is step


@pytest.mark.parametrize("is_folder", [False, True])
def test_the_code_of_other_packages_is_among_the_versions(tmp_path, monkeypatch, is_folder):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / ("brought/__init__.py" if is_folder else "brought.py")
    module.parent.mkdir(exist_ok=True)
    record = tmp_path / "lca_brought-1.5.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: lca-brought\nVersion: 1.5\n")
    (record / "entry_points.txt").write_text("[lca.tuners]\nbrought = brought.deep:Tuner\n")
    told = []
    for text in ("x = 1", "x = 2"):
        module.write_text(text)
        lca.device._other_packages.cache_clear()
        importlib.invalidate_caches()
        told.append(versions()["lca-brought"])
    lca.device._other_packages.cache_clear()
    assert all(each.startswith("1.5, sources ") for each in told)
    assert told[0] != told[1]


def test_versions_name_what_numbers_depend_on():
    assert {"torch", "timm", "pillow", "lca", "python"} <= versions().keys()
