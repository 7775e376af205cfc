"""Ports for servers that have to be told one: no two tests that run beside each other get the same."""

from __future__ import annotations

import os
import socket
from itertools import cycle

_FIRST, _A_WORKER, _WORKERS_MAX = 10_000, 2_000, 10  # below those that the system itself gives away
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
_start = os.getpid() % _A_WORKER  # of whom else runs them at the same time, most begin elsewhere
_ports = cycle(_FIRST + _worker * _A_WORKER + (_start + turn) % _A_WORKER for turn in range(_A_WORKER))


def free_port() -> int:
    """One that nothing is bound to on loopback."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
