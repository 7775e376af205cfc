"""Asks before something is done that cannot be undone."""

from __future__ import annotations

import sys

from infra.deploy.errors import UsageError
from infra.deploy.shell import Shell

WORD = "yes"


def confirm(shell: Shell, what: str, env: str, given: str) -> None:
    """Return if a person wants it: CONFIRM=yes beforehand, or the name of the environment typed now.

    Raises:
        UsageError: They do not, or nobody is there to be asked.
    """
    if shell.dry or given == WORD:
        return
    if given:
        raise UsageError(f"CONFIRM is {given!r}, allowed: {WORD}")
    if not sys.stdin.isatty():
        raise UsageError(f"{what} needs CONFIRM={WORD}, or somebody at a terminal who types the environment's name")
    print(f"{what}. Type {env} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != env:
        raise UsageError(f"not confirmed: {env} was not typed, nothing is changed")
