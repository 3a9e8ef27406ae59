"""Tuners: small sets of trainable tensors attached to the one vision transformer."""

from lca.registry import Registry
from lca.tuning.base import Tuner, TuningOptions

tuners: Registry[type[Tuner]] = Registry("tuner", package="lca.tuning", group="lca.tuners", needs=("Options",))

__all__ = ["Tuner", "TuningOptions", "tuners"]
