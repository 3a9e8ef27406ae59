"""The contract of a tuner: attach to a transformer, hand out its tensors by name, take them back in place."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.errors import LcaError
from lca.options import NamedOptions


class NeedsTransformerError(LcaError):
    """The backbone is no vision transformer, and what was asked for needs one."""


class TuningOptions(NamedOptions):
    """What every tuner has; each tuner adds its own options in its file."""

    feature_norm: bool = False
    """One LayerNorm on the shared feature, trained and merged with the rest (as the published table had)."""


class Tuner(ABC):
    """Trainable tensors attached to a vision transformer whose own weights stay as they are unless the tuner is
    `full`. Options live in the tuner's file and are the class attribute `Options`."""

    Options: ClassVar[type[TuningOptions]]
    any_backbone: ClassVar[bool] = False
    """Whether it fits every model of timm's; by default vision transformers only."""

    def __init__(self, options: TuningOptions) -> None:
        self.options = options
        self.tuned: dict[str, nn.Parameter] = {}
        """What is trained, by a name that stays the same between runs; `attach` fills it."""
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []

    @abstractmethod
    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        """Insert the trainable tensors, initialised from the generator."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """The live trainable parameters, by a name that stays the same between runs: what is in `tuned`."""
        return self.tuned

    def put(self, vit: VisionTransformer, name: str, module: nn.Module) -> None:
        """Put a module in the place of the one with this dotted name, in its mode and on its device, until `detach`."""
        parent, plain = vit.get_submodule(name.rpartition(".")[0]), vit.get_submodule(name)
        self._replaced.append((parent, name.rpartition(".")[2], plain))
        replace_module(vit, name, module.train(plain.training).to(next(vit.parameters()).device))

    def detach(self) -> None:
        """Take everything out again: the transformer is as it was before `attach`."""
        for parent, name, plain in reversed(self._replaced):
            setattr(parent, name, plain)
        self._replaced.clear()

    def fold(self) -> None:  # noqa: B027 - most tuners have nothing that can be folded
        """Write the tuned values into the transformer's own weights where that is possible, for export.

        Features stay the same up to rounding. What is folded is no longer tuned: `parameters` does not name it and
        `detach` leaves it. What cannot be folded stays as modules; here, everything.
        """

    def settle(self) -> None:  # noqa: B027 - most tuners have nothing to compute
        """Compute what depends on the tuned values alone, for many passes without gradients, until `unsettle`."""

    def unsettle(self) -> None:  # noqa: B027
        """Forget what `settle` computed: the values may change again."""

    def pretrained_tensors(self) -> dict[str, Tensor]:
        """The pre-trained values of what the tuner changes in place of the transformer's own; only `full` does."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """A copy of the current values."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters().items()}

    def write_adapter(self, folder: Path) -> None:
        """Write the tuned tensors as an adapter folder that the peft library loads, where it knows their kind."""
        raise LcaError(
            f"the tuning is {self.options.name!r}, which the peft library does not know; it can take over lora and "
            "peft:NAME. --onnx and --torch export every model"
        )

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the values in place, so that compiled code and optimisers keep their references."""
        overwrite(self.parameters(), tensors)


def expect_transformer(vit: nn.Module, who: str, name: str = "the backbone") -> None:
    """What puts tensors between the blocks of a vision transformer says so where there is none."""
    if not isinstance(vit, VisionTransformer):
        raise NeedsTransformerError(
            f"{who} needs a vision transformer (timm's VisionTransformer), and {name} is a {type(vit).__name__}. "
            "With it, use `tuning: none` (it stays frozen; `--set tuning=none`) or `tuning: full`, or a method that "
            "tunes nothing (`frozen`, `simplecil`); or choose a vit_* or deit_* backbone"
        )


def overwrite(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes; what does not fit is an error."""
    wrong = [name for name in {*parameters, *tensors} if name not in parameters or name not in tensors]
    wrong += [name for name, each in parameters.items() if name in tensors and tensors[name].shape != each.shape]
    if wrong:
        raise LcaError(
            f"{len(tensors)} tensors do not fit the {len(parameters)} that are tuned here, for example "
            f"{sorted(wrong)[0]}: they were made with other tuning options or another backbone"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def replace_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one with this dotted name."""
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, module)


def uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> Tensor:
    """Values from U(-bound, bound)."""
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
