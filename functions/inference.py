"""What an author decorates: a coroutine around a model becomes an asynchronous target of functions-framework.

The author turns a caller's text, image or JSON into tensors, awaits `pool.infer`, and turns tensors into a response.
This file does what every function needs around that: the deadline, the trace, limits, and one JSON form for errors. A
caller sees messages of `warmpool.errors`, which are written for him, and never the text of any other exception.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import functions_framework.aio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from functions.pool import BoundPool, Pool
from functions.settings import Settings
from functions.tracing import RequestTrace, prepare
from warmpool import wire
from warmpool.errors import (
    Abandoned,
    BadInput,
    Cancelled,
    DeadlineExceeded,
    DeclarationError,
    LaneFailed,
    NotFound,
    Overloaded,
    RequestError,
    RetryLater,
    TooLarge,
    WarmpoolError,
)

logger = logging.getLogger(__name__)

# A call of the pool ends at the deadline itself and its error says more, so it comes first. Two time-outs that fire in
# the same turn would also leave a stray cancellation behind, before Python 3.13.
GRACE_S = 0.05

# The nearest class in an error's ancestry decides.
STATUSES: dict[type[WarmpoolError], int] = {
    RequestError: 400,
    NotFound: 404,
    TooLarge: 413,
    RetryLater: 503,
    Overloaded: 429,
    Abandoned: 504,
    Cancelled: 499,
    LaneFailed: 503,
    WarmpoolError: 500,
}

Author = Callable[[Request, BoundPool], Awaitable[Any]]
Target = Callable[[Request], Awaitable[Response]]


class FunctionRequest(Request):
    """A request whose body is bounded, and whose bad JSON is the caller's mistake, not the author's."""

    request_bytes_max = Settings().request_bytes_max

    async def stream(self) -> AsyncGenerator[bytes]:
        """Yield the body in chunks.

        Raises:
            TooLarge: There is more of it than a function takes.
        """
        size = 0
        async for chunk in super().stream():
            size += len(chunk)
            if size > self.request_bytes_max:
                raise TooLarge(f"body: got over {self.request_bytes_max} bytes; allowed: {self.request_bytes_max}")
            yield chunk

    async def json(self) -> Any:
        """Return the body's JSON.

        Raises:
            BadInput: It is not JSON.
        """
        try:
            return msgspec.json.decode(await self.body())
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadInput(f"body: not valid JSON: {error}") from None


def inference_function(*, model: str, pool: Pool | None = None) -> Callable[[Author], Target]:
    """Make a coroutine `f(request, pool)` a function that can be deployed.

    The coroutine returns a dict or list (sent as JSON) or a starlette `Response`. It may raise any error of
    `warmpool.errors`: `BadInput` becomes a 400 with its message, and so on. Any other exception becomes a 500 that
    says no more than its trace id.

    Args:
        model: The model that `pool.infer` means unless told otherwise.
        pool: The pool to call; by default the one that the environment names, shared by the functions of a process.

    Raises:
        DeclarationError: What is decorated is not a coroutine function.
    """

    def decorate(author: Author) -> Target:
        if not inspect.iscoroutinefunction(author):
            raise DeclarationError(f"function {author!r}: got a plain function; allowed: async def f(request, pool)")
        used = pool or _pool_of_process()
        name = author.__name__
        start_tracing = functools.cache(prepare(name))

        @functools.wraps(author)
        async def target(request: Request) -> Response:
            start_tracing()
            trace = RequestTrace(name, request.headers)
            error: Exception | None = None
            try:
                response = await _answer(author, _bounded(request, used.settings), used, model, trace)
            except Exception as caught:  # noqa: BLE001 (whatever it is, the caller gets JSON and the log the cause)
                error = caught
                response = _refusal(caught, trace.trace_id)
            except asyncio.CancelledError as cancelled:
                trace.finish(STATUSES[Cancelled], cancelled)
                raise
            response.headers[wire.TRACE_ID_HEADER] = trace.trace_id
            trace.finish(response.status_code, error)
            return response

        # This registers the name as asynchronous. What it returns would only add a call.
        functions_framework.aio.http(target)
        return target

    return decorate


@functools.cache
def _pool_of_process() -> Pool:
    return Pool(Settings.from_environment())


def _bounded(request: Request, settings: Settings) -> FunctionRequest:
    bounded = FunctionRequest(request.scope, request.receive)
    bounded.request_bytes_max = settings.request_bytes_max
    return bounded


async def _answer(author: Author, request: Request, pool: Pool, model: str, trace: RequestTrace) -> Response:
    timeout_ms = _timeout_ms(request.headers.get(wire.TIMEOUT_HEADER), pool.settings)
    deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
    scope = asyncio.timeout_at(deadline_s + GRACE_S)
    try:
        async with scope:
            content = await author(request, BoundPool(pool, model, deadline_s, trace))
    except TimeoutError:
        if scope.expired():
            raise DeadlineExceeded(
                f"the function did not finish within {timeout_ms} ms; retry with more time"
            ) from None
        raise
    return content if isinstance(content, Response) else _json_response(content)


def _timeout_ms(text: str | None, settings: Settings) -> int:
    if text is None:
        return settings.timeout_ms
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or not 0 < int(text) <= settings.timeout_ms_max:
        raise BadInput.about(
            wire.TIMEOUT_HEADER, text, f"a whole number of milliseconds from 1 to {settings.timeout_ms_max}"
        )
    return int(text)


def _json_response(content: Any, status: int = 200) -> Response:
    body = msgspec.json.encode(content)
    # msgspec writes NaN and infinities as null; only where there is a null need anyone look.
    if b"null" in body:
        body = msgspec.json.encode(_with_named_floats(content))
    return Response(body, status, media_type="application/json")


def _with_named_floats(content: Any) -> Any:
    """Return JSON content with NaN and infinities as the strings that the whole service uses for them."""
    if isinstance(content, dict):
        return {key: _with_named_floats(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_with_named_floats(value) for value in content]
    return wire.named_non_finite([content])[0] if isinstance(content, float) else content


def _refusal(error: Exception, trace_id: str) -> Response:
    """Return the response for an error. What is not meant for callers goes to the log only."""
    if isinstance(error, ClientDisconnect):
        error = Cancelled("the caller went away")
    if isinstance(error, HTTPException):
        return _json_response({"error": error.detail}, error.status_code)
    status = _status_of(error) if isinstance(error, WarmpoolError) else 500
    if status == 500:
        logger.error("function failed", exc_info=error, extra={"trace_id": trace_id})
        return _json_response({"error": "internal error", "trace_id": trace_id}, 500)
    response = _json_response({"error": str(error)}, status)
    if status in {429, 503}:
        later = error if isinstance(error, RetryLater) else RetryLater(str(error))
        response.headers["retry-after"] = later.retry_after
    return response


def _status_of(error: WarmpoolError) -> int:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
