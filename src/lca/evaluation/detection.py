"""How well a score tells strangers from known images. A higher score means: less like anything known."""

import torch
from torch import Tensor


def auroc(known: Tensor, strangers: Tensor) -> float:
    """Area under the ROC curve, in per cent: P(stranger's score > known image's) + ½ P(equal), over all pairs.

    By ranks, ties exactly: (Σ of the strangers' mid-ranks - m (m + 1) / 2) / (m n) for m strangers and n known images.
    50 is chance.
    """
    _check(known, strangers)
    scores = torch.cat([strangers, known]).double()
    _, places, counts = scores.unique(sorted=True, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    twice = (2 * ends - counts + 1)[places[: len(strangers)]].sum()  # the mid-ranks doubled are whole numbers
    pairs = len(strangers) * len(known)
    return 100 * (int(twice) - len(strangers) * (len(strangers) + 1)) / (2 * pairs)


def accepted_strangers(known: Tensor, strangers: Tensor, per_cent: int = 95) -> float:
    """FPR95 with the known images as positives (Liang et al. 2018): per cent of strangers with a score <= τ, where τ is
    the smallest threshold that accepts at least 95 % of the known images (score <= τ)."""
    _check(known, strangers)
    limit = known.sort().values[_needed(len(known), per_cent) - 1]
    return 100 * int((strangers <= limit).sum()) / len(strangers)


def refused_known(known: Tensor, strangers: Tensor, per_cent: int = 95) -> float:
    """FPR95 with the strangers as positives: per cent of known images with a score >= τ, where τ is the largest
    threshold that finds at least 95 % of the strangers (score >= τ)."""
    return accepted_strangers(-strangers, -known, per_cent)


def detection(known: Tensor, strangers: Tensor) -> dict[str, float]:
    """All three."""
    return {
        "auroc": auroc(known, strangers),
        "fpr95_known_positive": accepted_strangers(known, strangers),
        "fpr95_stranger_positive": refused_known(known, strangers),
    }


def _check(known: Tensor, strangers: Tensor) -> None:
    if not len(known) or not len(strangers):
        raise ValueError("telling strangers from known images is not defined without images of both kinds")
    if known.isnan().any() or strangers.isnan().any():
        raise ValueError("there are scores that are NaN")


def _needed(count: int, per_cent: int) -> int:
    """The smallest whole number that is at least so many per cent."""
    return -(-count * per_cent // 100)
