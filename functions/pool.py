"""The client of the pool: sends tensors to an instance, with the caller's deadline and trace, and retries once.

1. `infer` encodes the tensors in the binary form, once, and chooses an endpoint.
2. One attempt runs over a kept-alive connection, under the caller's deadline, whose rest goes along.
3. Where no whole answer came (no connection, one that ended before the answer did) or no work was done (502, 503), a
   second attempt goes to another endpoint, or to the same one after a pause that the deadline has room for. Inference
   changes nothing, so it may run twice.
4. The answer is decoded, or its status becomes an error of `warmpool.errors`.

There are no threads and no tasks here: all of it runs inside the caller's await, and ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from functions.connections import Connections
from functions.endpoints import REST_S, Endpoint, Failure, choose, pause_before_retry_s
from functions.exchange import Post, Result, exchange
from functions.identity import Identity
from functions.settings import Settings
from functions.tracing import Call, RequestTrace
from warmpool import wire
from warmpool.errors import DeadlineExceeded, NotWarm

_LATE = "the pool did not answer within the caller's time; retry with more of it"


class _Endpoints:
    """The endpoints of one event loop: a connection cannot be used from another."""

    __slots__ = ("_used", "connections", "identity")

    def __init__(self, settings: Settings) -> None:
        self.connections = {Endpoint(url): Connections(url, settings.response_bytes_max) for url in settings.urls}
        self.identity = Identity(settings.audience, settings.metadata_host) if settings.audience else None
        self._used = 0

    def take(self, now_s: float, avoid: Endpoint | None = None) -> Endpoint:
        endpoint = choose(list(self.connections), now_s, avoid)
        self._used += 1
        endpoint.last_used = self._used
        return endpoint


class Pool:
    """The instances of a pool. Cheap to make: connections are opened by the first requests, per event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._loops: dict[asyncio.AbstractEventLoop, _Endpoints] = {}

    def __repr__(self) -> str:
        return f"Pool({', '.join(self.settings.urls)})"

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, wire.Tensor],
        *,
        method: str | None = None,
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Result:
        """Run a method of a model.

        Args:
            model: The model's name.
            inputs: A tensor for each input of the method.
            method: The method; None for the model's default.
            outputs: The outputs wanted; all of them by default.
            timeout_s: The most time that this may take; the settings' by default.

        Raises:
            RequestError: The instance refused the request, or it cannot be encoded.
            RetryLater: No instance could serve it now.
            DeadlineExceeded: The time ran out.
            LaneFailed: It was run and failed.
        """
        timeout_s = self.settings.timeout_ms / 1000 if timeout_s is None else timeout_s
        call = Call()
        try:
            result = await self.send(
                model, inputs, method, outputs, asyncio.get_running_loop().time() + timeout_s, call
            )
        except BaseException as error:
            call.end(error)
            raise
        call.end()
        return result

    async def send(
        self,
        model: str,
        inputs: Mapping[str, wire.Tensor],
        method: str | None,
        outputs: Sequence[str],
        deadline_s: float,
        call: Call,
    ) -> Result:
        """Do what `infer` does by a deadline on the event loop's clock, within a call whose span is already open."""
        headers = call.headers | ({wire.PRIORITY_HEADER: str(priority)} if (priority := self.settings.priority) else {})
        endpoints = self._endpoints()
        if endpoints.identity:
            headers |= await _identified(endpoints.identity, deadline_s)
        post = Post.of(f"{model}:{method}" if method else model, inputs, outputs, deadline_s, headers)
        call.note({"warmpool.model": model, "warmpool.method": method or ""})
        first = endpoints.take(_now_s())
        outcome = await self._attempt(endpoints, first, post)
        if isinstance(outcome, Failure):
            outcome = await self._retry(endpoints, first, outcome, post)
            call.note({"warmpool.retried": True})
        call.note({f"warmpool.{name}": value for name, value in outcome.served.items()})
        call.answered(outcome.front_ns)
        return outcome

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Idempotent."""
        endpoints = self._loops.pop(asyncio.get_running_loop(), None)
        if endpoints is None:
            return
        for connections in endpoints.connections.values():
            connections.close()
        if endpoints.identity:
            endpoints.identity.close()

    def _endpoints(self) -> _Endpoints:
        loop = asyncio.get_running_loop()
        endpoints = self._loops.get(loop)
        if endpoints is None:
            # Not a weak dictionary: open connections refer to their loop, so it would never let go of a closed one.
            self._loops = {other: kept for other, kept in self._loops.items() if not other.is_closed()}
            endpoints = self._loops[loop] = _Endpoints(self.settings)
        return endpoints

    async def _retry(self, endpoints: _Endpoints, failed: Endpoint, failure: Failure, post: Post) -> Result:
        if failure.pause_s is None:
            raise failure.error
        endpoint = endpoints.take(_now_s(), avoid=failed)
        pause_s = pause_before_retry_s(failure, post.deadline_s - _now_s(), same_endpoint=endpoint is failed)
        if pause_s is None:
            raise failure.error
        await asyncio.sleep(pause_s)
        outcome = await self._attempt(endpoints, endpoint, post)
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome

    async def _attempt(self, endpoints: _Endpoints, endpoint: Endpoint, post: Post) -> Result | Failure:
        endpoint.in_flight += 1
        try:
            async with asyncio.timeout_at(post.deadline_s):
                outcome = await exchange(endpoints.connections[endpoint], post)
        except TimeoutError:
            raise DeadlineExceeded(_LATE) from None
        finally:
            endpoint.in_flight -= 1
        if isinstance(outcome, Failure) and outcome.pause_s is not None:
            rest_s = outcome.error.retry_after_s if isinstance(outcome.error, NotWarm) else REST_S
            endpoint.rest(_now_s(), rest_s)
        return outcome


class BoundPool:
    """The pool as an author's function sees it: bound to a model, to the request's deadline and to its trace."""

    __slots__ = ("_deadline_s", "_model", "_pool", "_trace")

    def __init__(self, pool: Pool, model: str, deadline_s: float, trace: RequestTrace) -> None:
        self._pool = pool
        self._model = model
        self._deadline_s = deadline_s
        self._trace = trace

    async def infer(
        self,
        inputs: Mapping[str, wire.Tensor],
        *,
        method: str | None = None,
        model: str | None = None,
        outputs: Sequence[str] = (),
    ) -> Result:
        """Run a method of the function's model, or of another.

        Args:
            inputs: A tensor for each input of the method.
            method: The method; None for the model's default.
            model: A model other than the function's own.
            outputs: The outputs wanted; all of them by default.

        Raises:
            WarmpoolError: As `Pool.infer`. Left alone, it becomes the right status for the caller.
        """
        call = self._trace.begin_call()
        try:
            result = await self._pool.send(model or self._model, inputs, method, outputs, self._deadline_s, call)
        except BaseException as error:
            self._trace.end_call(call, error)
            raise
        self._trace.end_call(call)
        return result


async def _identified(identity: Identity, deadline_s: float) -> dict[str, str]:
    try:
        async with asyncio.timeout_at(deadline_s):
            return await identity.headers()
    except TimeoutError:
        raise DeadlineExceeded(_LATE) from None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
