"""What ends a command, each as one line that says what to do.

DeployError
├── UsageError        the caller's words: a setting, a flag, a tool that is missing, a confirmation (exit status 2)
└── CommandFailed     a command that was run ended with another status than 0 (exit status 1)
"""

from __future__ import annotations


class DeployError(Exception):
    """It did not work; the message is one line."""

    status = 1


class UsageError(DeployError):
    """It was not tried, since something that the caller has to give is missing or wrong."""

    status = 2


class CommandFailed(DeployError):
    """A command ended with another status than 0."""
