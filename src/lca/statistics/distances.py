"""Unknown things: whether an image lies as known images do, beside a background of pictures of nothing.

A distance alone says little, and emptiness lies in the middle of all features, near to every class. So two scores are
made of where an image lies (`surroundings`): its distance d to the nearest class, less a share of that to the middle of
all classes, s = d - 0.6 e, standardised by what images of that class have, z = (s - m_c) / σ_c; and whether it is
nearer to a class or to the background, J = (d - b) / 2. Every image that is learnt is asked for s and J as if it had
not been, and a few quantiles of the answers are kept per class. What exceeds nearly all of them in z or J is unknown.

Later lessons move the backbone, the pooled covariance and the middle, and the images are gone by then. But the
Gaussians move along, and they tell the typical s and J of a class at any time: kept ones are shifted with them. While a
covariance knows few images, leaving one of them out changes it much, and the scores of a class lie far apart: with q
the mean square distance of its images to its mean, one that is left out is at d = q / (1 - k q), so δ in q makes
δ / (1 - k q)², about δ (d / q)². The kept scores are drawn together as q (d / q)² falls.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lca.errors import LcaError
from lca.files import Part, Stored, whole, without
from lca.statistics.drift import Transport
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.quantiles import KEPT, Distribution, kept, weights
from lca.statistics.surroundings import Surroundings, left_out_surroundings, surroundings, typical_surroundings

MIDDLE = 0.6
"""The share of e in s."""
PRIOR = 30
"""Images of no class in particular, with the mean of all, that the mean and spread of a class's s count beside its
own."""
STEADINESS = 10
"""Held-out images needed before they count as much as what was expected."""
FARTHEST = 99.999
"""No image is farther than this, so that a limit of 100 calls nothing unknown."""
FORMAT = 2
"""Of what is kept here; the first one knew no background."""


class Typical(NamedTuple):
    """Of a class: s, J and d of a typical image as if it had not been learnt, and how far such scores lie apart,
    d² / q, with q the mean square distance of its images to its mean."""

    s: float
    j: float
    d: float
    spread: float


def typical_scores(memory: GaussianMemory, background: Tensor) -> dict[int, Typical]:
    """Of every class that has a spread to measure with, by label."""
    where = typical_surroundings(memory, background)
    (s, j), d = _scores(where), where.classes
    rows = torch.cat([s, j, d, d.square() / memory.typical_spreads()[:, None]], dim=1)
    return {label: Typical(*row) for label, row in enumerate(rows.tolist()) if row[2] > 0}


class KnownDistances(Stored):
    """The scores of known images, by label, and the background that they are told from.

    `families` are the mean features (f, d) of generated pictures, `spoilt` (k, d) those of photos of past lessons that
    were spoilt in k ways, `photos` of them in each.
    """

    def __init__(self) -> None:
        self.families, self.spoilt, self.photos = _NOTHING, _NOTHING, 0
        self._values: dict[int, Tensor] = {}  # (3, kept): s in order, which class was nearest, and J in order
        self._counts: dict[int, int] = {}
        self._typical: dict[int, Typical] = {}
        self._tables: Tables | None = None  # until the next change

    @property
    def background(self) -> Tensor:
        """All means of the background: (j, d)."""
        return torch.cat([each for each in (self.families, self.spoilt) if len(each)])

    def see(self, families: Tensor | None, spoilt: Tensor | None = None, photos: int = 0) -> None:
        """Take over the features of the background on the present backbone: the families' anew, where it has moved, and
        the mean features (k, d) of so many more spoilt photos."""
        self._tables = None
        if families is not None:
            self.families = families.float().cpu()
        if spoilt is not None and photos:
            before = self.spoilt if len(self.spoilt) else torch.zeros_like(spoilt.cpu())
            self.photos += photos
            self.spoilt = before + (spoilt.float().cpu() - before) * photos / self.photos

    def transport(self, move: Transport) -> None:
        """Move the spoilt photos' means with the backbone; the pictures of the families can be seen again."""
        self._tables = None
        if len(self.spoilt):
            self.spoilt = move.means(self.spoilt)

    def rescale(self, memory: GaussianMemory) -> None:
        """Bring the kept scores to the present: shift them by the change of what is typical of their class, and draw
        them together around it."""
        self._tables = None
        for label, now in typical_scores(memory, self.background).items():
            if label in self._values:
                before, (s, nearest, j) = self._typical[label], self._values[label]
                share = now.spread / before.spread
                s, j = now.s + share * (s - before.s), now.j + share * (j - before.j)
                self._values[label] = torch.stack([s, nearest, j])
            self._typical[label] = now

    def learn(self, memory: GaussianMemory, features: Tensor, labels: Tensor, images: Tensor | None = None) -> None:
        """Add images that were just learnt, each as if it had not been; arguments as for `left_out_surroundings`."""
        found = left_out_surroundings(memory, features, labels, self.background, images)
        scores, own = _at_nearest(found), labels[: len(found.centre)]
        for label in own.unique().tolist():
            self.observe(label, scores[:, own == label])

    def observe(self, label: int, scores: Tensor, counted: Tensor | None = None) -> None:
        """Add the scores (3, n) of images of one class: s, the label of the nearest class, and J. NaN, of a class with
        a single image, is left out. `counted` (n,) tells for how many images each stands, by default for one."""
        self._tables = None
        values = scores[:, ~scores.isnan().any(0)].double().cpu()
        if label not in self._typical or not values.shape[1]:
            return
        counted = torch.ones(values.shape[1], dtype=torch.float64) if counted is None else counted
        if label in self._values:
            values = torch.cat([self._values[label].double(), values], dim=1)
            counted = torch.cat([weights(self._counts[label]), counted])
        self._counts[label] = round(float(counted.sum()))
        by_s, by_j = kept(values[0], counted), kept(values[2], counted)
        self._values[label] = torch.cat([values[:2, by_s], values[2:, by_j]]).float()

    def correct(self, memory: GaussianMemory, features: Tensor, labels: Tensor) -> None:
        """Shift the scores of the classes `labels` (n,) by what images of them that were held out show.

        The backbone was fitted on the images that were learnt, so they lie nearer than others even when they are left
        out of the statistics. The shift is the difference of the means, held back while there are few images.
        """
        present = [label for label in labels.unique().tolist() if label in self._values]
        chosen = torch.isin(labels.cpu(), torch.tensor(present))
        if not chosen.any():
            return
        self._tables = None
        measured = _at_nearest(surroundings(memory, features[chosen.to(features.device)].cpu(), self.background))
        counted = torch.cat([weights(self._counts[label]) for label in present])
        expected = torch.cat([self._values[label].double() for label in present], dim=1) @ counted / counted.sum()
        share = int(chosen.sum()) / (int(chosen.sum()) + STEADINESS)
        shift = (share * (measured.mean(1) - expected)).float()
        shift[1] = 0
        for label in present:
            self._values[label] = self._values[label] + shift[:, None]

    def forget(self, label: int) -> None:
        """Images to which the class was the nearest are taken for nearest to their own."""
        self._tables = None
        for own, (s, nearest, j) in self._values.items():  # not in place: an earlier state may hold the same tensor
            nearest = torch.where(nearest == label, own, nearest)
            self._values[own] = torch.stack([s, nearest - (nearest > label).float(), j])
        self._values, self._counts = without(label, self._values), without(label, self._counts)
        self._typical = without(label, self._typical)

    def merge(self, label: int, other: int) -> None:
        """The scores of both together. Typical is their mean by images, until `rescale` tells what it is now; the one
        class is the nearest to all images to which either was."""
        self._tables = None
        for own, (s, nearest, j) in self._values.items():
            self._values[own] = torch.stack([s, torch.where(nearest == other, label, nearest), j])
        if other in self._typical:
            counts = torch.tensor([float(self._counts.get(each, 1)) for each in (label, other)])
            both = torch.tensor([self._typical.get(each, self._typical[other]) for each in (label, other)])
            self._typical[label] = Typical(*((counts @ both) / counts.sum()).tolist())
        if other in self._values:
            self.observe(label, self._values[other], weights(self._counts[other]))
        self.forget(other)

    @property
    def can_tell(self) -> bool:
        """Whether anything is known to compare with."""
        return bool(self._values)

    def percentiles(self, memory: GaussianMemory, features: Tensor) -> Tensor | None:
        """How far features (n, d) lie from every known class, between 0 and 100: (n, classes); None while nothing is
        known to compare with.

        100 (1 - min(1, 2 min(p_z, p_J))), where p is the share of known images with a greater z or J. The nearest class
        has the least; another one has what it would have if it were the nearest, but no less than that.
        """
        if not self.can_tell:
            return None
        where, tables = surroundings(memory, features.cpu(), self.background), self.tables(len(memory.classes))
        s, j = _scores(where)
        p = torch.minimum(tables.z.above((s - tables.means) / tables.deviations), tables.j.above(j))
        far = (100 * (1 - (2 * p).clamp(max=1))).clamp(max=FARTHEST)
        return far.maximum(far.gather(1, where.classes.argmin(1, keepdim=True))).float()

    def tables(self, classes: int) -> "Tables":
        """What scores are compared with, where so many classes are known."""
        if self._tables is None:
            self._tables = Tables.of(self._values, self._counts, self._typical, classes)
        return self._tables

    def state(self) -> tuple[Part, dict[str, Any]]:
        part = {str(label): values for label, values in self._values.items()}
        part |= {name: each for name, each in (("families", self.families), ("spoilt", self.spoilt)) if len(each)}
        known = {str(label): [self._counts.get(label, 0), *typical] for label, typical in self._typical.items()}
        return part, {"format": FORMAT, "photos": self.photos, "counts and typical scores": known}

    def load(self, part: Part, meta: Any = None) -> None:
        """What was kept before there was a background are distances d to the nearest class: `KnownDistances.adopt`."""
        self._tables = None
        self.families, self.spoilt = (part.get(name, _NOTHING).cpu() for name in ("families", "spoilt"))
        self.photos = meta.get("photos", 0)
        known = meta["counts and typical scores" if "format" in meta else "counts and typical distances"]
        self._values = {int(label): part[label].cpu() for label in known if label in part}
        self._counts = {int(label): count for label, (count, *_) in known.items() if label in part}
        scored = "format" in meta
        if scored:
            self._typical = {int(label): Typical(*typical) for label, (_, *typical) in known.items()}
        for label, values in self._values.items():
            kept = min(whole(self._counts[label], 1), KEPT)
            typical = self._typical[label] if scored else ()
            if values.shape != ((3, kept) if scored else (kept,)) or not all(map(math.isfinite, typical)):
                raise LcaError(f"class {label}: there are not {kept} scores of known images")

    def adopt(self, memory: GaussianMemory, families: Tensor) -> None:
        """Make scores of the distances that an earlier version kept, which knew no background: of every image its own
        d, and the e and b that are typical of its class."""
        self.see(families)
        self._typical = typical_scores(memory, self.background)
        self._values = {label: each for label, each in self._values.items() if label in self._typical}
        self._counts = {label: each for label, each in self._counts.items() if label in self._typical}
        for label, distances in self._values.items():
            usual, nearest = self._typical[label], torch.full_like(distances, label)
            apart = distances - usual.d
            self._values[label] = torch.stack([usual.s + apart, nearest, usual.j + apart / 2])

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        """Without the background: how many means it has is up to who shows it."""
        return 4 * classes * 3 * min(images, KEPT)


