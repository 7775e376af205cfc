"""Runs the commands of others, each shown before it runs; or, for a dry run, prints them as a script and runs none.

In a dry run nothing is known of what a command would have answered. A word that depends on it holds the name of a
shell variable instead, which the script sets. So the script does what the real run does where nothing fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from infra.deploy.errors import CommandFailed, UsageError

_GET = {
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "terraform": "https://developer.hashicorp.com/terraform/install",
    "podman": "https://podman.io/docs/installation",
    "git": "https://git-scm.com/downloads",
}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a person or a terminal that goes away ends a command by."""
_HOLE = re.compile(r"\0(\w+)\0")


def hole(name: str) -> str:
    """What stands, in a dry run, for the value of a variable of the script."""
    return f"\0{name}\0"


def quoted(argv: Sequence[str]) -> str:
    """The words as a POSIX shell reads them, ready to be copied."""
    return " ".join(_quoted(word) for word in argv)


def _quoted(word: str) -> str:
    if not _HOLE.search(word):
        return shlex.quote(word)
    return f'"{_HOLE.sub(r"${\1}", re.sub(r"([\\\"$`])", r"\\\1", word))}"'


def tell(text: str) -> None:
    """Write a line to standard error, or to nowhere once nobody reads it: what was begun is ended all the same."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123  os.devnull is no path of ours
            os.dup2(nowhere.fileno(), sys.stderr.fileno())  # that of the commands as well


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither this process nor the commands that it runs meanwhile end of what ENDING lists."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Shell:
    """What commands go through.

    Args:
        dry: Print a script to standard output, and run nothing.
    """

    def __init__(self, *, dry: bool = False) -> None:
        self.dry = dry

    def need(self, *tools: str) -> None:
        """Raise UsageError, which says how to get it, for the first that is not on the PATH; `a|b`: for neither."""
        for tool in () if self.dry else tools:
            if not any(shutil.which(one) for one in tool.split("|")):
                named = tool.replace("|", " or ")
                raise UsageError(f"{named} is not on the PATH; how to get it: {_GET[tool.partition('|')[0]]}")

    def say(self, text: str) -> None:
        """Tell a person what happens; standard output stays free for answers, and for the script."""
        if self.dry:
            print(f"# {_HOLE.sub(r'$\1', text)}")
        else:
            tell(f"# {text}")

    def line(self, script: str) -> None:
        """A line of the script that is no command of others; nothing, if this is no dry run."""
        if self.dry:
            print(script)

    def run(self, *argv: str) -> None:
        """Run a command whose output is for a person. Raises CommandFailed."""
        if self.dry:
            print(quoted(argv))
            return
        self._show(argv)
        self._check(argv, subprocess.run(argv, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode)

    def read(self, *argv: str, quiet: bool = False) -> str:
        """What a command writes, without the newline at its end; `quiet` where that is a secret. Not for a dry run."""
        assert not self.dry
        self._show(argv)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
            out, _ = process.communicate()
        if process.returncode and out and not quiet:
            tell(out)
        self._check(argv, process.returncode)
        return out.strip()

    def value(self, name: str, *argv: str) -> str:
        """What a command writes; in a dry run what stands for it, in the variable of this name."""
        if self.dry:
            print(f"{name}=$({quoted(argv)})")
            return hole(name)
        return self.read(*argv)

    def document(self, name: str, *argv: str) -> Document:
        """The JSON that a command writes, or what stands for it."""
        if self.dry:
            print(f"{name}=$({quoted(argv)})")
            return Document(self, name, None)
        text = self.read(*argv)
        try:
            return Document(self, name, json.loads(text))
        except ValueError:
            raise CommandFailed(f"{quoted(argv)} wrote no JSON, but {text[:200]!r}") from None

    def hand_over(self, secret: Sequence[str], to: Sequence[str]) -> None:
        """Write what the first command answers into the standard input of the second; nobody sees it."""
        if self.dry:
            print(f"{quoted(secret)} | {quoted(to)}")
            return
        text = self.read(*secret, quiet=True)
        self._show(to)
        process = subprocess.run(to, input=text, text=True, stdout=sys.stderr, check=False)
        self._check(to, process.returncode)

    def _show(self, argv: Sequence[str]) -> None:
        tell(f"+ {quoted(argv)}")

    def _check(self, argv: Sequence[str], status: int) -> None:
        if status:
            raise CommandFailed(f"{quoted(argv)} ended with status {status}")


class Document:
    """JSON that a command wrote. In a dry run it is not known, and what is picked from it is left to jq."""

    def __init__(self, shell: Shell, name: str, content: Any) -> None:
        self._shell = shell
        self._name = name
        self.content = content

    def pick(self, name: str, query: str, choose: Callable[[Any], str]) -> str:
        """What `choose` takes from it; in a dry run a variable of this name that jq fills by `query`."""
        if not self._shell.dry:
            return choose(self.content)
        print(f"{name}=$(printf '%s' \"${self._name}\" | jq -er {shlex.quote(query)})")
        return hole(name)
