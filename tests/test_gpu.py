"""What only a GPU can show: the captured path equals the plain one, and exact mode is bit-equal. Skipped without one."""

import pytest
import torch

from lca.alignment import AlignmentOptions, align
from lca.device import Compute
from lca.gaussians import CovarianceOptions, GaussianMemory
from lca.heads import GrowingHeads, HeadOptions
from lca.randomness import generator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _aligned(exact: bool, batches: str, samples: int = 50):
    device = torch.device("cuda")
    memory = GaussianMemory(CovarianceOptions())
    for label in range(12):
        memory.observe(label, torch.randn(20, 32, generator=generator(0, "features", label)) + label % 4)
    heads = GrowingHeads(32, HeadOptions())
    for task in range(3):
        heads.append(heads.new_head(4, generator(0, "head", task)))
    options = AlignmentOptions(
        name="x", batches=batches, nearest_mean_filter=True, samples=samples, epochs=3, batch_size=64
    )
    compute = Compute.choose("cuda", "fp32", exact)
    with compute.determinism():
        result, measured = align(
            heads.to(device), memory.to(device), options, lambda purpose, epoch, on: generator(0, purpose, 0, epoch, on)
        )
    return torch.cat([head.weight.flatten() for head in result.tasks]), measured


@pytest.mark.parametrize("batches", ["balanced", "random"])  # 12 x 50 samples in batches of 64 leave a short last one
def test_the_captured_alignment_equals_the_plain_one(batches):
    captured, captured_loss = _aligned(False, batches)
    plain, plain_loss = _aligned(True, batches)
    torch.testing.assert_close(captured, plain, atol=1e-5, rtol=1e-4)
    assert captured_loss["loss"] == pytest.approx(plain_loss["loss"], rel=1e-4)
    assert not torch.equal(captured, torch.zeros_like(captured))


def test_exact_alignment_repeats_bit_for_bit():
    assert torch.equal(_aligned(True, "balanced")[0], _aligned(True, "balanced")[0])
