"""What the fork server imports, so that no child process has to: see `tiny.started`."""

import gc

import tiny  # noqa: F401
from lca.data.sources import sources
from lca.methods import methods

for registry in (methods, sources):
    list(registry)  # imports all modules of its package
gc.freeze()  # no collection in a child goes through all that
