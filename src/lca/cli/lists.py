"""Verbs that list what there is: methods, tuners, operators, backbones, recipes (and `datasets`, in datasets.py)."""

import ast
import inspect
import itertools
import textwrap
from typing import Annotated, Any

import typer

from lca.cli.common import first_paragraph

LARGER = "vit_small_patch16_224.augreg_in21k_ft_in1k"
SUGGESTED = {
    LARGER: "the next step for photos",
    "vit_base_patch16_224.augreg_in21k_ft_in1k": "the backbone of the paper's table",
    "vit_base_patch16_224.augreg_in21k": "the same, without the ImageNet-1k fine-tuning",
    "vit_base_patch16_clip_224.openai": "CLIP's, trained on images with their captions",
    "vit_small_patch14_reg4_dinov2.lvd142m": "trained without labels, with registers",
    "convnext_tiny.fb_in22k_ft_in1k": "a convolutional network",
    "mobilenetv3_small_100.lamb_in1k": "a convolutional network for small machines",
}

DEFAULT_BACKBONE = "vit_pico_patch8_64"


def methods_command(
    method: Annotated[str | None, typer.Argument(help="Show this one with its options.")] = None,
    backbone: Annotated[
        str, typer.Option(metavar="NAME", help="Count what is stored on this backbone.")
    ] = DEFAULT_BACKBONE,
    images: Annotated[int, typer.Option(metavar="N", min=1, help="Images of a class, for that.")] = 100,
) -> None:
    """List the methods: the ways to keep learning, and what each costs with its default options.

    What is stored besides the backbone is counted after ten tasks of ten classes.

    Examples:
      lca methods
      lca methods ease
      lca methods --backbone vit_base_patch16_224.augreg_in21k_ft_in1k --images 500
      lca run ease --set data.source=folder:photos
    """
    from lca.instruments.costs import stored_bytes
    from lca.methods import methods
    from lca.tuning.base import NeedsTransformerError

    for name in [*methods] if method is None else [method]:
        info = methods[name].info
        needs = "Needs all images at once" if info.needs_all_data else "Keeps no images"
        try:
            stored = _stored(stored_bytes(name, backbone, images))
        except NeedsTransformerError:
            stored = f"With its default tuning it needs a vision transformer, which {backbone} is not."
        costs = f"Passes through the transformer per answer: {info.passes}. {stored}"
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


def _stored(counted: tuple[int, int, int] | None) -> str:
    if counted is None:
        return "What it stores depends on the images."
    per_class, per_task, together = map(_size, counted)
    return f"Stores {per_class} a class, {per_task} a task, {together} in all."


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
        str | None, typer.Option(metavar="NAME", help="Count the trained parameters on this backbone.")
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
        trained = "" if backbone is None else _trained(name, backbone)
        entry(name, first_paragraph(tuners[name].__doc__) + trained)
    entry(
        "peft:NAME",
        "A tuner of the peft library, such as `peft:ia3` or `peft:loha`; its options go under tuning.options. "
        "Needs `pip install peft`.",
    )


def _trained(tuner: str, backbone: str) -> str:
    from lca.instruments.costs import trained_parameters
    from lca.tuning.base import NeedsTransformerError

    try:
        return f" {trained_parameters(tuner, backbone):,} parameters by default."
    except NeedsTransformerError:
        return f" It needs a vision transformer, which {backbone} is not."


def operators_command() -> None:
    """List the merge operators: how the tuned tensors of a new task enter the running merge.

    Examples:
      lca operators
      lca run best --set method.merge.operator=max_abs
    """
    from lca.merging.operators import operators

    for name in operators:
        entry(name, first_paragraph(operators[name].__doc__))


def backbones_command(
    search: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Search all of timm's, for example 'vit_small*'.")
    ] = None,
) -> None:
    """List backbones: the embedded ones and some of timm's, with what they cost; or with --search all of timm's.

    Any of timm's models of images will do. `lora` and the other tuners put tensors into a vision transformer (vit_*,
    deit_*); other models, such as ConvNeXt, EfficientNet, ResNet and Swin, stay frozen with `--set tuning=none` or are
    tuned as a whole with `--set tuning=full`.

    Examples:
      lca backbones
      lca backbones --search '*dinov2*'
      lca learn my-model photos --backbone convnext_tiny.fb_in22k_ft_in1k --set tuning=none
    """
    import timm

    from lca.backbones import embedded_names, purpose, transformer_names
    from lca.errors import LcaError

    transformers = set(transformer_names())
    if search is None:
        for name in embedded_names():
            entry(name, f"Embedded: {purpose(name)}. {footprint_text(name)}.")
        for name, why in SUGGESTED.items():
            fits = name.partition(".")[0] in transformers
            limit = "" if fits else " Tuning none or full: it is no vision transformer."
            entry(name, f"timm: {why}. {footprint_text(name)}.{limit}")
        return
    if not (names := timm.list_pretrained(search)):
        raise LcaError(f"timm has no pre-trained model {search!r}; an example is 'vit_small*'")
    for name in names:
        print(name if name.partition(".")[0] in transformers else f"{name}  (tuning none or full)")


def footprint_text(backbone: str) -> str:
    """What a backbone costs, the work of an image beside that of the backbone that photos get by default."""
    from lca.backbones import PHOTOS
    from lca.instruments.costs import footprint

    cost = footprint(backbone)
    work = cost.operations / footprint(PHOTOS).operations
    return (
        f"{cost.parameters / 1e6:.1f} million parameters, sees {cost.size} px"
        + (f", {work:.2g} times the compute of {PHOTOS}" if backbone != PHOTOS else "")
        + (f", about {cost.download / 1e6:.0f} MB to download once" if cost.download else ", no download")
    )


def recipes_command() -> None:
    """List the recipes that come with the package.

    Example:
      lca recipes
    """
    from lca.recipe_files import recipe_names, recipe_summary

    for name in recipe_names():
        entry(name, recipe_summary(name))


def entry(name: str, text: str) -> None:
    """One thing of a list and what it is."""
    print(f"{name}\n{textwrap.fill(text, 100, initial_indent='    ', subsequent_indent='    ')}")
