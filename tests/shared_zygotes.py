"""The zygotes of all publishes of one process of tests: jax is imported once, and not by each publish again.

A publish whose environment a test changed gets zygotes of its own, as does one in another thread, and whatever a test
starts as a process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType

from warmpool.forking import Preload, Zygote
from warmpool.publishing.machines import Children

_OF_PYTEST = "PYTEST_CURRENT_TEST"


def _environment() -> Mapping[str, str]:
    return MappingProxyType({name: value for name, value in os.environ.items() if name != _OF_PYTEST})


class SharedZygotes:
    """Started when they are first asked for, and again where a test ended one."""

    def __init__(self) -> None:
        self._zygotes: dict[Preload, Zygote] = {}
        self._environment = _environment()

    def fits(self) -> bool:
        """Whether what is here now would be the same in zygotes of one's own."""
        return threading.current_thread() is threading.main_thread() and _environment() == self._environment

    def get(self, preload: Preload) -> Zygote:
        zygote = self._zygotes.get(preload)
        if zygote is None or zygote.process.poll() is not None:
            zygote = self._zygotes[preload] = Zygote.start(preload)
        return zygote

    def close(self) -> None:
        with ExitStack() as stack:
            for zygote in self._zygotes.values():
                stack.callback(zygote.close)


@contextmanager
def shared_zygotes() -> Iterator[None]:
    """Until the end, publishes in this process share their zygotes."""
    zygotes = SharedZygotes()
    enter = Children.__enter__

    def entered(children: Children) -> Children:
        if not zygotes.fits():
            return enter(children)
        children.jax, children.jaxlib = zygotes.get("compiling"), zygotes.get("jaxlib")
        return children

    Children.__enter__ = entered  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Children.__enter__ = enter  # type: ignore[method-assign]
        zygotes.close()
