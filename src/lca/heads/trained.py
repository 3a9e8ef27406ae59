"""The heads as they were trained."""

from typing import ClassVar, Literal

from lca.heads.branch import BranchOptions, kinds


@kinds.register("none")
class TrainedBranch(BranchOptions):
    """The trunk's heads answer as they are: no statistics are kept for it."""

    kind: Literal["none"] = "none"
    keeps_statistics: ClassVar[bool] = False
