"""Export: the whole answer of a model as one graph that runs without lca, and LoRA as a peft adapter.

The graph takes `images`, float (n, 3, size, size), RGB in [0, 1]; scaling to what the backbone wants happens inside. It
gives `probabilities` (calibrated), `logits` and, where the method keeps class statistics, `distance` and `unknown`, as
`Prediction` has them. `docs/shipping.md` shows how to prepare an image.
"""

import glob
import json
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lca.classifier import UNKNOWN_AT, ContinualClassifier
from lca.data.views import Preprocessing
from lca.device import versions
from lca.errors import LcaError, needs
from lca.features import FeatureExtractor
from lca.files import flush, hold, is_held, read_json, write_json
from lca.methods._base import Method
from lca.statistics.distances import FARTHEST, MIDDLE, KnownDistances
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.quantiles import Distribution

OPSET = 18
ONNX_LIMIT = 2**31
"""Bytes that one ONNX file holds at most."""
FORMAT = "lca export 1"
"""Marks the JSON beside an exported file, and so the file, as one that may be written again."""


class Above(nn.Module):
    """`Distribution.above` with operations that every runtime has: a sum over the pieces of the function, each of which
    rises from 0 to its height between two points."""

    points: Tensor
    widths: Tensor
    rises: Tensor

    def __init__(self, table: Distribution) -> None:
        super().__init__()
        pieces = {
            "points": table.points[:-1],
            "widths": table.points.diff().clamp(min=1e-30),
            "rises": table.heights.diff(),
        }
        for name, tensor in pieces.items():
            self.register_buffer(name, tensor.float().contiguous())
        self.lowest, self.highest = float(table.points[0]), float(table.points[-1])
        self.below, self.beyond, self.rate = float(table.heights[0]), float(1 - table.heights[-1]), table.rate

    def forward(self, asked: Tensor) -> Tensor:
        """(n,) -> (n,)."""
        inside = self.below + ((asked[:, None] - self.points) / self.widths).clamp(0, 1) @ self.rises
        under = self.below * torch.exp(-self.rate * (self.lowest - asked).clamp(min=0))
        over = self.beyond * torch.exp(-self.rate * (asked - self.highest).clamp(min=0))
        return torch.where(asked > self.highest, over, 1 - torch.where(asked < self.lowest, under, inside))


