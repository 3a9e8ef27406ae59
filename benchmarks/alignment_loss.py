"""The alignment loss by one sort for all classes, beside a Python loop over classes with an n x n matrix each.

Both sides see the same features, the same batches and the same number of steps. A `step` row is the loss of one batch
and its gradient; an `alignment` row is the whole of `lca.alignment.align` (on a GPU with its captured steps) beside
the same thing with the loop and torch.optim.SGD; drawing the features is part of both. The `all tasks` rows sum the
alignments of a whole run: ours measured, the loop measured on a few steps of every task and scaled to all of them.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from lca.alignment import AlignmentOptions, _batches, align, lca_loss
from lca.gaussians import CovarianceOptions, GaussianMemory
from lca.heads import GrowingHeads, HeadOptions
from lca.randomness import generator
from lca.schedules import cosine
from measuring import Agreement, Comparison, Cost, Numbers, Settings, Size, clock_of, time_both

SUBJECT = "alignment"


@dataclass(frozen=True)
class Sizes:
    classes: tuple[int, ...]
    width: int
    samples: int
    epochs: int
    images: int = 50
    classes_per_task: int = 10
    all_samples: int = 512
    """Of a class in the alignments of all tasks."""


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(classes=(20,), width=16, samples=16, epochs=1, images=5, all_samples=16),
    "small": Sizes(classes=(20, 100), width=192, samples=64, epochs=4, all_samples=32),
    "full": Sizes(classes=(20, 100), width=768, samples=64, epochs=2),
}
ALL_EPOCHS = 10
Batches = Literal["balanced", "random"]
BATCHES: tuple[Batches, ...] = ("balanced", "random")


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    rows = []
    for classes in sizes.classes:
        heads, memory = heads_and_memory(classes, sizes, settings.device)
        for batches in BATCHES:
            options = options_of(batches, sizes.samples, sizes.epochs)
            rows.append(_compare_step(heads, memory, options, sizes, settings))
            rows.append(_compare_alignment(heads, memory, options, sizes, settings))
    return rows + [_compare_all_tasks(batches, sizes, settings) for batches in BATCHES]


def loop_seconds(classes: int, width: int, samples: int, settings: Settings, batches: Batches = "random") -> float:
    """Seconds of one task's alignment by the loop over classes, scaled from three steps."""
    options = options_of(batches, samples, ALL_EPOCHS)
    heads, memory = heads_and_memory(
        classes, Sizes((), width, samples, 1, classes_per_task=min(10, classes)), settings.device
    )
    steps = ALL_EPOCHS * len(list(_batches(classes, options, torch.Generator(), torch.device("cpu"))))
    few = min(3, steps)
    align_by_loop(heads, memory, options, 1)
    clock = clock_of(settings)
    began = clock()
    align_by_loop(heads, memory, options, few)
    return (clock() - began) / few * steps


def _compare_all_tasks(batches: Batches, sizes: Sizes, settings: Settings) -> Comparison:
    """From the second task on: the first one's heads need none."""
    options = options_of(batches, sizes.all_samples, ALL_EPOCHS)
    counts = range(2 * sizes.classes_per_task, max(sizes.classes) + 1, sizes.classes_per_task)
    tasks = [heads_and_memory(count, sizes, settings.device) for count in counts]
    align(*tasks[0], options, draws_of)
    clock = clock_of(settings)
    began = clock()
    for heads, memory in tasks:
        align(heads, memory, options, draws_of)
    ours = clock() - began
    plain = sum(loop_seconds(count, sizes.width, sizes.all_samples, settings, batches) for count in counts)
    numbers: Numbers = {"classes": max(sizes.classes), "width": sizes.width, "samples": sizes.all_samples}
    return _row("all tasks", options, numbers, (Cost(ours, ours), Cost(plain, plain)), None)


def options_of(batches: Batches, samples: int, epochs: int) -> AlignmentOptions:
    return AlignmentOptions(name="benchmark", batches=batches, samples=samples, epochs=epochs, robustness=0.1)


def loss_by_loop(logits: Tensor, labels: Tensor, robustness: float) -> Tensor:
    """Eq. 1 and 2 as they are written: class by class, every pair of samples."""
    losses = functional.cross_entropy(logits, labels, reduction="none")
    terms = []
    for label in labels.unique():
        own = losses[labels == label]
        term, count = own.mean(), len(own)
        if count > 1:
            pairs = (own[:, None] - own[None, :]).abs()
            term = term + robustness * pairs.sum() / (count * (count - 1))
        terms.append(term)
    return torch.stack(terms).mean()


