"""SSF (Lian et al. 2022): y = scale * f(x) + shift, channel by channel, after the layers of the transformer.

After the projection of the patches, in every block after norm1, qkv, the attention's proj, norm2, fc1 (before the
activation) and fc2, and after the final norm. All of it can be folded into the layers' own weights and biases.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.errors import LcaError
from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions, replace_module

_IN_BLOCKS = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


class SsfOptions(TuningOptions):
    name: Literal["ssf"] = "ssf"
    noise: float = Field(0.02, ge=0)
    """Standard deviation of the initial scales around 1 and shifts around 0; with 0 the model starts unchanged."""


class ScaledShifted(nn.Module):
    """A frozen layer whose output channels are scaled and shifted."""

    def __init__(self, inner: nn.Module, noise: float, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = inner
        weight: Tensor = inner.weight  # type: ignore[assignment]
        channels = (len(weight), 1, 1) if isinstance(inner, nn.Conv2d) else (len(weight),)
        self.scale = nn.Parameter(torch.empty(channels).normal_(1, noise, generator=generator))
        self.shift = nn.Parameter(torch.empty(channels).normal_(0, noise, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) * self.scale + self.shift
        return result

    @torch.no_grad()
    def fold(self) -> bool:
        """Into the layer's weight and bias, which it gets if it has none; False if it cannot have one."""
        inner = self.inner
        if not isinstance(inner, nn.Linear | nn.Conv2d | nn.LayerNorm):
            return False
        scale, shift = self.scale.flatten(), self.shift.flatten()
        inner.weight *= scale.reshape(-1, *[1] * (inner.weight.dim() - 1))
        bias = shift.clone() if inner.bias is None else inner.bias * scale + shift
        if inner.bias is None:
            inner.bias = nn.Parameter(bias, requires_grad=False)
        else:
            inner.bias.copy_(bias)
        return True


@tuners.register("ssf")
class Ssf(Tuner):
    """SSF: a scale and a shift for every channel after every linear layer and norm."""

    Options: ClassVar = SsfOptions
    options: SsfOptions

    _layers: dict[str, ScaledShifted]
    _vit: VisionTransformer

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        last = "fc_norm" if isinstance(vit.norm, nn.Identity) else "norm"
        blocks = [f"blocks.{number}.{name}" for number in range(len(vit.blocks)) for name in _IN_BLOCKS]
        names, modules = ["patch_embed.proj", *blocks, last], dict(vit.named_modules())
        missing = [name for name in names if getattr(modules.get(name), "weight", None) is None]
        if missing:
            raise LcaError(f"ssf goes after layers with weights that this transformer does not have: {missing[:3]}")
        self._vit = vit
        self._layers = {name: ScaledShifted(modules[name], self.options.noise, generator) for name in names}
        for name, layer in self._layers.items():
            self.tuned |= {f"{name}.scale": layer.scale, f"{name}.shift": layer.shift}
            self.put(vit, name, layer)

    def fold(self) -> None:
        for name, layer in list(self._layers.items()):
            if layer.fold():
                replace_module(self._vit, name, layer.inner)
                del self._layers[name], self.tuned[f"{name}.scale"], self.tuned[f"{name}.shift"]
