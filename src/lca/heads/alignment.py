"""Local Classifier Alignment: retrain all heads on features drawn from the stored class Gaussians.

The backbone moved, the old heads did not; alignment closes that gap without any old image.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from lca.device import replayed
from lca.errors import LcaError
from lca.heads.branch import BranchOptions, Draws, FeatureSource, kinds
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
        heads = lda_heads(memory, heads, options.shrinkage)
    else:
        heads = heads.copy()
    heads.set_prototypes(memory.means())
    to_align = generator("heads to align", 0, torch.device("cpu"))
    parameters = heads.trainable(chosen_heads(options.train_heads, len(heads.tasks), to_align))
    if not parameters:
        return heads, {}
    sizes, device = heads.sizes, memory.means().device

    def draw(epoch: int) -> tuple[Tensor, Tensor | None]:
        """Features (classes · samples, d) in label order, and which of them the filter keeps."""
        samples, _ = memory.sample(options.samples, generator("samples", epoch, device))
        if options.mean_decay:
            samples = samples - (options.mean_decay * _age(sizes, device)[:, None] * memory.means())[:, None]
        rows = samples.flatten(0, 1)
        if not options.nearest_mean_filter:
            return rows, None
        return rows, nearest_mean_mask(rows, classes.repeat_interleave(options.samples), memory.means())

    classes = torch.arange(sum(sizes), device=device)
    features, keep = draw(0)
    loss = features.new_zeros(())
    optimiser = make_optimiser("sgd", [(parameters, options.lr)], options.momentum, options.weight_decay)
    momenta = [optimiser.state[each].setdefault("momentum_buffer", torch.zeros_like(each)) for each in parameters]

    def losses(index: Tensor) -> Iterator[Tensor]:
        """The loss of a batch, in parts that are added."""
        for part in _parts(index, len(classes), options):
            labels, kept = classes[part // options.samples], None if keep is None else keep[part]
            yield lca_loss(heads.at_once(features[part]), labels, options, sizes, kept) * (len(part) / len(index))

    @torch.no_grad()
    def value(index: Tensor) -> float:
        return float(sum(losses(index)))

    def step(index: Tensor) -> None:
        optimiser.zero_grad()
        for current in losses(index):
            current.backward()
            loss.add_(current.detach())
        optimiser.step()

    for parameter in parameters:
        parameter.requires_grad_(True)
    fast_step, probe, at_first = None, classes[:0], 0.0
    for epoch in range(options.epochs):
        set_rate(optimiser.param_groups[0], cosine(options.lr, 0.0, epoch / options.epochs))
        loss.zero_()
        draws = generator("batches", epoch, torch.device("cpu"))
        batches = list(_batches(len(classes), options, draws, device))
        if options.redraw and epoch:
            again, kept_again = draw(epoch)
            features.copy_(again)  # in place: a captured step reads from there
            if keep is not None and kept_again is not None:
                keep.copy_(kept_again)
        if epoch == 0:
            probe, at_first = batches[0], value(batches[0])
        fast_step = fast_step or replayed(step, batches[0], [loss, *parameters, *momenta])
        for index in batches:
            fast_step(index)
        on_epoch()
    optimiser.zero_grad()
    heads.requires_grad_(False)
    if not all(parameter.isfinite().all() for parameter in parameters):
        raise LcaError(f"{what} diverged; lower its lr (it is {options.lr})")
    if (at_last := value(probe)) > 1.5 * at_first:
        warnings.warn(
            f"{what} made the loss of its first batch larger ({at_first:.3g} before, "
            f"{at_last:.3g} after): its lr ({options.lr}) may be too high, above all with logit_norm and heads that "
            "were trained for few steps",
            stacklevel=2,
        )
    return heads, {"loss": float(loss) / len(batches), "kept": 1.0 if keep is None else float(keep.float().mean())}


def _age(sizes: list[int], device: torch.device) -> Tensor:
    """1 - (τ + 1) / (t + 1) of every class: 0 for the newest task's, near 1 for the oldest of many."""
    tasks = torch.arange(1, len(sizes) + 1, device=device).repeat_interleave(torch.tensor(sizes, device=device))
    return 1 - tasks / len(sizes)


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
