"""Joint training: all data at once. The upper bound, not a continual method."""

from typing import ClassVar, Literal

from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods.finetune import SequentialFineTuning, SequentialOptions


class JointOptions(SequentialOptions):
    name: Literal["joint"] = "joint"


@methods.register("joint")
class Joint(SequentialFineTuning):
    """Fine-tuning on one task that holds every class. The accuracy after task t counts the classes of tasks 0 to t
    only, and only those can be predicted, so that its average is comparable."""

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
