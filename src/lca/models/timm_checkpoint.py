"""Export as a checkpoint of timm's: the merged transformer with a linear head, in plain weights and timm's own config.

`timm.create_model("local-dir:FOLDER", pretrained=True)` loads it, as does
`transformers.pipeline("image-classification", "FOLDER")`. What answers is linear discriminant analysis of the stored
class Gaussians: one matrix, where the quadratic head of `best` has one for every class.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from lca.backbones import architecture
from lca.backbones.pooling import pooled
from lca.classifier import ContinualClassifier
from lca.errors import LcaError
from lca.files import new_folder, save_tensors, write_json
from lca.heads.discriminant import DiscriminantOptions
from lca.heads.lda import LdaBranch, linear_discriminant
from lca.methods._base import PRETRAINED
from lca.methods._branched import Branched
from lca.models.export import about_export, is_an_export

ELSEWHERE = "--onnx and --torch export every model"
CLOSE = 1e-3
"""How far the logits of the checkpoint may lie from those of the model's features, relative to the largest."""


def export_timm(
    model: ContinualClassifier, folder: str | Path, *, branch: str | None = None, overwrite: bool = False
) -> Path:
    """Write the model as a folder that timm and transformers load; returns the path of the JSON about it.

    The head is linear discriminant analysis of the branch's Gaussians, with the options of the branch if that is its
    kind and else with means by empirical Bayes. Its logits are divided by the branch's temperature, since whoever loads
    it takes their softmax. What cannot be written into plain weights is refused.
    """
    folder, branch = Path(folder), branch or model.branch
    if not model.classes:
        raise LcaError("this classifier has not learnt any class yet, so there is nothing to export; call learn first")
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not (overwrite or empty or is_an_export(folder / "lca.json")):
        raise LcaError(f"{folder} exists and was not made by lca export; choose another name, or use --force")
    weight, bias = _linear_head(model, branch)
    plain = _plain(model)
    made_of, options = architecture(model.backbone.name)
    others = timm.create_model(made_of, num_classes=len(model.classes), **options).eval()
    _fill(others, plain, weight, bias)
    _compare(others, plain, weight, bias, model.backbone.preprocessing.size)
    about = about_export(model) | {
        "branch": branch,
        "head": "linear discriminant analysis",
        "temperature": model.temperatures.get(branch, 1.0),
        "not_included": ["class statistics", "unknown", "other branches"],
    }
    with nullcontext(folder) if folder.exists() else new_folder(folder) as place:
        save_tensors(place / "model.safetensors", others.state_dict())
        write_json(place / "config.json", _config(others, model, made_of, options))
        write_json(place / "lca.json", about)
    return folder / "lca.json"


def _linear_head(model: ContinualClassifier, branch: str) -> tuple[Tensor, Tensor]:
    """Weight (classes, width) and bias (classes,), divided by the temperature."""
    if branch not in model.method.branches():
        raise LcaError(f"there is no branch {branch!r}; there are {model.method.branches()}")
    statistics = model.method.statistics(branch)
    if statistics is None or not isinstance(model.method, Branched):
        raise LcaError(
            f"method {model.recipe.method.name!r} keeps no class Gaussians for branch {branch!r}, and the linear head "
            f"is made of them; {ELSEWHERE}"
        )
    chosen = model.method.branch_set.options[branch]
    options = chosen if isinstance(chosen, LdaBranch) else DiscriminantOptions()
    temperature = model.temperatures.get(branch, 1.0)
    weight, bias = (each.cpu() / temperature for each in linear_discriminant(statistics[0], options))
    return weight, bias


def _plain(model: ContinualClassifier) -> nn.Module:
    """The transformer with the tuning in its own weights, on the CPU and in float32."""
    parts, tuning = model.method.feature_parts(), model.recipe.tuning.name
    if len(parts) > 1 or parts[0] not in ("", PRETRAINED):
        raise LcaError(
            f"method {model.recipe.method.name!r} makes its features of several passes, or of other modules, and a "
            f"checkpoint of timm's has one plain pass; {ELSEWHERE}"
        )
    if model.extractor.norm is not None:
        raise LcaError(f"tuning.feature_norm is a layer that timm's transformers do not have; {ELSEWHERE}")
    extractor = model.twin(device="cpu", precision="fp32", exact=False, compile=False).extractor
    if parts == [PRETRAINED]:
        extractor.tuner.detach()
        return extractor.vit
    extractor.tuner.fold()
    if extractor.tuner.parameters():
        raise LcaError(
            f"the tuning is {tuning!r}, whose modules or prompts cannot be merged into plain weights (lora, ssf, full "
            f"and none can); {ELSEWHERE}"
        )
    return extractor.vit


def _fill(others: Any, plain: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Our weights and the head into timm's own model; every tensor must have its place."""
    head = others.get_classifier()
    if not isinstance(head, nn.Linear) or head.weight.shape != weight.shape:
        raise LcaError(f"the classifier of {type(others).__name__} is no single linear layer; {ELSEWHERE}")
    own = {id(parameter): name for name, parameter in others.named_parameters()}
    tensors = plain.state_dict() | {own[id(head.weight)]: weight, own[id(head.bias)]: bias}
    try:
        others.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise LcaError(f"the tuned weights do not fit timm's own model ({reason}); {ELSEWHERE}") from error


@torch.no_grad()
def _compare(others: Any, plain: nn.Module, weight: Tensor, bias: Tensor, size: int) -> None:
    """What is written answers as the model does, or nothing is written."""
    views = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = pooled(plain, views) @ weight.T + bias
    difference = float((others(views) - expected).abs().max() / expected.abs().max())
    if not difference <= CLOSE:
        raise LcaError(f"timm's own model answers otherwise (by {difference:.1e} of the logits); {ELSEWHERE}")


def _config(others: Any, model: ContinualClassifier, made_of: str, options: dict[str, Any]) -> dict[str, Any]:
    """What timm and transformers read. How to prepare an image: our central square is timm's centre crop.

    timm's own writer puts `num_classes` into `model_args` too, on which transformers (5.23) stumbles.
    """
    scaling, size = model.backbone.preprocessing, model.backbone.preprocessing.size
    kept = {key: others.pretrained_cfg[key] for key in ("first_conv", "classifier", "fixed_input_size")}
    config = {
        "architecture": made_of,
        "num_classes": len(model.classes),
        "num_features": others.num_features,
        "label_names": model.classes,
        "pretrained_cfg": {
            "tag": "lca",
            "custom_load": False,
            "input_size": [3, size, size],
            "pool_size": None,
            "interpolation": scaling.interpolation,
            "crop_pct": model.view.centre_crop,
            "crop_mode": "center",
            "mean": scaling.mean,
            "std": scaling.std,
            "num_classes": len(model.classes),
            **kept,
        },
    }
    return config | ({"model_args": options} if options else {})
