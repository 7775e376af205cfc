"""How a stack goes down: functions, instances, then what they need; and what is left where its supervisor died."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from examples.children import RunFailed
from infra.stack import marked
from infra.stack.folder import Folder
from infra.stack.services import STOP_S_MAX, tier_of
from infra.stack.supervisor import IDLE, Supervisor

SPARE_S = 10.0
POLL_S = 0.05


def take_down(folder: Folder, say: Callable[[str], None]) -> None:
    """End all processes of a stack, in order where its supervisor answers. What it keeps stays.

    Raises:
        RunFailed: One does not end, though it was killed.
    """
    supervisor = Supervisor(folder)
    running = supervisor.processes()
    if running is None:
        left = marked.marked(folder.mark)
        if left:
            say(f"no supervisor answers; what it left is ended: {len(left)} processes")
        else:
            say("the last stack ended without `down`; nothing of it runs")
        marked.send(folder.mark, signal.SIGCONT)
    else:
        for tier in sorted({tier_of(name) for name in running}, reverse=True):
            _stop(supervisor, {name for name in running if tier_of(name) == tier}, say)
        supervisor.shut_down()
    marked.send(folder.mark, signal.SIGTERM)  # what a killed `up` had started by itself, too
    if not marked.wait_gone(folder.mark, STOP_S_MAX if running is None else SPARE_S):
        killed = marked.send(folder.mark, signal.SIGKILL)
        say(f"{len(killed)} processes did not end, and were killed")
        if not marked.wait_gone(folder.mark, SPARE_S):
            raise RunFailed(f"these processes do not end: {', '.join(map(str, marked.marked(folder.mark)))}")
    folder.forget_run()


def _stop(supervisor: Supervisor, names: set[str], say: Callable[[str], None]) -> None:
    """Stop processes, all at once, and wait for their ends."""
    began_s = time.monotonic()
    pending = {
        name for name, found in (supervisor.processes() or {}).items() if name in names and found.state not in IDLE
    }
    for name in sorted(pending):
        supervisor.stop_process(name)
    while pending:
        if time.monotonic() - began_s > STOP_S_MAX + SPARE_S:
            raise RunFailed(f"supervisord does not stop {', '.join(sorted(pending))}")
        running = supervisor.processes()
        if running is None:
            return  # it ended, and what it ran with it
        for name in sorted(name for name in pending if running[name].state in IDLE):
            say(f"{name:<12} down after {time.monotonic() - began_s:.1f} s")
            pending.discard(name)
        time.sleep(POLL_S)
