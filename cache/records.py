"""JSON that anybody may have written: it is read, or it is no record, and never ends who reads it."""

from __future__ import annotations

from typing import Any

import msgspec

RECORD_BYTES_MAX = 1 << 16  # of what a fleet tells itself
READ_BYTES_MAX = RECORD_BYTES_MAX + 1  # enough to see that something is larger


def decoded[R](data: bytes | memoryview, kind: type[R] = Any) -> R:  # type: ignore[assignment]
    """A record out of its JSON.

    Raises:
        msgspec.MsgspecError: It is none; also where it is nested more deeply than can be read.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None


def coordinated[R](data: bytes, kind: type[R]) -> R:
    """The same of what a fleet tells itself, which is small: at most 65536 bytes."""
    if len(data) > RECORD_BYTES_MAX:
        raise msgspec.DecodeError(f"a record has at most {RECORD_BYTES_MAX} bytes, this one has more")
    return decoded(data, kind)
