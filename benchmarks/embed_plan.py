"""The embed example with another plan of buckets."""

from __future__ import annotations

from examples.embed.model import CONFIG, load_params, predict
from warmpool.model import Dim, Model, Tensor


def embed_with(rows: tuple[int, ...], lengths: tuple[int, ...]) -> Model:
    """The example with these sizes of batches and of texts, in tokens, in all combinations; callers send the mask."""
    batch = Dim("batch", max=64, sizes=rows, batch=True)
    seq = Dim("seq", max=lengths[-1], sizes=lengths)
    return Model(
        name="embed",
        methods={"predict": predict},
        params=load_params,
        inputs={
            "input_ids": Tensor("int32", (batch, seq), pad=0, low=0, high=CONFIG.vocabulary - 1),
            "attention_mask": Tensor("int32", (batch, seq), pad=0, low=0, high=1),
        },
    )
