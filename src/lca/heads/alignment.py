"""Local Classifier Alignment: retrain all heads on features drawn from the stored class Gaussians.

The backbone moved, the old heads did not; alignment closes that gap without any old image. `lca_loss` is the paper's
loss and, by its options, the published code's and plain classifier alignment (CA); `align` runs it.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from lca.device import replayed
from lca.errors import LcaError
from lca.heads.growing import GrowingHeads, linear_heads
from lca.optimisation import cosine, make_optimiser, set_rate
from lca.options import Options
from lca.statistics.drift import DriftOptions
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

HeadChoice = Literal["all", "none", "oldest", "newest", "random"] | tuple[int, ...]


class AlignmentOptions(Options):
    """One branch: which statistics, and what is done to the heads with them."""

    name: str
    """Names the branch in results and files."""
    kind: Literal["none", "align", "lda"] = "align"
    """`none`: the heads as trained. `align`: gradient steps on sampled features. `lda`: closed-form heads."""

    robustness: float = Field(0.1, ge=0)
    """λ: weight of the pairwise term |ℓ(z) - ℓ(z')| (Eq. 2)."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the softmax entropy (in some published runs, not in the paper)."""
    logit_norm: float | None = Field(None, gt=0)
    """Temperature of logits divided by their mean per-task norm (in some published runs and in SLCA)."""
    nearest_mean_filter: bool = False
    """Leave out samples whose nearest class mean is not their own (published code; the theorem's cells)."""
    average: Literal["classes", "samples"] = "classes"
    """Mean of class means (Eq. 1), or plain mean over the batch (CA)."""

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
    train_heads: HeadChoice = "all"
    """Which task heads move; the others stay exactly as they are. Numbers count tasks from 0, negative ones from the
    newest. `oldest`, `newest`, `random`: that half of the heads there are, see `chosen_heads`."""
    first_task: bool = False
    """Whether the first task's heads are aligned as well; closed-form heads always are."""
    shrinkage: float = Field(0.1, ge=0, le=1)
    """LDA: share of the isotropic part in the pooled covariance."""

    statistics: Literal["before", "after"] = "after"
    """Class statistics under the task's own backbone, before the merge, or under the merged one."""
    covariance: CovarianceOptions = CovarianceOptions()
    drift: DriftOptions = DriftOptions()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.drift.model != "none" and self.statistics == "before":
            raise ValueError(
                f"drift model {self.drift.model!r} needs statistics: after. Statistics taken before the merge live in "
                "each task's own feature space, which the map between merged backbones does not connect"
            )
        if self.kind == "lda" and self.start == "lda":
            raise ValueError("kind: lda has no steps to start; use kind: align with start: lda")
        return self

    @property
    def memory_key(self) -> str:
        """Branches with the same statistics share one set of Gaussians."""
        return f"{self.statistics}:{self.covariance.model_dump_json()}:{self.drift.model_dump_json()}"


def pairwise_weights(losses: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Weights (n,) with which a class's losses sum to its mean of |ℓ_i - ℓ_j| over i ≠ j (the second term of Eq. 2).

    With a class's n losses sorted ascending this U-statistic is 2 / (n (n - 1)) Σ_r (2r - n - 1) ℓ_(r), so one sort
    serves all classes and no n x n matrix exists. A class with fewer than two samples gives 0.
    """
    exact = losses.double()  # a label takes digits of the key
    low, high = exact.aminmax()
    order = torch.argsort(labels + (exact - low) / (1 + high - low))  # by class, then by loss
    counts = _counts(labels, classes, losses.dtype)
    n, starts = counts[labels[order]], (counts.cumsum(0) - counts)[labels[order]]
    rank = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device) - starts
    return torch.empty_like(losses).scatter_(0, order, 2 * (2 * rank - n - 1) / (n * (n - 1)).clamp(min=1))


def lca_loss(
    logits: Tensor, labels: Tensor, options: AlignmentOptions, sizes: list[int], keep: Tensor | None = None
) -> Tensor:
    """The alignment loss of one mini-batch (Eq. 1 and 2).

    L = 1/|U| Σ_k∈U [ mean_k ℓ + λ pairwise_k + η mean_k H ], U the classes in the batch. With `keep` (the nearest-mean
    filter) a class's three terms run over its kept samples; a class with none kept falls back to the plain mean of
    all its samples, as the published code does. `average: samples` is the plain batch mean of classifier alignment.
    `sizes` are the task heads' sizes, for the logit norm.

    All of it is one weighted sum of the samples' losses, the weights constant where the order of the losses is.
    """
    scaled = logits if options.logit_norm is None else normalised_logits(logits, sizes, options.logit_norm)
    losses = functional.cross_entropy(scaled, labels, reduction="none")
    weights, kept = _sample_weights(losses.detach(), labels, logits.shape[1], options, keep)
    loss = (weights * losses).sum()
    if options.entropy:
        loss = loss + options.entropy * (kept * softmax_entropy(logits)).sum()
    return loss


@torch.no_grad()
def _sample_weights(
    losses: Tensor, labels: Tensor, classes: int, options: AlignmentOptions, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weight of every sample's loss, and of its entropy, in the loss of the batch: (n,) each."""
    if options.average == "samples" and keep is None and not options.robustness:
        equal = torch.full_like(losses, 1 / len(losses))
        return equal, equal
    kept = torch.ones_like(losses) if keep is None else keep.to(losses.dtype)
    counts = _counts(labels, classes, losses.dtype, kept)
    emptied = (counts == 0)[labels]  # of samples: their class has none kept
    included = torch.where(emptied, 1.0, kept)
    if keep is not None:
        counts = _counts(labels, classes, losses.dtype, included)
    share = counts if options.average == "samples" else (counts > 0).to(losses.dtype)
    share = share / share.sum()
    per_sample = (share / counts.clamp(min=1))[labels]
    weights = per_sample * included
    if options.robustness:
        # what is filtered out is a class of its own
        group = labels if keep is None else torch.where(keep, labels, classes)
        pairs = pairwise_weights(losses, group, classes + 1) * kept
        weights = weights + options.robustness * share[labels] * pairs
    return weights, per_sample * kept


def _counts(labels: Tensor, classes: int, dtype: torch.dtype, weights: Tensor | None = None) -> Tensor:
    """How many samples every class has, or their weights' sum: (classes,)."""
    ones = torch.ones(len(labels), dtype=dtype, device=labels.device) if weights is None else weights
    return torch.zeros(classes, dtype=dtype, device=labels.device).index_add_(0, labels, ones)


def normalised_logits(logits: Tensor, sizes: list[int], temperature: float) -> Tensor:
    """Logits divided by the mean over tasks of their per-task norms, and by the temperature (SLCA)."""
    norms = torch.stack([part.norm(dim=1) + 1e-7 for part in logits.split(sizes, dim=1)])
    return logits / (norms.mean(0)[:, None] + 1e-7) / temperature


def softmax_entropy(logits: Tensor) -> Tensor:
    probabilities = logits.softmax(1)
    return -(probabilities * (probabilities + 1e-8).log()).sum(1)


def nearest_mean_mask(samples: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Whether each sample's nearest class mean is its own. It does not depend on the heads: compute it once."""
    nearest = [torch.cdist(chunk, means).argmin(1) for chunk in samples.split(4096)]
    return torch.cat(nearest) == labels


def lda_heads(memory: GaussianMemory, heads: GrowingHeads, shrinkage: float) -> GrowingHeads:
    """Linear discriminant analysis in closed form: w_c = Σ⁻¹ (μ_c - μ̄), b_c = -½ w_cᵀ (μ_c + μ̄), Σ pooled and shrunk.

    μ̄, the mean of the class means, only takes the same amount from all logits of an image. Without that, logits in
    the thousands would leave float32 no digits for their differences.
    """
    means = memory.means().double()
    centre = means.mean(0)
    covariance = memory.pooled().shrunk(shrinkage, memory.options.ridge)
    weight = torch.linalg.solve(covariance, (means - centre).T).T
    bias = -0.5 * (weight * (means + centre)).sum(1)
    return linear_heads(weight.float(), bias.float(), heads.sizes, heads)


def chosen_heads(choice: HeadChoice, heads: int, draws: torch.Generator) -> Literal["all", "none"] | tuple[int, ...]:
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


class FeatureSource(Protocol):
    """Where the features of all classes come from: Gaussians, for example."""

    def means(self) -> Tensor:
        """(classes, d)"""

    def sample(self, per_class: int, generator: torch.Generator, /) -> tuple[Tensor, Tensor]:
        """Features (classes, per_class, d), and their labels."""


def align(
    heads: GrowingHeads,
    memory: FeatureSource,
    options: AlignmentOptions,
    generator: Callable[[str, int, torch.device], torch.Generator],
    on_epoch: Callable[[], None] = lambda: None,
) -> tuple[GrowingHeads, dict[str, float]]:
    """Align a copy of the heads; `generator(purpose, epoch, device)` gives the randomness.

    Returns the aligned heads and what was measured. SGD with a cosine schedule per epoch down to 0, on features drawn
    once for all epochs.
    """
    if options.kind == "lda" or options.start == "lda":
        if not isinstance(memory, GaussianMemory):
            raise LcaError("closed-form heads need class Gaussians")
        heads = lda_heads(memory, heads, options.shrinkage)
        if options.kind == "lda":
            return heads, {}
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
        raise LcaError(f"the alignment of branch {options.name!r} diverged; lower its lr (it is {options.lr})")
    if (at_last := value(probe)) > 1.5 * at_first:
        warnings.warn(
            f"the alignment of branch {options.name!r} made the loss of its first batch larger ({at_first:.3g} before, "
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
