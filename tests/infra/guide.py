"""The guides under docs/guides as tests see them: what their blocks hold, and a shell that runs them as a reader would.

```console        is run; lines that begin with `$ ` are commands, the others what they show, if a guide shows it.
                  `...` stands for anything, in a line or for lines; `(exit status N)` for another status than 0.
                  CHECKOUT is the folder of this repository: of a copy, which a guide may change and push from.
```console cloud  needs an account: each of its commands asks a cloud. They are checked, not run.
```python NAME    is the file NAME in the reader's folder.
```yaml           is a workflow, ```text is a picture; neither holds a command.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.infra.checkout import PERSON, checked_out

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))
COMMAND_S_MAX = 1200.0  # images, where nothing of them was built before
KINDS = ("console", "console cloud", "python NAME", "yaml", "text")
# Settings of what is tested, and what says, within a hook of git's, that every repository is the one of the hook.
_OURS = ("OTEL_", "WARMPOOL_", "MAKE", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"\(exit status (\d+)\)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what a guide says it shows."""

    text: str
    shown: tuple[str, ...]
    status: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its info string, and what is in it."""

    info: str
    text: str

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block."""
        found: list[Command] = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            statuses = [int(match[1]) for line in lines if (match := _STATUS.fullmatch(line))]
            shown = tuple(line for line in lines if not _STATUS.fullmatch(line))
            found.append(Command(command, shown, *statuses))
        return found


def blocks(guide: Path) -> list[Block]:
    """All of a guide, in order."""
    return [Block(info.strip(), text) for info, text in _BLOCK.findall(guide.read_text())]


def agrees(shown: tuple[str, ...], said: str) -> bool:
    """Whether a command said what is shown; with nothing shown, whatever it said."""
    pattern = "".join(
        r"(?s:.*?)" if line == "..." else r"[^\n]*".join(map(_loosely, line.split("..."))) + r"[ ]*\n" for line in shown
    )
    return not shown or re.fullmatch(pattern, said.rstrip("\n") + "\n") is not None


def _loosely(text: str) -> str:
    """Of columns, which are as wide as what is in them, only the words count."""
    return re.sub(r"(\\ )+", " +", re.escape(text))


class Reader:
    """A person with a shell in a folder of their own, the environment of this project, and ports that are free.

    Args:
        folder: An empty folder.
        ports: The port that is free, by the one that the guides name.
        variables: Of the environment, beside our own.
        lacking: Beginnings of commands that cannot be run on this machine; they are left out.

    Attributes:
        port: That of the instance of the guides.
        checkout: The copy that the guide has which was followed last, of those that want one.
        left_out: The commands that were not run.
    """

    checkout: Path

    def __init__(
        self, folder: Path, ports: dict[int, int], variables: dict[str, str], lacking: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.left_out: list[str] = []
        self._lacking = lacking
        self._ports = ports
        self.port = ports[8000]
        self.tools = tools = folder / ".tools"
        tools.mkdir()
        # What runs our own code, as the stack does, runs that which is installed.
        where = f'case "$1" in up|down|logs|stack-status) set -- -C "{ROOT}" "$@";; esac'
        self._tool(tools, "make", f'{where}\nexec "{shutil.which("make")}" --no-print-directory "$@"')
        if shutil.which("podman"):
            ours = f'exec env PYTHONPATH="{ROOT}" "{sys.executable}" "{Path(__file__).with_name("podman_here.py")}"'
            self._tool(tools, "podman", f'{ours} "{tools}" "$@"')
        warmpool = Path(sys.executable).with_name("warmpool")
        asking = f'case "$1" in status|traces) set -- "$@" --url "http://127.0.0.1:{ports[8000]}";; esac'
        self._tool(tools, "warmpool", f'{asking}\nexec "{warmpool}" "$@"')
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        installed = (warmpool.parent, ROOT / ".venv-tools/bin")
        kept["PATH"] = os.pathsep.join([str(tools), *map(str, installed), os.environ["PATH"]])
        self._environment = {**PERSON, "UV_SYSTEM_CERTS": "1", **kept, **variables, "NO_COLOR": "1"}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=self._environment,
        )  # fmt: skip

    def _tool(self, folder: Path, name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    def run(self, command: str) -> tuple[int, str]:
        """The status of a command, and what it said, whatever its colours."""
        for named, port in self._ports.items():
            command = command.replace(f"localhost:{named}", f"127.0.0.1:{port}")
        if "CHECKOUT" in command:
            command = command.replace("CHECKOUT", str(self.checkout))
        written, said = self.folder / ".command", self.folder / ".said"
        written.write_text(f"{command}\n")
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"source {written} >{said} 2>&1 </dev/null; echo $?\n")
        self._shell.stdin.flush()
        readable, _, _ = select.select([self._shell.stdout], [], [], COMMAND_S_MAX)
        assert readable, f"{command} took more than {COMMAND_S_MAX} s, and said {said.read_text()}"
        return int(self._shell.stdout.readline()), _COLOUR.sub("", said.read_text(errors="replace"))

    def follow(self, guide: Path, *, within_checkout: bool = False) -> None:
        """Do all that a guide says, in our folder or in a checkout, which is as it is here; and see what it shows."""
        if within_checkout or "CHECKOUT" in guide.read_text():
            self.checkout = checked_out(self.folder / f".{guide.stem}", self._environment)
        if within_checkout:
            self.run("cd CHECKOUT")
        for block in blocks(guide):
            kind, _, name = block.info.partition(" ")
            if kind == "python":
                (self.folder / name).write_text(block.text)
            for command in block.commands if block.info == "console" else ():
                self._do(command, guide.name)

    def _do(self, command: Command, guide: str) -> None:
        if command.text.startswith(self._lacking):
            self.left_out.append(command.text)
            return
        status, said = self.run(command.text)
        where = f"{guide}: $ {command.text}\n"
        assert status == command.status, f"{where}ended with {status}, and said\n{said}"
        shown = "\n".join(command.shown)
        assert agrees(command.shown, said), f"{where}is shown to say\n{shown}\nbut said\n{said}"

    def end(self) -> None:
        """Leave the shell, and end what still runs in its background."""
        if self._shell.poll() is None:
            self.run("kill $(jobs -p) 2>/dev/null; wait")
        self._shell.communicate(timeout=60)


def lists(line: str) -> Iterator[str]:
    """The pipelines of a line: of lists and loops each."""
    for part in re.split(r"\|\||&&|;", re.sub(r"(?<=;) *\b(do|done)\b", ";", line)):
        if part.strip() and part.split()[0] != "for":
            yield part.strip()


def words(text: str) -> Iterator[str]:
    """The single commands of a line: those of lists, loops and substitutions, too."""
    inner = re.findall(r"\$\(([^)]*)\)", text)
    outer = re.sub(r"\$\([^)]*\)", "it", text)
    for part in (*inner, *lists(outer)):
        yield from (one.strip() for one in part.split("|"))
