"""The first layer of a vision transformer as what it is, a matrix product: much faster on a GPU than a convolution."""

from typing import Any

from timm.layers import PatchEmbed
from torch import Tensor, nn
from torch.nn import functional


class PatchProjection(nn.Conv2d):
    """A convolution whose patches touch and do not overlap, with the parameters of another one."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(convolution.__dict__)

    def forward(self, images: Tensor) -> Tensor:
        height, width = self.kernel_size
        patches = images.unfold(2, height, height).unfold(3, width, width)  # n, channels, rows, columns, height, width
        flat = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)
        return functional.linear(flat, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def project_by_product(vit: Any) -> None:
    """Put a `PatchProjection` in the place of a transformer's first convolution, where that gives the same."""
    embedding: Any = getattr(vit, "patch_embed", None)
    if type(embedding) is PatchEmbed and type(embedding.proj) is nn.Conv2d:
        convolution = embedding.proj
        touching = convolution.stride == convolution.kernel_size and convolution.padding == (0, 0)
        if touching and convolution.dilation == (1, 1) and convolution.groups == 1:
            embedding.proj = PatchProjection(convolution)
