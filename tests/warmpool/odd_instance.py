"""`warmpool`, as a process: it looks at its store often, and that may be odd.

ODD_STORE names what is odd about it: "copying" has copies of objects beside it, as a machine before a bucket has,
"counting" writes a byte to the file <store>.looks each time that the upkeep looks at an executable, and one to
<store>.wants before it asks for one, and "stalling" gives no targets while there is a file
<store>.stalled or <store>.broken.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from cache import opening
from cache.local_store import LocalStore
from cache.store import Store
from tests.patient_instance import be_patient
from warmpool import cli, plan_following, upkeep

ODD_STORE = "ODD_STORE"
LOOK_FIRST_S = 0.01
LOOK_S_MAX = 0.02
TRUST_EVERY_S = 0.1
PLANS_EVERY_S = 0.05


class CopyingStore(LocalStore):
    """Gives the copy of an executable from the folder <store>.copies, which it makes if there is none."""

    def local_path(self, path: str) -> Path:
        copy = self._copy(path)
        if path.startswith("executables/") and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(super().local_path(path), copy)
        return copy if copy.exists() else super().local_path(path)

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        if self._copy(path).exists():
            return self._copy(path).read_bytes()
        return super().get(path, bytes_max=bytes_max)

    def discard(self, path: str) -> None:
        self._copy(path).unlink(missing_ok=True)

    def _copy(self, path: str) -> Path:
        return self.root.with_name(f"{self.root.name}.copies") / path


class CountingStore(LocalStore):
    """Counts looks at executables: each begins by discarding what is kept of one, and may end by asking for it."""

    def discard(self, path: str) -> None:
        self._count("looks")

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        self._count("wants")
        return super().put_if(path, data, generation)

    def _count(self, what: str) -> None:
        with self.root.with_name(f"{self.root.name}.{what}").open("ab") as counted:
            counted.write(b".")


class StallingStore(LocalStore):
    """Gives no target while there is a file <store>.stalled, as a disk on a network that is away; makes <store>.asked.

    While there is one <store>.broken, it fails in a way that no store may.
    """

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        while "/targets/" in path and self.root.with_name(f"{self.root.name}.stalled").exists():
            self.root.with_name(f"{self.root.name}.asked").touch()
            time.sleep(0.01)
        if "/targets/" in path and self.root.with_name(f"{self.root.name}.broken").exists():
            raise RuntimeError("a mistake of ours")
        return super().get(path, bytes_max=bytes_max)


STORES = {"": LocalStore, "copying": CopyingStore, "counting": CountingStore, "stalling": StallingStore}


def odd_store(uri: str) -> Store:
    return STORES[os.environ.get(ODD_STORE, "")](Path(uri))


if __name__ == "__main__":
    be_patient()
    upkeep.LOOK_FIRST_S, upkeep.LOOK_S_MAX, upkeep.TRUST_EVERY_S = LOOK_FIRST_S, LOOK_S_MAX, TRUST_EVERY_S
    plan_following.LOOK_EVERY_S = PLANS_EVERY_S
    opening.raw_store = odd_store
    sys.exit(cli.main())
