"""A run's log for Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path

from lca.errors import LcaError, needs
from lca.report.boards import Board, identity
from lca.results.folder import FINISHED, RunFiles


class WandbLog(Board):
    """A run of a project. Who you are and whether the network is used, wandb's own settings say: `wandb login`, or
    WANDB_MODE=offline for files that `wandb sync` sends later."""

    def __init__(self, project: str, run: Path) -> None:
        super().__init__()
        with needs("--wandb", "wandb"):
            import wandb
        name, recipe = identity(run)
        quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        try:  # the name of a run is its own for good, so a server has it once
            self._run = wandb.init(
                project=project, name=run.name, id=name, resume="never", config=recipe, settings=quiet
            )
        except (wandb.errors.Error, OSError) as error:
            raise LcaError(
                f"Weights & Biases does not take the run {run}: {error}. Log in with `wandb login`, or set "
                "WANDB_MODE=offline"
            ) from error
        self._files, self._known = RunFiles(run), set[str]()

    def add(self, values: Mapping[str, float], axis: str, place: int, when: float) -> None:
        for tag in values.keys() - self._known:
            self._run.define_metric(tag, step_metric=axis)
            self._known.add(tag)
        self._run.log({**values, axis: place, "time": when})

    def close(self) -> None:
        self._run.finish(exit_code=0 if self._files.state() == FINISHED else 1)

    @property
    def hint(self) -> str:
        return self._run.url or f"wandb sync {Path(self._run.dir).parent}"
