"""Calibration: probabilities that mean what they say. Of the answers given with 80 %, 80 of 100 should be right."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lca.errors import LcaError

STEADINESS = 5.0
"""Pull of the last temperature on the next one: about that of a few dozen images."""


def fit_temperature(logits: Tensor, labels: Tensor, last: float = 1.0) -> float:
    """The T that makes softmax(logits / T) most likely on images that were not trained on (Guo et al. 2017).

    Minimises Σ -log p_T(y) + 5 (log T - log T_last)², so that a handful of images changes little. The order of the
    answers does not depend on T.
    """
    logits, labels, start = logits.double(), labels.to(logits.device), math.log(last)

    def cost(log_temperature: float) -> float:
        loss = functional.cross_entropy(logits / math.exp(log_temperature), labels, reduction="sum")
        return float(loss) + STEADINESS * (log_temperature - start) ** 2

    low, high, golden = start - 4.0, start + 4.0, (math.sqrt(5) - 1) / 2
    while high - low > 1e-3:
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return math.exp((low + high) / 2)


def calibration_error(probabilities: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Expected calibration error: Σ over bins of (share of images) · |accuracy - mean probability|, in per cent.

    Bins are equal intervals of the answer's probability (Naeini et al. 2015; Guo et al. 2017).
    """
    if not len(probabilities):
        raise ValueError("the calibration error of no answers is not defined")
    gaps = _sums(probabilities, correct.double() - probabilities.double(), bins)
    return float(100 * gaps.abs().sum() / len(probabilities))


@dataclass(frozen=True)
class Bin:
    """The answers whose probability lies in (low, high], in per cent."""

    low: float
    high: float
    images: int
    mean_probability: float | None
    """None without answers, as the accuracy."""
    accuracy: float | None


def reliability(probabilities: Tensor, correct: Tensor, bins: int = 15) -> list[Bin]:
    """The reliability table: in each of `bins` equal intervals of the answer's probability, how many answers there are,
    their mean probability and the share that is right. Calibrated answers have the two equal in every bin."""
    probabilities = probabilities.double()
    counts = _sums(probabilities, torch.ones_like(probabilities), bins)
    means = (100 * _sums(probabilities, probabilities, bins) / counts).tolist()
    shares = (100 * _sums(probabilities, correct.double(), bins) / counts).tolist()
    return [
        Bin(100 * number / bins, 100 * (number + 1) / bins, int(count), *((mean, share) if count else (None, None)))
        for number, (count, mean, share) in enumerate(zip(counts.tolist(), means, shares, strict=True))
    ]


def _sums(probabilities: Tensor, values: Tensor, bins: int) -> Tensor:
    """Sums (bins,) of values over the equal intervals of the probabilities; a bound belongs to the lower bin."""
    if probabilities.isnan().any():
        raise LcaError("there are probabilities that are NaN: training diverged; try a smaller learning rate")
    places = (probabilities.double() * bins).ceil().clamp(1, bins).long() - 1
    return torch.zeros(bins, dtype=torch.float64).index_add(0, places.cpu(), values.double().cpu())
