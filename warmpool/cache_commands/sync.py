"""`warmpool cache sync --jax-cache DIR URI`: share JAX's own compilation cache, and mend it.

Before a job it brings what other machines compiled, after it it shares what this one did; torn entries, which JAX would
miss for ever, are replaced or removed either time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from cache.jax_cache import JaxCache
from cache.jax_cache_sync import JaxCacheSync, Pulled
from cache.settings import URIS
from warmpool.cache_commands.opened import counting, opened
from warmpool.errors import printable
from warmpool.settings import add_store_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("uri", metavar="URI", nargs="?", help=f"where it is shared, the same as --store: {URIS}")
    parser.add_argument(
        "--jax-cache", metavar="DIR", type=Path, required=True, help="folder that JAX_COMPILATION_CACHE_DIR names"
    )
    parser.add_argument("--pull", action="store_true", help="only bring entries; nothing in the store is changed")
    parser.add_argument("--push", action="store_true", help="only share entries")
    add_store_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Pull and push; 1 if something in the store was not taken, 0 if nothing was wrong."""
    args.store = args.uri or args.store
    if "://" in str(args.jax_cache) or ":/" in str(args.jax_cache):
        raise ValueError(f"--jax-cache is {str(args.jax_cache)!r}, allowed: a folder of this machine")
    both = args.pull == args.push
    cache = JaxCache(args.jax_cache)
    sync = JaxCacheSync(opened(args, may_be_empty=True), cache, cache.entries())
    pulled = Pulled()
    if args.pull or both:
        paths = sync.missing()
        with counting("pulling", len(paths)) as step:
            pulled = sync.pull(paths, step)
    removed = sync.remove_torn()
    pushed: list[str] = []
    if args.push or both:
        sync.set_aside(pulled.damaged)
        names = sync.unpushed()
        with counting("pushing", len(names)) as step:
            pushed = sync.push(names, step)
    result = {
        "jax_cache": str(args.jax_cache),
        "compression": cache.compression.name,
        "pulled": pulled.new,
        "mended": pulled.mended,
        "removed": removed,
        "pushed": pushed,
        "torn": sync.found.torn,
        "other": sorted(sync.found.other),
        "entries": len(sync.found.whole),
        "refused": pulled.refused,
        "damaged": pulled.damaged,
    }
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        _show(result)
    return 1 if pulled.refused or pulled.damaged else 0


def _show(result: dict[str, Any]) -> None:
    counts = ", ".join(f"{what} {len(result[what])}" for what in ("pulled", "mended", "removed", "pushed"))
    print(f"{result['jax_cache']}: {counts}; {result['entries']} entries")
    for path, reason in (result["refused"] | result["damaged"]).items():
        print(printable(f"not taken {path}: {reason}"))
    for name, reason in result["torn"].items():
        print(printable(f"left {name}, which may be just being written: {reason}"))
    if result["other"]:
        print(f"left {len(result['other'])} that are compressed otherwise than JAX does here ({result['compression']})")
