"""`warmpool` on the command line, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

COMMAND_S_MAX = 300.0


def warmpool(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command printed and exited with."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}
    return subprocess.run(
        [sys.executable, "-m", "warmpool.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env=kept | environment,
    )


def assert_one_line(result: subprocess.CompletedProcess[str], command: str, *words: str) -> None:
    """It failed, and said why in one line on standard error, with these words in it."""
    assert result.returncode == 1, result
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warmpool {command}: ")
    for word in words:
        assert word in line
