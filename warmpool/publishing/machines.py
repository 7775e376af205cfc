"""The kinds of machine a publish makes executables for on this host, and the children that do the work.

Compiles and references run in forks of a zygote that imported jax. Trials on the CPU run in forks of one that has only
jaxlib, as a CPU lane does.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self

from cache.fingerprint import Fingerprint
from warmpool.errors import PublishError
from warmpool.forking import WorkerFailed, Zygote

CHOICES = ("auto", "cpu", "cuda", "tpu")

_PLATFORMS = {"gpu": "cuda"}  # what some PJRT clients call themselves, and what jax.export does
_AS_A_LANE = {
    "describe",
    "trial",
    "reference_stored",
}  # workers that run in what a lane of the machine's mode is forked from
_COMPILE_NICE = 19


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of machine: a platform and everything else that decides whether an executable is valid there."""

    platform: str
    mode: str
    fingerprint: Fingerprint
    primary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one child may use."""

    wall_s_max: float = 600.0
    memory_bytes_max: int = 8 << 30


_OUR_OWN = Limits(
    wall_s_max=120.0, memory_bytes_max=0
)  # for what does not depend on the model; the zygote may still import


class Children:
    """The zygotes of a publish. A context manager."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.jax = self._stack.enter_context(Zygote.start("jax"))
        self.jaxlib = self._stack.enter_context(Zygote.start("jaxlib"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the zygotes and every child that still runs."""
        self._stack.close()

    def run(self, entry: str, argument: dict[str, Any], what: str) -> dict[str, Any]:
        """Run `warmpool.publishing.worker:entry` in a child.

        Args:
            entry: The function's name.
            argument: What it gets.
            what: What an error says was tried.

        Raises:
            PublishError: It failed, crashed, or went beyond its limits.
        """
        zygote = self.jaxlib if entry in _AS_A_LANE and argument["mode"] == "jaxlib" else self.jax
        nice = 0 if entry == "trial" else _COMPILE_NICE  # what is measured gets the time a lane would get
        limits = _OUR_OWN if entry == "describe" else self.limits
        try:
            return zygote.run(
                f"warmpool.publishing.worker:{entry}",
                argument,
                wall_s_max=limits.wall_s_max,
                memory_bytes_max=limits.memory_bytes_max,
                nice=nice,
            )
        except WorkerFailed as error:
            raise PublishError(f"{what} failed: {error.reason}: {error.detail}") from error

    def machines(self, choice: str) -> tuple[Machine, ...]:
        """The machines to publish for: what jax finds here ("auto") or the chosen platform, and the CPU beside it.

        Raises:
            PublishError: The chosen platform is not there.
        """
        cpu = self._describe("jaxlib", primary=True)
        if choice == "cpu":
            return (cpu,)
        first = self._describe("jax", primary=True)
        if choice not in ("auto", first.platform):
            raise PublishError(
                f"--platform {choice}: jax finds {first.platform!r} here; publish on a machine that has it"
            )
        if first.platform == "cpu":
            return (cpu,)
        return (first, Machine(cpu.platform, cpu.mode, cpu.fingerprint, primary=False))

    def _describe(self, mode: str, *, primary: bool) -> Machine:
        found = self.run("describe", {"mode": mode}, f"opening the {mode} runtime")
        platform = _PLATFORMS.get(found["platform"], found["platform"])
        return Machine(platform, mode, Fingerprint(MappingProxyType(found["ingredients"])), primary)


def worker_threads() -> int:
    """How many children run at a time: two, which is what a small machine compiles fastest with."""
    return min(2, os.cpu_count() or 1)
