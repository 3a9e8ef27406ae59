"""A run folder that is worked in: held by one process, bound to one recipe, with a log. What is in it says
`lca.results.folder`.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lca.errors import LcaError
from lca.files import has_state, hold, write_atomic
from lca.ranks import current
from lca.recipe import Recipe, differences
from lca.results.folder import RunFiles
from lca.results.seeds import of_today


class RunFolder(RunFiles):
    """The rules of a run folder."""

    @contextmanager
    def hold(self, recipe: Recipe) -> Iterator[None]:
        """Create or take up the folder for a recipe; while it is held, its log takes the package's messages.

        Of several ranks the first one holds and writes it for all.
        """
        with ExitStack() as held:
            current().first(lambda: held.enter_context(self._hold(recipe)))
            yield

    @contextmanager
    def _hold(self, recipe: Recipe) -> Iterator[None]:
        # a run killed while it made its folder leaves only hidden files: the lock, a half-written recipe; one of a
        # sweep that failed so early leaves what it failed of
        others = (path for path in self.path.glob("*") if path != self.failure and not path.name.startswith("."))
        if not self.recipe.exists() and any(others):
            raise LcaError(f"{self.path} exists and is no run folder; choose another place with --out")
        with hold(self.path, f"another process is running in {self.path}; wait for it, or choose another --out"):
            for leftover in self.path.glob(".*.tmp"):  # of a killed write
                leftover.unlink()
            self._check_recipe(recipe)
            handler = _LogHandler(self)
            package = logging.getLogger("lca")
            level = package.level
            package.addHandler(handler)
            package.setLevel(logging.INFO)
            try:
                yield
            finally:
                package.removeHandler(handler)
                package.setLevel(level)

    def log(self, event: str, **facts: Any) -> None:
        """Append one line to the log."""
        if not current().leads:
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise LcaError(f"could not write {self.log_file}: {error.strerror or error}") from error

    def model(self, task: int) -> Path:
        """Where the model after a task goes."""
        return self.models / f"task-{task:02d}"

    def drop_older_models(self, task: int) -> None:
        for path in self.models.glob("task-*"):
            if path != self.model(task):
                shutil.rmtree(path)

    def _check_recipe(self, recipe: Recipe) -> None:
        content = recipe.dump()
        begun = has_state(self.checkpoint) or self.results.exists()
        if not begun or not self.recipe.exists():  # a run that failed before its first checkpoint binds nobody
            shutil.rmtree(self.models, ignore_errors=True)
            write_atomic(self.recipe, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())
            return
        changed = differences(of_today(yaml.safe_load(self.recipe.read_text(encoding="utf-8"))), content)
        if changed:
            raise LcaError(
                f"{self.path} holds a run of another recipe:\n  "
                + "\n  ".join(changed)
                + "\nNothing was changed. Use the old recipe to go on with that run, or another --out for the new one."
            )


class _LogHandler(logging.Handler):
    def __init__(self, folder: RunFolder) -> None:
        super().__init__(logging.INFO)
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        self._folder.log("message", level=record.levelname.lower(), text=record.getMessage())
