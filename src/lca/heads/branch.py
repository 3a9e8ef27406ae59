"""A branch: which class statistics, and what is done to the heads with them. Each kind of branch is one file."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Protocol, Self

import torch
from pydantic import BeforeValidator, SerializeAsAny, model_validator
from torch import Tensor, nn

from lca.heads.growing import GrowingHeads
from lca.options import Options, one_of
from lca.registry import Registry
from lca.statistics.drift import DriftChoice, NoDrift
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

Draws = Callable[[str, int, torch.device], torch.Generator]
"""`draws(purpose, epoch, device)` gives the randomness."""


class FeatureSource(Protocol):
    """Where the features of all classes come from: Gaussians, for example."""

    def means(self) -> Tensor:
        """(classes, d)"""

    def sample(self, per_class: int, generator: torch.Generator, /) -> tuple[Tensor, Tensor]:
        """Features (classes, per_class, d), and their labels."""


class BranchOptions(Options):
    """What every branch has; each kind adds its own options and says what it does to the heads."""

    name: str
    """Names the branch in results and files."""
    kind: str
    """What is done to the heads."""
    statistics: Literal["before", "after"] = "after"
    """Class statistics under the task's own backbone, before the merge, or under the merged one."""
    covariance: CovarianceOptions = CovarianceOptions()
    drift: DriftChoice = NoDrift()
    keeps_statistics: ClassVar[bool] = True
    """Without, the branch answers with the heads as they were trained."""
    derived: ClassVar[bool] = False
    """Whether what answers follows from the statistics alone (`derive`): then no heads are stored."""

    @property
    def closed_form(self) -> bool:
        """Whether the heads are linear ones with a bias, whatever was trained."""
        return False

    @property
    def restarts(self) -> bool:
        """Whether every task begins with the heads as trained, not with the branch's own of the task before."""
        return False

    @property
    def rounds(self) -> int:
        """How many steps the progress shows."""
        return 1

    def applies(self, first: bool) -> bool:
        """Whether there is anything to do after this task, which may be the first."""
        return True

    def fit(
        self, heads: GrowingHeads, memory: GaussianMemory, draws: Draws, on_round: Callable[[], None] = lambda: None
    ) -> tuple[GrowingHeads, dict[str, float]]:
        """New heads for all classes, and what was measured."""
        raise NotImplementedError

    def derive(self, memory: GaussianMemory) -> nn.Module:
        """What gives logits (n, classes) of features (n, d), where the branch is `derived`; on the memory's device."""
        raise NotImplementedError

    def left_out(
        self,
        memory: GaussianMemory,
        features: Tensor,
        labels: Tensor,
        images: Tensor | None,
        asked: Tensor | None = None,
    ) -> Tensor | None:
        """Of images that were learnt, the logit of their own class as if they had not been: (n,), NaN where there was
        no other. What is given is as for `LeftOut.of`; None for heads that have no such formula."""
        return None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.drift.model != "none" and self.statistics == "before":
            raise ValueError(
                f"drift model {self.drift.model!r} needs statistics: after. Statistics taken before the merge live in "
                "each task's own feature space, which the map between merged backbones does not connect"
            )
        return self

    @property
    def memory_key(self) -> str:
        """Branches with the same statistics share one set of Gaussians."""
        return f"{self.statistics}:{self.covariance.model_dump_json()}:{self.drift.model_dump_json()}"


kinds: Registry[type[BranchOptions]] = Registry("kind of branch", package="lca.heads")
choose_branch = one_of(kinds, "align", "kind", shared=True)
BranchChoice = Annotated[SerializeAsAny[BranchOptions], BeforeValidator(choose_branch)]
