"""What every method is built from, besides its own options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lca.data.views import AugmentOptions
from lca.errors import LcaError
from lca.features import FeatureExtractor
from lca.progress import Progress
from lca.randomness import generator
from lca.training.options import TrainingOptions


@dataclass(frozen=True)
class Given:
    """What is given instead of drawn, to compare a method step by step with another implementation.

    `tensors` are initial values by name: `tuner.NAME` as the tuner names them, `head.TASK.NAME` of the head that a task
    trains, `prompt.NAME` of prompt methods, `projection` of RanPAC. `batches` are the images of every batch, as indices
    into the task's training images, by (task, epoch); with one batch an epoch, an epoch is one step. Crops and flips
    are still drawn: a `crop_scale` and `crop_ratio` of (1, 1) and no flips leave the largest centre crop.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    batches: Mapping[tuple[int, int], Sequence[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = ("tuner.", "head.", "prompt.", "projection")
        for name in self.tensors:
            if not name.startswith(kinds):
                raise LcaError(f"no initial tensor can be called {name!r}; names start with {', '.join(kinds)}")

    def tensor(self, name: str, drawn: Tensor) -> Tensor:
        """The given tensor of this name, or the one that was drawn."""
        found = self.tensors.get(name)
        if found is None:
            return drawn
        if found.shape != drawn.shape:
            raise LcaError(f"{name} was given with shape {tuple(found.shape)}, expected {tuple(drawn.shape)}")
        return found.to(drawn, copy=True)


@dataclass(frozen=True)
class Setting:
    """The transformer with its tuner, how it is trained, and where randomness comes from."""

    extractor: FeatureExtractor
    training: TrainingOptions
    augment: AugmentOptions
    seed: int
    progress: Progress
    given: Given = Given()

    def __post_init__(self) -> None:
        own = {name: self.given.tensor(f"tuner.{name}", each) for name, each in self.extractor.tensors().items()}
        unknown = {name for name in self.given.tensors if name.startswith("tuner.")} - {f"tuner.{name}" for name in own}
        if unknown:
            raise LcaError(f"{min(unknown)} was given, but the tuner has {', '.join(sorted(own)[:3])}, ...")
        self.extractor.load(own)

    def generator(self, purpose: str, task: int = 0, epoch: int = 0) -> torch.Generator:
        return generator(self.seed, purpose, task, epoch)
