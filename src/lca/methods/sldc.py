"""SLDC: sequential fine-tuning whose old class statistics are moved along with the backbone."""

from typing import ClassVar, Literal

from lca.heads.branch import BranchChoice
from lca.merging.operators import Last, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods.im import ImOptions, IncrementalMerging


class SldcOptions(ImOptions):
    name: Literal["sldc"] = "sldc"  # type: ignore[assignment]
    merge: OperatorChoice = Last()
    align: tuple[BranchChoice, ...] = ("best",)  # type: ignore[assignment]


@methods.register("sldc")
class Sldc(IncrementalMerging):
    """After the idea of the paper, with our parts: the linear map between the features of the new images before and
    after is our affine drift model (the identity plus a ridge correction), what answers are the branches of `im`, and
    `training.distillation` is its feature distillation. Its symmetric cross-entropy, the distillation of feature norms,
    its weakly non-linear map, its auxiliary images and its alignment by Adam are not built, and the map is fitted on
    images as they are, not on augmented ones."""

    info = MethodInfo(
        title="SLDC (linear)",
        reference="Compensating Distribution Drifts in Class-incremental Learning of Pre-trained Vision Transformers, "
        "AAAI 2026, arXiv 2511.09926",
        trains="the tuner and the task's head, then heads that follow from the moved class Gaussians",
    )
    Options: ClassVar = SldcOptions
    defaults: ClassVar = {
        "tuning": {"name": "lora", "targets": ["qkv", "proj", "fc1", "fc2"], "rank": 4, "alpha": 8.0},
        "training": {
            "epochs": 5,
            "batch_size": 16,
            "optimiser": "adamw",
            "lr": 1e-3,
            "tuner_lr": 1e-4,
            "final_lr": 3.3e-4,
            "weight_decay": 3e-5,
            "distillation": 1.0,
        },
    }
