"""The one training loop: fine-tune the tuned tensors and a head on the images of a task, epoch by epoch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lca.config import AugmentOptions, TrainingOptions
from lca.data.streams import Task
from lca.data.views import draw_crops, training_view
from lca.errors import LcaError
from lca.features import FeatureExtractor
from lca.files import Part
from lca.heads import GrowingHeads, TaskHead
from lca.progress import Progress
from lca.randomness import generator, global_randomness


@dataclass
class _Running:
    """What exists only while a task is trained."""

    head: TaskHead
    parameters: dict[str, nn.Parameter]
    optimiser: torch.optim.Optimizer


class FineTuning:
    """Fine-tuning of a task's classes with a head of their own, restartable after every epoch.

    Cross-entropy on the task's classes; SGD or AdamW over tuned tensors and head, the learning rate set per epoch. All
    draws of an epoch (order, crops, flips, dropout) come from (seed, task, epoch), so the epoch after a restart is the
    epoch that would have been. With a teacher (tuned tensors of an earlier backbone), the mean squared difference
    between the features of the same view under both is added.
    """

    def __init__(
        self,
        extractor: FeatureExtractor,
        options: TrainingOptions,
        augment: AugmentOptions,
        seed: int,
        progress: Progress,
    ) -> None:
        self._extractor, self._options, self._augment = extractor, options, augment
        self._seed, self._progress = seed, progress
        self._running: _Running | None = None
        self._stored: Part = {}

    def epoch(
        self, task: Task, number: int, heads: GrowingHeads, teacher: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Train one epoch; returns the mean loss and accuracy on its augmented images."""
        options, device = self._options, self._extractor.compute.device
        running = self._resume(task, heads)
        for group in running.optimiser.param_groups:
            group["lr"] = options.rate(group["full_lr"], number)
        pixels, labels = task.train.pixels.to(device), task.train.labels.to(device)
        boxes, flips = draw_crops(
            task.train.pixels.sizes, self._augment, generator(self._seed, "augment", task.index, number)
        )
        boxes, flips, totals = boxes.to(device), flips.to(device), torch.zeros(2, device=device)
        what = f"task {task.index + 1}, epoch {number + 1}/{options.epochs}"
        self._extractor.train()
        with (
            global_randomness(self._seed, "dropout", task.index, number, device),
            self._progress.task(what, len(labels)) as advance,
        ):
            for index in self.batches(task, number):
                index = index.to(device)
                views = training_view(pixels[index], boxes[index], flips[index], self._extractor.preprocessing)
                totals += self._step(running, views, labels[index], teacher)
                advance(len(index))
        self._extractor.eval()
        loss, correct = (totals / len(labels)).tolist()
        if not math.isfinite(loss):
            raise LcaError(f"training diverged in {what}: the loss is {loss}; lower training.lr (it is {options.lr})")
        return {"loss": loss, "accuracy": correct}

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained besides the head. A subclass may train something else, prompts for example."""
        return self._extractor.tuned_parameters()

    def loss(
        self, views: Tensor, labels: Tensor, head: TaskHead, teacher: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the logits of the task's classes; `labels` count within the task."""
        features = self._extractor(views)
        logits = head(features)
        loss = functional.cross_entropy(logits, labels)
        if teacher is not None and self._options.distillation:
            self._extractor.eval()  # the teacher answers without dropout
            with torch.no_grad():
                target = self._extractor.forward_with(teacher, views)
            self._extractor.train()
            loss = loss + self._options.distillation * functional.mse_loss(features, target)
        return loss, logits

    def before_update(self) -> None:
        """Called between a step's gradients and its update."""
        return

    def after_update(self) -> None:
        """Called after every update, for what else changes what is trained: a running average for example."""
        return

    def batches(self, task: Task, number: int) -> Sequence[Tensor]:
        """The images of every batch of an epoch, in an order drawn for it."""
        draws = generator(self._seed, "shuffle", task.index, number)
        return torch.randperm(len(task.train), generator=draws).split(self._options.batch_size)

    def finish(self, task: Task, heads: GrowingHeads, new: list[int]) -> None:
        """Append the trained rows of the new classes (positions in the task) to the heads; known ones are dropped."""
        head = self._resume(task, heads).head
        if new:
            head.keep_classes(torch.tensor(new, device=self._extractor.compute.device))
            heads.append(head)
        self._running, self._stored = None, {}

    def state(self) -> Part:
        """What changes from epoch to epoch, the optimiser's memory included; empty between tasks."""
        if self._running is None:
            return self._stored
        part = {name: parameter.detach().clone() for name, parameter in self._running.parameters.items()}
        for name, parameter in self._running.parameters.items():
            for key, value in self._running.optimiser.state.get(parameter, {}).items():
                part[f"optimiser.{key}.{name}"] = value.detach().clone()
        return part

    def load(self, part: Part) -> None:
        """Go on where `state` was taken."""
        self._running, self._stored = None, part

    def _resume(self, task: Task, heads: GrowingHeads) -> _Running:
        """The training under way, one taken up again from its stored state, or a new one."""
        if self._running is None:
            head = heads.new_head(len(task.classes), generator(self._seed, "head", task.index))
            head = head.to(self._extractor.compute.device)
            parameters = {f"tuned.{name}": each for name, each in self.parameters().items()}
            parameters |= {f"head.{name}": each for name, each in head.named_parameters()}
            self._running = _Running(head, parameters, self._optimiser(parameters))
            if self._stored:
                self._restore(self._running, self._stored)
        return self._running

    def _restore(self, running: _Running, stored: Part) -> None:
        for key, value in stored.items():
            if key.startswith("optimiser."):
                _, entry, name = key.split(".", 2)
                parameter = running.parameters[name]
                device = value.device if entry == "step" else parameter.device
                running.optimiser.state[parameter][entry] = value.to(device, copy=True)
            else:
                running.parameters[key].data.copy_(value)

    def _step(self, running: _Running, views: Tensor, labels: Tensor, teacher: Mapping[str, Tensor] | None) -> Tensor:
        """One optimiser step; the summed loss and the number of correct answers stay on the device."""
        loss, logits = self.loss(views, labels, running.head, teacher)
        running.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.before_update()
        running.optimiser.step()
        self.after_update()
        correct = (logits.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach() * len(labels), correct.to(loss.dtype)])

    def _optimiser(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        options = self._options
        rates = {"tuned.": options.tuner_lr or options.lr, "head.": options.lr}
        groups = [
            {
                "params": [each for name, each in parameters.items() if name.startswith(start)],
                "lr": rate,
                "full_lr": rate,
            }
            for start, rate in rates.items()
        ]
        groups = [group for group in groups if group["params"]]
        if options.optimiser == "adamw":
            return torch.optim.AdamW(groups, betas=(options.momentum, 0.999), weight_decay=options.weight_decay)
        return torch.optim.SGD(groups, momentum=options.momentum, weight_decay=options.weight_decay)
