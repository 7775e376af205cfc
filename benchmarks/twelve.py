"""The embed example with a plan of twelve buckets, up to four rows of 128 tokens.

The example's own plan goes to eight rows of 256 tokens. Running its twenty buckets once takes longer than all else of a
start, on either side, and says how fast a processor multiplies, not how fast a server starts.
"""

from __future__ import annotations

from benchmarks.embed_plan import embed_with

model = embed_with(rows=(1, 2, 4), lengths=(16, 32, 64, 128))
