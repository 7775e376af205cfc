"""The embed example with a plan of sixty-four buckets: one to four rows, and every length in steps of eight tokens."""

from __future__ import annotations

from examples.embed.model import CONFIG, load_params, predict
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=64, sizes=(1, 2, 3, 4), batch=True)
seq = Dim("seq", max=128, sizes=tuple(range(8, 129, 8)))

model = Model(
    name="embed",
    methods={"predict": predict},
    params=load_params,
    inputs={
        "input_ids": Tensor("int32", (batch, seq), pad=0, low=0, high=CONFIG.vocabulary - 1),
        "attention_mask": Tensor("int32", (batch, seq), pad=0, low=0, high=1),
    },
)
