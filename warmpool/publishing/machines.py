"""The kinds of machine a publish makes executables for on this host, and the children that do the work.

Compiles and references run in forks of a zygote that imported jax. Trials on the CPU run in forks of one that has only
jaxlib, as a CPU lane does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self

from cache.fingerprint import Fingerprint
from warmpool.errors import PublishError
from warmpool.forking import WorkerFailed, Zygote

GIB = 1 << 30
CHOICES = ("auto", "cpu", "cuda", "tpu")
AT_A_TIME = 2  # which is what a small machine compiles fastest with

_PLATFORMS = {"gpu": "cuda"}  # what some PJRT clients call themselves, and what jax.export does
_AS_A_LANE = {
    "answers",
    "describe",
    "lanes",
    "trial",
    "reference_stored",
}  # workers that run in what a lane of the machine's mode is forked from
_COMPILE_NICE = 19
_WITHOUT_EFFECT = re.compile(  # on what a child compiles, which sets its platform and uses no cache of JAX's
    r"JAX_(PLATFORMS|PLATFORM_NAME|ENABLE_X64|(ENABLE_|PERSISTENT_)?COMPILATION_CACHE\w*|PERSISTENT_CACHE\w*"
    r"|LOG\w*|DEBUG_LOG\w*|TRACEBACK\w*|EXPLAIN_CACHE_MISSES|DUMP_IR\w*)"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of machine: a platform and everything else that decides whether an executable is valid there."""

    platform: str
    mode: str
    fingerprint: Fingerprint
    primary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one child may use: time, CPU time of all its threads (0: any), private memory (0: any)."""

    wall_s_max: float = 600.0
    cpu_s_max: float = 3600.0
    memory_bytes_max: int = 8 << 30

    def __str__(self) -> str:
        cpu = f"{self.cpu_s_max:g} s of CPU time" if self.cpu_s_max else "any CPU time"
        memory = f"{self.memory_bytes_max / GIB:g} GiB" if self.memory_bytes_max else "any memory"
        return f"{self.wall_s_max:g} s, {cpu} and {memory}"


_OUR_OWN = Limits(
    wall_s_max=120.0, cpu_s_max=0.0, memory_bytes_max=0
)  # for what does not depend on the model; the zygote may still import


class Children:
    """The zygotes of a publish. A context manager.

    Attributes:
        limits: Of each child.
        at_a_time: How many children run at a time, at most.
    """

    def __init__(self, limits: Limits, at_a_time: int = AT_A_TIME) -> None:
        self.limits = limits
        self.at_a_time = at_a_time
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.jax = self._stack.enter_context(Zygote.start("compiling"))
        self.jaxlib = self._stack.enter_context(Zygote.start("jaxlib"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether a child that failed did so by itself, and not because what it was forked from is gone."""
        return self.jax.process.poll() is None and self.jaxlib.process.poll() is None

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
                cpu_s_max=limits.cpu_s_max,
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


def worker_threads(platform: str, at_a_time: int = AT_A_TIME) -> int:
    """How many children run at a time. Only one process can hold a TPU."""
    return 1 if platform == "tpu" else min(at_a_time, os.cpu_count() or 1)


def compile_options(environment: Mapping[str, str]) -> dict[str, str]:
    """What JAX is told by environment variables, as a part of every key: some of them change what is compiled.

    Which do, differs between JAX's versions. One that does not, and is not known here, costs a compile at most.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith("JAX_") and not _WITHOUT_EFFECT.fullmatch(name)
    }
