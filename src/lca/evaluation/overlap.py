"""How far classes overlap in what a classifier makes of their images: pair by pair, in the margins of their logits.

For classes i and j, the margin of an image is z_i - z_j, the logit of the one above that of the other. F_i and F_j are
the distributions of the margin over the images of i and of j. Two numbers say how far they lie in each other:

- the overlap, min over t of [F_i(t) + 1 - F_j(t)]: both error rates together at the best threshold t, 0 where margins
  tell all images apart and 1 where they tell nothing. It is one minus the one-sided Kolmogorov-Smirnov distance, and
  the area that both densities cover where their ratio is monotone; elsewhere it is above that area.
- the same as answered, F_i(0) + 1 - F_j(0), at the threshold that the answers have: 0. Never less, up to 2.

What shifts a head's logits moves the second only; the first is about directions. So the first says what the features
and the head rows leave to be told apart, and the difference what heads that do not fit each other lose of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lca.progress import Progress


@torch.no_grad()
def overlaps(logits: Tensor, labels: Tensor, progress: Progress, what: str) -> tuple[Tensor, Tensor]:
    """The overlap of all pairs of classes, and the same as answered: symmetric (classes, classes), in float64.

    Of classes without images, and of a class with itself, it is nan. Equal logits count as wrong.
    """
    logits, labels = logits.float().cpu(), labels.cpu()
    classes = logits.shape[1]
    counts = torch.bincount(labels, minlength=classes).double()
    margins = torch.full((classes, classes, int(counts.max())), torch.inf)  # i, j: z_i - z_j of images of i, sorted
    for label in range(classes):
        own = logits[labels == label]
        margins[label, :, : len(own)] = (own[:, label, None] - own).T.sort().values
    rows = []
    for i in progress.track(range(classes), what, classes):
        others = (-margins[:, i]).flip(1)  # z_i - z_j of images of every j, sorted; what is missing is below all
        missing = others.shape[1] - counts[:, None]
        own_below = torch.searchsorted(margins[i], others, right=True) / counts[i]
        others_below = (torch.searchsorted(others, others, right=True) - missing) / counts[:, None]
        rows.append(
            1 - (others_below - own_below).amax(1).clamp(min=0)
        )  # F_j grows there, so the best t is one of them
    wrong = (margins <= 0).sum(2) / counts[:, None]
    return torch.stack(rows).fill_diagonal_(torch.nan), (wrong + wrong.T).fill_diagonal_(torch.nan)


def by_task(values: Tensor, homes: Sequence[int]) -> dict[str, float | None]:
    """The mean over pairs of classes of one task, and of different tasks; `homes` are the tasks of the classes."""
    place = torch.tensor(homes)
    upper = torch.ones_like(values, dtype=torch.bool).triu(1) & ~values.isnan()
    same = place[:, None] == place
    found = {"within_tasks": values[upper & same], "between_tasks": values[upper & ~same]}
    return {name: float(each.mean()) if len(each) else None for name, each in found.items()}
