"""How a task is trained."""

from typing import Literal, Self

from pydantic import Field, model_validator

from lca.optimisation import cosine, quarter_cosine
from lca.options import Options


class TrainingOptions(Options):
    """Fine-tuning of a task: one optimiser, cosine schedule, per-epoch steps."""

    epochs: int = Field(10, ge=1)
    batch_size: int = Field(64, ge=1)
    last_batch: Literal["keep", "drop"] = "keep"
    """What becomes of an epoch's last batch where it is shorter: a step of its own, which on a GPU is neither compiled
    nor captured, or nothing, so that every epoch leaves out a few images, other ones each time."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    tuner_lr: float | None = Field(None, gt=0)
    """Learning rate of the tuned tensors, where it differs from the head's."""
    rate_scale: float = Field(1.0, gt=0)
    """Factor on both learning rates: one number to tune a method whose rates are published."""
    schedule: Literal["cosine", "constant", "steps", "quarter_cosine"] = "cosine"
    """How the learning rates change from epoch to epoch; `steps` divides them by ten after each milestone,
    `quarter_cosine` is CODA-Prompt's."""
    milestones: tuple[float, ...] = ()
    """`steps`: shares of the epochs, for example 0.9."""
    final_lr: float = Field(1e-6, ge=0)
    """The cosine schedule's end for `lr`, reached after the last epoch; `tuner_lr` ends in proportion."""
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    loss: Literal["cross_entropy", "lca"] = "cross_entropy"
    """On the task's own classes. `lca`: the alignment loss (Eq. 1 and 2) as the training loss, on the features of the
    images instead of samples (the paper's Remark 1)."""
    robustness: float = Field(0.1, ge=0)
    """`lca`: λ, the weight of the pairwise term |ℓ(z) - ℓ(z')| of images of one class in a batch."""
    distillation: float = Field(0.0, ge=0)
    """Weight of the mean squared difference to the previous backbone's feature of the same view, from task 2 on."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError("milestones and schedule: steps go together")
        if not all(0 < share < 1 for share in self.milestones):
            raise ValueError(f"milestones are shares of the epochs between 0 and 1, got {self.milestones}")
        if self.loss != "lca" and self.robustness != TrainingOptions.model_fields["robustness"].default:
            raise ValueError(f"robustness is for loss: lca; with {self.loss} it would do nothing")
        return self

    def rate(self, full: float, epoch: int) -> float:
        """The learning rate in an epoch, of tensors whose full one is `full`."""
        if self.schedule == "constant":
            return full
        if self.schedule == "quarter_cosine":
            return quarter_cosine(full, epoch, self.epochs)
        done = epoch / self.epochs
        if self.schedule == "steps":
            return full * 0.1 ** sum(done >= share for share in self.milestones)
        return cosine(full, self.final_lr * (full / self.lr), done)
