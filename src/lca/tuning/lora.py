"""LoRA (Hu et al. 2022): W x + (alpha / rank) B A x on linear layers; reads and writes the peft library's files."""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from lca.errors import LcaError
from lca.files import load_tensors, read_json, save_tensors, write_atomic
from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions

_PEFT_PREFIX = "base_model.model."


class LoraOptions(TuningOptions):
    name: Literal["lora"] = "lora"
    targets: tuple[str, ...] = ("qkv",)
    """Last names of the linear layers: `qkv`, `proj` (attention), `fc1`, `fc2` (MLP)."""
    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """On the input of A, in training."""


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank update."""

    def __init__(self, inner: nn.Linear, options: LoraOptions, generator: torch.Generator) -> None:
        super().__init__()
        rank = options.rank
        self.inner = inner
        self.scaling = options.alpha / rank
        self.dropout = options.dropout
        # "gaussian" in peft: A normal with standard deviation 1 / rank, B zero, so the model starts unchanged
        down = torch.empty(rank, inner.in_features).normal_(0, 1 / rank, generator=generator)
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))
        self.settled: Tensor | None = None
        """`folded`, while nothing changes and no gradients are wanted."""

    def folded(self) -> Tensor:
        """The weight of a linear layer that does the same."""
        return torch.addmm(self.inner.weight, self.up, self.down, alpha=self.scaling)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and not (self.training and self.dropout):
            return functional.linear(x, self.folded() if self.settled is None else self.settled, self.inner.bias)
        dropped = functional.dropout(x, self.dropout, self.training)
        low = self.scaling * functional.linear(dropped, self.down)  # scaled here, where it is narrow
        result: Tensor = self.inner(x) + functional.linear(low, self.up)
        return result


@tuners.register("lora")
class Lora(Tuner):
    """Low-rank updates of the linear layers whose last name is among the targets."""

    Options: ClassVar = LoraOptions
    options: LoraOptions

    _layers: dict[str, LoraLinear]

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        linear = {name: module for name, module in vit.named_modules() if isinstance(module, nn.Linear)}
        last_names = {name.rpartition(".")[2] for name in linear if name.startswith("blocks.")}
        unknown = set(self.options.targets) - last_names
        if unknown:
            raise LcaError(
                f"this transformer has no linear layers named {sorted(unknown)}; it has {sorted(last_names)}"
            )
        self._layers = {}
        for name, module in linear.items():
            if name.startswith("blocks.") and name.rpartition(".")[2] in self.options.targets:
                layer = self._layers[name] = LoraLinear(module, self.options, generator)
                self.tuned |= {f"{name}.lora_A": layer.down, f"{name}.lora_B": layer.up}
                self.put(vit, name, layer)

    def settle(self) -> None:
        for layer in self._layers.values():
            layer.settled = layer.folded()

    def unsettle(self) -> None:
        for layer in self._layers.values():
            layer.settled = None

    @torch.no_grad()
    def fold(self) -> None:
        for layer in self._layers.values():
            layer.inner.weight.copy_(layer.folded())
        self.detach()
        self._layers, self.tuned = {}, {}

    def write_adapter(self, folder: Path) -> None:
        """As an adapter folder that the peft library loads; `read_peft` reads it back."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA",
            "r": self.options.rank,
            "lora_alpha": self.options.alpha,
            "lora_dropout": self.options.dropout,
            # full names: peft would take a last name such as `proj` for layers outside of the blocks as well
            "target_modules": sorted(self._layers),
            "bias": "none",
            "init_lora_weights": "gaussian",
            "task_type": None,
            "base_model_name_or_path": None,
        }
        tensors = {f"{_PEFT_PREFIX}{name}.weight": tensor for name, tensor in self.tensors().items()}
        save_tensors(folder / "adapter_model.safetensors", tensors)
        write_atomic(folder / "adapter_config.json", json.dumps(config, indent=2).encode())


def read_peft(folder: Path) -> tuple[dict[str, Tensor], LoraOptions]:
    """Read an adapter folder that the peft library (or `write_adapter`) wrote."""
    config: dict[str, Any] = read_json(folder / "adapter_config.json")
    unsupported = [
        key for key in ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern") if config.get(key)
    ]
    if config.get("peft_type") != "LORA" or unsupported or config.get("bias", "none") != "none":
        what = config.get("peft_type") if config.get("peft_type") != "LORA" else unsupported or "bias"
        raise LcaError(f"{folder} is not a plain LoRA adapter ({what}); only LORA without extras can be read")
    stored = load_tensors(folder / "adapter_model.safetensors")
    tensors = {name.removeprefix(_PEFT_PREFIX).removesuffix(".weight"): tensor for name, tensor in stored.items()}
    layers = sorted({name.rpartition(".lora_")[0] for name in tensors})
    if outside := [layer for layer in layers if not layer.startswith("blocks.")]:
        raise LcaError(f"{folder} adapts {outside[:3]}; only linear layers in the transformer's blocks can be adapted")
    options = LoraOptions(
        targets=tuple(sorted({layer.rpartition(".")[2] for layer in layers})),
        rank=config["r"],
        alpha=config["lora_alpha"],
        dropout=config.get("lora_dropout", 0.0),
    )
    return tensors, options
