"""Class statistics: every class is a Gaussian in feature space, kept as a count, a mean and a factor.

The factor R of a class is the triangular matrix of a QR decomposition of its centred features, so RᵀR is the exact
scatter matrix Σ (x - μ)(x - μ)ᵀ while R has at most min(K - 1, d) rows: small for few images, and a mixture of the
images instead of their features. Decompositions run in float64, storage is float32. A ridge or a shared covariance
is an extra noise term when sampling, never a d x d matrix per class.
"""

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from lca.errors import LcaError
from lca.files import Part, Stored, whole, without
from lca.options import Options
from lca.statistics.drift import Transport
from lca.statistics.left_out import LeftOut, LeftOutMetric

log = logging.getLogger(__name__)

SHRINKAGE = 0.5
"""Share of the isotropic part in the covariance that measures distances: with few images the rest is mostly noise."""


class CovarianceOptions(Options):
    """What is kept of a class besides its mean."""

    kind: Literal["full", "shared", "diagonal"] = "full"
    """`full`: an exact factor per class. `shared`: one factor for all classes. `diagonal`: a variance per feature."""
    ridge: float = Field(1e-4, ge=0)
    """Variance added in every direction."""
    unbiased: bool = True
    """Divide by K - 1 (the published code); false divides by K, as the paper's appendix writes."""
    rank: int | None = Field(None, ge=1)
    """Keep at most this many directions of a full factor."""
    energy: float | None = Field(None, gt=0, le=1)
    """Keep the directions that hold this share of a full factor's variance."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind != "full" and (self.rank or self.energy):
            raise ValueError(f"rank and energy truncate full factors; with kind: {self.kind} they would do nothing")
        return self


@dataclass(frozen=True)
class Gaussian:
    """One class. `factor` is (k, d) with scatter factorᵀ factor; for `diagonal` (d,) roots; for `shared` (0, d)."""

    count: int
    mean: Tensor
    factor: Tensor


def fit(features: Tensor, views: int = 1) -> Gaussian:
    """The exact Gaussian of features (K · views, d) of K images, each seen in so many views.

    The count is that of the images, and the scatter over all views is divided by their number: more views of the same
    images tell more of the spread, but are no more evidence.
    """
    rows = _contrasts(features.double()) / math.sqrt(views)
    return Gaussian(len(features) // views, features.double().mean(0).float(), _triangular(rows).float())


def combine(a: Gaussian, b: Gaussian) -> Gaussian:
    """The Gaussian of two batches of one class: QR of [R1; R2; sqrt(n1 n2 / n) (μ1 - μ2)]."""
    n = a.count + b.count
    mean_a, mean_b = a.mean.double(), b.mean.double()
    between = math.sqrt(a.count * b.count / n) * (mean_a - mean_b)
    rows = torch.cat([a.factor.double(), b.factor.double(), between[None]])
    return Gaussian(n, ((a.count * mean_a + b.count * mean_b) / n).float(), _triangular(rows).float())


def truncate(factor: Tensor, rank: int | None, energy: float | None) -> Tensor:
    """The leading directions of a factor: at most `rank`, and no more than hold the share `energy` of its variance."""
    if factor.ndim != 2 or not len(factor) or (rank is None and energy is None):
        return factor
    _, singular, directions = torch.linalg.svd(factor.double(), full_matrices=False)
    kept = len(singular) if rank is None else min(rank, len(singular))
    if energy is not None:
        shares = singular.square().cumsum(0) / singular.square().sum().clamp(min=1e-300)
        kept = min(kept, int((shares < energy - 1e-12).sum()) + 1)
    return (singular[:kept, None] * directions[:kept]).float().contiguous()


@dataclass(frozen=True)
class PooledCovariance:
    """The within-class covariance over all classes, Σ scatter / Σ (K - 1) (or Σ K): the one d x d matrix there is."""

    scatter: Tensor
    freedom: int

    def shrunk(self, shrinkage: float, ridge: float) -> Tensor:
        """(1 - s) Σ + s tr(Σ)/d I + ridge I, in float64."""
        covariance = self.scatter / max(self.freedom, 1)
        level = shrinkage * covariance.trace() / len(covariance) + ridge + _FLOOR
        return (1 - shrinkage) * covariance + level * torch.eye(len(covariance)).to(covariance)

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors (in columns) of the scatter."""
        values, vectors = torch.linalg.eigh(self.scatter)
        return values, vectors

    def factor(self) -> Tensor:
        """Rows whose scatter is the pooled scatter."""
        values, vectors = self.spectrum
        return (values.clamp(min=0).sqrt()[:, None] * vectors.T).float()


