"""The two plain ways to train and to extract features, which ours is measured against.

`plain`: fp32, torch's DataLoader with 16 worker processes, Pillow transforms, the loss read after every step.
`published`: the same with 4 workers and, per sample, a second augmented view that nobody uses, as the authors' loader
makes it (crop, colour jitter, grey, blur, normalise). How wide the authors blur is not known to us. We assume a kernel
of 5 pixels, in favour of `published`: SimCLR's, a tenth of the image, would be 23 and more than doubles the time of
that view.

Each worker process makes whole batches, so batches come in rounds of one from every worker. Time counts from the first
batch to the first of a later round, up to twelve rounds as long as they fit into ten seconds, all of them together; the
step is warm before. `published` is measured in batches of 64 at most, to have several rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from PIL import Image
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from measuring import Numbers, Settings, clock_of, synthetic, transformer

Kind = Literal["training", "extraction"]
Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Way:
    name: str
    workers: int
    second_view: bool
    largest_batch: int

    @property
    def round(self) -> int:
        """Batches that come together."""
        return max(1, self.workers)


ROUNDS, PATIENCE = 12, 10.0
BLUR = 5
"""Pixels of the kernel; assumed."""
PLAIN = Way("plain", 16, second_view=False, largest_batch=256)
PUBLISHED = Way("published", 4, second_view=True, largest_batch=64)


class PillowImages(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one, on the CPU, every time."""

    def __init__(self, images: Tensor, count: int, transform: Any, second: Any = None) -> None:
        self._images, self._count = images.permute(0, 2, 3, 1).numpy(), count
        self._transform, self._second = transform, second

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        pixels = self._images[number % len(self._images)]
        if self._second is not None:
            self._second(Image.fromarray(pixels))
        return self._transform(Image.fromarray(pixels)), number % 10


class PlainLora(nn.Module):
    """A linear layer with a low-rank update, as one writes it first."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner
        self.down, self.up = (
            nn.Linear(inner.in_features, rank, bias=False),
            nn.Linear(rank, inner.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) + 2.0 * self.up(self.down(x))
        return result


@dataclass(frozen=True)
class Measured:
    seconds: float
    """Of one image."""
    batch: int
    workers: int
    rounds: int

    def sizes(self, name: str) -> Numbers:
        """How it was measured, for a row."""
        return {f"{name} batch": self.batch, f"{name} workers": self.workers, f"{name} rounds": self.rounds}


def measure(kind: Kind, vit: str, rank: int, batch: int, way: Way, settings: Settings, side: int = 32) -> Measured:
    """The cost of an image of so many pixels, in batches as large as the way takes them."""
    return _measured(kind, vit, rank, min(batch, way.largest_batch), way, settings, side)


@cache
def _measured(kind: Kind, vit: str, rank: int, batch: int, way: Way, settings: Settings, side: int) -> Measured:
    model = transformer(vit).requires_grad_(False).to(settings.device)
    size, device = model.patch_embed.img_size[0], settings.device
    view, step = _training(model, rank, size, device) if kind == "training" else _extraction(model, size, device)
    second = _unused_view(size) if way.second_view else None
    count = (1 + ROUNDS * way.round) * batch
    images = PillowImages(synthetic(50, side).pixels.canvas, count, view, second)
    pinned = device.type == "cuda"
    for _ in range(2):
        step(torch.rand(batch, 3, size, size), torch.zeros(batch, dtype=torch.long))
    loader = DataLoader(images, batch, shuffle=kind == "training", num_workers=way.workers, pin_memory=pinned)
    batches, clock = iter(loader), clock_of(settings)
    step(*next(batches))
    began = clock()
    for rounds in range(1, ROUNDS + 1):
        for _ in range(way.round):
            step(*next(batches))
        elapsed = clock() - began
        if elapsed * (rounds + 1) / rounds > PATIENCE:
            break
    return Measured(elapsed / (rounds * way.round * batch), batch, way.workers, rounds)


def _training(vit: VisionTransformer, rank: int, size: int, device: torch.device) -> tuple[Any, Step]:
    for block in vit.blocks:
        block.attn.qkv = PlainLora(block.attn.qkv, rank)
    head = nn.Linear(vit.num_features, 10, bias=False).to(device)
    vit = vit.to(device).train()
    trained = [each for name, each in vit.named_parameters() if ".down." in name or ".up." in name]
    optimiser = torch.optim.SGD([*trained, *head.parameters()], lr=0.01, momentum=0.9, weight_decay=5e-4)
    crop = transforms.RandomResizedCrop(size, (0.05, 1.0), interpolation=InterpolationMode.BILINEAR)
    view = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor()])

    def step(views: Tensor, labels: Tensor) -> None:
        logits = head(vit.forward_head(vit.forward_features(views.to(device)), pre_logits=True))
        loss = functional.cross_entropy(logits, labels.to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()

    return view, step


def _extraction(vit: VisionTransformer, size: int, device: torch.device) -> tuple[Any, Step]:
    vit.eval()
    resize = transforms.Resize(size, InterpolationMode.BICUBIC)
    view = transforms.Compose([resize, transforms.CenterCrop(size), transforms.ToTensor()])

    @torch.no_grad()
    def step(views: Tensor, labels: Tensor) -> None:
        vit.forward_head(vit.forward_features(views.to(device)), pre_logits=True).cpu()

    return view, step


def _unused_view(size: int) -> transforms.Compose:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, interpolation=InterpolationMode.BICUBIC),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.GaussianBlur(BLUR, (0.1, 2.0)),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
