"""Gaps made by hand: of one model with the dimensions batch and seq."""

from __future__ import annotations

from typing import Any

from tests.warmpool.served import BATCH, SEQ, method, tensor
from warmpool.compiling.backlog import Now
from warmpool.compiling.gaps import Gap
from warmpool.compiling.order import Ranked
from warmpool.compiling.protocol import Place

METHOD = method([tensor("x", "int32", "batch", "seq")], [tensor("y", "int32", "batch")], dims=(BATCH, SEQ))


def gap(batch: int = 1, seq: int = 16, **changes: Any) -> Gap:
    """A gap of METHOD; its key names its sizes."""
    name = changes.pop("method", "predict")
    ladder = changes.get("ladder", False)
    fields: dict[str, Any] = {
        "model": "tiny",
        "version": "1",
        "fingerprint": "f",
        "place": Place(name, f"batch={batch},seq={seq}", ladder),
        "bucket": {"batch": batch, "seq": seq},
        "ladder": False,
        "minimum": False,
        "key": f"{name} {batch} {seq} {ladder}",
        "program": "p",
        "batch": "batch",
    }
    return Gap(**fields | changes)


def as_found(*gaps: Gap) -> list[Ranked]:
    """Gaps in this order."""
    return [Ranked(one, float(-index)) for index, one in enumerate(gaps)]


def at(seconds: float) -> Now:
    """Both clocks."""
    return Now(seconds, 1e9 + seconds)
