"""Many objects at once: from far away, one after the other, they would be what a start takes longest for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue

from cache.errors import CacheError
from cache.store import Store

DOWNLOADS_PARALLEL = 16

Show = Callable[[str, int], None]
File = Path | CacheError | ValueError


def fetch_all(
    store: Store, paths: Iterable[str], *, show: Show | None = None, parallel: int = DOWNLOADS_PARALLEL
) -> dict[str, File]:
    """For each path, in order, a local file or the error that says why there is none.

    Args:
        store: Its `local_path` is called in several threads. Nobody waits for them when the process ends.
        paths: In the order of urgency: what comes first is asked for first. The same one may come twice.
        show: Called in this thread as each file arrives, with its path and its size in bytes.
        parallel: How many are on their way at any time.
    """
    files: dict[str, File] = {}
    wanted: SimpleQueue[str] = SimpleQueue()
    arrived: SimpleQueue[tuple[str, File | BaseException]] = SimpleQueue()
    asked = list(dict.fromkeys(paths))
    for path in asked:
        wanted.put(path)
    for _ in range(min(parallel, len(asked))):
        threading.Thread(target=_fetch, args=(store, wanted, arrived), name="fetch", daemon=True).start()
    try:
        for _ in asked:
            path, found = arrived.get()
            if not isinstance(found, File):
                raise found
            files[path] = found
            if show and isinstance(found, Path):
                show(path, found.stat().st_size)
    finally:
        while not wanted.empty():  # it ends early: nothing more is begun
            _next(wanted)
    return {path: files[path] for path in asked}


def fetch(store: Store, path: str) -> File:
    """A local file, or the error that says why there is none."""
    try:
        return store.local_path(path)
    except (CacheError, ValueError) as error:
        return error


def _fetch(store: Store, wanted: SimpleQueue[str], arrived: SimpleQueue[tuple[str, File | BaseException]]) -> None:
    while (path := _next(wanted)) is not None:
        try:
            arrived.put((path, fetch(store, path)))
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            arrived.put((path, error))


def _next(wanted: SimpleQueue[str]) -> str | None:
    try:
        return wanted.get_nowait()
    except Empty:
        return None
