"""APER: the backbone is tuned on the first task only; class means of its features beside the pre-trained ones."""

from typing import ClassVar, Literal

from torch import Tensor

from lca.data.streams import Task
from lca.files import State
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._first_task import FirstTaskOptions, TunedOnFirstTask
from lca.statistics.prototypes import ClassMeans, mean_bytes


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

    def __init__(self, setting: Setting, options: AperOptions) -> None:
        super().__init__(setting, options)
        if not self.tuned:
            setting.progress.warning("aper without a tuner is simplecil at twice the cost; choose one with `tuning`")
        self.means = ClassMeans()

    def feature_parts(self) -> list[str]:
        return ["pretrained", "tuned"]

    def learn_classes(self, task: Task, labels: Tensor) -> None:
        self.means.observe(labels, self.features(task.train, f"task {task.index + 1}, features"))

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.means.cosines(features)

    def forget(self, label: int) -> None:
        self.means.forget(label)

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        return self.tuned_bytes() + mean_bytes(classes, 2 * self.setting.extractor.width)

    def state(self) -> State:
        state = super().state()
        state.parts["means"] = self.means.state()
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.means.load(state.parts["means"], self.setting.extractor.compute.device)
