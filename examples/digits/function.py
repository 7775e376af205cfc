"""A picture or numbers in, a digit out: the digits model's HTTP function.

POST /digits (content-type image/png) a picture of one digit
POST /digits {"images": [[8 rows of 8 numbers from 0, paper, to 16, ink], ...]}
-> {"labels": [7], "probabilities": [[10 numbers]], "served": {...}}
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from examples.body import Body, read
from examples.digits.picture import SIDE, pixels_of
from functions.inference import inference_function
from warmpool import wire

if TYPE_CHECKING:
    from starlette.requests import Request

    from functions.pool import BoundPool

IMAGES_MAX = 256

Row = Annotated[list[float], msgspec.Meta(min_length=SIDE, max_length=SIDE)]
Image = Annotated[list[Row], msgspec.Meta(min_length=SIDE, max_length=SIDE)]


class Images(Body, frozen=True, kw_only=True):
    """What a caller without a picture sends."""

    images: Annotated[list[Image], msgspec.Meta(min_length=1, max_length=IMAGES_MAX)]


@inference_function(model="digits")
async def digits(request: Request, pool: BoundPool) -> dict[str, Any]:
    """Read the picture or the numbers, classify, and give every class's probability."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "image/png":
        # In a thread: 4 million pixels take 0.1 s, which the other requests of this process would wait out.
        images = [await asyncio.to_thread(pixels_of, await request.body())]
    else:
        images = (await read(request, Images)).images
    result = await pool.infer({"image": wire.Tensor.of("FP32", images)})
    return {
        "labels": result["label"].tolist(),
        "probabilities": result["probabilities"].tolist(),
        "served": result.served,
    }
