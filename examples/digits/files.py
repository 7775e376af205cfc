"""Where the digits example keeps its trained weights: the trainer, the model and `make run` agree on it here."""

from __future__ import annotations

import os
from pathlib import Path


def checkpoint() -> Path:
    """The folder that `WARMPOOL_DIGITS_CHECKPOINT` names, by default one beside this file."""
    return Path(os.environ.get("WARMPOOL_DIGITS_CHECKPOINT") or Path(__file__).resolve().parent / "checkpoint")
