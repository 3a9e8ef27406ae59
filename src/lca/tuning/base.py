"""The contract of a tuner: attach to a transformer, hand out its tensors by name, take them back in place."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.config import TuningOptions


class Tuner(ABC):
    """Trainable tensors attached to a vision transformer whose own weights stay as they are unless the tuner is
    `full`. Options live in the tuner's file and are the class attribute `Options`."""

    Options: ClassVar[type[TuningOptions]]

    def __init__(self, options: TuningOptions) -> None:
        self.options = options

    @abstractmethod
    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        """Insert the trainable tensors, initialised from the generator."""

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """The live trainable parameters, by a name that stays the same between runs."""

    @abstractmethod
    def detach(self) -> None:
        """Take everything out again: the transformer is as it was before `attach`."""

    def tensors(self) -> dict[str, Tensor]:
        """A copy of the current values."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the values in place, so that compiled code and optimisers keep their references."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(tensors[name])
