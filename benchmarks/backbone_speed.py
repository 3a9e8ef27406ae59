"""Fine-tuning with LoRA on qkv, and feature extraction: images a second, beside the plain and the published way.

Ours: uint8 images on the device, views made there, bf16, compiled, the step captured. Useful FLOPs of an image are
those of the matrix products: forward, backward to the activations, and three times the low-rank products; recomputation
and everything else count for nothing. The plain ways (plain_ways.py) run on fewer images; all seconds are per 1,000
images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from timm.models import VisionTransformer

from lca.backbones import Backbone, untrained
from lca.config import AugmentOptions, TrainingOptions
from lca.data.images import ImageSet
from lca.data.streams import Task
from lca.data.views import Preprocessing
from lca.device import Compute
from lca.features import FeatureExtractor, extract
from lca.heads import GrowingHeads, HeadOptions
from lca.progress import Progress
from lca.setting import Setting
from lca.training import FineTuning
from lca.tuning.lora import LoraOptions
from measuring import Agreement, Comparison, Cost, Numbers, Settings, Size, clock_of, synthetic
from plain_ways import PLAIN, PUBLISHED, Kind, seconds_per_image

SUBJECT = "backbone"
THOUSAND = 1000
PICO = "vit_pico_patch8_64"


@dataclass(frozen=True)
class Case:
    vit: str
    rank: int
    batch: int
    images: int


@dataclass(frozen=True)
class Sizes:
    training: tuple[Case, ...]
    extraction: tuple[Case, ...]
    workers: tuple[int, int]
    """Of the plain and of the published way."""


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes((Case(PICO, 4, 4, 16),), (Case(PICO, 4, 4, 8),), (0, 0)),
    "small": Sizes((Case(PICO, 16, 32, 128),), (Case(PICO, 16, 64, 256),), (2, 2)),
    "full": Sizes(
        (
            Case("vit_base_patch16_224", 64, 256, 20 * 256),
            Case("vit_base_patch16_224", 64, 64, 60 * 64),
            Case("deit_tiny_patch16_224", 16, 256, 40 * 256),
        ),
        (Case("vit_base_patch16_224", 64, 256, 40 * 256),),
        (PLAIN.workers, PUBLISHED.workers),
    ),
}


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    rows = [row for case in sizes.training for row in _compare(case, "training", sizes.workers, settings)]
    return rows + [row for case in sizes.extraction for row in _compare(case, "extraction", sizes.workers, settings)]


def gigaflops(vit: VisionTransformer, rank: int, training: bool) -> float:
    """Useful GFLOP of one image: 2 for every multiplication of the matrix products."""
    tokens, width, depth = vit.patch_embed.num_patches + 1, vit.embed_dim, len(vit.blocks)
    hidden = vit.blocks[0].mlp.fc1.out_features
    block = tokens * (4 * width**2 + 2 * width * hidden) + 2 * tokens**2 * width
    patches = vit.patch_embed.proj.weight.numel() * vit.patch_embed.num_patches
    low_rank = depth * tokens * rank * 4 * width
    forward = depth * block + patches
    products = 2 * forward + 3 * low_rank if training else forward + low_rank
    return 2 * products / 1e9


def build(case: Case, settings: Settings, compiled: bool | None = None) -> FeatureExtractor:
    """The transformer with random weights, as fast as it goes on this device."""
    vit = untrained(case.vit).requires_grad_(False).eval()
    preprocessing = Preprocessing(vit.patch_embed.img_size[0], (0.5,) * 3, (0.5,) * 3, "bicubic")
    backbone = Backbone(vit, preprocessing, case.vit, "random")
    on_gpu = settings.device.type == "cuda"
    compute = Compute.choose(str(settings.device), compiled=on_gpu if compiled is None else compiled)
    return FeatureExtractor(backbone, LoraOptions(rank=case.rank, alpha=2.0 * case.rank), 0, compute)


def _compare(case: Case, kind: Kind, workers: tuple[int, int], settings: Settings) -> list[Comparison]:
    extractor = build(case, settings)
    work = gigaflops(extractor.vit, case.rank, kind == "training")
    images = synthetic(case.images)
    if settings.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(settings.device)
    ours = (
        training_cost(extractor, images, case, settings)
        if kind == "training"
        else _extraction(extractor, images, case, settings)
    )
    numbers: Numbers = {"vit": case.vit, "batch": case.batch, "rank": case.rank, "images": case.images}
    rate = case.images / ours.best
    rates = {"images/s": round(rate), "GFLOP an image": round(work, 1), "TFLOP/s": round(work * rate / 1e3, 1)}
    if settings.matrix_rate:
        rates["% of the matrix rate"] = round(100 * work * 1e9 * rate / settings.matrix_rate, 1)
    if settings.device.type == "cuda":
        rates["peak GB"] = round(torch.cuda.max_memory_allocated(settings.device) / 1e9, 2)
    per_thousand = Cost(*(THOUSAND / case.images * each for each in (ours.best, ours.median)), ours.repeats)
    agreement = _agreement(case, extractor)
    del extractor
    rows = []
    for way, processes in zip((PLAIN, PUBLISHED), workers, strict=True):
        used = replace(way, workers=processes)
        plain = THOUSAND * seconds_per_image(kind, case.vit, case.rank, case.batch, used, settings)
        label = f"{kind}, {case.vit}, batch {case.batch} ({way.name}: {processes} workers)"
        costs = per_thousand, Cost(plain, plain)
        rows.append(Comparison(SUBJECT, label, "seconds", *costs, numbers, agreement, rates))
    return rows


def training_cost(extractor: FeatureExtractor, images: ImageSet, case: Case, settings: Settings) -> Cost:
    """Seconds of an epoch of fine-tuning, after one that compiles and captures."""
    options = TrainingOptions(epochs=20, batch_size=case.batch)
    tuning = FineTuning(Setting(extractor, options, AugmentOptions(), 0, Progress()))
    heads, task = GrowingHeads(extractor.width, HeadOptions()), Task(0, images.classes, images)
    epochs = iter(range(20))

    def epoch() -> None:
        tuning.epoch(task, next(epochs), heads)

    epoch()
    return _timed(epoch, 3, settings)


def _extraction(extractor: FeatureExtractor, images: ImageSet, case: Case, settings: Settings) -> Cost:
    if extractor.compute.compiled:
        extractor.compiled.add(case.batch)

    def work() -> None:
        extract(extractor, images, Progress(), "", case.batch)

    work()
    return _timed(work, 3, settings)


def _timed(work: Callable[[], None], repeats: int, settings: Settings) -> Cost:
    clock = clock_of(settings)
    seconds = []
    for _ in range(repeats):
        began = clock()
        work()
        seconds.append(clock() - began)
    return Cost(min(seconds), sorted(seconds)[repeats // 2], repeats)


def _agreement(case: Case, extractor: FeatureExtractor) -> Agreement:
    """The fast features of a batch beside those of the same weights in fp32, not compiled."""
    views = extractor.evaluation_views(synthetic(case.batch).pixels)
    extractor.eval()
    with torch.no_grad():
        fast = extractor(views)
        plain = extractor.vit.forward_head(extractor.vit.forward_features(views), pre_logits=True)
    difference = float((fast - plain).norm() / plain.norm())
    return Agreement(difference, 0.05, "features of a batch, relative to their norm, beside fp32")
