from __future__ import annotations

import http.server
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from examples.digits import train
from examples.digits.picture import pixels_of
from examples.loopback import HOST
from examples.questions import (
    CONTRACT,
    FIVE,
    TWO,
    Question,
    Verdict,
    ask,
    black_scholes,
    check_greeks,
    check_price,
    check_sentences,
    check_simulation,
    label_check,
    lines_of,
    picture_of,
    questions,
    slope,
)
from tests.examples.reference_options import Option

SERVED = {
    "lane": "primary",
    "bucket": "batch=1",
    "padding": 0.25,
    "cold": False,
    "queue_us": 10,
    "batch_us": 20,
    "run_us": 3000,
}
CALL = Option(**CONTRACT)  # type: ignore[arg-type]


class Functions(http.server.BaseHTTPRequestHandler):
    """Answers what its path says: /right, /wrong, or a status."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = int(self.path[1:]) if self.path[1:].isdecimal() else 200
        content = {"right": self.path == "/right", "served": SERVED} if status == 200 else {"error": "because"}
        body = json.dumps(content).encode() if self.path != "/garbage" else b"garbage"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer((HOST, 0), Functions) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()
        thread.join()


def question(path: str) -> Question:
    return Question("a title", path, b"{}", lambda answer: Verdict("words", answer["right"]))


def results(**columns: list[float]) -> dict[str, Any]:
    return {"results": [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]}


@pytest.mark.parametrize(("digit", "label"), [(FIVE, 5), (TWO, 2)])
def test_the_digits_asked_about_are_held_out_from_training_and_labelled_so(digit: Any, label: int) -> None:
    _, held_out = train.splits()
    same = (held_out.images == np.array(digit)).all(axis=(1, 2))
    assert held_out.labels[same].tolist() == [label]
    np.testing.assert_allclose(pixels_of(picture_of(digit)), digit, atol=0.04)


def test_the_closed_form_of_the_checks_agrees_with_the_reference() -> None:
    assert black_scholes(is_call=True) == pytest.approx(CALL.price, rel=1e-12)
    assert black_scholes(is_call=False) == pytest.approx(replace(CALL, is_call=False).price, rel=1e-12)
    assert slope("volatility") == pytest.approx(CALL.greeks["vega"], rel=1e-6)


def test_sentences_must_be_unit_vectors_with_the_near_ones_nearest() -> None:
    east, north, half = [1.0, 0.0], [0.0, 1.0], [math.sqrt(0.5)] * 2
    assert check_sentences({"vectors": [east, half, north]}).right
    assert not check_sentences({"vectors": [east, north, half]}).right
    assert not check_sentences({"vectors": [[2.0, 0.0], half, north]}).right


def test_a_label_must_be_the_written_one() -> None:
    probabilities = [0.0] * 8 + [1.0, 0.0]
    assert label_check(8)({"labels": [8], "probabilities": [probabilities]}).right
    assert not label_check(3)({"labels": [8], "probabilities": [probabilities]}).right
    assert not label_check(8)({"labels": [8], "probabilities": [[0.5] * 10]}).right


def test_prices_must_be_those_of_the_closed_form() -> None:
    call, put = black_scholes(is_call=True), black_scholes(is_call=False)
    assert check_price(results(price=[call, put])).right
    assert not check_price(results(price=[put, call])).right


def test_greeks_must_be_the_slopes_of_the_closed_form() -> None:
    right = {name: [value, value] for name, value in CALL.greeks.items()}
    assert check_greeks(results(**right)).right
    for name in right:
        assert not check_greeks(results(**{**right, name: [-right[name][0]] * 2})).right, name


def test_simulated_prices_must_be_near_and_repeat_bit_for_bit() -> None:
    call, put = black_scholes(is_call=True), black_scholes(is_call=False)
    assert check_simulation(results(price=[call + 0.1, put - 0.1, call + 0.1], standard_error=[0.1] * 3)).right
    assert not check_simulation(results(price=[call + 0.5, put, call + 0.5], standard_error=[0.1] * 3)).right
    assert not check_simulation(results(price=[call, put, call + 1e-6], standard_error=[0.1] * 3)).right


def test_an_answer_tells_what_it_says_and_where_it_ran(url: str) -> None:
    right, wrong = (ask(url, question(path)) for path in ("/right", "/wrong"))
    assert list(lines_of(right)) == [
        "a title: words (right)",
        "    primary lane, bucket batch=1, padding 25%, warm, queue 0.01 ms, batch 0.02 ms, run 3.00 ms",
    ]
    assert next(lines_of(wrong)) == "a title: words (WRONG)"


def test_no_answer_is_a_wrong_answer(url: str) -> None:
    assert list(lines_of(ask(url, question("/503")))) == ['a title: HTTP 503: {"error": "because"} (WRONG)']
    assert not ask(url, question("/garbage")).verdict.right
    assert not ask("http://127.0.0.1:1", question("/right")).verdict.right


def test_every_question_goes_to_one_of_the_functions() -> None:
    assert {question.path for question in questions()} == {"/embed", "/digits", "/options"}
    assert len({question.title for question in questions()}) == len(list(questions()))
