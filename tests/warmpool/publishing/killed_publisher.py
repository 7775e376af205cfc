"""Publishes models in processes that may kill themselves at any step, for a test that asks for one after the other.

As a process it reads a line of JSON a publish, and answers with one when that has ended. Each publish is a fork of it,
so that jax is imported once; the children that compile are forks of two zygotes that all publishes share.

    {"model": file, "store": folder, "key": file, "version": name or null, "kill": number or null, "torn": bool}
    {"status": exit status, negative for a signal, "steps": [operation, path], "summary": of the publish or null,
     "compiled": what was compiled, in words}

A step is an operation of the main thread that changes the store. Number `kill` is not done any more: the process kills
itself instead, or, `torn`, when the new object is written beside the old one, and not in its place yet. Right after a
step is right before the next: the number of the last step and one more is the end of the publish.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from cache import opening
from cache.errors import NotStored
from cache.local_store import LocalStore
from cache.settings import StoreSettings
from cache.signing import Signer
from tests.warmpool.publishing.toy import Heard
from warmpool.forking import Zygote
from warmpool.publishing import publish as publishing
from warmpool.publishing.machines import Children


class MortalStore(LocalStore):
    """Kills its process at one of the main thread's steps."""

    steps: list[tuple[str, str]] = []  # noqa: RUF012  of the only publish of this process
    kill: int | None = None
    torn = False
    _stepping = False
    _tearing = False

    def put(self, path: str, data: bytes) -> None:
        self._step("put", path, lambda: super(MortalStore, self).put(path, data))

    def put_file(self, path: str, source: Path) -> None:
        self._step("put_file", path, lambda: super(MortalStore, self).put_file(path, source))

    def delete(self, path: str) -> None:
        self._step("delete", path, lambda: super(MortalStore, self).delete(path))

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        if self._generation(path) != generation:  # it changes nothing
            return super().put_if(path, data, generation)
        return self._step("put_if", path, lambda: super(MortalStore, self).put_if(path, data, generation))

    def delete_if(self, path: str, generation: str) -> bool:
        return self._step("delete_if", path, lambda: super(MortalStore, self).delete_if(path, generation))

    def _generation(self, path: str) -> str | None:
        try:
            return self.get_versioned(path)[1]
        except NotStored:
            return None

    def _step[R](self, operation: str, path: str, call: Callable[[], R]) -> R:
        cls = type(self)
        if cls._stepping or threading.current_thread() is not threading.main_thread():
            return call()
        cls._stepping = True
        try:
            if len(cls.steps) == cls.kill:
                if not cls.torn:
                    die()
                cls._tearing = True
            result = call()
            cls.steps.append((operation, path))
            return result
        finally:
            cls._stepping = False

    @classmethod
    def replaced(cls, replace: Callable[[Path, Any], Any], unfinished: Path, target: Any) -> Any:
        if cls._tearing and threading.current_thread() is threading.main_thread():
            die()
        return replace(unfinished, target)


class SharedChildren(Children):
    """Forks of zygotes that other publishes use, too."""

    zygotes: tuple[Zygote, Zygote]

    def __enter__(self) -> Self:
        self.jax, self.jaxlib = self.zygotes
        return self

    def close(self) -> None:
        """Leave them to the others."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def publish(request: dict[str, Any], answer: int) -> None:
    """In a fork: one publish."""
    MortalStore.kill, MortalStore.torn = request["kill"], request["torn"]
    replace = Path.replace
    Path.replace = lambda self, target: MortalStore.replaced(replace, self, target)  # type: ignore[method-assign]
    opening.raw_store = lambda uri: MortalStore(Path(uri))
    vars(publishing)["Children"] = SharedChildren
    heard = Heard()
    summary = publishing.publish(
        publishing.Options(
            model_file=Path(request["model"]),
            store=StoreSettings(store=request["store"], signing_key=request["key"]),
            version=request["version"],
            platform="cpu",
        ),
        heard,
    )
    if MortalStore.kill == len(MortalStore.steps):
        die()
    told = {"version": summary.version, "compiled": summary.compiled}
    os.write(answer, json.dumps({"steps": MortalStore.steps, "summary": told, "compiled": heard.compiled}).encode())


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """What came of a publish in a fork of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            publish(request, writing)
            status = 0
        except BaseException:  # noqa: BLE001  nothing may unwind into the parent's loop
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = json.loads(data) if data else {"steps": [], "summary": None, "compiled": []}
    return {"status": status, **found}


def main() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    Signer.generate()  # imports what every fork would
    with ExitStack() as stack:
        jax_zygote, jaxlib_zygote = (stack.enter_context(Zygote.start(kind)) for kind in ("compiling", "jaxlib"))
        SharedChildren.zygotes = (jax_zygote, jaxlib_zygote)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answered(json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
