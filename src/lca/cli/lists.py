"""Verbs that list what there is: methods, tuners, operators, backbones, recipes (and `datasets`, in datasets.py)."""

import ast
import copy
import inspect
import itertools
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from timm.models import VisionTransformer

SUGGESTED = {
    "vit_small_patch16_224.augreg_in21k_ft_in1k": "a good start for photos",
    "vit_base_patch16_224.augreg_in21k_ft_in1k": "the backbone of the paper's table",
    "vit_base_patch16_224.augreg_in21k": "the same, without the ImageNet-1k fine-tuning",
    "deit_tiny_patch16_224.fb_in1k": "the smallest at 224 px",
    "vit_small_patch14_reg4_dinov2.lvd142m": "trained without labels, with registers, 518 px",
}

DEFAULT_BACKBONE = "vit_pico_patch8_64"


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("methods")(methods_command)
    app.command("tuners")(tuners_command)
    app.command("operators")(operators_command)
    app.command("backbones")(backbones_command)
    app.command("recipes")(recipes_command)


def methods_command(
    method: Annotated[str | None, typer.Argument(help="Show this one with its options.")] = None,
    backbone: Annotated[
        str, typer.Option("--backbone", metavar="NAME", help="Count what is stored on this backbone.")
    ] = DEFAULT_BACKBONE,
    images: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Images of a class, for that.")] = 100,
) -> None:
    """List the methods: the ways to keep learning, and what each costs with its default options.

    What is stored besides the backbone is counted after ten tasks of ten classes.

    Examples:

      lca methods

      lca methods ease

      lca methods --backbone vit_base_patch16_224.augreg_in21k_ft_in1k --images 500

      lca run ease --set data.source=folder:photos
    """
    from lca.methods import methods

    for name in [*methods] if method is None else [method]:
        info = methods[name].info
        needs = "Needs all images at once" if info.needs_all_data else "Keeps no images"
        costs = f"Passes through the transformer per answer: {info.passes}. {_stored(name, backbone, images)}"
        entry(name, f"{info.title} ({info.reference}). Trains {info.trains}. {needs}. {costs}")
    if method is not None:
        print()
        print(inspect.cleandoc(methods[method].__doc__ or "No more is said of it."))
        for key, field in methods[method].Options.model_fields.items():
            if key != "name":
                default = _plain(field.get_default(call_default_factory=True))
                entry(f"method.{key}", f"{_described(methods[method].Options, key)} By default {default}.".strip())


def _described(options: type, key: str) -> str:
    """What is said below the line that declares an option, here or in the class it comes from. It is read from the
    source when it is asked for: pydantic would look for the source of every options class at every start."""
    for each in options.__mro__:
        if key in inspect.get_annotations(each):
            try:
                source = ast.parse(textwrap.dedent(inspect.getsource(each)))
            except (OSError, TypeError):  # of a method that was made in a running Python
                continue
            for line, below in itertools.pairwise(ast.iter_child_nodes(source.body[0])):
                match line, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(said))) if name == key:
                        return " ".join(said.split())
    return ""


def _stored(method: str, backbone: str, images: int) -> str:
    """What a method stores with its default options."""
    import torch

    from lca.backbones import Backbone
    from lca.data.views import AugmentOptions, Preprocessing
    from lca.device import Compute
    from lca.features import FeatureExtractor
    from lca.methods import methods
    from lca.progress import Progress
    from lca.recipe import validate_recipe
    from lca.training.setting import Setting

    recipe, nothing, unit = validate_recipe({"method": method}), torch.device("meta"), (1.0, 1.0, 1.0)
    shape = Backbone(copy.deepcopy(_shape(backbone)), Preprocessing(224, unit, unit, "bicubic"), backbone, "")
    extractor = FeatureExtractor(shape, recipe.tuning, 0, Compute(nothing))
    setting = Setting(extractor, recipe.training, AugmentOptions(), 0, Progress())
    count = methods[method](setting, recipe.method).expected_bytes
    now, class_more, task_more = count(10, 100, images), count(10, 110, images), count(11, 110, images)
    if now is None or class_more is None or task_more is None:
        return "What it stores depends on the images."
    per_class = (class_more - now) // 10
    return f"Stores {_size(per_class)} a class, {_size(task_more - class_more)} a task, {_size(now)} in all."


