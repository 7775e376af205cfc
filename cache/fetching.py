"""Many objects at once: from far away, one after the other, they would be what a start takes longest for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from cache.errors import CacheError
from cache.store import Store

DOWNLOADS_PARALLEL = 16

Show = Callable[[str, int], None]
Fetched = dict[str, Path | CacheError | ValueError]


def fetch_all(
    store: Store, paths: Iterable[str], *, show: Show | None = None, parallel: int = DOWNLOADS_PARALLEL
) -> Fetched:
    """For each path a local file, or the error that says why there is none; no error keeps the others from coming.

    Args:
        store: Its `local_path` is called in several threads.
        paths: In the order of urgency: what comes first is asked for first. The same one may come twice.
        show: Called in this thread as each file arrives, with its path and its size in bytes.
        parallel: How many are on their way at any time.
    """
    fetched: Fetched = {}
    with ThreadPoolExecutor(parallel, thread_name_prefix="fetch") as pool:
        asked: dict[Future[Path], str] = {pool.submit(store.local_path, path): path for path in dict.fromkeys(paths)}
        try:
            for answer in as_completed(asked):
                path = asked[answer]
                try:
                    file = fetched[path] = answer.result()
                except (CacheError, ValueError) as error:
                    fetched[path] = error
                else:
                    if show:
                        show(path, file.stat().st_size)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return fetched
