"""Views of a whole uint8 batch at once, beside torchvision's transforms on one Pillow image after the other.

The plain loop runs in one process and its images are decoded already; a data loader's workers would divide its time by
their number, as more threads would divide ours. Values are compared on the same crops. Pillow rounds to whole grey
levels after each axis, hence the tolerance of 1.5 levels; it also clips after each axis where ours clips once at the
end, which shows where a bicubic overshoots black or white, so the images here keep away from both.
"""

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as pillow

from lca.data.images import Pixels
from lca.data.views import AugmentOptions, Preprocessing, draw_crops, evaluation_view, training_view
from lca.randomness import generator
from measuring import Agreement, Comparison, Numbers, Settings, Size, time_both

SUBJECT = "views"


@dataclass(frozen=True)
class Sizes:
    shapes: tuple[tuple[int, int], ...]
    """Side of the stored image and of the view."""
    images: int


SHAPES = ((32, 64), (32, 224), (256, 224))
SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(shapes=((20, 24), (40, 24)), images=4),
    "small": Sizes(shapes=SHAPES, images=64),
    "full": Sizes(shapes=SHAPES, images=256),
}


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    return [row for side, view in sizes.shapes for row in _compare_shape(side, view, sizes.images, settings)]


def _compare_shape(side: int, view: int, images: int, settings: Settings) -> list[Comparison]:
    canvas = _photographs(images, side)
    pixels = Pixels(canvas, torch.full((images, 2), side)).to(settings.device)
    decoded = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in canvas]
    preprocessing = Preprocessing(view, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), interpolation="bicubic")
    augment, draws = AugmentOptions(), generator(0, "benchmark crops")
    finish = [transforms.ToTensor(), transforms.Normalize(preprocessing.mean, preprocessing.std)]
    training = transforms.Compose(
        [
            transforms.RandomResizedCrop(view, augment.crop_scale, augment.crop_ratio, InterpolationMode.BILINEAR),
            transforms.RandomHorizontalFlip(),
            *finish,
        ]
    )
    evaluation = transforms.Compose([transforms.Resize(view, InterpolationMode.BICUBIC), *finish])

    def train_ours() -> Tensor:
        boxes, flips = draw_crops(pixels.sizes.cpu(), augment, draws)
        return training_view(pixels, boxes, flips, preprocessing)

    def train_plain() -> Tensor:
        return torch.stack([training(image) for image in decoded]).to(settings.device)

    def evaluate_ours() -> Tensor:
        return evaluation_view(pixels, preprocessing, centre_crop=1.0)

    def evaluate_plain() -> Tensor:
        return torch.stack([evaluation(image) for image in decoded]).to(settings.device)

    sizes: Numbers = {"images": images, "side": side, "view": view}
    same_crops = _agreement(*same_training_views(pixels, decoded, preprocessing))
    same_views = _agreement(evaluate_ours(), evaluate_plain())
    shape = f"{images} images {side} to {view} px"
    trained = time_both(train_ours, train_plain, settings)
    evaluated = time_both(evaluate_ours, evaluate_plain, settings)
    return [
        Comparison(SUBJECT, f"training, {shape}", "seconds", *trained, sizes, same_crops),
        Comparison(SUBJECT, f"evaluation, {shape}", "seconds", *evaluated, sizes, same_views),
    ]


def same_training_views(
    pixels: Pixels, decoded: list[Image.Image], preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Both ways on the same crops and flips."""
    boxes, flips = draw_crops(pixels.sizes.cpu(), AugmentOptions(), generator(0, "benchmark agreement"))
    size, plain = [preprocessing.size, preprocessing.size], []
    for image, box, flip in zip(decoded, boxes.tolist(), flips.tolist(), strict=True):
        crop = pillow.resized_crop(image, *box, size, InterpolationMode.BILINEAR)
        tensor = pillow.to_tensor(pillow.hflip(crop) if flip else crop)
        plain.append(pillow.normalize(tensor, preprocessing.mean, preprocessing.std))
    return training_view(pixels, boxes, flips, preprocessing), torch.stack(plain)


def _agreement(ours: Tensor, plain: Tensor) -> Agreement:
    levels = float((ours.cpu() - plain.cpu()).abs().max()) * 255 * 0.5  # both are scaled by a deviation of 0.5
    return Agreement(levels, 1.5, "largest difference in grey levels")


def _photographs(images: int, side: int) -> Tensor:
    """Smooth structure and some noise, in middle grey levels."""
    draws = generator(0, "benchmark images")
    coarse = torch.rand(images, 3, 8, 8, generator=draws)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    noisy = smooth + 0.05 * torch.randn(smooth.shape, generator=draws)
    return (64 + 128 * noisy.clamp(0, 1)).byte()
