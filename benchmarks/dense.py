"""The embed example with a dense plan: what any plan within it would cost can be looked up, because it was measured."""

from __future__ import annotations

from benchmarks.embed_plan import embed_with

model = embed_with(rows=(1, 2, 4, 8, 16), lengths=tuple(range(16, 257, 16)))