@cache
def _shape(backbone: str) -> "VisionTransformer":
    """A transformer without values."""
    import torch

    from lca.backbones import untrained

    with torch.device("meta"):
        return untrained(backbone)


def _plain(value: Any) -> str:
    """A default as a recipe would write it."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return str(value.model_dump(exclude_defaults=True) or "as its own defaults")
    if isinstance(value, tuple | list):
        return f"[{', '.join(each if isinstance(each, str) else _plain(each) for each in value)}]"
    return "nothing" if value is None else str(value)


def _size(count: int) -> str:
    """1234567 bytes as 1.23 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"


def tuners_command(
    backbone: Annotated[
        str | None, typer.Option("--backbone", metavar="NAME", help="Count the trained parameters on this backbone.")
    ] = None,
) -> None:
    """List the tuners: what is trained of the backbone.

    Examples:

      lca tuners

      lca tuners --backbone vit_base_patch16_224.augreg_in21k_ft_in1k

      lca learn my-model photos --set tuning=adapter
    """
    from lca.tuning import tuners

    for name in tuners:
        trained = "" if backbone is None else f" {_trained(name, backbone):,} parameters by default."
        entry(name, summary(tuners[name]) + trained)
    entry(
        "peft:NAME",
        "A tuner of the peft library, such as `peft:ia3` or `peft:loha`; its options go under tuning.options. "
        'Needs `pip install "lca[peft]"`.',
    )


def _trained(tuner: str, backbone: str) -> int:
    """How many parameters a tuner trains with its default options."""
    import torch

    from lca.tuning import tuners

    attached = tuners[tuner](tuners[tuner].Options(name=tuner))
    attached.attach(copy.deepcopy(_shape(backbone)), torch.Generator())
    return sum(parameter.numel() for parameter in attached.parameters().values())


def operators_command() -> None:
    """List the merge operators: how the tuned tensors of a new task enter the running merge.

    Examples:

      lca operators

      lca run best --set method.merge.operator=max_abs
    """
    from lca.merging.operators import operators

    for name in operators:
        entry(name, summary(operators[name]))


def backbones_command(
    search: Annotated[
        str | None, typer.Option("--search", metavar="PATTERN", help="Search all of timm's, for example 'vit_small*'.")
    ] = None,
) -> None:
    """List backbones: the embedded ones, some of timm's, or with --search all of timm's that can be used.

    Examples:

      lca backbones

      lca backbones --search '*dinov2*'
    """
    if search is not None:
        import timm

        from lca.backbones import usable_names
        from lca.errors import LcaError

        usable = set(usable_names())
        found = [name for name in timm.list_pretrained(search) if name.partition(".")[0] in usable]
        if not found:
            raise LcaError(f"timm has no pre-trained vision transformer {search!r}")
        print("\n".join(found))
        return
    import yaml

    import lca

    for path in sorted((Path(lca.__file__).parent / "backbones" / "embedded").glob("*.yaml")):
        card = yaml.safe_load(path.read_text(encoding="utf-8"))
        entry(card["name"], f"embedded, needs no download; {card['shape']}.")
    for name, why in SUGGESTED.items():
        entry(name, f"timm, downloaded on first use; {why}.")


def recipes_command() -> None:
    """List the recipes that come with the package.

    Example:

      lca recipes
    """
    from lca.recipe_files import recipe_names, recipe_summary

    for name in recipe_names():
        entry(name, recipe_summary(name))


def summary(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())


def entry(name: str, text: str) -> None:
    """One thing of a list and what it is."""
    print(f"{name}\n{textwrap.fill(text, 100, initial_indent='    ', subsequent_indent='    ')}")
