"""The digits example with buckets up to 256 rows, for callers who send as many at a time."""

from __future__ import annotations

from examples.digits.files import checkpoint
from examples.digits.model import predict
from examples.digits.network import PIXEL_MAX
from warmpool.model import Dim, Model, Tensor

batch = Dim("batch", max=256, sizes=(1, 4, 16, 64, 256), batch=True)

model = Model(
    name="digits",
    methods={"predict": predict},
    params=checkpoint(),
    inputs={"image": Tensor("float32", (batch, 8, 8), low=0.0, high=PIXEL_MAX)},
)
