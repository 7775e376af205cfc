"""How soon a thread gets a processor that another uses: who serves asks for little at a time.

A thread that wakes takes the processor from one that runs there only if that one has had what it is protected for, a
slice, or if its own slice is the shorter one. So who computes for a tenth of a millisecond and sleeps again waits up to
a tick, 4 ms, behind a load, unless it says so: it gets no more of the processor by that, but sooner. Linux takes what
a thread says of itself since 6.12 (`sched_setattr(2)`, `sched_runtime`; P. Zijlstra, EEVDF's latency requests).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

SHORT_S = 0.0001  # the least that Linux takes
OWN_S = 0.0  # the system's own
_SET, _GET = 0, 1
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}  # sched_setattr, sched_getattr
_UNIT_S = 1e-9


class _Attributes(ctypes.Structure):
    """`struct sched_attr` as it was first."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def slice_s(thread: int = 0) -> float:
    """That of a thread (0: of the calling one); 0.0 where the system does not say. Raises OSError: it is gone, say."""
    return float(_attributes(thread).runtime) * _UNIT_S


def ask_for(seconds: float) -> None:
    """Let the calling thread, and those that it will start, have such a slice.

    Elsewhere than on Linux, or where it is too old or does not allow it, nothing happens.
    """
    with contextlib.suppress(OSError):
        attributes = _attributes(0)
        attributes.runtime = round(seconds / _UNIT_S)
        _call(_SET, 0, attributes, 0)


def _attributes(thread: int) -> _Attributes:
    found = _Attributes(size=ctypes.sizeof(_Attributes))
    _call(_GET, thread, found, found.size, 0)
    return found


def _call(which: int, thread: int, attributes: _Attributes, *more: int) -> None:
    """A system call that C libraries have no function for. Raises OSError."""
    system = os.uname()
    numbers = _CALLS.get(system.machine) if system.sysname == "Linux" and sys.maxsize >> 32 else None
    if numbers is None:
        raise OSError(f"no such call is known of {system.sysname} on {system.machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(numbers[which], thread, ctypes.byref(attributes), *more):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
