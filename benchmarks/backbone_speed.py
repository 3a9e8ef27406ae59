"""Fine-tuning with LoRA on qkv, and feature extraction: images a second, beside the plain and the published way.

Ours: uint8 images on the device, views made there, bf16, compiled, the step captured. Useful FLOPs of an image are
those of `gigaflops`; recomputation and everything else count for nothing. The plain ways (plain_ways.py) run on fewer
images, and `sizes` says in which batches; all seconds are per 1,000 images. Images have 32 pixels a side, and 256 in
some cases, which are measured beside `plain` alone. Peak memory is what tensors took and, as reserved, what torch held.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from timm.models import VisionTransformer

from lca.backbones import Backbone
from lca.data.images import ImageSet
from lca.data.streams import Task
from lca.data.views import AugmentOptions, Preprocessing
from lca.device import Compute
from lca.features import FeatureExtractor, extract
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.progress import Progress
from lca.training.loop import FineTuning
from lca.training.options import TrainingOptions
from lca.training.setting import Setting
from lca.tuning.lora import LoraOptions
from measuring import Agreement, Comparison, Cost, Numbers, Settings, Size, clock_of, synthetic, transformer
from plain_ways import PLAIN, PUBLISHED, Kind, measure

SUBJECT = "backbone"
THOUSAND = 1000
PICO = "vit_pico_patch8_64"


@dataclass(frozen=True)
class Case:
    vit: str
    rank: int
    batch: int
    images: int
    large: int = 0
    """Images of 256 pixels, on which it is measured as well."""


@dataclass(frozen=True)
class Sizes:
    training: tuple[Case, ...]
    extraction: tuple[Case, ...]
    workers: tuple[int, int]
    """Of the plain and of the published way."""


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes((Case(PICO, 4, 4, 16, large=8),), (Case(PICO, 4, 4, 8),), (0, 0)),
    "small": Sizes((Case(PICO, 16, 32, 128),), (Case(PICO, 16, 64, 256),), (2, 2)),
    "full": Sizes(
        (
            Case("vit_base_patch16_224", 64, 256, 16 * 256),
            Case("vit_base_patch16_224", 64, 64, 40 * 64, large=16 * 64),
            Case("deit_tiny_patch16_224", 16, 256, 32 * 256),
        ),
        (Case("vit_base_patch16_224", 64, 256, 24 * 256, large=8 * 256),),
        (PLAIN.workers, PUBLISHED.workers),
    ),
}


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    rows = [row for case in sizes.training for row in _compare(case, "training", sizes.workers, settings)]
    return rows + [row for case in sizes.extraction for row in _compare(case, "extraction", sizes.workers, settings)]


def gigaflops(vit: VisionTransformer, rank: int, training: bool) -> float:
    """Useful GFLOP of one image: 2 for every multiplication of the matrix products.

    Extraction: the forward pass alone, 35 for ViT-B/16, since LoRA is folded into the weights. Training: the forward
    pass, as much again for the gradients of the activations, and LoRA's own products three times (forward, gradients of
    activations and of weights): 73 for ViT-B/16 with rank 64. The gradients of what enters the first block's qkv and
    the patch embedding are counted and never computed, about 1 % there; those of the attention's two products are twice
    the work that is counted for them, about 2 %.
    """
    tokens, width, depth = vit.patch_embed.num_patches + 1, vit.embed_dim, len(vit.blocks)
    hidden = vit.blocks[0].mlp.fc1.out_features
    block = tokens * (4 * width**2 + 2 * width * hidden) + 2 * tokens**2 * width
    forward = depth * block + vit.patch_embed.proj.weight.numel() * vit.patch_embed.num_patches
    low_rank = depth * tokens * rank * 4 * width
    return 2 * (2 * forward + 3 * low_rank if training else forward) / 1e9


def build(case: Case, settings: Settings, compiled: bool | None = None) -> FeatureExtractor:
    """The transformer with random weights, as fast as it goes on this device."""
    vit = transformer(case.vit).requires_grad_(False).eval()
    preprocessing = Preprocessing(vit.patch_embed.img_size[0], (0.5,) * 3, (0.5,) * 3, "bicubic")
    backbone = Backbone(vit, preprocessing, case.vit, "random")
    on_gpu = settings.device.type == "cuda"
    compute = Compute.choose(str(settings.device), compiled=on_gpu if compiled is None else compiled)
    return FeatureExtractor(backbone, LoraOptions(rank=case.rank, alpha=2.0 * case.rank), 0, compute)


def _compare(case: Case, kind: Kind, workers: tuple[int, int], settings: Settings) -> list[Comparison]:
    extractor = build(case, settings)
    sides = {32: case.images, 256: case.large} if case.large else {32: case.images}
    ours = {
        side: _ours(extractor, kind, replace(case, images=images), side, settings) for side, images in sides.items()
    }
    agreement = _agreement(extractor, kind, case)
    del extractor
    rows = []
    for side, (cost, rates) in ours.items():
        ways = (PLAIN, PUBLISHED) if side == 32 else (PLAIN,)
        for way, processes in zip(ways, workers, strict=False):
            used = replace(way, workers=processes)
            plain = measure(kind, case.vit, case.rank, case.batch, used, settings, side)
            source = "" if side == 32 else f", from {side} px"
            label = f"{kind}, {case.vit}, batch {case.batch}{source} ({way.name}: {processes} workers)"
            numbers: Numbers = {"vit": case.vit, "batch": case.batch, "rank": case.rank, "images": sides[side]}
            numbers |= {"side": side, **plain.sizes("plain")}
            costs = cost, Cost(THOUSAND * plain.seconds, THOUSAND * plain.seconds)
            rows.append(Comparison(SUBJECT, label, "seconds", *costs, numbers, agreement, rates))
    return rows


def _ours(
    extractor: FeatureExtractor, kind: Kind, case: Case, side: int, settings: Settings
) -> tuple[Cost, dict[str, float]]:
    """Seconds of a thousand images, and what that reaches."""
    on_gpu, images = settings.device.type == "cuda", synthetic(case.images, side)
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(settings.device)
    timed = training_cost if kind == "training" else _extraction
    cost = timed(extractor, images, case, settings)
    work, rate = gigaflops(extractor.vit, case.rank, kind == "training"), case.images / cost.best
    rates = {"images/s": round(rate), "GFLOP an image": round(work, 1), "TFLOP/s": round(work * rate / 1e3, 1)}
    if settings.matrix_rate:
        rates["% of the matrix rate"] = round(100 * work * 1e9 * rate / settings.matrix_rate, 1)
    if on_gpu:
        rates["peak GB"] = round(torch.cuda.max_memory_allocated(settings.device) / 1e9, 2)
        rates["reserved GB"] = round(torch.cuda.max_memory_reserved(settings.device) / 1e9, 2)
    scale = THOUSAND / case.images
    return Cost(scale * cost.best, scale * cost.median, cost.repeats), rates


def training_cost(extractor: FeatureExtractor, images: ImageSet, case: Case, settings: Settings) -> Cost:
    """Seconds of an epoch of fine-tuning, after one that compiles and captures."""
    options = TrainingOptions(epochs=20, batch_size=case.batch)
    tuning = FineTuning(Setting(extractor, options, AugmentOptions(), 0, Progress()))
    heads, task = GrowingHeads(extractor.width, LinearOptions()), Task(0, images.classes, images)
    epochs = iter(range(20))

    def epoch() -> None:
        tuning.epoch(task, next(epochs), heads)

    epoch()
    return _timed(epoch, 3, settings)


def _extraction(extractor: FeatureExtractor, images: ImageSet, case: Case, settings: Settings) -> Cost:
    if extractor.compute.compiled:
        extractor.compile_for(case.batch)

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


def _agreement(extractor: FeatureExtractor, kind: Kind, case: Case) -> Agreement:
    """The fast features of a batch, by the way that was timed, beside those of the same weights in fp32."""
    images = synthetic(case.batch)
    views = extractor.evaluation_views(images.pixels)
    if kind == "training":
        fast = extractor.train()(views).detach()
    else:
        fast = extract(extractor, images, Progress(), "", case.batch)
    extractor.eval()
    with torch.no_grad():
        plain = extractor.vit.forward_head(extractor.vit.forward_features(views), pre_logits=True)
    difference = float((fast - plain).norm() / plain.norm())
    return Agreement(difference, 0.05, "features of a batch, relative to their norm, beside fp32")
