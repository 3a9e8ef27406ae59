"""Methods: one short file each, composed from the parts. A new file in this folder registers itself."""

from lca.methods._base import Method, MethodInfo, MethodOptions, Step
from lca.registry import Registry

methods: Registry[type[Method]] = Registry(
    "method", package="lca.methods", group="lca.methods", needs=("Options", "info")
)

__all__ = ["Method", "MethodInfo", "MethodOptions", "Step", "methods"]
