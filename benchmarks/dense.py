"""The embed example with a dense plan: what any plan within it would cost can be looked up, because it was measured."""

from __future__ import annotations

from examples.embed.model import CONFIG, load_params, predict
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=64, sizes=(1, 2, 4, 8, 16), batch=True)
seq = Dim("seq", max=256, sizes=tuple(range(16, 257, 16)))

model = Model(
    name="embed",
    methods={"predict": predict},
    params=load_params,
    inputs={
        "input_ids": Tensor("int32", (batch, seq), pad=0, low=0, high=CONFIG.vocabulary - 1),
        "attention_mask": Tensor("int32", (batch, seq), pad=0, low=0, high=1),
    },
)
