"""One of a fleet that wants an artifact: `main` in a process of its own.

It says "ready" when it has opened the store, starts when it is told to on standard input, and prints one JSON object
that says what it got. What it makes, it notes in a folder that the whole fleet shares.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from cache.artifact import Header, pack, unpack
from cache.errors import CacheError, NotStored
from cache.opening import raw_store
from cache.signing import ANYONE
from cache.single_flight import Terms, fetch_or_make
from cache.store import Store

KEY = "a" * 64
PATH = f"executables/{KEY}"
WAIT_S_MAX = 120.0


class Member:
    """One process of the fleet.

    Args:
        store: Where the artifact belongs.
        shared: The folder where the fleet notes what it makes.
        gated: Whether a maker waits for a file named `<its pid>.go` there.
        kind: What it makes: "bytes", "jax" (a real executable), "error".
    """

    def __init__(self, store: Store, shared: Path, kind: str, *, gated: bool) -> None:
        self.store = store
        self.shared = shared
        self.kind = kind
        self.gated = gated
        self.made = False

    def found(self) -> bytes | None:
        """The payload, verified."""
        try:
            _, payload = unpack(self.store.get(PATH), key=KEY, trust=ANYONE)
        except NotStored:
            (self.shared / f"{os.getpid()}.missed").touch()
            return None
        return bytes(payload)

    def make(self) -> bytes:
        (self.shared / f"{os.getpid()}.made").touch()
        self.made = True
        if self.gated:
            wait_for(self.shared / f"{os.getpid()}.go")
        if self.kind == "error":
            raise RuntimeError(f"no such operation, see /home/{os.getpid()}/somebody/program.mlir:3")
        payload = compiled() if self.kind == "jax" else f"made by {os.getpid()}".encode()
        self.store.put(PATH, pack(Header(key=KEY, ingredients={}), payload))
        return payload


def compiled() -> bytes:
    """A real executable. Only who makes it imports jax."""
    import jax
    import jax.numpy as jnp

    from cache.executable import serialize

    function = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(axis=0))
    return serialize(function.lower(jax.ShapeDtypeStruct((4, 4), jnp.float32)).compile())


def wait_for(file: Path) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited for {file.name} in vain")
        time.sleep(0.01)


def main(options: dict[str, Any]) -> None:
    """Take part in one flight."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    if options["emulator"]:
        os.environ["STORAGE_EMULATOR_HOST"] = options["emulator"]
    if skew_s := options.get("skew_s"):
        really = time.time
        time.time = lambda: really() + skew_s
    member = Member(raw_store(options["store"]), Path(options["shared"]), options["kind"], gated=options["gated"])
    tell("ready")
    sys.stdin.readline()
    result: dict[str, Any] = {"error": None, "payload": None}
    try:
        payload = fetch_or_make(
            member.store, KEY, member.found, member.make, what="the toy", terms=Terms(**options["terms"])
        )
        result["payload"] = hashlib.sha256(payload).hexdigest()
    except CacheError as error:
        result["error"] = f"{type(error).__name__}: {error}"
    tell(json.dumps(result | {"made": member.made, "jax": "jax" in sys.modules}))


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
