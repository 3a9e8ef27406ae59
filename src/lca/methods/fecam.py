"""FeCAM: an image belongs to the class whose Gaussian is nearest, each class measuring with its own covariance.

The covariance of a class is shrunk, Σ + γ1 V1 I + γ2 V2 (1 - I) with V1 its mean variance and V2 its mean covariance of
two features, and then normalised to a correlation matrix, so that no class wins by its mere spread.
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from lca.files import State, without
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._first_task import FirstTaskOptions, TunedOnFirstTask
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

FLOOR = 1e-6
"""Added to the unit diagonal of a correlation matrix that is inverted: without shrinkage it may be singular."""


class FeCamOptions(FirstTaskOptions):
    name: Literal["fecam"] = "fecam"
    shrink_variances: float = Field(1.0, ge=0)
    """γ1: what is added to every variance, in units of the mean variance. The paper has 1, for few images 100."""
    shrink_covariances: float = Field(1.0, ge=0)
    """γ2: what is added to every covariance of two features, in units of their mean; at most γ1, as then the shrunk
    matrix stays positive semi-definite."""
    tukey: float = Field(1.0, gt=0, le=1)
    """Power of the Tukey transform that makes features more like a Gaussian, sign(x) |x|^t; 1 leaves them alone."""
    reference: bool = False
    """Measure as the PILOT code does: Σ + 100 I, the correlations between the *rows* of that matrix (it is taken for
    data), and the pseudo-inverse of them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reference and (self.shrink_variances, self.shrink_covariances) != (1.0, 1.0):
            raise ValueError("with reference: true, shrink_variances and shrink_covariances would do nothing")
        if self.shrink_covariances > self.shrink_variances:
            raise ValueError(
                f"shrink_covariances ({self.shrink_covariances}) must not exceed shrink_variances "
                f"({self.shrink_variances}): the shrunk matrix might be no covariance any more"
            )
        return self


def shrunk_correlations(covariance: Tensor, variances: float, covariances: float) -> Tensor:
    """D^-1/2 (Σ + γ1 V1 I + γ2 V2 (1 - I)) D^-1/2 with D the diagonal of the matrix between: (d, d). The paper's text
    gives it in two steps, shrinkage and normalisation. Where there is no spread at all it is the identity."""
    width, trace = len(covariance), covariance.trace()
    between = (covariance.sum() - trace) / max(width * (width - 1), 1)
    identity = torch.eye(width).to(covariance)
    if trace <= 0:
        return identity
    shrunk = covariance + variances * trace / width * identity + covariances * between * (1 - identity)
    scales = shrunk.diagonal().clamp(min=1e-12 * float(trace) / width).sqrt()
    return shrunk / scales[:, None] / scales


def whitening(correlations: Tensor) -> Tensor:
    """W with W Wᵀ = (R + FLOOR I)⁻¹, so that |x W|² is the squared Mahalanobis distance of x from zero."""
    identity = torch.eye(len(correlations)).to(correlations)
    root = torch.linalg.cholesky(correlations + FLOOR * identity)
    return torch.linalg.solve_triangular(root, identity, upper=False).T.float().contiguous()


def reference_whitening(covariance: Tensor) -> Tensor:
    """The same for the pseudo-inverse of corrcoef(Σ + 100 I)."""
    rows = covariance + 100 * torch.eye(len(covariance)).to(covariance)
    values, vectors = torch.linalg.eigh(torch.corrcoef(rows))
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    return (vectors[:, kept] / values[kept].sqrt()).float().contiguous()


@methods.register("fecam")
class FeCam(TunedOnFirstTask):
    """Kept of a class are its mean and the exact factor of its covariance, of at most as many rows as it has images:
    smaller than a covariance where these are few, and what a class that comes back is combined with. What distances are
    measured with follows from that, so it is made once, when it is first asked for, and not stored. A class with one
    image has no spread of its own: it measures with the covariance pooled over all classes."""

    info = MethodInfo(
        title="FeCAM",
        reference="Goswami et al.: FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free "
        "Continual Learning, NeurIPS 2023",
        trains="the tuner, on the first task; then a mean and a covariance of every class",
    )
    Options: ClassVar = FeCamOptions
    options: FeCamOptions
    remembers: ClassVar[tuple[str, ...]] = (*TunedOnFirstTask.remembers, "classes")

    def __init__(self, setting: Setting, options: FeCamOptions) -> None:
        super().__init__(setting, options)
        self.classes = GaussianMemory(CovarianceOptions())
        self._whitenings: dict[int, Tensor] = {}
        self._pooled: Tensor | None = None  # the one that classes with one image share

    def learn_classes(self, task: int, labels: Tensor, features: Tensor) -> None:
        features = self._transformed(features)
        for label in labels.unique().tolist():
            self.classes.observe(label, features[labels == label])
            self._whitenings.pop(label, None)
        self._pooled = None

    def logits(self, features: Tensor, branch: str) -> Tensor:
        """Minus the squared distance between feature and class mean, both of length one: it is of the order of one."""
        features = functional.normalize(self._transformed(features))
        columns = []
        for label, gaussian in sorted(self.classes.classes.items()):
            apart = features - functional.normalize(gaussian.mean.to(features), dim=0)
            columns.append(-(apart @ self._whitening(label).to(features)).square().sum(1))
        return torch.stack(columns, dim=1) if columns else features[:, :0]

    def forget(self, label: int) -> None:
        super().forget(label)
        self._whitenings, self._pooled = without(label, self._whitenings), None

    def merge_classes(self, label: int, other: int) -> None:
        super().merge_classes(label, other)
        self._whitenings.pop(label, None)
        self._whitenings, self._pooled = without(other, self._whitenings), None

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._whitenings, self._pooled = {}, None

    def _transformed(self, features: Tensor) -> Tensor:
        return features if self.options.tukey == 1 else features.sign() * features.abs() ** self.options.tukey

    def _whitening(self, label: int) -> Tensor:
        """What the distance to a class is measured with: (d, d)."""
        gaussian = self.classes.classes[label]
        if gaussian.count < 2:
            if self._pooled is None:
                pooled = self.classes.pooled()
                self._pooled = self._measure(pooled.scatter / max(pooled.freedom, 1))
            return self._pooled
        if label not in self._whitenings:
            rows = gaussian.factor.double()
            self._whitenings[label] = self._measure(rows.T @ rows / (gaussian.count - 1))
        return self._whitenings[label]

    def _measure(self, covariance: Tensor) -> Tensor:
        options = self.options
        if options.reference:
            return reference_whitening(covariance)
        return whitening(shrunk_correlations(covariance, options.shrink_variances, options.shrink_covariances))
