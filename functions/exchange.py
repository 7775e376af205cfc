"""One attempt: a request over one connection to one instance, and its answer as a result or a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from functions.connections import Connections, Dropped, Headers, Malformed, Oversized, Unreachable
from functions.endpoints import Failure, failure_of, unreachable
from warmpool import wire
from warmpool.errors import BadInput, PoolUnavailable

_FRONT_HEADER = wire.FRONT_HEADER.encode()
_HEADER_LENGTH = wire.HEADER_LENGTH.lower().encode()


class Result(msgspec.Struct, frozen=True):
    """The outputs of one inference by name, and how it was served (lane, bucket, times, model, version).

    `front_ns`: when the instance had the request and when it had the answer, since the epoch, by its own clock.
    """

    outputs: dict[str, wire.Tensor]
    served: dict[str, Any]
    front_ns: tuple[int, int] | None = None

    def __getitem__(self, name: str) -> wire.Tensor:
        return self.outputs[name]


class Post(msgspec.Struct, frozen=True):
    """One request as every attempt sends it. `deadline_s` is a reading of the event loop's clock."""

    path: str
    body: bytes
    headers: Headers
    deadline_s: float

    @classmethod
    def of(
        cls,
        name: str,
        inputs: Mapping[str, wire.Tensor],
        outputs: Sequence[str],
        deadline_s: float,
        headers: Mapping[str, str],
    ) -> Post:
        """Encode the inputs of the model or method `name`.

        Raises:
            BadInput: A tensor's bytes do not fit its shape.
        """
        request = wire.InferRequest(
            inputs=dict(inputs),
            outputs=tuple(wire.Output(output) for output in outputs),
            parameters={"binary_data_output": True},
        )
        body, header_length = wire.encode_request(request)
        sent = [*headers.items(), ("content-type", "application/octet-stream")]
        if header_length is not None:
            sent.append((wire.HEADER_LENGTH, str(header_length)))
        return cls(f"/v2/models/{quote(name, safe=':')}/infer", body, sent, deadline_s)


async def exchange(connections: Connections, post: Post) -> Result | Failure:
    """Send a request and read its answer. The deadline itself is the caller's to keep."""
    remaining_s = max(post.deadline_s - asyncio.get_running_loop().time(), 0.001)
    timeout_ms = int(min(remaining_s * 1000, wire.TIMEOUT_MS_MAX))
    headers = [*post.headers, (wire.TIMEOUT_HEADER, str(timeout_ms))]
    try:
        # Half of what is left, so that a host that swallows packets leaves time for another.
        answer = await connections.post(post.path, headers, post.body, connect_s_max=remaining_s / 2)
    except Unreachable:
        return unreachable("cannot be reached")
    except Dropped:
        return unreachable("closed the connection before the end of an answer")
    except Malformed:
        return Failure(PoolUnavailable("an instance of the pool did not answer in HTTP"), None)
    except Oversized as error:
        return Failure(PoolUnavailable(f"the pool's answer: {error}"), None)
    if answer.status != 200:
        return failure_of(answer.status, answer.headers, answer.body)
    return _decoded(answer.body, answer.headers)


def _decoded(body: bytes, headers: Mapping[bytes, bytes]) -> Result | Failure:
    header_length = headers.get(_HEADER_LENGTH)
    try:
        response = wire.decode_response(body, None if header_length is None else header_length.decode("latin-1"))
    except BadInput as error:
        # The instance broke the protocol, not the caller: his request must not be called bad.
        return Failure(PoolUnavailable(f"an instance of the pool answered outside the protocol: {error}"), None)
    served = response.parameters | {"model": response.model_name, "version": response.model_version}
    return Result(response.outputs, served, _front_ns(headers))


def _front_ns(headers: Mapping[bytes, bytes]) -> tuple[int, int] | None:
    start, _, end = headers.get(_FRONT_HEADER, b"").partition(b" ")
    if not (start.isdigit() and end.isdigit() and len(start) == len(end) < 20 and start <= end):
        return None
    return int(start), int(end)
