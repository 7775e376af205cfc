"""What ends a command of the stack, in one line for the person who gave it."""

from __future__ import annotations


class StackFailed(Exception):
    """Something that the stack needs did not work; the message says what, and what to do."""
