"""How well a score tells OOD images from known images. A higher score means: less like anything known."""

import torch
from torch import Tensor


def auroc(known: Tensor, ood: Tensor) -> float:
    """Area under the ROC curve, in per cent: P(score of an OOD image > of a known one) + ½ P(equal), over all pairs.

    By ranks, ties exactly: (Σ of the OOD images' mid-ranks - m (m + 1) / 2) / (m n) for m OOD and n known images.
    50 is chance.
    """
    _check(known, ood)
    scores = torch.cat([ood, known]).double()
    _, places, counts = scores.unique(sorted=True, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    twice = (2 * ends - counts + 1)[places[: len(ood)]].sum()  # the mid-ranks doubled are whole numbers
    pairs = len(ood) * len(known)
    return 100 * (int(twice) - len(ood) * (len(ood) + 1)) / (2 * pairs)


def accepted_ood(known: Tensor, ood: Tensor, per_cent: int = 95) -> float:
    """FPR95 with the known images as positives (Liang et al. 2018): per cent of OOD images with a score <= τ, where τ
    is the smallest threshold that accepts at least 95 % of the known images (score <= τ)."""
    _check(known, ood)
    limit = known.sort().values[_needed(len(known), per_cent) - 1]
    return 100 * int((ood <= limit).sum()) / len(ood)


def refused_known(known: Tensor, ood: Tensor, per_cent: int = 95) -> float:
    """FPR95 with the OOD images as positives: per cent of known images with a score >= τ, where τ is the largest
    threshold that finds at least 95 % of the OOD images (score >= τ)."""
    return accepted_ood(-ood, -known, per_cent)


def detection(known: Tensor, ood: Tensor) -> dict[str, float]:
    """All three."""
    return {
        "auroc": auroc(known, ood),
        "fpr95_known_positive": accepted_ood(known, ood),
        "fpr95_ood_positive": refused_known(known, ood),
    }


def _check(known: Tensor, ood: Tensor) -> None:
    if not len(known) or not len(ood):
        raise ValueError("telling OOD images from known images is not defined without images of both kinds")
    if known.isnan().any() or ood.isnan().any():
        raise ValueError("there are scores that are NaN")


def _needed(count: int, per_cent: int) -> int:
    """The smallest whole number that is at least so many per cent."""
    return -(-count * per_cent // 100)
