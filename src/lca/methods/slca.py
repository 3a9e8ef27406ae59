"""SLCA: fine-tune everything with a slow learning rate, one task after another, then align the heads."""

from typing import ClassVar, Literal

from lca.heads.branch import BranchChoice
from lca.heads.growing import HeadChoice, LinearOptions
from lca.merging.operators import Last, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods._branched import presets
from lca.methods.im import ImOptions, IncrementalMerging

presets.register("slca")(
    {
        "robustness": 0.0,
        "average": "samples",
        "batches": "random",
        "batch_size": 256,
        "samples": 256,
        "redraw": True,
        "mean_decay": 0.1,
        "logit_norm": 0.1,
        "epochs": 3,
        "start": "restart",
    }
)


class SlcaOptions(ImOptions):
    name: Literal["slca"] = "slca"  # type: ignore[assignment]
    merge: OperatorChoice = Last()
    head: HeadChoice = LinearOptions(bias=True)
    align: tuple[BranchChoice, ...] = ("slca",)  # type: ignore[assignment]


@methods.register("slca")
class Slca(IncrementalMerging):
    """Incremental merging whose merge is the last task's tensors: sequential fine-tuning. The slow learner is
    `training.tuner_lr`, a hundredth of the head's as published; the recipe `slca` sets it, with full tuning. Its
    alignment (`slca`) shortens old means, normalises logits and starts from the heads as trained after every task;
    `align: [none, ca, lca, slca]` gives the others beside it."""

    info = MethodInfo(
        title="SLCA",
        reference="Zhang et al.: SLCA: Slow Learner with Classifier Alignment, ICCV 2023",
        trains="the tuner (as published the whole backbone, slowly) and the task's head, then all heads on samples",
    )
    Options: ClassVar = SlcaOptions
    defaults: ClassVar = {
        "tuning": {"name": "full"},
        "training": {"epochs": 20, "tuner_lr": 1e-4, "schedule": "steps", "milestones": [0.9]},
    }
