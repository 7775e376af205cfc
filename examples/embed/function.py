"""Texts in, unit vectors out: the embed model's HTTP function.

POST /embed {"texts": ["one text", "another"]}
-> {"vectors": [[384 numbers], ...], "tokens": [4, 3], "truncated": [false, false], "served": {...}}
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from tokenizers import Tokenizer

from examples.body import Body, read
from examples.embed.files import model_folder
from functions.inference import inference_function
from warmpool import wire

if TYPE_CHECKING:
    from starlette.requests import Request

    from functions.pool import BoundPool

TEXTS_MAX = 64
TEXT_CHARACTERS_MAX = 20_000  # tokenising 64 such texts takes about 0.2 s of a core
TOKENS_MAX = 256  # what the model was trained with


class Texts(Body, frozen=True, kw_only=True):
    """What a caller sends."""

    texts: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]],
        msgspec.Meta(min_length=1, max_length=TEXTS_MAX),
    ]


@cache
def tokenizer() -> Tokenizer:
    """The model's own tokeniser; long texts are cut, short ones padded to the longest beside them."""
    result = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    result.enable_truncation(TOKENS_MAX)
    result.enable_padding()
    return result


@inference_function(model="embed")
async def embed(request: Request, pool: BoundPool) -> dict[str, Any]:
    """Tokenise, embed, and say of each text how many tokens it had and whether it was cut."""
    texts = (await read(request, Texts)).texts
    # In a thread: 64 long texts take 55 ms, which the other requests of this process would wait out.
    encodings = await asyncio.to_thread(tokenizer().encode_batch, texts)
    masks = [encoding.attention_mask for encoding in encodings]
    inputs = {
        "input_ids": wire.Tensor.of("INT32", [encoding.ids for encoding in encodings]),
        "attention_mask": wire.Tensor.of("INT32", masks),
    }
    result = await pool.infer(inputs)
    return {
        "vectors": result["output"].tolist(),
        "tokens": [sum(mask) for mask in masks],
        "truncated": [bool(encoding.overflowing) for encoding in encodings],
        "served": result.served,
    }
