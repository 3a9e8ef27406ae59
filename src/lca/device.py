"""Where and how tensors are computed: device, precision, the exact mode, and replayed steps.

Several processes are the subject of `lca.ranks`.
"""

import copy
import gc
import hashlib
import itertools
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

import lca
from lca.errors import LcaError
from lca.ranks import current
from lca.turns import Together


@dataclass(frozen=True)
class Compute:
    """A device and the precision of the backbone on it."""

    device: torch.device
    precision: str = "fp32"
    exact: bool = False
    compiled: bool | None = False
    """Whether the backbone is compiled; None: when it pays."""

    @classmethod
    def choose(
        cls, device: str = "auto", precision: str = "auto", exact: bool = False, compiled: bool | None = None
    ) -> "Compute":
        """Resolve `auto`: a GPU when there is one, bf16 where the GPU computes in it."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise LcaError(f"unknown device {device!r}; expected auto, cpu, cuda or cuda:0")
        chosen = torch.device(device)
        if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
            raise LcaError(f"device {device!r} was asked for, but torch sees {torch.cuda.device_count()} GPU(s)")
        if exact and precision == "bf16":
            raise LcaError("exact: true computes in fp32; leave precision at auto or set it to fp32")
        if exact and compiled:
            raise LcaError("exact: true computes without compiling; leave compile out or set it to false")
        if precision == "auto":
            fast = not exact and chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "bf16" if fast else "fp32"
        if precision == "bf16" and chosen.type == "cpu" and not _cpu_computes_in_bf16():
            warnings.warn("this processor only emulates bf16; precision: fp32 is faster on it", stacklevel=2)
        if compiled is None and (exact or chosen.type != "cuda"):
            compiled = False
        return cls(chosen, precision, exact, compiled)

    def compiles(self, parameters: int, images: int) -> bool:
        """Whether compiling pays for so many images, in forward and backward passes of so many parameters."""
        return self.compiled if self.compiled is not None else parameters * images >= _WORTH_COMPILING

    def autocast(self) -> AbstractContextManager[None]:
        """bf16 for the backbone's matrix products, where chosen."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    @contextmanager
    def determinism(self) -> Iterator[None]:
        """In exact mode: deterministic algorithms, restored afterwards."""
        if not self.exact:
            yield
            return
        with _DETERMINISTIC.entered():
            yield

    def describe(self) -> dict[str, str]:
        """For results: what computed them."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else _processor()
        ranks = {} if current().count == 1 else {"ranks": str(current().count)}
        exact = str(self.exact).lower()
        return {"device": self.device.type, "name": name, "precision": self.precision, "exact": exact, **ranks}


def _cpu_computes_in_bf16() -> bool:
    """Whether the processor has instructions for it. What oneDNN says of x86 includes AVX-512 without them."""
    if platform.machine() in {"x86_64", "AMD64"}:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def _deterministic() -> Iterator[None]:
    # cuBLAS reads this when its first handle is made, so it must be set before any GPU work
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


_DETERMINISTIC = Together(_deterministic)
"""Both are settings of the whole process."""
_WORTH_COMPILING = 2e12
"""Parameters times trained images of a task: about ten seconds of an H200's time, of which compiling saves a part."""


class CompiledForSizes:
    """A function of a batch, compiled for the batch sizes it was told of; other batches run as they are.

    Where compiling fails, for want of a C compiler for example, that is an error if it was `required`, else a warning.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], required: bool = False) -> None:
        self._plain, self._required = function, required
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self._sizes: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledForSizes":
        """A copy is not compiled: it belongs to a copy of the weights."""
        return CompiledForSizes(copy.deepcopy(self._plain, memo), self._required)

    @property
    def active(self) -> bool:
        """Whether some batches are compiled: never, once that has failed."""
        return bool(self._sizes) and self._compiled is not self._plain

    def add(self, size: int) -> None:
        """Batches of this size are compiled from now on, when the first one comes."""
        if self._compiled is None:
            self._compiled = torch.compile(_with_own_code(self._plain), dynamic=False)
        self._sizes.add(size)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Everything runs as it is."""
        sizes, self._sizes = self._sizes, set()
        try:
            yield
        finally:
            self._sizes = sizes

    def __call__(self, batch: Tensor) -> Tensor:
        if self._compiled is None or len(batch) not in self._sizes:
            return self._plain(batch)
        try:
            return self._compiled(batch)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(getattr(error, "inner_exception", error)).partition("\n")[0]
            if self._required:
                raise LcaError(f"the backbone could not be compiled: {reason}; set compile: false") from error
            warnings.warn(f"the backbone could not be compiled and runs as it is: {reason}", stacklevel=2)
            self._compiled = self._plain
            return self._plain(batch)


_copies = itertools.count()


def _with_own_code(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function with a code object of its own: torch gives up on one after eight compilations, for whichever
    models they were."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    code = plain.__code__.replace(co_name=f"{plain.__name__}_{next(_copies)}")
    own = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    return MethodType(own, function.__self__) if isinstance(function, MethodType) else own


def replayed(step: Callable[[Tensor], None], example: Tensor, changed: Sequence[Tensor]) -> Callable[[Tensor], None]:
    """A step of many small operations, captured once as a CUDA graph and replayed; elsewhere the step as it is.

    `changed` are the tensors the step changes: capturing runs it a few times, then puts them, and torch's generator,
    back. An argument of another shape than the example's runs the step itself. Deterministic algorithms are not
    captured.
    """
    if example.device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return step
    static = example.clone()
    with torch.cuda.device(example.device):
        graph = _captured(lambda: step(static), changed)

    def replay(argument: Tensor) -> None:
        if argument.shape != static.shape:
            step(argument)
            return
        static.copy_(argument)
        graph.replay()

    return replay


def _captured(step: Callable[[], None], changed: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
    before, random = [tensor.detach().clone() for tensor in changed], torch.cuda.get_rng_state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # lets libraries allocate their workspaces outside of the graph
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # an old graph that is thrown away while this one is captured would end the capture
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        if collects:
            gc.enable()
    with torch.no_grad():
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
    torch.cuda.set_rng_state(random)
    return graph


def versions(rooms: tuple[str, ...] = ("",)) -> dict[str, str]:
    """Of what the numbers depend on; of our own code, that of some rooms."""
    own = {"lca": lca.__version__, "lca sources": sources_hash(rooms)}
    return _libraries() | own | _other_packages() | {"python": platform.python_version()}


@cache
def _libraries() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "timm", "numpy", "pillow")}


@cache
def _other_packages() -> dict[str, str]:
    """The installed packages that bring methods, tuners, operators or sources, and their code."""
    points, found = entry_points(), {}
    for point in (each for group in points.groups if group.startswith("lca.") for each in points.select(group=group)):
        module = find_spec(point.module.partition(".")[0])
        if module and module.origin and point.dist:
            home = Path(module.origin)
            files = sorted(home.parent.rglob("*.py")) if module.submodule_search_locations else [home]
            digest = hashlib.sha256(b"".join(path.read_bytes() for path in files))
            found[point.dist.name] = f"{point.dist.version}, sources {digest.hexdigest()[:12]}"
    return found


@cache
def sources_hash(rooms: tuple[str, ...] = ("",), package: Path = Path(lca.__file__).parent) -> str:
    """A hash of the code of some rooms of the package, by default all: between two releases the version does not tell.
    A room is a folder or a file, a package may be a single file."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
        name = path.relative_to(package)
        if any(name.is_relative_to(room) for room in rooms):
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return f"{models[0] if models else 'CPU'}, {torch.get_num_threads()} threads"