class GaussianMemory(Stored):
    """The Gaussians of all classes learnt so far, by label."""

    combines: ClassVar[bool] = True

    def __init__(self, options: CovarianceOptions) -> None:
        self.options = options
        self.classes: dict[int, Gaussian] = {}
        self.shared = _NO_ROWS
        """`shared`: the factor of all classes' scatter together, (at most d, d)."""
        self.residual = _NO_ROWS
        """The factor (at most d, d) of the scatter that transports left unexplained: it belongs to no class alone."""
        self._pooled: PooledCovariance | None = None  # until the next change

    def observe(self, label: int, features: Tensor, views: int = 1) -> None:
        """Add features (K · views, d) of one class, as for `fit`. A class seen before is combined: batches and
        returning classes alike."""
        if not features.isfinite().all():
            raise LcaError(f"class {label}: {len(features)} features contain NaN or infinity; training diverged")
        gaussian = fit(features, views)
        if label in self.classes:
            gaussian = combine(self._with_rows(self.classes[label]), gaussian)
        self._enter(label, gaussian)

    def forget(self, label: int) -> None:
        """A shared covariance stays as it was, whatever is left."""
        before = self._freedom()
        del self.classes[label]
        self.classes = without(label, self.classes)
        self._pooled = None
        share = math.sqrt(max(self._freedom(), 1) / max(before, 1)) if self.classes else 0.0
        self.residual = self.residual * share if share else _NO_ROWS
        if self.options.kind == "shared":  # the same covariance, of fewer images
            self.shared = self.shared * share if share else _NO_ROWS

    def merge(self, label: int, other: int) -> None:
        """The exact Gaussian of the images of both, see `combine`; the covariance that moves left unexplained stays."""
        before = self._freedom()
        self._enter(label, combine(*(self._with_rows(self.classes[each]) for each in (label, other))))
        self.classes = without(other, self.classes)
        self.residual = self.residual * math.sqrt(max(self._freedom(), 1) / max(before, 1))

    def transport(self, move: Transport) -> None:
        """Move every Gaussian with a map of feature space: its mean as a point, its factor by the linear part.

        What the map leaves unexplained, the covariance Σ_e of its residuals, every class gains alike. It is kept once
        for all of them, as the scatter that it adds to the pooled one.
        """
        for label, old in self.classes.items():
            moved = move.rows(self._with_rows(old).factor)
            factor = _column_norms(moved) if self.options.kind == "diagonal" else moved.float()
            self.classes[label] = Gaussian(old.count, move.means(old.mean[None])[0].float(), factor)
        if len(self.shared):
            self.shared = move.rows(self.shared).float()
        kept = [move.rows(self.residual)] if len(self.residual) else []
        if move.residual is not None:
            kept.append(move.residual * math.sqrt(self._freedom()))
        if kept:
            self.residual = _triangular(torch.cat(kept).double()).float()
        self._pooled = None

    def means(self) -> Tensor:
        """(classes, d), in label order."""
        return torch.stack([self.classes[label].mean for label in sorted(self.classes)])

    def rows_of(self, label: int) -> Tensor:
        """The factor of a class as rows (k, d); none of its own where all classes share one."""
        return self._with_rows(self.classes[label]).factor

    def pooled(self) -> PooledCovariance:
        """The covariance shared by all classes."""
        if self._pooled is None:
            self._pooled = self._pool()
        return self._pooled

    def _pool(self) -> PooledCovariance:
        """Classes of one image have no spread but that of its views: it counts where no class has more than one."""
        several = [gaussian for gaussian in self.classes.values() if gaussian.count > 1]
        if self.options.kind == "shared":
            factors = [self.shared]
        else:
            factors = [self._with_rows(gaussian).factor for gaussian in several or self.classes.values()]
        scatter = torch.zeros((), dtype=torch.float64)
        for factor in (*factors, *[self.residual] * bool(len(self.residual))):
            rows = factor.double()
            scatter = scatter.to(rows.device) + rows.T @ rows
        return PooledCovariance(scatter, self._freedom())

    def _freedom(self) -> int:
        return sum(gaussian.count - self.options.unbiased for gaussian in self.classes.values()) or len(self.classes)

    def sample(self, count: int, generator: torch.Generator, first_classes: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw `count` features of every class, or of so many of the first ones: (classes, count, d) in label order,
        and the labels (classes,).

        x = μ + ε R / sqrt(K - 1) + sqrt(ridge) ε'. A class with one image has no spread of its own: the pooled
        covariance serves it, and the log says so.
        """
        labels = sorted(self.classes)[:first_classes]
        first = self.classes[labels[0]].mean
        single = [label for label in labels if self.classes[label].count < 2]
        pooled = first.new_empty(0, len(first))
        if self.options.kind == "shared":
            pooled = self.shared / math.sqrt(max(self.pooled().freedom, 1))
        elif single:
            log.info("%d class(es) with one image take the pooled covariance: %s", len(single), single)
            pooled = self.pooled().factor() / math.sqrt(max(self.pooled().freedom, 1))
        longest = max(count, *(len(gaussian.factor) for gaussian in self.classes.values()))
        size = max(1, _AT_ONCE // (longest * len(first)))
        samples = first.new_empty(len(labels), count, len(first))
        for start in range(0, len(labels), size):
            chunk = labels[start : start + size]
            samples[start : start + size] = self._sample(chunk, count, pooled, generator)
        return samples, torch.tensor(labels)

    def with_residual(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """Samples (c, count, d) of the first c classes, and what the moves of the backbone left unexplained of them:
        x + ε E, where EᵀE is the residual scatter per degree of freedom of these classes."""
        if not len(self.residual):
            return samples
        freedom = int((self.counts()[: len(samples)] - int(self.options.unbiased)).sum())
        rows = self.residual / math.sqrt(max(freedom, 1))
        return samples + _normal((*samples.shape[:2], len(rows)), samples, generator) @ rows

    def mahalanobis(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance to every class mean under the pooled, shrunk covariance: (n, classes)."""
        root = self.root()

        def whiten(rows: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(root, rows.to(root).T, upper=False).T

        return torch.cdist(whiten(features), whiten(self.means())).square().float()

    def root(self) -> Tensor:
        """Cholesky's L of the pooled, shrunk covariance: L⁻¹ whitens features."""
        return torch.linalg.cholesky(self.pooled().shrunk(SHRINKAGE, self.options.ridge))

    def leave_one_out(self, features: Tensor, labels: Tensor, images: Tensor | None = None) -> Tensor:
        """The squared distance of learnt images to their own classes, each as if it had not been learnt: (n,).

        `images` tells which image each row is a view of, as for `LeftOut.of`; by default each is one. NaN where nothing
        is left to measure with: one image, or two of the only class with any spread.
        """
        without = self.left_out(features, labels, images)
        return self.left_out_metric(without).between(without.apart, torch.zeros_like(without.apart)).float()

    def left_out(self, features: Tensor, labels: Tensor, images: Tensor | None = None) -> LeftOut:
        """What the statistics would be without each of some learnt images."""
        return LeftOut.of(features.cpu(), labels.cpu(), self.means().cpu(), self.counts(), images)

    def left_out_metric(self, without: LeftOut) -> LeftOutMetric:
        """The pooled, shrunk covariance without each of these images. Where the factors do not hold every image exactly
        (`diagonal`, rank, energy), nothing is lost."""
        exact, (values, axes) = self.is_exact, (each.cpu() for each in self.pooled().spectrum)
        freedom = max(self.pooled().freedom - exact, 1)
        return LeftOutMetric(without, values, axes, freedom, SHRINKAGE, self.options.ridge + _FLOOR, exact)

    def typical_distances(self) -> Tensor:
        """The leave-one-out distance of an image that lies as far from its class as its images do on average:
        (classes,), from the stored Gaussians alone. NaN for a class with one image.

        Without an image, the mean of its class moves by -u/(K - 1), so the image lies K/(K - 1) u away from it, and the
        pooled scatter loses K/(K - 1) u uᵀ. Sherman and Morrison's formula takes the loss into account: q / (1 - k q).
        """
        pooled, kind = self.pooled(), self.options
        counts, exact = self.counts().double(), self.is_exact
        without = counts / (counts - 1)
        freedom = max(pooled.freedom - exact, 1)
        values, vectors = (each.cpu() for each in pooled.spectrum)
        coordinates = self._spread_along(vectors)
        lost = without * coordinates.sum(1) if exact else torch.zeros_like(without)
        level = SHRINKAGE * (values.sum() - lost) / (freedom * len(values)) + kind.ridge + _FLOOR
        spectrum = (1 - SHRINKAGE) * values.clamp(min=0) / freedom + level[:, None]
        distances = (coordinates / spectrum).sum(1)
        loss = (1 - SHRINKAGE) * without / freedom if exact else torch.zeros_like(without)
        left = (1 - loss * distances).clamp(min=1e-6)  # it is positive, but for rounding
        measurable = (counts > 1) & (values.sum() - lost >= 1e-6 * values.sum())
        return (without.square() * distances / left).where(measurable, torch.nan).float()

    def typical_spreads(self) -> Tensor:
        """q = tr(Scatter_c Σ⁻¹) / n_c of every class, Σ the pooled, shrunk covariance: (classes,), in float64."""
        values, vectors = (each.cpu() for each in self.pooled().spectrum)
        freedom = max(self.pooled().freedom, 1)
        level = SHRINKAGE * values.sum() / (freedom * len(values)) + self.options.ridge + _FLOOR
        return (self._spread_along(vectors) / ((1 - SHRINKAGE) * values.clamp(min=0) / freedom + level)).sum(1)

    def _spread_along(self, axes: Tensor) -> Tensor:
        """The mean square of the images of every class around its mean, along axes in columns: (classes, axes)."""
        counts, labels = self.counts().double(), sorted(self.classes)
        if self.options.kind == "shared":  # no class has rows of its own
            common = (self.shared.cpu().double() @ axes).square().sum(0) / max(self._freedom(), 1)
            return common * (counts[:, None] - int(self.options.unbiased)) / counts[:, None]
        own = (self._with_rows(self.classes[label]) for label in labels)
        return torch.stack([(each.factor.cpu().double() @ axes).square().sum(0) / each.count for each in own])

    @property
    def is_exact(self) -> bool:
        """Whether the factors hold every image exactly."""
        return self.options.kind != "diagonal" and self.options.rank is None and self.options.energy is None

    def counts(self) -> Tensor:
        """Images of every class, in label order: (classes,)."""
        return torch.tensor([self.classes[label].count for label in sorted(self.classes)])

    def to(self, device: torch.device) -> "GaussianMemory":
        """The same Gaussians on a device."""
        moved = GaussianMemory(self.options)
        moved.shared, moved.residual = self.shared.to(device), self.residual.to(device)
        for label, old in self.classes.items():
            moved.classes[label] = Gaussian(old.count, old.mean.to(device), old.factor.to(device))
        return moved

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int | None:
        options, spread = self.options, min(images - 1, width)
        if options.energy is not None:
            return None
        rows = {"full": min(spread, options.rank or width), "shared": 0, "diagonal": 1}[options.kind]
        common = min(classes * spread, width) if options.kind == "shared" else 0
        return 4 * width * (classes * (1 + rows) + common)

    def state(self) -> tuple[Part, dict[str, Any]]:
        common = {"shared": self.shared, "residual": self.residual}
        part: Part = {name: rows for name, rows in common.items() if rows.ndim == 2}
        for label, gaussian in self.classes.items():
            part[f"{label}.mean"], part[f"{label}.factor"] = gaussian.mean, gaussian.factor
        return part, {"counts": {str(label): gaussian.count for label, gaussian in self.classes.items()}}

    def load(self, part: Part, meta: Any = None) -> None:
        self.shared, self.residual = (part.get(name, _NO_ROWS) for name in ("shared", "residual"))
        self._pooled = None
        counts = {int(label): whole(count, 1) for label, count in meta["counts"].items()}
        self.classes = {
            label: Gaussian(count, part[f"{label}.mean"], part[f"{label}.factor"]) for label, count in counts.items()
        }
        if self.classes:
            self.expect(len(self.classes), len(self.classes[0].mean))

    def expect(self, classes: int, width: int) -> None:
        """An error unless there is a Gaussian for each of so many classes, of features of that width."""
        tables = [each.factor for each in self.classes.values()]
        tables += [rows for rows in (self.shared, self.residual) if rows is not _NO_ROWS]
        if sorted(self.classes) != list(range(classes)) or any(
            each.mean.shape != (width,) or each.mean.dtype != torch.float32 for each in self.classes.values()
        ):
            raise LcaError(f"there are no means for the labels 0 to {classes - 1} of features of width {width}")
        if any(rows.shape[-1:] != (width,) or rows.ndim > 2 or rows.dtype != torch.float32 for rows in tables):
            raise LcaError(f"there is a covariance that is none of features of width {width}")

    def _enter(self, label: int, gaussian: Gaussian) -> None:
        """Keep of a class what the options say. `shared`: the rows of its factor go to the one of all classes."""
        if self.options.kind == "shared":
            rows = torch.cat([self.shared.reshape(-1, len(gaussian.mean)), gaussian.factor])
            self.shared, kept = _triangular(rows.double()).float(), gaussian.factor[:0].clone()
        elif self.options.kind == "diagonal":
            kept = _column_norms(gaussian.factor)
        else:
            kept = truncate(gaussian.factor, self.options.rank, self.options.energy)
        self.classes[label] = Gaussian(gaussian.count, gaussian.mean, kept)
        self._pooled = None

    def _with_rows(self, gaussian: Gaussian) -> Gaussian:
        """With the factor as rows, also where only their norms are kept."""
        if self.options.kind != "diagonal":
            return gaussian
        return Gaussian(gaussian.count, gaussian.mean, torch.diag(gaussian.factor))

    def _scaled(self, factor: Tensor, count: int) -> Tensor:
        return factor / math.sqrt(max(count - self.options.unbiased, 1))

    def _sample(self, labels: list[int], count: int, pooled: Tensor, generator: torch.Generator) -> Tensor:
        """The features of some classes; those without a spread of their own take the rows of `pooled`."""
        gaussians = [self.classes[label] for label in labels]
        shared = self.options.kind == "shared"
        borrowing = [number for number, each in enumerate(gaussians) if shared or each.count < 2]
        factors = [self._scaled(gaussian.factor, gaussian.count) for gaussian in gaussians]
        mean = torch.stack([gaussian.mean for gaussian in gaussians])[:, None]
        shape = (len(labels), count, mean.shape[2])
        if self.options.kind == "diagonal":
            scales = torch.stack(factors)
            scales[borrowing] = _column_norms(pooled)
            samples = mean + scales[:, None] * _normal(shape, mean, generator)
        else:
            rows = max(len(factor) for factor in factors)
            padded = torch.stack([functional.pad(factor, (0, 0, 0, rows - len(factor))) for factor in factors])
            noise = _normal((len(labels), count, max(rows, len(pooled) if borrowing else 0)), mean, generator)
            spread = noise[..., :rows] @ padded
            if borrowing:
                spread[borrowing] += noise[borrowing, :, : len(pooled)] @ pooled
            samples = mean + spread
        if self.options.ridge:
            samples = samples + math.sqrt(self.options.ridge) * _normal(shape, mean, generator)
        return samples


_NO_ROWS = torch.zeros(0)
_AT_ONCE = 2**24
"""Numbers in the largest tensor that sampling needs besides the samples themselves."""
_FLOOR = 1e-8
"""Variance in every direction, for classes without any spread and no ridge."""


def _contrasts(features: Tensor) -> Tensor:
    """K - 1 orthonormal contrasts (Helmert): rows with the scatter of the centred features, and none superfluous."""
    before = torch.arange(1, len(features), dtype=features.dtype, device=features.device)[:, None]
    means_before = features.cumsum(0)[:-1] / before
    return (features[1:] - means_before) * (before / (before + 1)).sqrt()


def _triangular(rows: Tensor) -> Tensor:
    """The R of a QR decomposition: at most d rows with the same scatter as `rows`."""
    if not len(rows):
        return rows
    return torch.linalg.qr(rows, mode="r").R.contiguous()  # as it will be after a reload


def _column_norms(rows: Tensor) -> Tensor:
    return rows.double().norm(dim=0).float()


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
