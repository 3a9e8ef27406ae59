"""The alignment loss by one sort for all classes, beside a Python loop over classes with an n x n matrix each.

Both sides see the same features, the same batches and the same number of steps. A `step` row is the loss of one batch
and its gradient; an `alignment` row is the whole of `lca.heads.alignment.align` (on a GPU with its captured steps)
beside the same thing with the loop and torch.optim.SGD; drawing the features is part of both. The `all tasks` rows sum
the alignments of a whole run, from the second task on: the first one's heads need none. Ours is measured; of the loop
the set-up, the batches of an epoch and a few steps are measured apart for every task, and scaled to as many as ours
takes.
"""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from lca.heads.alignment import AlignmentOptions, _batches, align, lca_loss
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.optimisation import cosine
from lca.randomness import generator
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
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
    "full": Sizes(classes=(100,), width=768, samples=64, epochs=1),
}
ALL_EPOCHS = 10
TIMED_STEPS = 5
"""Of the loop, per task."""
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
    counts = range(2 * sizes.classes_per_task, max(sizes.classes) + 1, sizes.classes_per_task)
    tasks = [heads_and_memory(count, sizes, settings.device) for count in counts]
    return rows + [_compare_all_tasks(tasks, batches, sizes, settings) for batches in BATCHES]


def _compare_all_tasks(
    tasks: list[tuple[GrowingHeads, GaussianMemory]], batches: Batches, sizes: Sizes, settings: Settings
) -> Comparison:
    options = options_of(batches, sizes.all_samples, ALL_EPOCHS)
    align(*tasks[0], options, draws_of)
    clock, epochs = clock_of(settings), 0

    def on_epoch() -> None:
        nonlocal epochs
        epochs += 1

    began = clock()
    for heads, memory in tasks:
        align(heads, memory, options, draws_of, on_epoch)
    ours = clock() - began
    loops = [scaled_loop(*task, options, settings) for task in tasks]
    plain, steps = sum(loop.seconds for loop in loops), sum(loop.steps for loop in loops)
    assert epochs == ALL_EPOCHS * len(tasks)
    assert steps == sum(steps_of(len(memory.classes), options) for _, memory in tasks)
    numbers: Numbers = {"classes": max(sizes.classes), "width": sizes.width, "samples": sizes.all_samples}
    numbers |= {"alignments": len(tasks), "steps": steps, "steps of the loop that were timed": TIMED_STEPS * len(tasks)}
    return _row("all tasks", options, numbers, (Cost(ours, ours), Cost(plain, plain)), None)


def steps_of(classes: int, options: AlignmentOptions) -> int:
    """Of a whole alignment."""
    return options.epochs * len(list(_batches(classes, options, torch.Generator(), torch.device("cpu"))))


def options_of(batches: Batches, samples: int, epochs: int) -> AlignmentOptions:
    return AlignmentOptions(batches=batches, samples=samples, epochs=epochs, robustness=0.1)


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


class LoopAlignment:
    """Alignment with the loop over classes and torch's own optimiser."""

    def __init__(self, heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions) -> None:
        self.heads, self._options = heads.copy(), options
        parameters = self.heads.trainable("all")
        for parameter in parameters:
            parameter.requires_grad_(True)
        drawn, classes = memory.sample(options.samples, draws_of("samples", 0, memory.means().device))
        self._features, self._classes = drawn.flatten(0, 1), classes.to(drawn.device)
        self._labels = self._classes.repeat_interleave(options.samples)
        self._optimiser = torch.optim.SGD(
            parameters, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
        )

    def batches(self, epoch: int) -> list[Tensor]:
        """Of an epoch, whose rate is set."""
        self._optimiser.param_groups[0]["lr"] = cosine(self._options.lr, 0.0, epoch / self._options.epochs)
        draws = draws_of("batches", epoch, torch.device("cpu"))
        return list(_batches(len(self._classes), self._options, draws, self._features.device))

    def step(self, index: Tensor) -> float:
        loss = loss_by_loop(self.heads(self._features[index]), self._labels[index], self._options.robustness)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return loss.item()


def align_by_loop(heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions) -> tuple[GrowingHeads, float]:
    """The aligned heads and the last epoch's mean loss."""
    loop = LoopAlignment(heads, memory, options)
    for epoch in range(options.epochs):
        losses = [loop.step(index) for index in loop.batches(epoch)]
    return loop.heads, fmean(losses)


@dataclass(frozen=True)
class ScaledLoop:
    seconds: float
    steps: int


def scaled_loop(
    heads: GrowingHeads, memory: GaussianMemory, options: AlignmentOptions, settings: Settings
) -> ScaledLoop:
    """What `align_by_loop` would take: its set-up, the batches of every epoch, and all steps as long as a few."""
    clock = clock_of(settings)
    began = clock()
    loop = LoopAlignment(heads, memory, options)
    ready = clock()
    batches = loop.batches(0)
    shuffled = clock()
    loop.step(batches[0])  # makes the optimiser's memory
    warm = clock()
    for number in range(TIMED_STEPS):
        loop.step(batches[number % len(batches)])
    step = (clock() - warm) / TIMED_STEPS
    steps = options.epochs * len(batches)
    return ScaledLoop(ready - began + options.epochs * (shuffled - ready) + steps * step, steps)


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
    numbers: Numbers = {"classes": classes, "width": sizes.width, "samples": options.samples}
    numbers |= {"steps": steps_of(classes, options)}
    costs = time_both(ours, plain, replace(settings, patience=settings.patience / 2))
    return _row("alignment", options, numbers, costs, agreement)


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
    heads = GrowingHeads(sizes.width, LinearOptions())
    for task in range(classes // sizes.classes_per_task):
        heads.append(heads.new_head(sizes.classes_per_task, generator(0, "head", task)))
    return heads.to(device), memory.to(device)


def draws_of(purpose: str, epoch: int, device: torch.device) -> torch.Generator:
    return generator(0, purpose, 0, epoch, device)


def _flat(heads: GrowingHeads) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in heads.parameters()])
