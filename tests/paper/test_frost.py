"""What is measured on frost textures, on textures of which it is known."""

import pytest
import torch

from paper.frost import between_crops, correlation, grey_percentiles, spread_within_crops


def noise(side=500):
    return torch.randn(side, side, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(1, 1, 3)


def test_white_noise_is_alike_in_all_crops_and_uncorrelated():
    texture = 100 + 10 * noise()
    assert grey_percentiles(texture) == pytest.approx([100 - 23.3, 100 + 23.3], abs=0.3)
    assert correlation(texture, 1) == pytest.approx(0, abs=0.01)
    assert between_crops((10, 10, 10), spread_within_crops(texture)) == pytest.approx(0, abs=0.03)


def test_large_patches_are_correlated_and_differ_from_crop_to_crop():
    patches = 10 * noise(4).repeat_interleave(250, 0).repeat_interleave(250, 1)
    assert correlation(patches, 1) == pytest.approx(1, abs=0.1)
    assert correlation(patches, 16) < correlation(patches, 1)
    assert between_crops(patches.std((0, 1)).tolist(), spread_within_crops(patches)) > 0.5
    assert between_crops((5, 5, 5), 3) == pytest.approx(1 - 9 / 25)
