"""MagMax: fine-tune one task after another, and merge the task vectors by the largest magnitude of each entry."""

from typing import ClassVar, Literal

from lca.heads.branch import BranchChoice
from lca.merging.operators import MaxAbs, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods.im import ImOptions, IncrementalMerging


class MagMaxOptions(ImOptions):
    name: Literal["magmax"] = "magmax"  # type: ignore[assignment]
    merge: OperatorChoice = MaxAbs()
    init_from: Literal["merged", "previous", "base"] = "previous"
    align: tuple[BranchChoice, ...] = ("none",)  # type: ignore[assignment]


@methods.register("magmax")
class MagMax(IncrementalMerging):
    """The largest of all entries is the largest of the largest so far and the new one, so one running vector serves and
    no task's weights are kept. Published for CLIP, whose text head is given and whose merge has a tuned coefficient;
    here heads are trained, the coefficient is `merge.alpha`, 1 by default, and any tuner does."""

    info = MethodInfo(
        title="MagMax",
        reference="Marczak et al.: MagMax: Leveraging Model Merging for Seamless Continual Learning, ECCV 2024",
        trains="the tuner (as published the whole backbone) and the task's head",
    )
    Options: ClassVar = MagMaxOptions
    defaults: ClassVar = {"tuning": {"name": "full"}, "training": {"optimiser": "adamw", "lr": 1e-3, "tuner_lr": 1e-5}}
