"""Which images, in which order, in which tasks."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from lca.data.views import ViewChanges
from lca.options import Options


class DataOptions(Options):
    """Which images, in which order, in which tasks."""

    source: str = "digits"
    """A registered source, or `folder:PATH` with class folders (or `train` and `test` folders of them) inside."""
    split: str | None = None
    """A named split of the data set, where its card has several: `official` or `revisitingcil` of cub200."""
    tasks: int | list[int] | None = None
    """Number of tasks of (nearly) equal size, or the list of their sizes; by default what the source's card says."""
    base: int | None = Field(None, ge=1)
    """Classes in the first task; needs `increment`."""
    increment: int | None = Field(None, ge=1)
    """Classes in every task after the first; the last one may be shorter."""
    order: Literal["seeded", "natural", "domains", "file"] = "seeded"
    """`seeded`: the literature's permutation of the classes. `natural`: as the source has them. `domains`: domain by
    domain, by default a task each; of the sources `domains` and `styles` classes come back in them, of others the
    domain is what stands before the first `-` or `_` of a class's name. `file`: as `order_file` says."""
    order_file: Path | None = None
    """A text file with the name of every class on a line of its own, in the order they are learnt."""
    order_seed: int | None = Field(None, ge=0, lt=2**32)
    """Seed of the class order; by default the run's seed."""
    train_limit: int | None = Field(None, ge=1)
    """At most this many training images per class, drawn by seed: few-shot learning."""
    long_tail: float | None = Field(None, ge=1)
    """Make training images rarer class by class: the class of rank r of C, ranks drawn by seed, keeps n · ρ^(-r/(C-1))
    of its n, at least one; ρ is this number, the largest class compared with the smallest."""
    returning: float = Field(0.0, ge=0, le=1)
    """Share of the classes of earlier tasks that come back in every later task, drawn by seed. The training images of a
    class are divided among the tasks in which it comes."""
    validation: float = Field(0.0, ge=0, lt=1)
    """Share of the training images of every class that is held out for tuning decisions."""
    evaluate: Literal["test", "validation"] = "test"
    """What the accuracies are measured on. Tuning decisions use `validation`, never `test`."""
    test_share: float = Field(0.2, gt=0, lt=1)
    """For a folder without `train` and `test`: the share of each class, drawn by seed, that becomes the test set."""
    split_seed: int = Field(0, ge=0)
    """Seed of that draw. It is not the run's: otherwise one run's test images would be another one's training images,
    and a choice made on the one would have seen the test of the other."""
    view: ViewChanges = ViewChanges()
    """Crops and flips; what is not given is as the source's card says."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.base is None) != (self.increment is None):
            raise ValueError("base and increment go together: the first task's classes and every later task's")
        if (self.order == "file") != (self.order_file is not None):
            raise ValueError("order: file and order_file go together")
        if self.base is not None and self.tasks is not None:
            raise ValueError("give either tasks or base and increment, not both")
        if isinstance(self.tasks, int) and self.tasks < 1:
            raise ValueError(f"tasks must be at least 1, got {self.tasks}")
        if isinstance(self.tasks, list) and (not self.tasks or min(self.tasks) < 1):
            raise ValueError(f"every task needs at least one class, got {self.tasks}")
        if self.evaluate == "validation" and self.validation == 0:
            raise ValueError("evaluate: validation needs a validation share, for example validation: 0.2")
        return self
