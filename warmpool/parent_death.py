"""Whether this process is killed when its parent ends.

Linux sees to it, so it concerns one that stands still or hangs, too (`prctl(2)`, PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Be killed when the thread that made this process ends; not if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def outlive_parent() -> None:
    """Do not, from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
