"""A folder as a store that does something else just before or after an operation: what others do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cache.local_store import LocalStore


class MeddledStore(LocalStore):
    """`before` and `after` are called with the name of an operation and its path, and may do anything."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before: Callable[[str, str], None] = _nothing
        self.after: Callable[[str, str], None] = _nothing
        self._thread = threading.local()

    def _meddle(self, operation: str, path: str, call: Callable[[], object]) -> object:
        if getattr(self._thread, "busy", False):  # what an operation, or who meddles, does itself
            return call()
        self._thread.busy = True
        try:
            self.before(operation, path)
            result = call()
            self.after(operation, path)
            return result
        finally:
            self._thread.busy = False

    def get(self, path, *, bytes_max=None):
        return self._meddle("get", path, lambda: super(MeddledStore, self).get(path, bytes_max=bytes_max))

    def put(self, path, data):
        self._meddle("put", path, lambda: super(MeddledStore, self).put(path, data))

    def put_file(self, path, source):
        self._meddle("put_file", path, lambda: super(MeddledStore, self).put_file(path, source))

    def touch(self, path):
        self._meddle("touch", path, lambda: super(MeddledStore, self).touch(path))

    def delete(self, path):
        self._meddle("delete", path, lambda: super(MeddledStore, self).delete(path))

    def get_versioned(self, path):
        return self._meddle("get_versioned", path, lambda: super(MeddledStore, self).get_versioned(path))

    def put_if(self, path, data, generation):
        return self._meddle("put_if", path, lambda: super(MeddledStore, self).put_if(path, data, generation))

    def delete_if(self, path, generation):
        return self._meddle("delete_if", path, lambda: super(MeddledStore, self).delete_if(path, generation))


def _nothing(operation: str, path: str) -> None:
    """What nobody does."""
