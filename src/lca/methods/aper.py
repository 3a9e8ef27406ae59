"""APER: the backbone is tuned on the first task only; class means of its features beside the pre-trained ones."""

from typing import ClassVar, Literal

from torch import Tensor

from lca.methods import methods
from lca.methods._base import PRETRAINED, MethodInfo, Setting
from lca.methods._first_task import FirstTaskOptions, TunedOnFirstTask
from lca.statistics.prototypes import ClassMeans


class AperOptions(FirstTaskOptions):
    name: Literal["aper"] = "aper"


@methods.register("aper")
class Aper(TunedOnFirstTask):
    """The published variants are its tuners: adapter, full (APER with finetune), ssf, vpt deep and shallow. The two
    features are not normalised before they are put side by side, so the longer one counts more, as published."""

    info = MethodInfo(
        title="APER (also ADAM)",
        reference="Zhou et al.: Revisiting Class-Incremental Learning with Pre-Trained Models, IJCV 2024",
        trains="the tuner, on the first task; then class means of pre-trained and tuned features, compared by cosine",
        passes="2",
    )
    Options: ClassVar = AperOptions
    remembers: ClassVar[tuple[str, ...]] = (*TunedOnFirstTask.remembers, "means")

    def __init__(self, setting: Setting, options: AperOptions) -> None:
        super().__init__(setting, options)
        if not self.tuned.tensors:
            setting.progress.warning("aper without a tuner is simplecil at twice the cost; choose one with `tuning`")
        self.means = ClassMeans(side_by_side=2)

    def feature_parts(self) -> list[str]:
        return [PRETRAINED, "tuned"]

    def learn_classes(self, task: int, labels: Tensor, features: Tensor) -> None:
        self.means.observe(labels, features)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.means.cosines(features)
