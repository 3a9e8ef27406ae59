"""Verbs that list what there is: methods, tuners, operators, backbones, recipes (and `datasets`, in datasets.py)."""

import ast
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from lca.cli.common import first_paragraph

SUGGESTED = {
    "vit_small_patch16_224.augreg_in21k_ft_in1k": "a good start for photos",
    "vit_base_patch16_224.augreg_in21k_ft_in1k": "the backbone of the paper's table",
    "vit_base_patch16_224.augreg_in21k": "the same, without the ImageNet-1k fine-tuning",
    "deit_tiny_patch16_224.fb_in1k": "the smallest at 224 px",
    "vit_small_patch14_reg4_dinov2.lvd142m": "trained without labels, with registers, 518 px",
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

    for name in [*methods] if method is None else [method]:
        info = methods[name].info
        needs = "Needs all images at once" if info.needs_all_data else "Keeps no images"
        costs = (
            f"Passes through the transformer per answer: {info.passes}. {_stored(stored_bytes(name, backbone, images))}"
        )
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
        trained = ""
        if backbone is not None:
            from lca.instruments.costs import trained_parameters

            trained = f" {trained_parameters(name, backbone):,} parameters by default."
        entry(name, first_paragraph(tuners[name].__doc__) + trained)
    entry(
        "peft:NAME",
        "A tuner of the peft library, such as `peft:ia3` or `peft:loha`; its options go under tuning.options. "
        "Needs `pip install peft`.",
    )


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


def entry(name: str, text: str) -> None:
    """One thing of a list and what it is."""
    print(f"{name}\n{textwrap.fill(text, 100, initial_indent='    ', subsequent_indent='    ')}")
