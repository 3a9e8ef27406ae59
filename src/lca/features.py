"""Features: the one transformer with its tuner and the optional shared feature norm, and extraction with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from lca.backbones import Backbone
from lca.backbones.patches import project_by_product
from lca.backbones.pooling import Pooled, pooled
from lca.data.images import ImageSet, Pixels
from lca.data.looks import Look
from lca.data.views import channels, evaluation_view, scaled
from lca.device import CompiledForSizes, Compute
from lca.files import Part, Stored, nbytes
from lca.progress import Progress
from lca.randomness import generator
from lca.ranks import current
from lca.tuning import tuners
from lca.tuning.base import TuningOptions, expect_transformer, overwrite


class FeatureExtractor(nn.Module):
    """Views in, features out: backbone, tuner, timm's own pooling, and the feature norm if there is one.

    `tensors` and `load` cover everything that is tuned, merged and stored: the tuner's tensors and the norm's.
    """

    def __init__(
        self, backbone: Backbone, tuning: TuningOptions, seed: int, compute: Compute, centre_crop: float = 1.0
    ) -> None:
        super().__init__()
        self.vit = backbone.vit
        self.preprocessing = backbone.preprocessing
        self.width = backbone.width
        self.compute = compute
        self.centre_crop = centre_crop
        if compute.device.type == "cuda":
            project_by_product(self.vit)
        self.tuner = tuners[tuning.name](tuning)
        if not self.tuner.any_backbone:
            expect_transformer(self.vit, f"tuner {tuning.name!r}", backbone.name)
        before = [(parent, name, child) for parent in self.vit.modules() for name, child in parent.named_children()]
        self.tuner.attach(self.vit, generator(seed, "tuner"))
        self._replaced = [
            (parent, name, child, tuned)
            for parent, name, child in before
            if (tuned := parent.get_submodule(name)) is not child
        ]
        self.norm = nn.LayerNorm(self.width) if tuning.feature_norm else None
        self.to(compute.device)
        self._is_settled = False
        self.compiled = CompiledForSizes(self._pooled, required=compute.compiled is True)
        self._channels = channels(self.preprocessing, compute.device)
        self.scaling = CompiledForSizes(self._scaled, required=compute.compiled is True)

    def forward(self, views: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, width) in float32."""
        with self.compute.autocast():
            features = self.compiled(views).float()
        return features if self.norm is None else self.norm(features)

    def train(self, mode: bool = True) -> Self:
        """Batch normalisation keeps the running statistics it was pre-trained with, in training too: what an image is
        answered must not depend on its batch, and what is stored and merged are trained tensors alone."""
        super().train(mode)
        for module in self.vit.modules():
            if any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False)):
                module.eval()
        return self

    def compile_for(self, size: int) -> None:
        """Batches of this size are compiled from now on: the transformer, and the scaling of views to one pass."""
        self.compiled.add(size)
        self.scaling.add(size)

    def pays_to_compile(self, images: int) -> bool:
        """Whether so many images, forward and backward, are worth compiling for; any are, once that is done."""
        return self.compiled.active or self.compute.compiles(sum(each.numel() for each in self.parameters()), images)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Everything runs as it is, whatever was compiled."""
        with self.compiled.paused(), self.scaling.paused():
            yield

    def _scaled(self, crops: Tensor) -> Tensor:
        return scaled(crops, *self._channels)

    def _pooled(self, views: Tensor) -> Tensor:
        return pooled(self.vit, views)

    @cached_property
    def names(self) -> dict[str, str]:
        """Where the tuned parameters are found from here, by the names of `tuned_parameters`. Asked for when all is in
        place: a method may have wrapped parts of the transformer."""
        own = {id(parameter): name for name, parameter in self.tuned_parameters().items()}
        return {own[id(each)]: name for name, each in self.named_parameters() if id(each) in own}

    def pretrained(self, views: Tensor) -> Tensor:
        """Features of the backbone as it was before it was tuned, without the feature norm: (n, width) in float32."""
        for parent, name, plain, _ in self._replaced:
            setattr(parent, name, plain)
        values = {self.names[name]: each for name, each in self.tuner.pretrained_tensors().items()}
        try:
            with self.compute.autocast():
                features: Tensor = torch.func.functional_call(Pooled(self.vit), values, (views,))
        finally:
            for parent, name, _, tuned in self._replaced:
                setattr(parent, name, tuned)
        return features.float()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """For many batches without gradients, in which no weight changes: what every batch would make of the weights
        alone, the sum of LoRA and the cast to bf16, is made once."""
        if self._is_settled:
            yield
            return
        self._is_settled = True
        lower = self.compute.precision == "bf16"
        products = [each for each in self.vit.modules() if type(each) is nn.Linear and lower]
        weights = [each.weight for each in products]
        try:
            with torch.no_grad(), self.compute.autocast():
                self.tuner.settle()
            for each in products:
                each.weight = nn.Parameter(each.weight.detach().bfloat16(), requires_grad=False)
            yield
        finally:
            for each, weight in zip(products, weights, strict=True):
                each.weight = weight
            self.tuner.unsettle()
            self._is_settled = False

    def tuned_parameters(self) -> dict[str, nn.Parameter]:
        """The live trainable parameters by name."""
        named = dict(self.tuner.parameters())
        if self.norm is not None:
            named |= {f"feature_norm.{name}": parameter for name, parameter in self.norm.named_parameters()}
        return named

    def tensors(self) -> dict[str, Tensor]:
        """A copy of all tuned values."""
        return {name: parameter.detach().clone() for name, parameter in self.tuned_parameters().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tuned values in place."""
        overwrite(self.tuned_parameters(), tensors)

    def forward_with(self, tensors: Mapping[str, Tensor], views: Tensor) -> Tensor:
        """Features under other tuned values, without a second transformer (the teacher of distillation)."""
        swapped = {self.names[name]: each for name, each in tensors.items()}
        with self.compiled.paused():
            features: Tensor = torch.func.functional_call(self, swapped, (views,))
        return features

    def evaluation_views(self, pixels: Pixels, centre_crop: float | None = None) -> Tensor:
        """What is seen of images: their centre, by default as much of it as of all images."""
        crop = self.centre_crop if centre_crop is None else centre_crop
        return evaluation_view(pixels.to(self.compute.device), self.preprocessing, crop, self.scaling)


