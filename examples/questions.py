"""Real questions to the running examples, through their functions, each with an answer that is known beforehand.

Every check is independent of the models: sentences whose meaning a reader can judge, digits that people wrote and
labelled, and Black-Scholes with nothing but `math`.
"""

from __future__ import annotations

import json
import math
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from typing import Any

from PIL import Image

from examples.loopback import get_or_post

ANSWER_BYTES_MAX = 16 << 20

# Two of scikit-learn's digits that training holds out, 0 for paper to 16 for ink.
FIVE = (
    (0, 2, 13, 13, 11, 9, 0, 0),
    (0, 10, 16, 16, 16, 15, 10, 0),
    (0, 11, 16, 9, 0, 0, 0, 0),
    (0, 3, 15, 16, 8, 0, 0, 0),
    (0, 0, 2, 11, 14, 0, 0, 0),
    (0, 0, 0, 8, 16, 0, 0, 0),
    (0, 0, 1, 11, 11, 0, 0, 0),
    (0, 1, 16, 15, 4, 0, 0, 0),
)
TWO = (
    (0, 4, 15, 15, 8, 0, 0, 0),
    (0, 8, 16, 16, 16, 3, 0, 0),
    (0, 1, 0, 1, 15, 5, 0, 0),
    (0, 0, 0, 0, 11, 6, 0, 0),
    (0, 0, 0, 3, 15, 2, 0, 0),
    (0, 0, 4, 15, 16, 14, 6, 0),
    (0, 6, 16, 16, 15, 11, 3, 0),
    (0, 7, 14, 11, 0, 0, 0, 0),
)
SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window.",
    "The central bank raised interest rates by half a point.",
)
CONTRACT = {"spot": 100.0, "strike": 105.0, "rate": 0.03, "volatility": 0.2, "maturity": 0.5, "is_call": True}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer says in a few words, and whether that is right."""

    words: str
    right: bool


@dataclass(frozen=True, slots=True)
class Question:
    """One request to a function: `check` turns the JSON of its answer into a verdict."""

    title: str
    path: str
    body: bytes
    check: Callable[[Any], Verdict]
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; `served` says where it ran."""

    question: Question
    verdict: Verdict
    served: dict[str, Any]


def questions() -> Iterator[Question]:
    """All of them, in the order they are asked."""
    texts = json.dumps({"texts": SENTENCES}).encode()
    yield Question("embed: three sentences", "/embed", texts, check_sentences)
    yield Question("digits: a picture of a 5", "/digits", picture_of(FIVE), label_check(5), "image/png")
    yield Question("digits: a 2 as numbers", "/digits", json.dumps({"images": [TWO]}).encode(), label_check(2))
    for method, check in (("price", check_price), ("greeks", check_greeks), ("monte_carlo", check_simulation)):
        contracts = [CONTRACT, {**CONTRACT, "is_call": False}]
        if method == "monte_carlo":
            contracts = [{**contract, "seed": 7} for contract in (*contracts, CONTRACT)]
        body = json.dumps({"method": method, "contracts": contracts}).encode()
        yield Question(f"options: {method}", "/options", body, check)


def ask(url: str, question: Question) -> Answer:
    """Send a question to the functions at `url`. An error of any kind is a wrong answer, not an exception."""
    try:
        with get_or_post(url + question.path, question.body, question.content_type) as response:
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
        return Answer(question, question.check(answer), answer["served"])
    except urllib.error.HTTPError as error:
        said = error.read(1000).decode(errors="replace")
        return Answer(question, Verdict(f"HTTP {error.code}: {said}", right=False), {})
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        return Answer(question, Verdict(f"no usable answer: {error!r}", right=False), {})


def lines_of(answer: Answer) -> Iterator[str]:
    """An answer in two lines: what it says, and where it ran."""
    mark = "right" if answer.verdict.right else "WRONG"
    yield f"{answer.question.title}: {answer.verdict.words} ({mark})"
    served = answer.served
    if served:
        warmth = "cold" if served["cold"] else "warm"
        times = ", ".join(f"{name} {served[f'{name}_us'] / 1000:.2f} ms" for name in ("queue", "batch", "run"))
        where = f"{served['lane']} lane, bucket {served['bucket']}, padding {served['padding']:.0%}, {warmth}"
        yield f"    {where}, {times}"


