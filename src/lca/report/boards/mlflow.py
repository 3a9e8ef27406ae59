"""A run's log for MLflow."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lca.errors import LcaError, needs
from lca.report.boards import Board, identity
from lca.results.folder import FAILED, FINISHED, RUNNING, RunFiles

EXPERIMENT = "lca"
"""Where runs go, unless MLFLOW_EXPERIMENT_NAME says otherwise."""
AT_ONCE = {"metrics": 1000, "params": 100}
"""What MLflow takes in one call."""
ENDS = {FINISHED: "FINISHED", FAILED: "FAILED"}
"""What MLflow calls the ends of a run; a run that stopped was killed."""


class MlflowLog(Board):
    """A run of MLflow with the recipe as its parameters, at a tracking server or in a database."""

    def __init__(self, uri: str, run: Path) -> None:
        super().__init__()
        with needs("--mlflow", "mlflow-skinny"):
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        self._uri, self._files, self._metric = uri, RunFiles(run), Metric
        self._kept: list[Any] = []
        name, recipe = identity(run)
        with _explained(uri):
            self._client = MlflowClient(tracking_uri=uri)
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            if self._client.search_runs([number], f"tags.`lca.run` = '{name}'"):
                raise LcaError(f"{uri} has the run {run} already; delete it there to send it again")
            self._run = self._client.create_run(number, run_name=run.name, tags={"lca.run": name}).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in recipe.items()]
            for some in _in_parts(params, AT_ONCE["params"]):
                self._client.log_batch(self._run, params=some)

    def add(self, values: Mapping[str, float], axis: str, place: int, when: float) -> None:
        for tag, value in values.items():
            allowed = re.sub(r"[^/\w.\- ]", "_", tag)
            self._kept.append(self._metric(allowed, value, round(1000 * when), place))

    def flush(self) -> None:
        with _explained(self._uri):
            for some in _in_parts(self._kept, AT_ONCE["metrics"]):
                self._client.log_batch(self._run, metrics=some)
        self._kept.clear()

    def close(self) -> None:
        self.flush()
        state = self._files.state()
        if state != RUNNING:
            self._client.set_terminated(self._run, ENDS.get(state, "KILLED"))

    @property
    def hint(self) -> str:
        return f"mlflow ui --backend-store-uri {self._uri}"


def _in_parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise LcaError(f"MLflow at {uri} refuses: {error}") from error
