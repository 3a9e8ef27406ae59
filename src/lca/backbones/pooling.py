"""The feature of an image as timm's model pools it for its head, and how wide that is."""

from typing import Any

import torch
from torch import Tensor, nn


def pooled(vit: Any, views: Tensor) -> Tensor:
    """The feature (n, width) of views (n, 3, size, size) as timm pools it for its head."""
    features: Tensor = vit.forward_head(vit.forward_features(views), pre_logits=True)
    return features


class Pooled(nn.Module):
    """`pooled` as one module whose weights can be given."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.training, self.vit = vit.training, vit

    def forward(self, views: Tensor) -> Tensor:
        return pooled(self.vit, views)


@torch.no_grad()
def pooled_shape(vit: nn.Module, size: int) -> tuple[int, ...]:
    """The shape of one image's feature, from a pass without values, in evaluation."""
    module = Pooled(vit)
    values = {name: each.to("meta") for name, each in (*module.named_parameters(), *module.named_buffers())}
    feature = torch.func.functional_call(module, values, (torch.empty(1, 3, size, size, device="meta"),))
    return tuple(feature.shape)
