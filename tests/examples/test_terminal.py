"""Ctrl-C at `make run` ends in order, and make says so."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

RECIPE = """
import time
from examples.terminal import foreground
with foreground():
    try:
        print("up", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("drained", flush=True)
"""


def read_until(terminal: int, word: bytes) -> bytes:
    """What the terminal showed up to a word; the program ends itself within a minute, so this ends too."""
    shown = b""
    while word not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other side closed the terminal
            break
    return shown


def test_an_interrupt_from_the_terminal_leaves_make_with_the_recipes_status(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    script = tmp_path / "recipe.py"
    script.write_text(RECIPE)
    (tmp_path / "Makefile").write_text(f"run:\n\t@exec {sys.executable} {script}\n")
    terminal, side = pty.openpty()
    name = os.ttyname(side)
    # The leader of a new session that opens a terminal gets it as its own; forking by hand warns where jax has threads.
    command = f"exec make -f {tmp_path / 'Makefile'} run <{name} >{name} 2>&1"
    with subprocess.Popen(
        ["sh", "-c", command], start_new_session=True, env={**os.environ, "PYTHONPATH": str(root)}
    ) as make:
        assert b"up" in read_until(terminal, b"up")
        os.close(side)  # so that reading ends when nobody can write any more
        os.write(terminal, b"\x03")
        assert b"drained" in read_until(terminal, b"drained")
        assert make.wait(30) == 0
    os.close(terminal)
