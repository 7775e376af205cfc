"""What the servers are asked, and the answers that others computed: nothing is timed that is not also checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.connection import Response, http_request
from examples.embed.files import REFERENCE, model_folder
from examples.questions import TWO
from warmpool import wire
from warmpool.datatypes import DATATYPES, OF_DTYPE

TOLERANCE = 1e-4  # absolute; the vectors have length 1, and the price of the option is 8.6


class WrongAnswer(Exception):
    """A server answered with something else than the reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Inputs of a model, the expected output, and what may be asked of it.

    `model` is NAME or NAME:METHOD, `expected` its one output for the inputs as they are.
    """

    model: str
    inputs: Mapping[str, NDArray[Any]]
    expected: NDArray[np.float32] = field(repr=False)

    def v2_request(self) -> bytes:
        """An HTTP request with the binary tensor extension both ways."""
        tensors = {
            name: wire.Tensor(OF_DTYPE[array.dtype.name].name, array.shape, array.tobytes())
            for name, array in self.inputs.items()
        }
        body, json_bytes = wire.encode_request(
            wire.InferRequest(inputs=tensors, parameters={"binary_data_output": True}), binary=True
        )
        headers = {wire.HEADER_LENGTH: str(json_bytes)}
        return http_request("POST", f"/v2/models/{self.model}/infer", body, headers)

    def peer_request(self) -> bytes:
        """The same question in the peer's own JSON."""
        body = json.dumps({name: array.tolist() for name, array in self.inputs.items()}).encode()
        return http_request("POST", "/embed", body, {"content-type": "application/json"})

    def check(self, found: NDArray[np.float32], who: str) -> None:
        """Raises WrongAnswer where `found` is not what was expected."""
        if found.shape != self.expected.shape:
            raise WrongAnswer(f"{who}: the shape is {found.shape}, expected: {self.expected.shape}")
        error = float(np.abs(found - self.expected).max())
        if not error <= TOLERANCE:
            raise WrongAnswer(f"{who}: {self.model} is off by {error:.2e}, allowed: {TOLERANCE}")

    def check_v2(self, response: Response, who: str) -> dict[str, Any]:
        """Check the answer to `v2_request`; how it was served."""
        output, served = v2_output(response)
        self.check(output, who)
        return served

    def check_peer(self, response: Response, who: str) -> None:
        """Check the answer to `peer_request`."""
        self.check(np.array(json.loads(response.body)["vectors"], np.float32), who)


def v2_output(response: Response) -> tuple[NDArray[Any], dict[str, Any]]:
    """The one output and the parameters of a binary V2 response. Raises WrongAnswer where it is an error."""
    outputs, parameters = v2_outputs(response)
    (array,) = outputs.values()
    return array, parameters


def v2_outputs(response: Response) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """All outputs by name, and the parameters, of a binary V2 response. Raises WrongAnswer where it is an error."""
    if response.status != 200:
        raise WrongAnswer(f"status {response.status}: {response.body[:300]!r}")
    decoded = wire.decode_response(response.body, response.json_bytes)
    arrays = {
        name: np.frombuffer(tensor.data, DATATYPES[tensor.datatype].dtype).reshape(tensor.shape)
        for name, tensor in decoded.outputs.items()
    }
    return arrays, decoded.parameters


def sentence() -> Question:
    """A recorded sentence of 11 tokens, asked for at its exact length."""
    from tokenizers import Tokenizer

    recorded = json.loads(REFERENCE.read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()  # the file says to pad to 128
    ids = np.array([tokenizer.encode(recorded["texts"][0]).ids], np.int32)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return Question("embed", inputs, np.array(recorded["vectors"][:1], np.float32))


def padded_sentence(seq: int) -> Question:
    """The same sentence filled up to `seq` tokens that the mask excludes: a bucket's exact shape."""
    short = sentence()
    margins = [(0, 0), (0, seq - short.inputs["input_ids"].shape[1])]
    inputs = {name: np.pad(array, margins) for name, array in short.inputs.items()}
    return Question("embed", inputs, short.expected)


def contract() -> Question:
    """One call option, its price by the closed form of Black and Scholes."""
    spot, strike, rate, volatility, maturity = 100.0, 105.0, 0.03, 0.25, 0.75
    spread = volatility * math.sqrt(maturity)
    d1 = (math.log(spot / strike) + rate * maturity) / spread + spread / 2
    price = spot * _normal(d1) - strike * math.exp(-rate * maturity) * _normal(d1 - spread)
    numbers = {"spot": spot, "strike": strike, "rate": rate, "volatility": volatility, "maturity": maturity}
    inputs: dict[str, NDArray[Any]] = {name: np.array([value], np.float32) for name, value in numbers.items()}
    inputs["is_call"] = np.array([True])
    return Question("options:price", inputs, np.array([price], np.float32))


def picture() -> Question:
    """A written digit that training did not see; of the probabilities that are expected only which is the largest."""
    return Question("digits", {"image": np.array([TWO], np.float32)}, np.eye(10, dtype=np.float32)[2:3])


def _normal(x: float) -> float:
    """The standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2
