"""Ctrl-C under make: make ends with status 130 when the terminal interrupts it, however orderly its recipe ended.

So the recipe takes the terminal's foreground, as a shell does for a job; Ctrl-C then reaches it alone, and make ends
with whatever status it chose.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def foreground() -> Iterator[None]:
    """Be the terminal's foreground process group during a block, if there is a terminal and make has its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield
        return
    before = os.tcgetpgrp(terminal)
    try:
        if before == os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
            _give(terminal, os.getpgrp())
        yield
    finally:
        if before != os.getpgrp() == os.tcgetpgrp(terminal):
            _give(terminal, before)
        os.close(terminal)


def _give(terminal: int, group: int) -> None:
    """Make a process group the terminal's foreground one."""
    # Asking from behind stops a process that does not ignore this.
    ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, group)
    finally:
        signal.signal(signal.SIGTTOU, ignored)
