"""The alignment loss (Eq. 1 and 2): the paper's, and by its options the published code's and plain CA's."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lca.options import Options


class LossOptions(Options):
    """What the loss of a batch is made of."""

    robustness: float = Field(0.1, ge=0)
    """λ: weight of the pairwise term |ℓ(z) - ℓ(z')| (Eq. 2)."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the softmax entropy (in some published runs, not in the paper)."""
    logit_norm: float | None = Field(None, gt=0)
    """Temperature of logits divided by their mean per-task norm (in some published runs and in SLCA)."""
    average: Literal["classes", "samples"] = "classes"
    """Mean of class means (Eq. 1), or plain mean over the batch (CA)."""


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
    logits: Tensor, labels: Tensor, options: LossOptions, sizes: list[int], keep: Tensor | None = None
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
    losses: Tensor, labels: Tensor, classes: int, options: LossOptions, keep: Tensor | None
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
