"""Verbs for data sets: list them, get them, verify them; and for the decoded images that are kept on disk."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lca.cli.common import SOME_FAILED, Quiet, first_paragraph, with_examples
from lca.cli.lists import entry
from lca.progress import choose_progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lca.data.verification import Finding

Name = Annotated[str, typer.Argument(help="A benchmark of `lca datasets`, for example cifar100.")]
Split = Annotated[str | None, typer.Option(help="A named split: official or revisitingcil of cub200.")]

datasets = typer.Typer(rich_markup_mode=None)


@datasets.callback(invoke_without_command=True)
@with_examples
def list_command(context: typer.Context) -> None:
    """List the data sources a run can name in `data.source`; get and verify the benchmarks.

    Without PATH, `data.source=NAME` and the commands below mean the folder NAME in the one that LCA_DATA names.

    Examples:
      lca datasets
      lca datasets get cifar100 --to data/cifar100
      lca datasets verify cifar100 data/cifar100
      lca run best --set data.source=cifar100:data/cifar100
      lca run best --set data.source=folder:photos
    """
    if context.invoked_subcommand is None:
        from lca.data.sources import sources

        for name in sources:
            entry(name, first_paragraph(sources[name].__doc__))


@datasets.command("get")
@with_examples
def get_command(
    name: Name,
    to: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder for it.", show_default="$LCA_DATA/NAME")
    ] = None,
    split: Split = None,
    quiet: Quiet = False,
) -> None:
    """Download a benchmark, or say how to get it where it cannot be downloaded, or no folder is named (exit code 1).

    An interrupted download goes on when the same command is given again. The archive is checked before it is unpacked,
    the unpacked data set is verified.

    Examples:
      lca datasets get cifar100
      lca datasets get cifar100 --to data/cifar100
      lca datasets get cub200 --split revisitingcil --to data/cub200
      LCA_DATA=data lca datasets get imagenet_r
    """
    from lca.data.benchmarks import benchmark_card, place
    from lca.data.downloads import ByHand, get, how_to_get

    benchmark_card(name)
    if to is None and not os.environ.get("LCA_DATA"):
        print(how_to_get(name, split))
        raise typer.Exit(SOME_FAILED)
    target = place(name, str(to or ""), "--to PATH")
    try:
        findings = get(name, target, split, choose_progress(quiet))
    except ByHand as how:
        print(how)
        raise typer.Exit(SOME_FAILED) from None
    _tell(findings)
    print(f"use it as data.source={name}:{target}")


@datasets.command("verify")
@with_examples
def verify_command(
    name: Name,
    path: Annotated[Path | None, typer.Argument(help="Its folder.", show_default="$LCA_DATA/NAME")] = None,
    split: Split = None,
    images: Annotated[bool, typer.Option("--images", help="Open every image as well; takes a while.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check layout, classes and counts of a benchmark, and the published test counts of its tasks.

    Names files that are missing, in the wrong place or copies of others.
    Says what is wrong where, with what was expected and what was found; exit code 1 if anything is.

    Examples:
      lca datasets verify cub200 data/cub200
      lca datasets verify imagenet_r data/imagenet-r --images
    """
    from lca.data.benchmarks import benchmark_card, place
    from lca.data.verification import verify

    benchmark_card(name)
    _tell(verify(name, place(name, str(path or ""), "`verify NAME PATH`"), split, choose_progress(quiet), images))


def cache_command(clear: Annotated[bool, typer.Option("--clear", help="Remove all of it.")] = False) -> None:
    """Show the decoded images that are kept on disk, so that large sets are decoded once.

    They lie in $LCA_CACHE (by default `lca/images` in your cache folder) and take at most $LCA_CACHE_GB gigabytes (by
    default 20; 0 keeps none). The least recently used go first.

    Examples:
      lca cache
      lca cache --clear
    """
    from lca.data import cache

    if clear:
        print(f"{cache.clear() / 1e6:.1f} MB removed from {cache.folder()}")
        return
    entries = cache.entries()
    for kept in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.used))
        print(f"{kept.path.name[:12]}  {kept.images:>8} images  {kept.bytes / 1e6:>10.1f} MB  used {used}")
    if unfinished := cache.unfinished():
        print(f"{unfinished / 1e6:.1f} MB half-written, now or by a process that was killed; that goes after a day")
    total = sum(kept.bytes for kept in entries)
    print(f"{len(entries)} set(s), {total / 1e6:.1f} MB of at most {cache.limit() / 1e9:g} GB, in {cache.folder()}")


def _tell(findings: "Iterable[Finding]") -> None:
    """A line for each; a wrong one ends the command with its exit code."""
    wrong = 0
    for finding in findings:
        print(f"{'ok   ' if finding.fine else 'WRONG'}  {finding.text}", flush=True)
        wrong += not finding.fine
    if wrong:
        print(f"{wrong} {'thing is' if wrong == 1 else 'things are'} not as the data set's card says")
        raise typer.Exit(SOME_FAILED)
