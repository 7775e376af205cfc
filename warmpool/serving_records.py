"""What a store says is served of each model, read again and again: what has not changed is not checked anew."""

from __future__ import annotations

import contextlib

from cache.errors import NotStored, StoreUnavailable
from cache.signed_store import SignedStore
from warmpool.catalog import read_serving, reason_of
from warmpool.manifest import Serving, serving_path


class ServingRecords:
    """Of one store."""

    def __init__(self, store: SignedStore) -> None:
        self._store = store
        self._known: dict[str, tuple[bytes, Serving | str]] = {}  # by model: as it is stored, and what that says

    def read(self) -> dict[str, Serving | str]:
        """By model, which of its versions are served, or why that cannot be read. In a thread.

        Raises:
            StoreUnavailable: The store cannot be read.
        """
        found: dict[str, Serving | str] = {}
        for name in self._store.names("models"):
            with contextlib.suppress(NotStored):  # nothing of it is served yet
                stored = self._store.inner.get(serving_path(name))
                if name not in self._known or self._known[name][0] != stored:
                    self._known[name] = stored, self._understood(name)
                found[name] = self._known[name][1]
        return found

    def _understood(self, name: str) -> Serving | str:
        try:
            serving = read_serving(self._store, name)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  it is that model's problem
            return reason_of(error, name)
        if serving is None:
            raise NotStored(serving_path(name))
        return serving
