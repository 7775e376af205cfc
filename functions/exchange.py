"""One attempt: a request over one connection to one instance, and its answer as a result or a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpcore

from functions.endpoints import Failure, failure_of, unreachable
from warmpool import wire
from warmpool.errors import BadInput, PoolUnavailable

TIMEOUT_HEADER = "x-warmpool-timeout-ms"
CONNECT_S_MAX = 2.0

Headers = list[tuple[bytes | str, bytes | str]]


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of one inference by name, and how it was served (lane, bucket, times, model, version)."""

    outputs: dict[str, wire.Tensor]
    served: dict[str, Any]

    def __getitem__(self, name: str) -> wire.Tensor:
        return self.outputs[name]


@dataclass(frozen=True, slots=True)
class Post:
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
        trace_headers: Mapping[str, str],
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
        headers: Headers = [*trace_headers.items(), ("content-type", "application/octet-stream")]
        if header_length is not None:
            headers.append((wire.HEADER_LENGTH, str(header_length)))
        return cls(f"/v2/models/{quote(name, safe=':')}/infer", body, headers, deadline_s)


async def exchange(
    client: httpcore.AsyncConnectionPool, url: str, post: Post, response_bytes_max: int
) -> Result | Failure:
    """Send a request and read its answer. The deadline itself is the caller's to keep.

    Raises:
        PoolUnavailable: The answer is larger than a function reads.
    """
    remaining_s = max(post.deadline_s - asyncio.get_running_loop().time(), 0.001)
    headers: Headers = [*post.headers, (TIMEOUT_HEADER, str(int(remaining_s * 1000)))]
    # Half of what is left, so that a host that swallows packets leaves time for another.
    connect = {"timeout": {"connect": min(remaining_s / 2, CONNECT_S_MAX)}}
    answered = False
    try:
        async with client.stream(
            "POST", url + post.path, headers=headers, content=post.body, extensions=connect
        ) as response:
            answered = True
            body = await _read(response, response_bytes_max)
    except (httpcore.ConnectError, httpcore.ConnectTimeout):
        return unreachable("cannot be reached")
    except (httpcore.NetworkError, httpcore.ProtocolError):
        if not answered:
            return unreachable("closed the connection without an answer")
        return Failure(PoolUnavailable("an instance of the pool broke off in the middle of its answer"), None)
    fields = {name.lower(): value for name, value in response.headers}
    if response.status != 200:
        return failure_of(response.status, fields, body)
    return _decoded(body, fields)


async def _read(response: httpcore.Response, bytes_max: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_stream():
        size += len(chunk)
        if size > bytes_max:
            raise PoolUnavailable(f"the pool's answer: got over {bytes_max} bytes; allowed: {bytes_max}")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decoded(body: bytes, headers: Mapping[bytes, bytes]) -> Result | Failure:
    header_length = headers.get(wire.HEADER_LENGTH.lower().encode())
    try:
        response = wire.decode_response(body, None if header_length is None else header_length.decode("latin-1"))
    except BadInput as error:
        # The instance broke the protocol, not the caller: his request must not be called bad.
        return Failure(PoolUnavailable(f"an instance of the pool answered outside the protocol: {error}"), None)
    served = response.parameters | {"model": response.model_name, "version": response.model_version}
    return Result(response.outputs, served)
