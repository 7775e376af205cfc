from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.connection import Response
from benchmarks.questions import WrongAnswer, contract, padded_sentence, sentence, v2_output
from tests.examples.reference_options import Option
from warmpool import wire


def test_an_answer_that_is_off_by_more_than_allowed_is_told() -> None:
    question = sentence()
    vectors = question.expected.copy()
    vectors[0, 7] += 2e-4
    with pytest.raises(WrongAnswer, match=r"off by 2\.00e-04"):
        question.check_peer(Response(200, b"", json.dumps({"vectors": vectors.tolist()}).encode()), "the peer")
    with pytest.raises(WrongAnswer, match="shape"):
        question.check(vectors[:, :5], "the peer")
    vectors[0, 7] = float("nan")
    with pytest.raises(WrongAnswer, match="off by nan"):
        question.check(vectors, "the peer")


def test_a_padded_question_has_the_same_answer_and_masks_what_was_added() -> None:
    short, long = sentence(), padded_sentence(16)
    assert long.inputs["attention_mask"].sum() == short.inputs["input_ids"].size == 11
    np.testing.assert_array_equal(long.expected, short.expected)


def test_a_question_asks_for_bytes_and_its_answer_is_read_from_bytes() -> None:
    question = contract()
    head, _, body = question.v2_request().partition(b"\r\n\r\n")
    length = Response(200, head + b"\r\n", body).json_bytes
    request = wire.decode_request(body, length)
    assert set(request.inputs) == set(question.inputs)
    assert request.wants_binary("price")
    price = wire.Tensor("FP32", (1,), question.expected.tobytes())
    answer = wire.InferResponse(model_name="options:price", outputs={"price": price}, parameters={"lane": "primary"})
    encoded, json_bytes = wire.encode_response(answer, request.wants_binary)
    response = Response(200, f"\r\n{wire.HEADER_LENGTH}: {json_bytes}\r\n".encode(), encoded)
    assert question.check_v2(response, "ours") == {"lane": "primary"}


def test_the_expected_price_is_that_of_the_reference() -> None:
    option = Option(spot=100.0, strike=105.0, rate=0.03, volatility=0.25, maturity=0.75, is_call=True)
    np.testing.assert_allclose(contract().expected, [option.price], rtol=1e-7)


def test_an_error_is_no_answer() -> None:
    with pytest.raises(WrongAnswer, match="status 503"):
        v2_output(Response(503, b"", b"busy"))
