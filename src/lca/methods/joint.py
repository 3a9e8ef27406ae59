"""Joint training: all data at once. The upper bound, not a continual method."""

from typing import ClassVar, Literal

from lca.heads.branch import BranchChoice
from lca.merging.operators import Last, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods.im import ImOptions, IncrementalMerging


class JointOptions(ImOptions):
    name: Literal["joint"] = "joint"  # type: ignore[assignment]
    merge: OperatorChoice = Last()
    align: tuple[BranchChoice, ...] = ("none",)  # type: ignore[assignment]


@methods.register("joint")
class Joint(IncrementalMerging):
    """Fine-tuning on one task that holds every class. The accuracy after task t counts the classes of tasks 0 to t
    only, and only those can be predicted, so that its average is comparable. Beside its linear head (`none`) the
    branches of incremental merging show what other heads would make of the same features."""

    info = MethodInfo(
        title="Joint training",
        reference="the upper bound",
        trains="the tuner and one head, on all data at once",
        needs_all_data=True,
    )
    Options: ClassVar = JointOptions
    distils: ClassVar = False

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        return super().expected_bytes(1, classes, images)
