"""Every method on transformers of other depths, widths and poolings than the tiny one of the other contracts."""

import pytest
import torch

import tiny
from lca.methods import methods

SHAPES = {
    "one block": {"depth": 1, "embed_dim": 16},
    "deeper and wider, average pooling": {"depth": 5, "embed_dim": 36, "num_heads": 3, "global_pool": "avg"},
    "registers, LayerScale, normalised queries": {"reg_tokens": 2, "init_values": 0.1, "qk_norm": True, "depth": 3},
}


@pytest.mark.filterwarnings("ignore:.*block")  # prompt layers beyond the last block are clipped
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", methods)
def test_a_method_learns_and_answers_on_any_shape(name, shape):
    model = tiny.classifier(tiny.recipe(method=tiny.method_section(name), training={"epochs": 1}), **SHAPES[shape])
    tiny.taught(model, ({"3": 6, "7": 6}, {"1": 4}, {"4": 6, "0": 6}))
    pixels = tiny.images(dict.fromkeys("37140", 3), skip=30).pixels
    together = model.features(pixels)
    halves = torch.cat([model.features(pixels.batch(rows)) for rows in torch.arange(len(pixels)).split(8)])
    torch.testing.assert_close(halves, together, rtol=0, atol=1e-4)
    for branch in model.method.branches():
        found = model.logits(together, branch)
        assert found.shape == (15, 5)
        assert found.isfinite().all()
        assert found.std() > 0
