"""A pool whose answers are computed by hand, and requests as functions-framework hands them to a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Message

from functions.exchange import Result
from warmpool import wire

Answer = Callable[[dict[str, Any]], Mapping[str, wire.Tensor]]


@dataclass
class FakePool:
    """Implements `infer` of a bound pool: `answer` gets the inputs as lists, `calls` keeps what was asked."""

    answer: Answer
    calls: list[tuple[str | None, dict[str, wire.Tensor]]] = field(default_factory=list)

    async def infer(
        self,
        inputs: Mapping[str, wire.Tensor],
        *,
        method: str | None = None,
        model: str | None = None,
        outputs: Sequence[str] = (),
    ) -> Result:
        self.calls.append((method, dict(inputs)))
        lists = {name: tensor.tolist() for name, tensor in inputs.items()}
        return Result(dict(self.answer(lists)), {"lane": "primary"})

    @property
    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Datatype and shape of every input of the last call."""
        return {name: (tensor.datatype, tuple(tensor.shape)) for name, tensor in self.calls[-1][1].items()}


def request(body: bytes, content_type: str = "application/json", path: str = "/", verb: str = "POST") -> Request:
    """A request with its whole body in one message."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode())]
    return Request({"type": "http", "method": verb, "path": path, "headers": headers, "query_string": b""}, receive)
