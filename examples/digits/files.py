"""Where the digits example keeps its trained weights: the trainer, the model and `make run` agree on it here."""

from __future__ import annotations

import os
from pathlib import Path

CHECKPOINT = Path(os.environ.get("WARMPOOL_DIGITS_CHECKPOINT") or Path(__file__).resolve().parent / "checkpoint")
