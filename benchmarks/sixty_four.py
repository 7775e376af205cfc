"""The embed example with a plan of sixty-four buckets: one to four rows, and every length in steps of eight tokens."""

from __future__ import annotations

from benchmarks.embed_plan import embed_with

model = embed_with(rows=(1, 2, 3, 4), lengths=tuple(range(8, 129, 8)))