class Tuned(Stored):
    """The tuned values to go back to, as they were when `take` was called last; who loads them tunes on from there."""

    def __init__(self, extractor: FeatureExtractor) -> None:
        self._extractor = extractor
        self.take()

    def take(self) -> None:
        self.tensors = self._extractor.tensors()

    def state(self) -> tuple[Part, None]:
        return self.tensors, None

    def load(self, part: Part, meta: None = None) -> None:
        self._extractor.load(part)
        self.take()

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        return nbytes(self.tensors)


@torch.no_grad()
def extract(
    extractor: FeatureExtractor,
    images: ImageSet | Pixels,
    progress: Progress,
    what: str,
    batch_size: int = 256,
    embed: Callable[..., Tensor] | None = None,
    known: Sequence[Tensor] = (),
    centre_crop: float | None = None,
    look: Look | None = None,
) -> Tensor:
    """Features (n, width) of all images under the evaluation view, in evaluation mode, on the extractor's device.

    `embed` makes features of views (n, 3, size, size) where it is not the extractor itself, and of what is known of the
    images besides, a row each. Several ranks share out the images; all of them get all features. A compiled transformer
    gets batches of one size, the last one filled up with its first image; fewer images than that are not worth it.
    `centre_crop` is another than the extractor's; with a look, of its images as it shows them.
    """
    batch_size = batch_size if extractor.compute.device.type == "cuda" else min(batch_size, 64)
    training, device = extractor.training, extractor.compute.device
    count = len(images) if look is None else len(look.rows)
    own, _ = current().share(torch.arange(count))
    if filled := len(own) >= batch_size and extractor.pays_to_compile(len(own) // 3):  # forward is a third of it
        extractor.compile_for(batch_size)
    extractor.eval()
    rows: Tensor | None = None  # one tensor: many small ones between large ones that come and go hold memory apart
    compiled = nullcontext() if filled else extractor.uncompiled()
    settled = extractor.settled() if embed is None else nullcontext()
    with compiled, settled, progress.task(what, len(own)) as advance:
        for number, index in enumerate(own.split(batch_size)):
            batch = torch.cat([index, index[:1].expand(batch_size - len(index))]) if filled else index
            inputs = [each[batch].to(device) for each in known]
            if look is None:
                views = extractor.evaluation_views(images.batch(batch, pinned=device.type == "cuda"), centre_crop)
            else:
                views = look.view(images, batch, extractor.preprocessing, extractor.scaling, device)
            made = (embed or extractor)(views, *inputs)[: len(index)]
            rows = made.new_empty(len(own), *made.shape[1:]) if rows is None else rows
            rows[number * batch_size :][: len(index)] = made
            advance(len(index))
    extractor.train(training)
    return torch.empty(0, extractor.width, device=device) if rows is None else current().gather(rows, count)
