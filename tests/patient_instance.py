"""`warmpool`, as a process that waits long for a run, and for what ends with it: a busy machine does not hang.

An instance takes a run for hung that lasts twenty times as long as the ones before it, if that is over ten seconds.
When it ends it gives its compile worker three seconds. And that worker is nicer than anybody, which here it is not.
"""

from __future__ import annotations

import sys

from warmpool import cli, server, watchdog
from warmpool.compiling import process


def be_patient() -> None:
    """Wait as long as the settings allow: for a run, however fast others were, and for a worker that is not nice."""
    watchdog.RUN_S_MIN = float("inf")
    server.END_S_MAX = float("inf")
    process.ENDING_S_MAX = 60.0
    process.COMMAND = (sys.executable, "-m", "tests.patient_worker")


if __name__ == "__main__":
    be_patient()
    sys.exit(cli.main())
