"""The verb for decoded images that are kept on disk."""

import time
from typing import Annotated

import typer


def cache_command(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of it.")] = False,
) -> None:
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
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{entry.path.name[:12]}  {entry.images:>8} images  {entry.bytes / 1e6:>10.1f} MB  used {used}")
    if unfinished := cache.unfinished():
        print(f"{unfinished / 1e6:.1f} MB half-written, now or by a process that was killed; that goes after a day")
    total = sum(entry.bytes for entry in entries)
    print(f"{len(entries)} set(s), {total / 1e6:.1f} MB of at most {cache.limit() / 1e9:g} GB, in {cache.folder()}")
