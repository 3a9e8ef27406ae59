"""Unknown things: how far an image lies from every known class, as a percentile of how far known images lie.

A distance alone says little. So every image that is learnt is asked how far it lies from the nearest class when it is
left out (`GaussianMemory.nearest_left_out`), and a few quantiles of the answers are kept per class. A new image at
percentile 99 is farther from every class than 99 of 100 known images were.

Later lessons move the backbone and the pooled covariance, and the images are gone by then. But the Gaussians move
along, and they tell the typical leave-one-out distance of a class at any time: kept distances are scaled with it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from lca.errors import LcaError
from lca.files import Part, Stored, whole, without

EDGES = torch.cat([torch.arange(16) * 0.05, 0.8 + torch.arange(8) * 0.02, 0.96 + torch.arange(9) * 0.005]).double()
"""Of a class with many images, the middles of these quantile intervals are kept: finer where unknown things begin."""
KEPT = len(EDGES) - 1
"""Distances kept per class: all of a class with so few images, quantiles of a larger one."""
STEADINESS = 10
"""Held-out images needed before they count as much as what was expected."""
FARTHEST = 99.999
"""No percentile exceeds this one, so that a limit of 100 calls nothing unknown."""


class KnownDistances(Stored):
    """The leave-one-out distances of the known images, by label."""

    def __init__(self) -> None:
        self._values: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}
        self._typical: dict[int, float] = {}

    def rescale(self, typical: Tensor) -> None:
        """Bring the kept distances to the present: `typical` (classes,) are the classes' typical distances now."""
        for label, value in enumerate(typical.tolist()):
            before = self._typical.setdefault(label, 0.0)
            if value > 0:  # not NaN: there is a spread to measure with
                if label in self._values and before > 0:
                    self._values[label] = self._values[label] * (value / before)
                self._typical[label] = value

    def observe(self, label: int, distances: Tensor, weights: Tensor | None = None) -> None:
        """Add the squared distances (n,) of images of one class; NaN, of a class with a single image, is left out.
        `weights` (n,) tells for how many images each stands, by default for one."""
        values = distances[~distances.isnan()].double().cpu()
        weights = torch.ones_like(values) if weights is None else weights
        if label in self._values:
            before = self._values[label].double()
            values, weights = torch.cat([before, values]), torch.cat([self._weights(label), weights])
        if not len(values):
            return
        values, order = values.sort()
        self._counts[label] = round(float(weights.sum()))
        if len(values) > KEPT:
            inside = (weights[order].cumsum(0) - weights[order] / 2) / weights.sum()
            values = values[torch.searchsorted(inside, (EDGES[1:] + EDGES[:-1]) / 2).clamp(max=len(values) - 1)]
        self._values[label] = values.float()

    def correct(self, labels: Tensor, distances: Tensor) -> None:
        """Stretch the distances of the classes `labels` (n,) by what images of them that were held out show (n,).

        The backbone was fitted on the images that were learnt, so they lie nearer than others even when they are left
        out of the statistics. The factor is the ratio of the geometric means, held back while there are few images.
        """
        present = [label for label in labels.unique().tolist() if label in self._values]
        measured = distances[torch.isin(labels, torch.tensor(present))].double().cpu().clamp(min=1e-30).log()
        if not len(measured):
            return
        weights = torch.cat([self._weights(label) for label in present])
        expected = torch.cat([self._values[label].double() for label in present]).clamp(min=1e-30).log()
        shift = measured.mean() - (weights * expected).sum() / weights.sum()
        factor = float((shift * len(measured) / (len(measured) + STEADINESS)).exp())
        for label in present:
            self._values[label] = self._values[label] * factor

    def forget(self, label: int) -> None:
        self._values, self._counts = without(label, self._values), without(label, self._counts)
        self._typical = without(label, self._typical)

    def merge(self, label: int, other: int) -> None:
        """The distances of both together. Typical is their mean by images, until `rescale` tells what it is now."""
        if other in self._values:
            counts = torch.tensor([float(self._counts.get(each, 0)) for each in (label, other)])
            typical = torch.tensor([self._typical.get(each, 0.0) for each in (label, other)])
            self.observe(label, self._values[other], self._weights(other))
            self._typical[label] = float((counts * typical).sum() / counts.sum())
        self.forget(other)

    def percentiles(self, distances: Tensor) -> Tensor | None:
        """Squared distances of any shape as percentiles in [0, 100]; None while nothing is known to compare with.

        Between known values the distribution function is linear. Beyond the largest it would stay below 100 n / (n + 1)
        for ever, so that a model of ten images could never call anything unknown; there it goes on like a power of the
        distance, with the steepness that a log-normal distribution of the same spread has about there.
        """
        table = self.table()
        if table is None:
            return None
        points, heights, steepness = table
        asked = distances.double().clamp(min=0)
        upper = torch.searchsorted(points, asked).clamp(1, len(points) - 1)
        low, high = points[upper - 1], points[upper]
        share = ((asked - low) / (high - low).clamp(min=1e-30)).clamp(0, 1)
        inside = heights[upper - 1] + share * (heights[upper] - heights[upper - 1])
        tail = (1 - heights[-1]) * (points[-1] / asked.clamp(min=1e-30)).clamp(max=1) ** steepness
        return (100 * torch.where(asked > points[-1], 1 - tail, inside)).clamp(max=FARTHEST).float()

    def table(self) -> tuple[Tensor, Tensor, float] | None:
        """The distribution function: squared distances from 0 up, its heights there, and the power of its tail."""
        if not self._values:
            return None
        values = torch.cat([each.double() for each in self._values.values()])
        weights = torch.cat([self._weights(label) for label in self._values])
        values, order = values.sort()
        weights, total = weights[order], weights.sum()
        heights = (weights.cumsum(0) - weights / 2) / total * total / (total + 1)
        spread = _deviation(values.clamp(min=1e-30).log(), weights)
        zero = values.new_zeros(1)
        return torch.cat([zero, values]), torch.cat([zero, heights]), float(2 / spread)

    def state(self) -> tuple[Part, dict[str, Any]]:
        part = {str(label): values for label, values in self._values.items()}
        known = {str(label): [self._counts[label], self._typical[label]] for label in self._values}
        return part, {"counts and typical distances": known}

    def load(self, part: Part, meta: Any = None) -> None:
        known = meta["counts and typical distances"]
        self._values = {int(label): part[label].cpu() for label in known}
        self._counts = {int(label): count for label, (count, _) in known.items()}
        self._typical = {int(label): float(typical) for label, (_, typical) in known.items()}
        for label, values in self._values.items():
            kept = min(whole(self._counts[label], 1), KEPT)
            if values.shape != (kept,) or not (values >= 0).all() or not 0 <= self._typical[label] < math.inf:
                raise LcaError(f"class {label}: there are not {kept} distances of known images")

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        return 4 * classes * min(images, KEPT)

    def _weights(self, label: int) -> Tensor:
        """How many images each kept value stands for."""
        count = self._counts[label]
        return torch.ones(count, dtype=torch.float64) if count <= KEPT else count * EDGES.diff()


def _deviation(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted standard deviation; 0.5, a usual one for log distances, where there are too few values to tell."""
    if len(values) < 3:
        return values.new_tensor(0.5)
    mean = (weights * values).sum() / weights.sum()
    return ((weights * (values - mean).square()).sum() / weights.sum()).sqrt().clamp(min=0.05)
