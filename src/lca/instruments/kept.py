"""The models that a finished run kept, opened again beside its data: for what is measured after a run."""

from pathlib import Path
from typing import Any

from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.data.streams import Stream
from lca.errors import LcaError
from lca.files import FORMAT, has_state
from lca.progress import Progress
from lca.results.folder import RunFiles
from lca.results.stored import read_run


class KeptModels:
    """The models after the tasks of a run: all with `keep_models: all`, or the last one, which is said."""

    def __init__(self, run: Path, device: str | None, weights: Path | None, progress: Progress) -> None:
        self.results: dict[str, Any] = read_run(run)[0]
        self._folder, self._device, self._weights, self._progress = RunFiles(run).models, device, weights, progress
        self._stream: Stream | None = None
        self.tasks = sorted(
            int(path.name.removeprefix("task-")) for path in self._folder.glob("task-*") if has_state(path)
        )
        """From 0."""
        if not self.tasks:
            raise LcaError(
                f"{run} kept no model to measure: run it again with --set keep_models=all (every task) or "
                "keep_models=last, and another --out"
            )
        missing = [str(task + 1) for task in range(len(self.results["data"]["task_sizes"])) if task not in self.tasks]
        if missing:
            progress.warning(
                f"the models after task {', '.join(missing)} were not kept, so they are left out; "
                "run with --set keep_models=all to have them"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """How what is measured of the run begins."""
        return {"format": FORMAT, **{key: self.results[key] for key in ("recipe", "versions", "machine")}}

    def open(self, task: int) -> ContinualClassifier:
        """The model after a task. The recipe of the run is the user's own: it may name weights, and a download."""
        weights = self._weights or self.results["recipe"]["backbone"]["weights"]
        return ContinualClassifier.load(
            self._folder / f"task-{task:02d}",
            device=self._device,
            weights=weights,
            progress=self._progress,
            allow_download=True,
        )

    def stream(self, model: ContinualClassifier) -> Stream:
        """The data of the run, in its tasks; read once."""
        if self._stream is None:
            recipe = model.recipe
            source = load_source(recipe.data, recipe.seed, model.extractor.preprocessing.size, self._progress)
            if source.fingerprint != self.results["data"]["sha256"]:
                raise LcaError(f"the images of {recipe.data.source} are not those of the run; they were changed since")
            self._stream = Stream(source, recipe.data, recipe.seed)
        return self._stream
