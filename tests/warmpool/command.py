"""`warmpool` on the command line, in a process of its own or in this one."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from unittest import mock

import jax

from warmpool import cli

COMMAND_S_MAX = 300.0


def warmpool(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command printed and exited with."""
    return subprocess.run(
        [sys.executable, "-m", "warmpool.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env=_kept() | environment,
    )


def in_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same of a command that runs in this process, where what it imports is there and its zygotes are shared."""
    out, err = io.StringIO(), io.StringIO()
    told = logging.StreamHandler(err)  # as a process without handlers tells it
    told.setLevel(logging.WARNING)
    on_end, platforms = signal.getsignal(signal.SIGTERM), jax.config.jax_platforms
    logging.getLogger().addHandler(told)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = _called(arguments, environment)
    finally:
        logging.getLogger().removeHandler(told)
        signal.signal(signal.SIGTERM, on_end)
        jax.config.update("jax_platforms", platforms)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def _called(arguments: tuple[str, ...], environment: dict[str, str]) -> int:
    with mock.patch.dict(os.environ, environment):
        for name in os.environ.keys() - (_kept().keys() | environment.keys()):
            del os.environ[name]
        try:
            return cli.main(arguments)
        except SystemExit as wrong_usage:
            return int(wrong_usage.code or 0)


def _kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARMPOOL_"))}


def assert_one_line(result: subprocess.CompletedProcess[str], command: str, *words: str) -> None:
    """It failed, and said why in one line on standard error, with these words in it."""
    assert result.returncode == 1, result
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warmpool {command}: ")
    for word in words:
        assert word in line
