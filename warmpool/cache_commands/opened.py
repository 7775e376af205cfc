"""What every command for a store begins with: the store of the flags, and a way to show how far it is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cache.opening import open_store
from cache.settings import StoreSettings
from cache.signed_store import SignedStore
from warmpool.settings import read_settings

_LINE_EVERY_S = 2.0


def store_settings(args: argparse.Namespace) -> StoreSettings:
    """The settings of flags and environment. Raises SettingError."""
    return read_settings(StoreSettings, vars(args), os.environ)


class NothingPublished(ValueError):
    """The store holds nothing that could be cared for: more likely it is another folder than the one that was meant."""


def opened(args: argparse.Namespace, *, may_be_empty: bool = False) -> SignedStore:
    """The store of flags and environment.

    Args:
        args: Of the command.
        may_be_empty: Whether the command begins a store; any other one would say that all is well with none.

    Raises:
        ValueError, CacheError: A setting is not allowed, or the store cannot be read.
        NothingPublished: It holds no model, nor a shared cache of JAX's.
    """
    settings = store_settings(args)
    store = open_store(settings)
    if not (may_be_empty or store.names("models") or store.names("jax-cache")):
        raise NothingPublished(
            f"store {settings.store!r} is not there, or nothing was published in it: is it the right one, and mounted?"
        )
    return store


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, a line now and then anywhere else, on standard error. The block calls it for every one."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)
        return
    done = 0
    said_s = time.monotonic()

    def step() -> None:
        nonlocal done, said_s
        done += 1
        if time.monotonic() - said_s > _LINE_EVERY_S:
            said_s = time.monotonic()
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    yield step


def shown_bytes(size: float) -> str:
    """'1.5 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