def align_by_loop(
    heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions, steps: int | None = None
) -> tuple[GrowingHeads, float]:
    """Alignment with the loop over classes and torch's own optimiser; also the last epoch's mean loss. Of every epoch
    all steps, or with `steps` the first ones of one epoch."""
    heads = heads.copy()
    parameters = heads.trainable("all")
    for parameter in parameters:
        parameter.requires_grad_(True)
    drawn, classes = memory.sample(options.samples, draws_of("samples", 0, memory.means().device))
    features, labels = drawn.flatten(0, 1), classes.to(drawn.device).repeat_interleave(options.samples)
    optimiser = torch.optim.SGD(parameters, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay)
    mean_loss = 0.0
    for epoch in range(options.epochs if steps is None else 1):
        optimiser.param_groups[0]["lr"] = cosine(options.lr, 0.0, epoch / options.epochs)
        draws = draws_of("batches", epoch, torch.device("cpu"))
        indices = list(islice(_batches(len(classes), options, draws, drawn.device), steps))
        mean_loss = 0.0
        for index in indices:
            loss = loss_by_loop(heads(features[index]), labels[index], options.robustness)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            mean_loss += loss.item() / len(indices)
    return heads, mean_loss


def _compare_step(
    heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions, sizes: Sizes, settings: Settings
) -> Comparison:
    drawn, classes = memory.sample(options.samples, draws_of("samples", 0, settings.device))
    index = next(_batches(len(classes), options, draws_of("batches", 0, torch.device("cpu")), settings.device))
    labels = classes.to(settings.device)[index // options.samples]
    logits = heads(drawn.flatten(0, 1)[index]).detach().requires_grad_(True)

    def ours() -> tuple[Tensor, Tensor]:
        loss = lca_loss(logits, labels, options, heads.sizes)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    def plain() -> tuple[Tensor, Tensor]:
        loss = loss_by_loop(logits, labels, options.robustness)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    pairs = zip(ours(), plain(), strict=True)
    difference = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in pairs)
    agreement = Agreement(difference, 1e-4, "loss and gradient, relative to the largest")
    numbers: Numbers = {"classes": len(classes), "width": sizes.width, "batch": len(index)}
    return _row("step", options, numbers, time_both(ours, plain, settings), agreement)


def _compare_alignment(
    heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions, sizes: Sizes, settings: Settings
) -> Comparison:
    def ours() -> tuple[GrowingHeads, float]:
        aligned, measured = align(heads, memory, options, draws_of)
        return aligned, measured["loss"]

    def plain() -> tuple[GrowingHeads, float]:
        return align_by_loop(heads, memory, options)

    (our_heads, our_loss), (plain_heads, plain_loss) = ours(), plain()
    moved = _flat(plain_heads) - _flat(heads)
    difference = float((_flat(our_heads) - _flat(plain_heads)).norm() / moved.norm())
    difference = max(difference, abs(our_loss - plain_loss) / abs(plain_loss))
    agreement = Agreement(difference, 1e-3, "aligned heads, relative to how far they moved, and loss")
    classes = len(memory.classes)
    steps = options.epochs * len(list(_batches(classes, options, torch.Generator(), torch.device("cpu"))))
    numbers: Numbers = {"classes": classes, "width": sizes.width, "samples": options.samples, "steps": steps}
    return _row("alignment", options, numbers, time_both(ours, plain, settings), agreement)


def _row(
    case: str, options: AlignmentOptions, numbers: Numbers, seconds: tuple[Cost, Cost], agreement: Agreement | None
) -> Comparison:
    case = f"{case}, {numbers['classes']} classes, {options.batches} batches"
    return Comparison(SUBJECT, case, "seconds", *seconds, {"batches": options.batches} | numbers, agreement)


def heads_and_memory(classes: int, sizes: Sizes, device: torch.device) -> tuple[GrowingHeads, GaussianMemory]:
    memory, draws = GaussianMemory(CovarianceOptions()), generator(0, "benchmark features")
    for label in range(classes):
        centre = torch.randn(sizes.width, generator=draws)
        memory.observe(label, centre + torch.randn(sizes.images, sizes.width, generator=draws))
    heads = GrowingHeads(sizes.width, HeadOptions())
    for task in range(classes // sizes.classes_per_task):
        heads.append(heads.new_head(sizes.classes_per_task, generator(0, "head", task)))
    return heads.to(device), memory.to(device)


def draws_of(purpose: str, epoch: int, device: torch.device) -> torch.Generator:
    return generator(0, purpose, 0, epoch, device)


def _flat(heads: GrowingHeads) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in heads.parameters()])
