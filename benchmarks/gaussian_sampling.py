"""Class Gaussians as factors, sampled in one batch, beside full covariances and torch's MultivariateNormal per class.

The plain way keeps a float32 d x d covariance (with the same ridge) and factorises it when it samples, as published
code does. Most of its time is that factorisation (and torch's validation of it), so a second row gives the plain way
its best form: a Cholesky factor per class, computed beforehand, of the same bytes as the covariance. Our factors save
memory while a class has fewer images than features; the last case of each width has more, and saves none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lca.randomness import generator
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from measuring import Agreement, Comparison, Numbers, Settings, Size, size_of, time_both

SUBJECT = "gaussians"
RIDGE = 1e-4


@dataclass(frozen=True)
class Sizes:
    shapes: tuple[tuple[int, int], ...]
    """Features and images of a class."""
    classes: int
    samples: int


SHAPES = ((192, 10), (192, 50), (192, 500), (768, 10), (768, 50), (768, 1000))
SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(shapes=((16, 5), (16, 40)), classes=3, samples=200),
    "small": Sizes(shapes=SHAPES, classes=10, samples=64),
    "full": Sizes(shapes=SHAPES, classes=100, samples=512),
}


@dataclass(frozen=True)
class FullGaussian:
    """The plain way to keep a class."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "FullGaussian":
        ridge = RIDGE * torch.eye(features.shape[1], device=features.device)
        return cls(features.mean(0), torch.cov(features.T) + ridge)

    def sample(self, count: int) -> Tensor:
        return MultivariateNormal(self.mean, covariance_matrix=self.covariance).sample(torch.Size([count]))


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    return [row for width, images in sizes.shapes for row in _compare_shape(width, images, sizes, settings)]


def _compare_shape(width: int, images: int, sizes: Sizes, settings: Settings) -> list[Comparison]:
    features = _features(sizes.classes, images, width, settings.device)

    def fit_ours() -> GaussianMemory:
        memory = GaussianMemory(CovarianceOptions(ridge=RIDGE))
        for label, rows in enumerate(features):
            memory.observe(label, rows)
        return memory

    def fit_plain() -> list[FullGaussian]:
        return [FullGaussian.of(rows) for rows in features]

    memory, full = fit_ours(), fit_plain()
    draws = generator(0, "benchmark samples", device=settings.device)

    def sample_ours() -> Tensor:
        return memory.sample(sizes.samples, draws)[0]

    def sample_plain() -> Tensor:
        return torch.stack([each.sample(sizes.samples) for each in full])

    roots = [torch.linalg.cholesky(each.covariance) for each in full]

    def sample_kept() -> Tensor:
        shape = sizes.samples, width
        normal = [torch.randn(shape, generator=draws, device=settings.device) for _ in full]
        return torch.stack([each.mean + z @ root.T for each, z, root in zip(full, normal, roots, strict=True)])

    factors = sum(each.mean.nbytes + each.factor.nbytes for each in memory.classes.values())
    covariances = sum(each.mean.nbytes + each.covariance.nbytes for each in full)
    numbers: Numbers = {"classes": sizes.classes, "images": images, "width": width}

    right = sample_agreement(sample_ours(), full)
    same, shape = covariance_agreement(memory, full), f"d={width}, {images} images"
    kept = size_of(factors), size_of(covariances)
    fitted = time_both(fit_ours, fit_plain, settings)
    sampled = time_both(sample_ours, sample_plain, settings)
    kept_roots = time_both(sample_ours, sample_kept, settings)
    drawn: Numbers = numbers | {"samples": sizes.samples}
    return [
        Comparison(SUBJECT, f"memory, {shape}", "bytes", *kept, numbers, same),
        Comparison(SUBJECT, f"statistics, {shape}", "seconds", *fitted, numbers, same),
        Comparison(SUBJECT, f"sampling, {shape}", "seconds", *sampled, drawn, right),
        Comparison(SUBJECT, f"sampling (plain: kept Cholesky), {shape}", "seconds", *kept_roots, drawn, right),
    ]


def covariance_agreement(memory: GaussianMemory, full: list[FullGaussian]) -> Agreement:
    """The covariance the factors stand for, beside the full one."""
    differences = []
    for label, plain in enumerate(full):
        ours = memory.classes[label]
        rows = ours.factor.double()
        covariance = rows.T @ rows / (ours.count - 1) + RIDGE * torch.eye(rows.shape[1]).to(rows)
        differences.append(float((covariance - plain.covariance).norm() / plain.covariance.norm()))
    return Agreement(max(differences), 1e-4, "covariance, relative")


def sample_agreement(samples: Tensor, full: list[FullGaussian]) -> Agreement:
    """Our samples under the plain way's density: their mean squared Mahalanobis distance is d, within five errors."""
    distances = []
    for rows, plain in zip(samples.double(), full, strict=True):
        root = torch.linalg.cholesky(plain.covariance.double())
        whitened = torch.linalg.solve_triangular(root, (rows - plain.mean).T, upper=False)
        distances.append(whitened.square().mean())
    standard_error = (2 / samples.numel()) ** 0.5
    difference = float(torch.stack(distances).mean() - 1)
    # the covariance itself is float32, so its smallest directions (the ridge) carry rounding of that size
    return Agreement(abs(difference), 5 * standard_error + 1e-2, "mean squared Mahalanobis distance / d - 1")


def _features(classes: int, images: int, width: int, device: torch.device) -> Tensor:
    draws = generator(0, "benchmark features")
    centres = torch.randn(classes, 1, width, generator=draws)
    return (centres + torch.randn(classes, images, width, generator=draws)).to(device)
