"""`warmpool`, as a process that waits long for a run: lanes that a test stops, or a busy machine, do not hang.

An instance takes a run for hung that lasts twenty times as long as the ones before it, if that is over ten seconds.
"""

from __future__ import annotations

import sys

from warmpool import cli, watchdog


def be_patient() -> None:
    """Wait for a run as long as the settings allow, however fast others were."""
    watchdog.RUN_S_MIN = float("inf")


if __name__ == "__main__":
    be_patient()
    sys.exit(cli.main())
