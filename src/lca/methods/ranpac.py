"""RanPAC: features of a frozen backbone, projected at random, and a ridge regression that is exact for all tasks.

With h = ReLU(f W) and W ~ N(0, 1), the classes are told apart by the W_o that minimises |H W_o - Y|² + λ |W_o|² over
all images so far: W_o = (G + λI)⁻¹ Q with G = HᵀH and Q = HᵀY. G and Q are sums over images, so nothing is forgotten,
and neither the order of tasks nor their borders matter, but for the choice of λ.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lca.errors import LcaError
from lca.files import State
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._first_task import FirstTaskOptions, TunedOnFirstTask

_TRAIN_SHARE, _FEWEST, _MOST = 0.8, 5, 10_000
"""Images that choose the ridge: the share that is solved for, and the fewest and the most of a task that are used."""
_CHUNK = 4096


class RanPacOptions(FirstTaskOptions):
    name: Literal["ranpac"] = "ranpac"
    projection: int | None = Field(None, ge=1)
    """M, the width of the random projection; by default 10,000 for features of width 768 and in proportion else."""
    ridges: tuple[Annotated[float, Field(gt=0)], ...] = Field(tuple(10.0**n for n in range(-8, 9)), min_length=1)
    """The values of λ to choose from, anew with each task. A single one is taken as it is."""
    cosine: bool = False
    """Compare h with the columns of W_o by cosine, as the PILOT code does, instead of by their product."""


def held_out_errors(train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], ridges: tuple[float, ...]) -> Tensor:
    """Mean squared error on held-out (H, Y) of the ridge regression on `train` (H, Y), for every ridge.

    One eigendecomposition serves all of them. With HHᵀ = U diag(s) Uᵀ, the Gram matrix of the n training images,

        H_held W_o = H_held Hᵀ (HHᵀ + λI)⁻¹ Y = (H_held Hᵀ U) diag(1 / (s + λ)) (Uᵀ Y);

    where M < n it is HᵀH = V diag(s) Vᵀ, and H_held W_o = (H_held V) diag(1 / (s + λ)) (Vᵀ Hᵀ Y).
    """
    inputs, targets = train[0].double(), train[1].double()
    asked, wanted = held[0].double(), held[1].double()
    if len(inputs) > inputs.shape[1]:
        values, vectors = torch.linalg.eigh(inputs.T @ inputs)
        left, right = asked @ vectors, vectors.T @ (inputs.T @ targets)
    else:
        values, vectors = torch.linalg.eigh(inputs @ inputs.T)
        left, right = asked @ (inputs.T @ vectors), vectors.T @ targets
    values = values.clamp(min=0)[:, None]
    return torch.stack([(left @ (right / (values + ridge)) - wanted).square().mean() for ridge in ridges])


def solve_ridge(gram: Tensor, sums: Tensor, ridge: float) -> Tensor:
    """The rows of W_oᵀ = Qᵀ (G + λI)⁻¹ by one Cholesky factorisation in float64: (classes, M).

    G is kept in float32, and its rounding is noise of about ε |G| / √M in every direction: a smaller ridge would fit
    that noise where the images span few directions, so λ is at least four times as much.
    """
    system = gram.double()
    noise = torch.finfo(torch.float32).eps * float(system.norm()) / len(system) ** 0.5
    level = max(ridge, 4 * noise)
    system.diagonal().add_(level)
    factor, failed = torch.linalg.cholesky_ex(system)
    while failed:  # the rounding was worse than it should be
        system.diagonal().add_(9 * level)
        level *= 10
        factor, failed = torch.linalg.cholesky_ex(system)
    return torch.cholesky_solve(sums.double().T, factor).T.float().contiguous()


@methods.register("ranpac")
class RanPac(TunedOnFirstTask):
    """A class that comes back simply adds to the sums. W is drawn from the run's seed and never stored."""

    info = MethodInfo(
        title="RanPAC",
        reference="McDonnell et al.: RanPAC: Random Projections and Pre-trained Models for Continual Learning, "
        "NeurIPS 2023",
        trains="the tuner, on the first task; then a ridge regression on random projections of its features",
    )
    Options: ClassVar = RanPacOptions
    options: RanPacOptions
    remembers: ClassVar[tuple[str, ...]] = (*TunedOnFirstTask.remembers, "ridge")

    def __init__(self, setting: Setting, options: RanPacOptions) -> None:
        super().__init__(setting, options)
        width = setting.extractor.width
        self.size = options.projection or round(10_000 * width / 768)
        drawn = torch.randn(width, self.size, generator=setting.generator("projection"))
        self.projection = setting.given.tensor("projection", drawn).to(setting.extractor.compute.device)
        self.ridge = options.ridges[len(options.ridges) // 2]  # until a task can choose
        self.gram = torch.zeros(0, 0)
        self.sums = self.weights = torch.zeros(0, self.size, device=self.projection.device)
        """`gram`: G (M, M). `sums`: Qᵀ, of every class the sum of its h. `weights`: W_oᵀ, both (classes, M)."""

    def learn_classes(self, task: int, labels: Tensor, features: Tensor) -> None:
        if not features.isfinite().all():
            raise LcaError(f"{self.setting.progress.placed('features')} contain NaN or infinity; training diverged")
        self.ridge = self._chosen_ridge(task, features, labels)
        self._add(features, labels)
        self.weights = solve_ridge(self.gram, self.sums, self.ridge)

    def project(self, features: Tensor) -> Tensor:
        """h = ReLU(f W): (n, width) -> (n, M)."""
        return (features @ self.projection.to(features)).relu()

    def logits(self, features: Tensor, branch: str) -> Tensor:
        projected, weights = self.project(features), self.weights.to(features)
        if self.options.cosine:
            return functional.linear(functional.normalize(projected), functional.normalize(weights))
        return functional.linear(projected, weights)

    def forget(self, label: int) -> None:
        """Drop the column of Q. G is one sum over all images: the share of the class stays in it, so its images go on
        to count, as images of none of the classes that are left."""
        kept = torch.arange(len(self.sums), device=self.sums.device) != label
        self.sums = self.sums[kept]

    @property
    def combines(self) -> bool:
        return True

    def merge_classes(self, label: int, other: int) -> None:
        """Add the columns of Q; G is the same whatever the classes are."""
        both = self.sums[[label, other]].double().sum(0).float()
        self.sums = self.sums.clone()
        self.sums[label] = both
        self.forget(other)

    def refit(self) -> None:
        self.weights = solve_ridge(self.gram, self.sums, self.ridge)

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        return self.tuned_bytes() + 4 * self.size * (self.size + 2 * classes)

    def state(self) -> State:
        state = super().state()
        state.parts["statistics"] = {"gram": self.gram, "sums": self.sums} if len(self.gram) else {}
        state.parts["weights"] = {"weights": self.weights} if len(self.gram) else {}
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        statistics, nothing = self.on_device(state.parts["statistics"]), torch.zeros(0, self.size)
        self.gram, self.sums = statistics.get("gram", torch.zeros(0, 0)), statistics.get("sums", nothing)
        self.weights = self.on_device(state.parts["weights"]).get("weights", nothing)

    def _chosen_ridge(self, task: int, features: Tensor, labels: Tensor) -> float:
        """The ridge with the least error on a fifth of the task's images; the last one where they cannot tell: too few
        images, or a single class."""
        ridges, classes = self.options.ridges, labels.unique()
        if len(ridges) == 1 or len(classes) < 2 or len(labels) < _FEWEST:
            return self.ridge
        order = torch.randperm(len(labels), generator=self.setting.generator("ridge", task))[:_MOST]
        order = order.to(features.device)
        projected, targets = self.project(features[order]), (labels[order, None] == classes).double()
        count = int(_TRAIN_SHARE * len(order))
        train, held = (projected[:count], targets[:count]), (projected[count:], targets[count:])
        return ridges[int(held_out_errors(train, held, ridges).argmin())]

    def _add(self, features: Tensor, labels: Tensor) -> None:
        """G += HᵀH and Q += HᵀY, summed in float64."""
        classes = max(int(labels.max()) + 1, len(self.sums))
        gram = features.new_zeros(self.size, self.size, dtype=torch.float64)
        sums = features.new_zeros(classes, self.size, dtype=torch.float64)
        if len(self.gram):
            gram += self.gram
        sums[: len(self.sums)] = self.sums
        for rows, own in zip(features.split(_CHUNK), labels.split(_CHUNK), strict=True):
            projected = self.project(rows).double()
            gram.addmm_(projected.T, projected)
            sums.index_add_(0, own, projected)
        self.gram, self.sums = gram.float(), sums.float()
