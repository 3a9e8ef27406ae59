"""The peft library's tuners as `peft:NAME`, which need `pip install peft`: `peft:ia3`, `peft:loha`, `peft:oft`.

NAME is one of the library's types, and `options` is what its configuration takes. Layers are chosen by `target_modules`
as the library does it: `proj` also means the convolution of the patches, `attn.proj` does not; by default they are the
`qkv` of every block. The library takes seconds to import, so nothing here imports it before such a tuner is named in a
recipe.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator, model_validator
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.errors import LcaError, nearest, needs
from lca.files import save_tensors
from lca.tuning import tuners
from lca.tuning.base import Tuner, TuningOptions, replace_module

_UNFIT = {"POLY", "SHADOW", "TRAINABLE_TOKENS", "XLORA"}
"""Types that need task numbers, other adapters or token indices beside the images."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "IA3": {"target_modules": ["qkv"], "feedforward_modules": []},
    "LN_TUNING": {"target_modules": ["norm1", "norm2"]},
}
"""What the library knows for language models only; all other types start with the `qkv` layers."""


class PeftOptions(TuningOptions):
    name: str = Field(pattern=r"^peft:.+")
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the library's configuration, for example `{target_modules: [qkv], r: 8}`."""

    @model_validator(mode="before")
    @classmethod
    def _at_their_place(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and (others := [key for key in value if key not in cls.model_fields]):
            name = str(value.get("name"))
            try:
                known = _option_names(_config_type(name))
            except LcaError:
                return value  # the name is the mistake
            if misplaced := [key for key in others if key in known]:
                raise ValueError(f"{misplaced[0]!r} is an option of {name}: put it under tuning.options")
        return value

    @field_validator("name")
    @classmethod
    def _one_spelling(cls, name: str) -> str:
        return name.lower()

    @model_validator(mode="after")
    def _known(self) -> "PeftOptions":
        try:
            make_config(self)
        except LcaError as error:
            raise ValueError(str(error)) from None
        return self


@tuners.register("peft:NAME")
class PeftTuning(Tuner):
    """Any tuner of the peft library that works on linear layers, such as peft:ia3 or peft:loha."""

    Options: ClassVar = PeftOptions
    options: PeftOptions

    _vit: VisionTransformer
    _children: dict[nn.Module, dict[str, nn.Module | None]]
    _values: dict[str, Tensor]

    def attach(self, vit: VisionTransformer, generator: torch.Generator) -> None:
        self._vit = vit
        self._children = {module: dict(module._modules) for module in vit.modules()}
        self._values = {name: each.clone() for name, each in vit.state_dict().items()}  # some types rewrite weights
        config = make_config(self.options)
        cuda = {each.device for each in vit.parameters() if each.device.type == "cuda"}
        with torch.random.fork_rng(devices=list(cuda)):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            try:
                _library().inject_adapter_in_model(config, vit)
            except (ValueError, TypeError, KeyError, NotImplementedError) as error:
                self.detach()
                raise LcaError(f"{self.options.name} does not fit this transformer: {error}") from error
        vit.train(vit.training)
        self.tuned = {name: each for name, each in vit.named_parameters() if each.requires_grad}

    def detach(self) -> None:
        for module, children in self._children.items():
            module._modules.clear()
            module._modules.update(children)
        if hasattr(self._vit, "peft_config"):
            del self._vit.peft_config
        self._vit.load_state_dict(self._values)
        self._vit.requires_grad_(False)
        self.tuned = {}

    @torch.no_grad()
    def fold(self) -> None:
        """With the library's own merge; layers of types that have none stay as they are."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        vit = self._vit
        for name, layer in list(vit.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                try:
                    layer.merge()
                except NotImplementedError:
                    continue
                replace_module(vit, name, layer.get_base_layer())
        own = {name: each.clone() for name, each in vit.state_dict().items() if name in self._values}
        self._values |= own  # from now on the transformer's, so that `detach` leaves them
        for name, parameter in vit.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in own)
        self.tuned = {name: parameter for name, parameter in vit.named_parameters() if parameter.requires_grad}

    def write_adapter(self, folder: Path) -> None:
        """As an adapter folder that the library loads."""
        from peft import get_peft_model_state_dict

        config = make_config(self.options)
        config.inference_mode = True
        config.save_pretrained(str(folder))
        tensors = get_peft_model_state_dict(self._vit)
        renamed = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
        save_tensors(folder / "adapter_model.safetensors", renamed)


def make_config(options: PeftOptions) -> Any:
    """The library's configuration object; what it does not know is an error that names the nearest it does."""
    kind = _config_type(options.name)
    names = _option_names(kind)
    if unknown := [key for key in options.options if key not in names]:
        raise LcaError(f"{options.name} has no option {unknown[0]!r}; {nearest(unknown[0], names)}")
    defaults = {}
    if "target_parameters" not in options.options:  # the library's other way to say what is tuned
        defaults = _DEFAULTS.get(_type_name(options.name), {"target_modules": ["qkv"]})
    try:
        return kind(**{key: value for key, value in defaults.items() if key in names} | options.options)
    except (ValueError, TypeError) as error:
        raise LcaError(f"{options.name}: {error}") from error


def _config_type(name: str) -> Any:
    """The library's class of configurations for `peft:NAME`."""
    library, wanted = _library(), _type_name(name)
    types = {
        each.value: library.PEFT_TYPE_TO_CONFIG_MAPPING[each]
        for each, tuner in library.PEFT_TYPE_TO_TUNER_MAPPING.items()
        if hasattr(tuner, "inject_adapter")
        and not getattr(tuner, "uses_shared_state", False)
        and each.value not in _UNFIT
    }
    if wanted not in types:
        known = nearest(wanted.lower(), [each.lower() for each in types])
        raise LcaError(f"peft has no type {wanted.lower()!r} that works on single layers of a transformer; {known}")
    return types[wanted]


def _type_name(name: str) -> str:
    return name.partition(":")[2].upper()


def _option_names(kind: Any) -> set[str]:
    """What a configuration takes, without where a model came from."""
    names = {field.name for field in fields(kind) if field.init}
    return names - {field.name for field in fields(_library().PeftConfig)}


def _library() -> ModuleType:
    with needs("this tuner", "peft"):
        import peft
    return peft