def check_sentences(answer: Any) -> Verdict:
    """The two sentences about a cat must be nearer to each other than to the one about a bank."""
    cat, kitten, bank = answer["vectors"]
    near, far = math.sumprod(cat, kitten), math.sumprod(cat, bank)
    unit = all(abs(math.hypot(*vector) - 1) < 1e-4 for vector in (cat, kitten, bank))
    return Verdict(f"cat and kitten {near:.2f}, cat and bank {far:.2f}", unit and near > far + 0.3)


def label_check(label: int) -> Callable[[Any], Verdict]:
    """The digit must be the one that was written, and the probabilities those of one image."""

    def check(answer: Any) -> Verdict:
        (found,), (probabilities,) = answer["labels"], answer["probabilities"]
        sums = len(probabilities) == 10 and abs(sum(probabilities) - 1) < 1e-4
        return Verdict(f"{found} with probability {probabilities[found]:.3f}", sums and found == label)

    return check


def check_price(answer: Any) -> Verdict:
    """Call and put must have their closed-form prices."""
    call, put = (row["price"] for row in answer["results"])
    right = all(abs(found - black_scholes(is_call=kind)) < 1e-3 for found, kind in ((call, True), (put, False)))
    return Verdict(f"call {call:.4f}, put {put:.4f}", right)


def check_greeks(answer: Any) -> Verdict:
    """Delta and vega must be the slopes of the closed-form price; gamma is positive, theta takes from a call."""
    call, _ = answer["results"]
    slopes = {name: slope(field) for name, field in (("delta", "spot"), ("vega", "volatility"), ("rho", "rate"))}
    right = all(abs(call[name] - expected) < 1e-3 * max(1, abs(expected)) for name, expected in slopes.items())
    words = ", ".join(f"{name} {value:.4f}" for name, value in call.items())
    return Verdict(words, right and call["gamma"] > 0 > call["theta"])


def check_simulation(answer: Any) -> Verdict:
    """Prices must lie within four standard errors of the closed form, and the same seed must give the same bits."""
    call, put, again = answer["results"]
    near = all(
        abs(row["price"] - black_scholes(is_call=kind)) < 4 * row["standard_error"]
        for row, kind in ((call, True), (put, False))
    )
    same = "the same" if call == again else "others"
    words = f"call {call['price']:.3f} ± {call['standard_error']:.3f}, and {same} numbers from the same seed"
    return Verdict(words, near and call == again)


def black_scholes(*, is_call: bool, **changed: float) -> float:
    """The closed-form price of `CONTRACT`, with some of its numbers changed."""
    spot, strike, rate, volatility, maturity = ({**CONTRACT, **changed}[name] for name in list(CONTRACT)[:5])
    deviation = volatility * math.sqrt(maturity)
    d1 = (math.log(spot / strike) + (rate + volatility**2 / 2) * maturity) / deviation
    below, below_less = (math.erfc(-d / math.sqrt(2)) / 2 for d in (d1, d1 - deviation))
    call = spot * below - strike * math.exp(-rate * maturity) * below_less
    return call if is_call else call - spot + strike * math.exp(-rate * maturity)  # put-call parity


def slope(field: str, step: float = 1e-4) -> float:
    """The central difference of the call's price by one of its numbers."""
    up, down = (black_scholes(is_call=True, **{field: CONTRACT[field] + change}) for change in (step, -step))
    return (up - down) / (2 * step)


def picture_of(digit: tuple[tuple[int, ...], ...], scale: int = 16) -> bytes:
    """A PNG of a digit in dark ink on white, each of its 64 numbers a square of `scale` pixels."""
    levels = bytes(255 - round(level * 255 / 16) for row in digit for level in row)
    small = Image.frombytes("L", (8, 8), levels)
    file = BytesIO()
    small.resize((8 * scale, 8 * scale), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()
