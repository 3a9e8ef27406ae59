"""A second pass: what else is seen of an image that is to be answered, and how both answers become one."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor

from lca.methods._base import MIRRORED, Setting
from lca.options import Options, one_of
from lca.registry import Registry

if TYPE_CHECKING:
    from lca.methods._observing import Observing, ObservingOptions


class SecondPass(Options):
    """What all second passes have; each adds its own options."""

    of: str

    def parts(self, first: str) -> list[str]:
        """Names of what an image's feature has beside its first part."""
        raise NotImplementedError

    def partner(self, setting: Setting, options: "ObservingOptions") -> "Observing | None":
        """The method that answers from the second part; None where the one that asks does so itself."""
        return None

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        """The logits of both passes as one answer."""
        raise NotImplementedError


second_passes: Registry[type[SecondPass]] = Registry("second pass", package="lca.methods")
SecondPassChoice = Annotated[
    SerializeAsAny[SecondPass], BeforeValidator(one_of(second_passes, "none", "of", shared=True))
]


@second_passes.register("none")
class NoSecondPass(SecondPass):
    """One pass is all."""

    of: Literal["none"] = "none"

    def parts(self, first: str) -> list[str]:
        return []


@second_passes.register("mirror")
class MirrorPass(SecondPass):
    """The mean of the logits of the image and of its mirror image."""

    of: Literal["mirror"] = "mirror"

    def parts(self, first: str) -> list[str]:
        return [MIRRORED + first]

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return (first + second) / 2