@dataclass(frozen=True)
class Tables:
    """What the scores of an image are compared with: the distributions of z and J over all images, and the mean m_c and
    deviation σ_c of s in every class (classes,).

    A class has the images to which it is the nearest. Both count `PRIOR` images beside these n: with the mean of all
    images, and the pooled variance v around the class means. m_c = (n s̄_c + 30 s̄) / (n + 30),
    σ_c² = (n v_c + 30 v) / (n + 30).
    """

    z: Distribution
    j: Distribution
    means: Tensor
    deviations: Tensor

    @classmethod
    def of(
        cls,
        values: dict[int, Tensor],
        counts: dict[int, int],
        typical: dict[int, Typical],
        classes: int,
    ) -> "Tables":
        s, nearest, j = torch.cat(list(values.values()), dim=1).double()
        near, counted = nearest.long(), torch.cat([weights(counts[label]) for label in values])

        def summed(some: Tensor) -> Tensor:
            return some.new_zeros(classes).index_add_(0, near, some)

        number = summed(counted)
        average = summed(counted * s) / number.clamp(min=1)
        squares = summed(counted * (s - average[near]).square())
        freedom = int(number.sum()) - int((number > 0).sum())
        apart = sum(typical[label].d for label in values) / len(values)
        pooled = _spread(squares.sum() / max(freedom, 1), freedom, apart) ** 2
        means = (number * average + PRIOR * (counted * s).sum() / number.sum()) / (number + PRIOR)
        deviations = ((squares + PRIOR * pooled) / (number + PRIOR)).sqrt()
        z = (s - means[near]) / deviations[near]
        of_z = Distribution.of(z, counted, _spread(_variance(z, counted), freedom, 2.0))
        of_j = Distribution.of(j, counted, _spread(_variance(j, counted), freedom, apart))
        return cls(of_z, of_j, means, deviations)


_NOTHING = torch.zeros(0)


def _scores(where: Surroundings) -> tuple[Tensor, Tensor]:
    """s and J of features (n,) as if each class of theirs (n, classes) were the nearest: both (n, classes)."""
    return where.classes - MIDDLE * where.centre[:, None], (where.classes - where.background[:, None]) / 2


def _at_nearest(where: Surroundings) -> Tensor:
    """s, the label of the nearest class, and J: (3, n)."""
    nearest = where.classes.argmin(1, keepdim=True)
    s, j = (each.gather(1, nearest)[:, 0] for each in _scores(where))
    return torch.stack([s, nearest[:, 0].to(s), j])


def _variance(values: Tensor, weights: Tensor) -> Tensor:
    mean = (weights * values).sum() / weights.sum()
    return (weights * (values - mean).square()).sum() / weights.sum()


def _spread(variance: Tensor, freedom: int, typical: float) -> float:
    """The standard deviation; a half of what is typical where there are too few values to tell, and no less than a
    twentieth."""
    return typical / 2 if freedom < 2 else max(float(variance.sqrt()), typical / 20)
