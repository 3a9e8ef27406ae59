"""The two plain ways to train and to extract features, which ours is measured against.

`plain`: fp32, torch's DataLoader with 16 worker processes, Pillow transforms, the loss read after every step.
`published`: the same with 4 workers and, per sample, a second augmented view that nobody uses, as the authors' loader
makes it (crop, colour jitter, grey, blur, normalise).

Each worker process makes whole batches, so batches come in rounds of one from every worker. The first round does not
count, the second does. `published` waits for its loader in batches of any size, and is measured in small ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal

import torch
from PIL import Image
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from lca.backbones import untrained
from measuring import Settings, clock_of, synthetic

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


PLAIN = Way("plain", 16, second_view=False, largest_batch=256)
PUBLISHED = Way("published", 4, second_view=True, largest_batch=64)


class PillowImages(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one, on the CPU, every time."""

    def __init__(self, images: Tensor, transform: Any, second: Any = None) -> None:
        self._images = images.permute(0, 2, 3, 1).numpy()
        self._transform, self._second = transform, second

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self._second is not None:
            self._second(Image.fromarray(self._images[number]))
        return self._transform(Image.fromarray(self._images[number])), number % 10


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


def seconds_per_image(kind: Kind, vit: str, rank: int, batch: int, way: Way, settings: Settings) -> float:
    return _measured(kind, vit, rank, min(batch, way.largest_batch), way, settings)


@cache
def _measured(kind: Kind, vit: str, rank: int, batch: int, way: Way, settings: Settings) -> float:
    model = untrained(vit).requires_grad_(False).to(settings.device)
    size, device = model.patch_embed.img_size[0], settings.device
    view, step = _training(model, rank, size, device) if kind == "training" else _extraction(model, size, device)
    second = _unused_view(size) if way.second_view else None
    images = PillowImages(synthetic(2 * way.round * batch).pixels.canvas, view, second)
    pinned = device.type == "cuda"
    loader = DataLoader(images, batch, shuffle=kind == "training", num_workers=way.workers, pin_memory=pinned)
    batches, clock = iter(loader), clock_of(settings)
    for views, labels in islice(batches, way.round):
        step(views, labels)
    began = clock()
    for views, labels in batches:
        step(views, labels)
    return (clock() - began) / (way.round * batch)


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
            transforms.GaussianBlur(23, (0.1, 2.0)),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
