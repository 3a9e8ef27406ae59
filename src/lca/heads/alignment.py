"""Local Classifier Alignment: retrain all heads on features drawn from the stored class Gaussians.

The backbone moved, the old heads did not; alignment closes that gap without any old image.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from lca.device import replayed
from lca.errors import LcaError
from lca.heads.branch import BranchOptions, Draws, FeatureSource, kinds
from lca.heads.discriminant import DiscriminantOptions
from lca.heads.growing import GrowingHeads
from lca.heads.lda import lda_heads
from lca.heads.loss import LossOptions, lca_loss
from lca.optimisation import cosine, make_optimiser, set_rate
from lca.statistics.gaussians import GaussianMemory

WhichHeads = Literal["all", "none", "oldest", "newest", "random"] | tuple[int, ...]


class AlignmentOptions(LossOptions):
    """On which samples, in which steps."""

    nearest_mean_filter: bool = False
    """Leave out samples whose nearest class mean is not their own (published code; the theorem's cells)."""
    samples: int = Field(512, ge=1)
    """Features drawn per class, once per task."""
    redraw: bool = False
    """Draw them anew for every epoch (SLCA)."""
    mean_decay: float = Field(0.0, ge=0, le=1)
    """Shorten the means of older classes: μ (1 - decay (1 - (τ + 1) / (t + 1))) for a class of task τ after task t
    (SLCA, with 0.1)."""
    epochs: int = Field(10, ge=1)
    batches: Literal["balanced", "random"] = "balanced"
    """`balanced`: the same number of samples of every class in every batch. `random`: as in the published code."""
    per_class: int = Field(8, ge=1)
    """`balanced`: samples of every class in a batch."""
    batch_size: int = Field(128, ge=1)
    """`random`: samples in a batch."""
    lr: float = Field(0.01, gt=0)
    classes_at_lr: int | None = Field(None, ge=1)
    """With more classes than these, `lr` grows in proportion, at most 20-fold. The loss of a batch is a mean over
    classes, so the gradient of a row falls as their number grows, and new rows, which start short, would end too
    short. By default it does not grow, as published."""
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    start: Literal["cumulative", "restart", "lda"] = "cumulative"
    """Heads before the first step: the aligned ones of the last task, the ones as trained, or closed-form LDA."""
    train_heads: WhichHeads = "all"
    """Which task heads move; the others stay exactly as they are. Numbers count tasks from 0, negative ones from the
    newest. `oldest`, `newest`, `random`: that half of the heads there are, see `chosen_heads`."""
    first_task: bool = False
    """Whether the first task's heads are aligned as well."""
    shrinkage: float = Field(0.1, ge=0, le=1)
    """`start: lda`: share of the isotropic part in the pooled covariance."""


@kinds.register("align")
class AlignBranch(BranchOptions, AlignmentOptions):
    """Gradient steps on sampled features."""

    kind: Literal["align"] = "align"

    @property
    def closed_form(self) -> bool:
        return self.start == "lda"

    @property
    def restarts(self) -> bool:
        return self.start == "restart"

    @property
    def rounds(self) -> int:
        return self.epochs

    def applies(self, first: bool) -> bool:
        return self.first_task or not first

    def fit(
        self, heads: GrowingHeads, memory: GaussianMemory, draws: Draws, on_round: Callable[[], None] = lambda: None
    ) -> tuple[GrowingHeads, dict[str, float]]:
        return align(heads, memory, self, draws, on_round, f"the alignment of branch {self.name!r}")


def full_rate(options: AlignmentOptions, classes: int) -> float:
    """The learning rate of the first epoch with so many classes."""
    at = options.classes_at_lr
    return options.lr if at is None else options.lr * min(max(1.0, classes / at), _MOST_GROWTH)


def nearest_mean_mask(samples: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Whether each sample's nearest class mean is its own. It does not depend on the heads: compute it once."""
    nearest = [torch.cdist(chunk, means).argmin(1) for chunk in samples.split(4096)]
    return torch.cat(nearest) == labels


def chosen_heads(choice: WhichHeads, heads: int, draws: torch.Generator) -> Literal["all", "none"] | tuple[int, ...]:
    """The numbers of the heads that `oldest`, `newest` or `random` mean; other choices as they are.

    Half of n heads are ⌈n/2⌉: the paper's appendix updates "half" of them, "five in IN-A and three in VTAB", which have
    ten and five tasks. It does not say which half. Here it is one of the heads there are after each task, since nobody
    knows how many will come, and `random` is drawn after each task anew.
    """
    half = (heads + 1) // 2
    if choice == "oldest":
        return tuple(range(half))
    if choice == "newest":
        return tuple(range(heads - half, heads))
    if choice == "random":
        return tuple(torch.randperm(heads, generator=draws)[:half].tolist())
    return choice


def align(
    heads: GrowingHeads,
    memory: FeatureSource,
    options: AlignmentOptions,
    generator: Draws,
    on_epoch: Callable[[], None] = lambda: None,
    what: str = "the alignment",
) -> tuple[GrowingHeads, dict[str, float]]:
    """Align a copy of the heads.

    Returns the aligned heads and what was measured. SGD with a cosine schedule per epoch down to 0, on features drawn
    once for all epochs.
    """
    if options.start == "lda":
        if not isinstance(memory, GaussianMemory):
            raise LcaError("closed-form heads need class Gaussians")
        plain = DiscriminantOptions(shrinkage=options.shrinkage, means="plain")
        heads = lda_heads(memory, heads, plain)
    else:
        heads = heads.copy()
    heads.set_prototypes(memory.means())
    to_align = generator("heads to align", 0, torch.device("cpu"))
    parameters = heads.trainable(chosen_heads(options.train_heads, len(heads.tasks), to_align))
    if not parameters:
        return heads, {}
    alignment = _Alignment(heads, parameters, memory, options, generator)
    for epoch in range(options.epochs):
        alignment.epoch(epoch)
        on_epoch()
    return heads, alignment.end(what)


class _Alignment:
    """What exists only while heads are aligned. A captured step reads and changes these tensors: they stay in place."""

    def __init__(
        self,
        heads: GrowingHeads,
        parameters: list[nn.Parameter],
        memory: FeatureSource,
        options: AlignmentOptions,
        generator: Draws,
    ) -> None:
        self._heads, self._parameters, self._memory, self._options = heads, parameters, memory, options
        self._generator, self._sizes, self._device = generator, heads.sizes, memory.means().device
        self._classes = torch.arange(sum(self._sizes), device=self._device)
        self._features, self._keep = self._draw(0)
        self._loss = self._features.new_zeros(())
        self._lr = full_rate(options, len(self._classes))
        self._optimiser = make_optimiser("sgd", [(parameters, self._lr)], options.momentum, options.weight_decay)
        memory_of = self._optimiser.state
        momenta = [memory_of[each].setdefault("momentum_buffer", torch.zeros_like(each)) for each in parameters]
        for parameter in parameters:
            parameter.requires_grad_(True)
        self._probe = self._batches(0)[0]
        self._at_first = self._value(self._probe)
        self._fast_step = replayed(self._step, self._probe, [self._loss, *parameters, *momenta])

    def epoch(self, number: int) -> None:
        set_rate(self._optimiser.param_groups[0], cosine(self._lr, 0.0, number / self._options.epochs))
        self._loss.zero_()
        if self._options.redraw and number:
            features, keep = self._draw(number)
            self._features.copy_(features)
            if self._keep is not None and keep is not None:
                self._keep.copy_(keep)
        batches = self._batches(number)
        for index in batches:
            self._fast_step(index)
        self._steps = len(batches)

    def end(self, what: str) -> dict[str, float]:
        """Freeze the heads; what was measured."""
        self._optimiser.zero_grad()
        self._heads.requires_grad_(False)
        lr, keep = self._lr, self._keep
        if not all(parameter.isfinite().all() for parameter in self._parameters):
            raise LcaError(f"{what} diverged; lower its lr (it is {lr})")
        if (at_last := self._value(self._probe)) > 1.5 * self._at_first:
            warnings.warn(
                f"{what} made the loss of its first batch larger ({self._at_first:.3g} before, "
                f"{at_last:.3g} after): its lr ({lr}) may be too high, above all with logit_norm and heads that "
                "were trained for few steps",
                stacklevel=3,
            )
        kept = 1.0 if keep is None else float(keep.float().mean())
        return {"loss": float(self._loss) / self._steps, "kept": kept}

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """Features (classes · samples, d) in label order, and which of them the filter keeps."""
        options, means = self._options, self._memory.means()
        samples, _ = self._memory.sample(options.samples, self._generator("samples", epoch, self._device))
        if options.mean_decay:
            samples = samples - (options.mean_decay * _age(self._sizes, self._device)[:, None] * means)[:, None]
        rows = samples.flatten(0, 1)
        if not options.nearest_mean_filter:
            return rows, None
        return rows, nearest_mean_mask(rows, self._classes.repeat_interleave(options.samples), means)

    def _batches(self, epoch: int) -> list[Tensor]:
        draws = self._generator("batches", epoch, torch.device("cpu"))
        return list(_batches(len(self._classes), self._options, draws, self._device))

    def _losses(self, index: Tensor) -> Iterator[Tensor]:
        """The loss of a batch, in parts that are added."""
        options, keep = self._options, self._keep
        for part in _parts(index, len(self._classes), options):
            labels, kept = self._classes[part // options.samples], None if keep is None else keep[part]
            loss = lca_loss(self._heads.at_once(self._features[part]), labels, options, self._sizes, kept)
            yield loss * (len(part) / len(index))

    @torch.no_grad()
    def _value(self, index: Tensor) -> float:
        return float(sum(self._losses(index)))

    def _step(self, index: Tensor) -> None:
        self._optimiser.zero_grad()
        for loss in self._losses(index):
            loss.backward()
            self._loss.add_(loss.detach())
        self._optimiser.step()


def _age(sizes: list[int], device: torch.device) -> Tensor:
    """1 - (τ + 1) / (t + 1) of every class: 0 for the newest task's, near 1 for the oldest of many."""
    tasks = torch.arange(1, len(sizes) + 1, device=device).repeat_interleave(torch.tensor(sizes, device=device))
    return 1 - tasks / len(sizes)


_MOST_GROWTH = 20.0
_LOGITS_AT_ONCE = 2**26


def _parts(index: Tensor, classes: int, options: AlignmentOptions) -> tuple[Tensor, ...]:
    """A balanced batch in parts of whole classes, whose losses are averaged: its logits grow with the square of the
    number of classes, those of a part do not. Other batches stay whole."""
    unequal = options.average == "samples" and options.nearest_mean_filter
    if options.batches == "random" or unequal or len(index) * classes <= _LOGITS_AT_ONCE:
        return (index,)
    per_class = len(index) // classes
    return index.split(per_class * max(1, _LOGITS_AT_ONCE // (per_class * classes)))


def _batches(
    classes: int, options: AlignmentOptions, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Indices into the flattened (classes · samples) features, an epoch of them."""
    if options.batches == "random":
        order = torch.randperm(classes * options.samples, generator=generator).to(device)
        yield from order.split(options.batch_size)
        return
    order = torch.rand(classes, options.samples, generator=generator).argsort(1)
    order = (order + torch.arange(classes)[:, None] * options.samples).to(device)
    for columns in order.split(options.per_class, dim=1):
        yield columns.flatten()