class NearestClass(nn.Module):
    """Features to the distance of their images: `KnownDistances.percentiles` at the nearest class, in float32 and with
    operations that every runtime has. Classes and background are whitened; their origin is the middle of the classes.
    """

    whitening: Tensor
    centre: Tensor
    classes: Tensor
    background: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, memory: GaussianMemory, known: KnownDistances) -> None:
        super().__init__()
        means, root = memory.means().double().cpu(), memory.root().cpu()
        centre, tables = means.mean(0), known.tables(len(means))

        def whiten(rows: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(root, (rows.to(root) - centre).T, upper=False).T

        buffers = {
            "whitening": torch.linalg.inv(root).T,
            "centre": centre,
            "classes": whiten(means),
            "background": whiten(known.background),
            "means": tables.means,
            "deviations": tables.deviations,
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor.float().contiguous())
        self.z, self.j = Above(tables.z), Above(tables.j)

    def forward(self, features: Tensor) -> Tensor:
        """(n, width) -> (n,)."""
        whitened = (features - self.centre) @ self.whitening
        middle = whitened.square().sum(1)
        nearest, label = _squared(whitened, self.classes).min(1)
        z = (nearest - MIDDLE * middle - self.means[label]) / self.deviations[label]
        p = torch.minimum(self.z(z), self.j((nearest - _squared(whitened, self.background).amin(1)) / 2))
        return (100 * (1 - (2 * p).clamp(max=1))).clamp(max=FARTHEST)


def _squared(one: Tensor, two: Tensor) -> Tensor:
    """|x - y|² = |x|² - 2 x·y + |y|²."""
    return (one.square().sum(1, keepdim=True) - 2 * one @ two.T + two.square().sum(1)).clamp(min=0)


class Deployed(nn.Module):
    """Images in, answers out: all of a model that prediction needs."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, extractor: FeatureExtractor, method: Method, branch: str, temperature: float, scaling: Preprocessing
    ) -> None:
        super().__init__()
        self.extractor, self.temperature = extractor, temperature
        self._method, self.branch = method, branch
        self.register_buffer("mean", torch.tensor(scaling.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(scaling.std)[:, None, None])
        statistics = method.statistics(branch)
        if statistics is not None and not statistics[1].can_tell:  # one image a class: nothing to compare with
            statistics = None
        self.nearest = None if statistics is None else NearestClass(*statistics)
        self.requires_grad_(False).eval()
        with torch.no_grad():
            self(torch.zeros(1, 3, scaling.size, scaling.size))  # what is computed on first use is no part of the graph

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` gives, in order."""
        return ["probabilities", "logits", *([] if self.nearest is None else ["distance", "unknown"])]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(n, 3, size, size) in [0, 1] -> probabilities and logits (n, classes), and distance and unknown (n,) if
        there is a distance."""
        views = (images - self.mean) / self.std
        features = torch.cat([self._method.embed(views, part) for part in self._method.feature_parts()], dim=1)
        logits = self._method.logits(features, self.branch)
        answer = (logits / self.temperature).softmax(1), logits
        if self.nearest is None:
            return answer
        distance = self.nearest(features[:, : self.extractor.width])
        return *answer, distance, distance >= UNKNOWN_AT


def deployed(model: ContinualClassifier, branch: str | None = None) -> Deployed:
    """The model as one module on the CPU, in float32 and with its tuning folded; the model itself is not touched."""
    if not model.classes:
        raise LcaError("this classifier has not learnt any class yet, so there is nothing to export; call learn first")
    branch = branch or model.branch
    if branch not in model.method.branches():
        raise LcaError(f"there is no branch {branch!r}; there are {model.method.branches()}")
    twin = model.twin(device="cpu", precision="fp32", exact=False, compile=False)
    if not any(map(twin.method.lasts, twin.method.feature_parts())):  # else it is needed without its tuning as well
        twin.extractor.tuner.fold()
    temperature = model.temperatures.get(branch, 1.0)
    return Deployed(twin.extractor, twin.method, branch, temperature, model.backbone.preprocessing)


def export_onnx(
    model: ContinualClassifier, path: str | Path, *, branch: str | None = None, overwrite: bool = False
) -> Path:
    """Write the model as one ONNX file for batches of any size, and its JSON beside it; returns the JSON's path."""

    def convert(module: Deployed, about: dict[str, Any]) -> Callable[[Path], None]:
        if (size := sum(tensor.nbytes for tensor in module.state_dict().values())) >= ONNX_LIMIT:
            raise LcaError(
                f"the weights take {size / 1e9:.1f} GB, and one ONNX file holds 2; export with --torch instead"
            )
        program = torch.onnx.export(
            module,
            (_example(module),),
            dynamo=True,
            dynamic_shapes=_ANY_BATCH,
            opset_version=OPSET,
            input_names=["images"],
            output_names=module.outputs,
            verbose=False,
        )
        assert program is not None
        program.model.producer_name, program.model.producer_version = "lca", about["versions"]["lca"]
        program.model.metadata_props.update({key: json.dumps(each, ensure_ascii=False) for key, each in about.items()})
        return lambda file: program.save(str(file), external_data=False)

    with needs("ONNX", "onnx", "onnxscript"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    return _export(model, Path(path), ".onnx", branch, overwrite, convert)


def export_torch(
    model: ContinualClassifier, path: str | Path, *, branch: str | None = None, overwrite: bool = False
) -> Path:
    """Write the model with torch.export, for batches of any size, and its JSON beside it (also inside, as
    `lca.json`); returns the JSON's path."""

    def convert(module: Deployed, about: dict[str, Any]) -> Callable[[Path], None]:
        program = torch.export.export(module, (_example(module),), dynamic_shapes=_ANY_BATCH)
        inside = {"lca.json": json.dumps(about, ensure_ascii=False)}
        return lambda file: torch.export.save(program, file, extra_files=inside)

    return _export(model, Path(path), ".pt2", branch, overwrite, convert)


def _export(
    model: ContinualClassifier,
    path: Path,
    suffix: str,
    branch: str | None,
    overwrite: bool,
    convert: Callable[[Deployed, dict[str, Any]], Callable[[Path], None]],
) -> Path:
    """Write one file beside its place and rename it, then its JSON. `convert` gives what writes the file."""
    sidecar = path.with_name(f"{path.name}.json")
    if path.suffix != suffix:
        raise LcaError(f"the file must be named *{suffix}, got {path}")
    if path.is_dir():
        raise LcaError(f"{path} is a folder; expected the name of a file")
    if not overwrite and not is_an_export(sidecar) and (there := [each for each in (path, sidecar) if each.exists()]):
        raise LcaError(f"{there[0]} exists and was not made by lca export; choose another name, or use --force")
    module = deployed(model, branch)
    about = about_export(model, module)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporters', which are for those who write them
        write = convert(module, about)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _folder_beside(path) as beside:
            write(beside / path.name)
            (beside / path.name).replace(path)
    except OSError as error:
        raise LcaError(f"could not write {path}: {error.strerror or error}; what was there is unchanged") from error
    write_json(sidecar, about)
    return sidecar


def export_peft(model: ContinualClassifier, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write the tuning as an adapter folder that the peft library loads onto the same timm transformer.

    It gives the backbone's tuned features; heads, class statistics and the feature norm are no part of an adapter.
    """
    folder = Path(folder)
    if model.method.feature_parts() != [""]:
        raise LcaError(
            f"method {model.recipe.method.name!r} makes its features of several passes, which one adapter cannot give; "
            "--onnx and --torch export every model"
        )
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not (overwrite or empty or is_an_export(folder / "lca.json")):
        raise LcaError(f"{folder} exists and was not made by lca export; choose another name, or use --force")
    left_out = ["heads", "class statistics", "temperature", *["feature norm"] * (model.extractor.norm is not None)]
    with nullcontext(folder) if folder.exists() else _new_folder(folder) as place:
        model.extractor.tuner.write_adapter(place)
        write_json(place / "lca.json", about_export(model) | {"not_included": left_out})
    return folder / "lca.json"


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder for what is being written, which is gone afterwards. What killed exports left beside is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if (left / ".lock").is_file() and not left.is_symlink() and not is_held(left):
            shutil.rmtree(left, ignore_errors=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with hold(beside, f"another export writes {path}"):
            yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder and put it in its place as a whole."""
    with _folder_beside(path) as beside:
        (beside / path.name).mkdir()
        yield beside / path.name
        (beside / path.name).rename(path)
        flush(path.parent)


def about_export(model: ContinualClassifier, module: Deployed | None = None) -> dict[str, Any]:
    """What the user of an exported file needs to know."""
    backbone, scaling = model.backbone, model.backbone.preprocessing
    about: dict[str, Any] = {
        "format": FORMAT,
        "classes": model.classes,
        "backbone": {"name": backbone.name, "sha256": backbone.fingerprint, "licence": backbone.licence},
        "tuning": model.recipe.tuning.name,
        "method": model.recipe.method.name,
        "versions": versions(),
    }
    if module is None:
        return about
    return about | {
        "input": {
            "name": "images",
            "shape": ["n", 3, scaling.size, scaling.size],
            "type": "float32, RGB, between 0 and 1; the mean and standard deviation are applied inside",
            "size": scaling.size,
            "working_size": model.working_size,
            "centre_crop": model.view.centre_crop,
            "interpolation": scaling.interpolation,
        },
        "outputs": module.outputs,
        "unknown_at": UNKNOWN_AT if module.nearest is not None else None,
        "temperature": module.temperature,
        "branch": module.branch,
    }


def _example(module: Deployed) -> Tensor:
    size = module.extractor.preprocessing.size
    return torch.full((2, 3, size, size), 0.5)


_ANY_BATCH = {"images": {0: torch.export.Dim("n")}}


def is_an_export(sidecar: Path) -> bool:
    try:
        content = read_json(sidecar)
    except (LcaError, OSError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT
