"""Holds what a publish does in its children, so that a test and not the machine's speed says what comes first."""

from __future__ import annotations

from pathlib import Path

# Python runs this at its start. Who is in that function then waits where it first opens an executable's file.
_HOLD = """
import os, sys, time

let_pid = None

def worker():
    frame = sys._getframe()
    while frame and frame.f_code.co_name != os.environ["HELD"]:
        frame = frame.f_back
    return frame

def let(folder):
    for name in os.listdir(folder):
        if name == "all":
            return True
        try:
            os.unlink(os.path.join(folder, name))
            return True
        except FileNotFoundError:  # another one went with it
            pass
    return False

def hold(event, arguments):
    global let_pid
    if event == "open" and "/artifact-" in str(arguments[0]) and let_pid != os.getpid() and worker():
        while not let(os.environ["LET"]):
            time.sleep(0.005)
        let_pid = os.getpid()

sys.addaudithook(hold)
"""


class HeldWorkers:
    """One kind of child, held where it opens the executable that it makes or tries.

    Args:
        folder: Where it keeps its files; it is made.
        worker: The name of the function in `warmpool.publishing.worker`.

    Attributes:
        environment: What a publish has to be started with.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._let = folder / "let"
        self._let.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text(_HOLD)
        self.environment = {"PYTHONPATH": str(folder), "HELD": worker, "LET": str(self._let)}

    def let_one(self) -> None:
        """Let one go on, unless the last one that was let has not come yet."""
        (self._let / "one").touch()

    def let_all(self) -> None:
        """Hold no more."""
        (self._let / "all").touch()
