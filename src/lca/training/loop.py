"""The one training loop: fine-tune the tuned tensors and a head on the images of a task, epoch by epoch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lca.data.streams import Task
from lca.data.views import draw_crops, training_view
from lca.device import replayed
from lca.errors import LcaError
from lca.files import Part, Stored
from lca.heads.growing import GrowingHeads, TaskHead
from lca.heads.loss import LossOptions, lca_loss
from lca.optimisation import make_optimiser, set_rate
from lca.randomness import global_randomness
from lca.ranks import current
from lca.training.setting import Setting

_WORTH_CAPTURING = 20
"""Steps of a task from which on it pays to capture one on a GPU; capturing costs about five."""


class Inputs(ABC):
    """What a task is trained on, by the numbers of its images."""

    on_device = True
    """Whether all of it lies on the device already, so that a step can be captured there."""

    def draw(self, epoch: int) -> None:
        """Draw what is random for an epoch, into tensors that stay where they are: a captured step reads them."""
        return

    @abstractmethod
    def __call__(self, index: Tensor) -> Tensor: ...


class TrainingViews(Inputs):
    """The images of a task, cropped and mirrored anew in every epoch. They all lie on the device, unless they are too
    many: then every batch is read from the disk."""

    def __init__(self, task: Task, setting: Setting) -> None:
        self._setting, self._task, self._sizes = setting, task.index, task.train.sizes
        count, device = len(task.train), setting.extractor.compute.device
        self.on_device = not task.train.streamed
        self._images = task.train.pixels.to(device) if self.on_device else task.train
        self._boxes = torch.zeros(count, 4, dtype=torch.long, device=device)
        self._flips = torch.zeros(count, dtype=torch.bool, device=device)

    def draw(self, epoch: int) -> None:
        boxes, flips = draw_crops(
            self._sizes, self._setting.augment, self._setting.generator("augment", self._task, epoch)
        )
        self._boxes.copy_(boxes)
        self._flips.copy_(flips)

    def __call__(self, index: Tensor) -> Tensor:
        extractor = self._setting.extractor
        pixels = self._images.batch(index if self.on_device else index.cpu()).to(extractor.compute.device)
        drawn = self._boxes[index], self._flips[index]
        return training_view(pixels, *drawn, extractor.preprocessing, extractor.scaling)


@dataclass
class _Running:
    """What exists only while a task is trained."""

    head: TaskHead
    parameters: dict[str, nn.Parameter]
    optimiser: torch.optim.Optimizer
    inputs: Inputs
    labels: Tensor
    totals: Tensor
    """The summed loss and the number of correct answers of an epoch."""
    teacher: Mapping[str, Tensor] | None = None


class FineTuning(Stored):
    """Fine-tuning of a task's classes with a head of their own, restartable after every epoch.

    Cross-entropy on the task's classes, or the LCA loss (`class_loss`); SGD or AdamW over tuned tensors and head, the
    learning rate set per epoch. All draws of an epoch (order, crops, flips, dropout) come from (seed, task, epoch), so
    the epoch after a restart is the epoch that would have been. With a teacher (tuned tensors of an earlier backbone),
    the mean squared difference between the features of the same view under both is added.

    On a GPU a task's first step runs as it is, and the second one is captured and replayed from then on. A step must
    therefore not wait for the GPU (`.item()`, a Python `if` on a tensor), and what a subclass reads in it must keep its
    place while the task lasts.

    Several ranks share out every batch, so a loss must be a mean over its images: a method that compares the images of
    a batch says so in `couples_images`. Order, crops and flips are those of one process, only dropout is drawn by every
    rank for itself. Steps of several ranks are not captured.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._extractor, self._options = setting.extractor, setting.training
        self._lca = LossOptions(robustness=setting.training.robustness)
        self._running: _Running | None = None
        self._replay: Callable[[Tensor], None] | None = None
        self._stored: Part = {}

    def epoch(
        self, task: Task, number: int, heads: GrowingHeads, teacher: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Train one epoch; returns the mean loss and accuracy on its inputs."""
        options, device, ranks = self._options, self._extractor.compute.device, current()
        running = self._resume(task, heads)
        running.teacher = running.teacher or teacher
        for group in running.optimiser.param_groups:
            set_rate(group, options.rate(group["full_lr"], number))
        running.inputs.draw(number)
        running.totals.zero_()
        what = f"epoch {number + 1}/{options.epochs}"
        batches = [index.to(device) for index in self.batches(task, number)]
        dropout = "dropout" if ranks.leads else f"dropout of rank {ranks.rank}"
        worth_it = len(batches) * options.epochs >= _WORTH_CAPTURING and ranks.count == 1 and running.inputs.on_device
        self._extractor.train()
        with (
            global_randomness(self.setting.seed, dropout, task.index, number, device),
            self.setting.progress.task(what, sum(map(len, batches))) as advance,
        ):
            for index in batches:
                self._advance(running, index, worth_it and len(index) == options.batch_size)
                advance(len(index))
        self._extractor.eval()
        ranks.sum(running.totals)
        loss, correct = (running.totals / sum(map(len, batches))).tolist()
        if not math.isfinite(loss):
            key = "lr" if options.rate_scale == 1 else "rate_scale"
            where, value = self.setting.progress.placed(what), getattr(options, key)
            raise LcaError(f"training diverged in {where}: the loss is {loss}; lower training.{key} (it is {value})")
        ranks.check_same(lambda: [each.sum().item() for each in running.parameters.values()], "the tensors being tuned")
        return {"loss": loss, "accuracy": correct}

    def inputs(self, task: Task) -> Inputs:
        """What `loss` gets of the images of a batch. A subclass may train on something else, features for example."""
        if self._extractor.pays_to_compile(len(task.train) * self._options.epochs):
            self._extractor.compile_for(current().counts(self._options.batch_size)[current().rank])
        return TrainingViews(task, self.setting)

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained besides the head. A subclass may train something else, prompts for example."""
        return self._extractor.tuned_parameters()

    def loss(
        self, views: Tensor, labels: Tensor, head: TaskHead, teacher: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the logits of the task's classes; `labels` count within the task."""
        features = self.embed(views)
        logits = head(features)
        loss, penalty = self.class_loss(logits, labels, head), self.penalty(views, features, labels, teacher)
        return (loss if penalty is None else loss + penalty), logits

    def embed(self, views: Tensor) -> Tensor:
        """The features of a batch."""
        features: Tensor = self._extractor(views)
        return features

    def penalty(
        self, views: Tensor, features: Tensor, labels: Tensor, teacher: Mapping[str, Tensor] | None
    ) -> Tensor | None:
        """What is added to the loss on the task's classes: by default, distillation of features."""
        if teacher is None or not self._options.distillation:
            return None
        return self._options.distillation * functional.mse_loss(features, self.features_before(views, teacher))

    def class_loss(self, logits: Tensor, labels: Tensor, head: TaskHead) -> Tensor:
        """The loss of a batch on the task's classes, by its logits: `training.loss`, with the margin of the head.

        `lca` (Tran et al., ICLR 2026, Remark 1) is the mean over the classes k in the batch of mean_k ℓ + λ mean_k
        |ℓ_i - ℓ_j|, i ≠ j, with ℓ the cross-entropy of an image: Eq. 1 and 2 with the batch's own features in place of
        samples of Gaussians. A class with a single image in the batch has no pairs.
        """
        logits = head.with_margin(logits, labels)
        if self._options.loss == "lca":
            return lca_loss(logits, labels, self._lca, [logits.shape[1]])
        return functional.cross_entropy(logits, labels)

    @torch.no_grad()
    def features_before(self, views: Tensor, teacher: Mapping[str, Tensor]) -> Tensor:
        """The features of an earlier backbone, which answers without dropout."""
        self._extractor.eval()
        features = self._extractor.forward_with(teacher, views)
        self._extractor.train()
        return features

    def before_update(self) -> None:
        """Called between a step's gradients and its update."""
        return

    def after_update(self) -> None:
        """Called after every update, for what else changes what is trained: a running average for example."""
        return

    def batches(self, task: Task, number: int) -> Sequence[Tensor]:
        """The images of every batch of an epoch: as given, or in an order drawn for it."""
        given = self.setting.given.batches.get((task.index, number))
        if given is not None:
            return given
        draws, size = self.setting.generator("shuffle", task.index, number), self._options.batch_size
        batches = torch.randperm(len(task.train), generator=draws).split(size)
        short = len(batches) > 1 and len(batches[-1]) < size
        return batches[:-1] if short and self._options.last_batch == "drop" else batches

    def finish(self, task: Task, heads: GrowingHeads, new: list[int]) -> None:
        """Append the trained rows of the new classes (positions in the task) to the heads; known ones are dropped."""
        head = self._resume(task, heads).head
        if new:
            head.keep_classes(torch.tensor(new, device=self._extractor.compute.device))
            heads.append(head)
        self.load({})

    def state(self) -> tuple[Part, None]:
        """What changes from epoch to epoch, the optimiser's memory included; empty between tasks."""
        if self._running is None:
            return self._stored, None
        part = {name: parameter.detach().clone() for name, parameter in self._running.parameters.items()}
        for name, parameter in self._running.parameters.items():
            for key, value in self._running.optimiser.state.get(parameter, {}).items():
                part[f"optimiser.{key}.{name}"] = value.detach().clone()
        return part, None

    def load(self, part: Part, meta: None = None) -> None:
        """Go on where `state` was taken."""
        self._running, self._replay, self._stored = None, None, part

    def _resume(self, task: Task, heads: GrowingHeads) -> _Running:
        """The training under way, one taken up again from its stored state, or a new one."""
        if self._running is None:
            device = self._extractor.compute.device
            head = heads.new_head(len(task.classes), self.setting.generator("head", task.index))
            self._initialise(head, task.index)
            parameters = {f"tuned.{name}": each for name, each in self.parameters().items()}
            parameters |= {f"head.{name}": each for name, each in head.to(device).named_parameters()}
            self._running = _Running(
                head,
                parameters,
                self._optimiser(parameters),
                self.inputs(task),
                task.train.labels.to(device),
                torch.zeros(2, device=device),
            )
            if self._stored:
                self._restore(self._running, self._stored)
        return self._running

    def _initialise(self, head: TaskHead, task: int) -> None:
        """Give a head the initial values that were given."""
        given, own = self.setting.given, dict(head.named_parameters())
        for name in given.tensors:
            if name.startswith(f"head.{task}.") and name.removeprefix(f"head.{task}.") not in own:
                raise LcaError(f"{name} was given, but the head has {', '.join(own)}")
        for name, each in own.items():
            each.data = given.tensor(f"head.{task}.{name}", each.data)

    def _restore(self, running: _Running, stored: Part) -> None:
        for key, value in stored.items():
            if key.startswith("optimiser."):
                _, entry, name = key.split(".", 2)
                parameter = running.parameters[name]
                running.optimiser.state[parameter][entry] = value.to(parameter.device, copy=True)
            else:
                running.parameters[key].data.copy_(value)

    def _advance(self, running: _Running, index: Tensor, capture: bool) -> None:
        """One step: replayed if it was captured; the first one makes the optimiser's memory and cannot be."""
        if capture and self._replay is None and running.optimiser.state:
            memory = [value for entry in running.optimiser.state.values() for value in entry.values()]
            changed = [*running.parameters.values(), *memory, running.totals]
            self._replay = replayed(lambda index: self._step(running, index), index, changed)
        if self._replay is None:
            self._step(running, index)
        else:
            self._replay(index)

    def _step(self, running: _Running, index: Tensor) -> None:
        """One optimiser step; what is measured stays on the device."""
        ranks = current()
        own, counted = ranks.share(index)
        labels = running.labels[own]
        loss, logits = self.loss(running.inputs(own), labels, running.head, running.teacher)
        running.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        ranks.sum_gradients(running.parameters.values(), counted / len(index))
        self.before_update()
        running.optimiser.step()
        self.after_update()
        correct = (logits.detach().argmax(1) == labels)[:counted].sum()
        running.totals += torch.stack([loss.detach() * counted, correct.to(loss.dtype)])

    def _optimiser(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        options = self._options
        rates = {"tuned.": options.tuner_lr or options.lr, "head.": options.lr}
        groups = [
            ([each for name, each in parameters.items() if name.startswith(start)], options.rate_scale * rate)
            for start, rate in rates.items()
        ]
        return make_optimiser(options.optimiser, groups, options.momentum, options.weight_decay)
