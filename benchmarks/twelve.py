"""The embed example with a plan of twelve buckets, up to four rows of 128 tokens.

The example's own plan goes to eight rows of 256 tokens. Running its twenty buckets once takes longer than all else of a
start, on either side, and says how fast a processor multiplies, not how fast a server starts.
"""

from __future__ import annotations

from examples.embed.model import CONFIG, load_params, predict
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=64, sizes=(1, 2, 4), batch=True)
seq = Dim("seq", max=128, sizes=(16, 32, 64, 128))

model = Model(
    name="embed",
    methods={"predict": predict},
    params=load_params,
    inputs={
        "input_ids": Tensor("int32", (batch, seq), pad=0, low=0, high=CONFIG.vocabulary - 1),
        "attention_mask": Tensor("int32", (batch, seq), pad=0, low=0, high=1),
    },
)
