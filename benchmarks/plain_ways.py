"""The two plain ways to train and to extract features, which ours is measured against.

`plain`: fp32, torch's DataLoader with 16 worker processes, Pillow transforms, the loss read after every step.
`published`: the same with 4 workers and, per sample, a second augmented view that nobody uses, as the authors' loader
makes it (crop, colour jitter, grey, blur, normalise).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from PIL import Image
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode


@dataclass(frozen=True)
class Way:
    name: str
    workers: int
    second_view: bool


PLAIN = Way("plain", 16, second_view=False)
PUBLISHED = Way("published", 4, second_view=True)


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


def training_seconds(
    vit: VisionTransformer,
    rank: int,
    images: Tensor,
    batch: int,
    way: Way,
    device: torch.device,
    clock: Callable[[], float],
) -> float:
    """Seconds per image of fine-tuning, after two batches that do not count."""
    size = vit.patch_embed.img_size[0]
    for block in vit.blocks:
        block.attn.qkv = PlainLora(block.attn.qkv, rank)
    head = nn.Linear(vit.num_features, 10, bias=False).to(device)
    vit = vit.to(device).train()
    trained = [each for name, each in vit.named_parameters() if ".down." in name or ".up." in name]
    optimiser = torch.optim.SGD([*trained, *head.parameters()], lr=0.01, momentum=0.9, weight_decay=5e-4)
    crop = transforms.RandomResizedCrop(size, (0.05, 1.0), interpolation=InterpolationMode.BILINEAR)
    view = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    batches = _loader(PillowImages(images, view, _unused_view(size) if way.second_view else None), batch, way, True)

    def step(views: Tensor, labels: Tensor) -> None:
        logits = head(vit.forward_head(vit.forward_features(views.to(device)), pre_logits=True))
        loss = functional.cross_entropy(logits, labels.to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()

    return _seconds_per_image(batches, step, clock)


@torch.no_grad()
def extraction_seconds(
    vit: VisionTransformer, images: Tensor, batch: int, way: Way, device: torch.device, clock: Callable[[], float]
) -> float:
    """Seconds per image of feature extraction, after two batches that do not count."""
    size = vit.patch_embed.img_size[0]
    vit = vit.to(device).eval()
    resize = transforms.Resize(size, InterpolationMode.BICUBIC)
    view = transforms.Compose([resize, transforms.CenterCrop(size), transforms.ToTensor()])
    batches = _loader(PillowImages(images, view, _unused_view(size) if way.second_view else None), batch, way, False)

    def step(views: Tensor, labels: Tensor) -> None:
        vit.forward_head(vit.forward_features(views.to(device)), pre_logits=True).cpu()

    return _seconds_per_image(batches, step, clock)


def _seconds_per_image(
    batches: Iterator[tuple[Tensor, Tensor]], step: Callable[[Tensor, Tensor], None], clock: Callable[[], float]
) -> float:
    for views, labels in islice(batches, 2):
        step(views, labels)
    began, count = clock(), 0
    for views, labels in batches:
        step(views, labels)
        count += len(views)
    return (clock() - began) / count


def _loader(data: PillowImages, batch: int, way: Way, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
    return iter(DataLoader(data, batch, shuffle=shuffle, num_workers=way.workers, pin_memory=torch.cuda.is_available()))


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
