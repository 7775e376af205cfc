from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from examples.digits.function import digits
from examples.embed.function import TEXT_CHARACTERS_MAX, embed
from examples.main import main
from examples.options.function import options
from tests.examples.fake_pool import FakePool, request
from tests.examples.pictures import ink_on_paper, png_of
from warmpool import wire

ROOT = Path(__file__).parents[2]
CONTRACT = {"spot": 100, "strike": 110, "rate": 0.03, "volatility": 0.2, "maturity": 0.5}


def answer_of(function: Any, pool: FakePool, sent: Request) -> Any:
    """What the author's coroutine returns, without the framework around it."""
    return asyncio.run(function.__wrapped__(sent, pool))


def posted(target: Any, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
    """Status and JSON of the whole function, for a body that never gets as far as the pool."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response: Response = asyncio.run(target(request(data, content_type)))
    return response.status_code, json.loads(bytes(response.body))


def test_embed_pads_to_the_longest_text_and_returns_a_vector_for_each() -> None:
    pool = FakePool(
        lambda inputs: {"output": wire.Tensor.of("FP32", [[sum(row), 0.5] for row in inputs["attention_mask"]])}
    )
    answer = answer_of(embed, pool, request(json.dumps({"texts": ["hello", "hello hello hello"]}).encode()))
    assert pool.shapes == {"input_ids": ("INT32", (2, 5)), "attention_mask": ("INT32", (2, 5))}
    assert pool.calls[0][1]["input_ids"].tolist() == [[101, 7592, 102, 0, 0], [101, 7592, 7592, 7592, 102]]
    assert answer == {
        "vectors": [[3, 0.5], [5, 0.5]],
        "tokens": [3, 5],
        "truncated": [False, False],
        "served": {"lane": "primary"},
    }


def test_embed_cuts_a_text_of_more_than_256_tokens_and_says_so() -> None:
    pool = FakePool(lambda inputs: {"output": wire.Tensor.of("FP32", [[0.0]] * len(inputs["input_ids"]))})
    answer = answer_of(embed, pool, request(json.dumps({"texts": ["word " * 300, "word"]}).encode()))
    assert pool.shapes["input_ids"] == ("INT32", (2, 256))
    assert (answer["tokens"], answer["truncated"]) == ([256, 3], [True, False])


def test_digits_sends_a_picture_as_eight_by_eight_numbers() -> None:
    pool = FakePool(
        lambda inputs: {
            "label": wire.Tensor.of("INT32", [7]),
            "probabilities": wire.Tensor.of("FP32", [[sum(map(sum, inputs["image"][0])) / 1024] + [0.0] * 9]),
        }
    )
    full = png_of(ink_on_paper(np.diag([16.0] * 8)))
    answer = answer_of(digits, pool, request(full, "image/png"))
    assert pool.shapes == {"image": ("FP32", (1, 8, 8))}
    assert answer["labels"] == [7]
    assert answer["probabilities"][0][0] == 8 * 16 / 1024


def test_digits_takes_numbers_as_they_are() -> None:
    pool = FakePool(
        lambda inputs: {
            "label": wire.Tensor.of("INT32", [int(image[0][0]) for image in inputs["image"]]),
            "probabilities": wire.Tensor.of("FP32", [[1.0] * 10 for _ in inputs["image"]]),
        }
    )
    images = np.zeros((3, 8, 8))
    images[:, 0, 0] = [4, 5, 6]
    answer = answer_of(digits, pool, request(json.dumps({"images": images.tolist()}).encode()))
    assert answer["labels"] == [4, 5, 6]


@pytest.mark.parametrize(("method", "inputs"), [("price", 6), ("greeks", 6), ("monte_carlo", 7)])
def test_options_turns_contracts_into_columns_and_back(method: str, inputs: int) -> None:
    pool = FakePool(
        lambda columns: {
            "price": wire.Tensor.of("FP32", columns["spot"]),
            "other": wire.Tensor.of("FP32", columns["strike"]),
        }
    )
    contracts = [CONTRACT, {**CONTRACT, "spot": 90, "is_call": False, "seed": 5}]
    answer = answer_of(options, pool, request(json.dumps({"method": method, "contracts": contracts}).encode()))
    asked, columns = pool.calls[0]
    assert asked == method
    assert len(columns) == inputs
    assert columns["is_call"].tolist() == [True, False]
    assert answer["results"] == [{"price": 100, "other": 110}, {"price": 90, "other": 110}]
    if method == "monte_carlo":
        assert columns["seed"].tolist() == [0, 5]


REFUSED = [
    (embed, b"{", "body: not valid JSON"),
    (embed, {}, "body: Object missing required field `texts`"),
    (embed, {"texts": []}, "texts: Expected `array` of length >= 1"),
    (embed, {"texts": ["a"] * 65}, "texts: Expected `array` of length <= 64"),
    (embed, {"texts": ["a", 5]}, "texts[1]: Expected `str`, got `int`"),
    (embed, {"texts": ["a" * (TEXT_CHARACTERS_MAX + 1)]}, "texts[0]: Expected `str` of length <= 20000"),
    (embed, {"texts": ["a"], "text": "b"}, "body: Object contains unknown field `text`"),
    (digits, {"images": [[[0] * 8] * 7]}, "images[0]: Expected `array` of length >= 8"),
    (digits, {"images": [[[0] * 9] * 8]}, "images[0][0]: Expected `array` of length <= 8"),
    (digits, {"images": [[["x"] * 8] * 8]}, "images[0][0][0]: Expected `float`, got `str`"),
    (options, {"contracts": [{**CONTRACT, "spot": None}]}, "contracts[0].spot: Expected `float`, got `null`"),
    (options, {"contracts": [CONTRACT], "method": "guess"}, "method: Invalid enum value 'guess'"),
    (options, {"contracts": [{**CONTRACT, "seed": -1}]}, "contracts[0].seed: Expected `int` >= 0"),
    (options, {"contracts": [{**CONTRACT, "spot": 1e300}]}, "allowed: a number in the range of FP32"),
]


@pytest.mark.parametrize(("target", "body", "message"), REFUSED)
def test_a_body_that_does_not_fit_is_refused_with_the_field_named(target: Any, body: Any, message: str) -> None:
    status, answer = posted(target, body)
    assert status == 400
    assert message in answer["error"]


def test_a_picture_is_decoded_apart_from_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    really = Image.open

    def noted(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return really(*arguments, **named)

    monkeypatch.setattr(Image, "open", noted)
    posted(digits, b"no picture", "image/png")
    assert len(threads) == 1
    assert threads != [threading.main_thread().name]


def test_a_broken_picture_is_refused() -> None:
    assert posted(digits, b"no picture", "image/png")[0] == 400


def test_the_index_names_every_function_and_unknown_paths_are_not_found() -> None:
    index = asyncio.run(main(request(b"", path="/", verb="GET")))
    assert list(json.loads(bytes(index.body))["functions"]) == ["/digits", "/embed", "/options"]
    unknown = asyncio.run(main(request(b"{}", path="/nope/embed")))
    assert unknown.status_code == 404
    assert json.loads(bytes(unknown.body)) == {"error": "path: got /nope; allowed: /digits, /embed, /options"}


@pytest.mark.parametrize("name", ["digits", "embed", "options"])
def test_the_first_segment_of_the_path_chooses_the_function(name: str) -> None:
    refused = asyncio.run(main(request(b"{}", path=f"/{name}/and/more")))
    missing = {"digits": "images", "embed": "texts", "options": "contracts"}[name]
    assert json.loads(bytes(refused.body)) == {"error": f"body: Object missing required field `{missing}`"}
    by_get = asyncio.run(main(request(b"", path=f"/{name}", verb="GET")))
    assert (by_get.status_code, by_get.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("module", ["embed.function", "digits.function", "options.function", "main"])
def test_importing_a_function_loads_no_array_library(module: str) -> None:
    heavy = {"jax", "jaxlib", "numpy", "flax", "orbax"}
    code = f"import sys, examples.{module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
