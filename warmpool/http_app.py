"""HTTP: the Open Inference Protocol V2, the TF Serving form, health, status, traces, metrics. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from warmpool import __version__, rows_form, wire
from warmpool.dataplane import metadata
from warmpool.errors import (
    BadInput,
    Cancelled,
    DeadlineExceeded,
    LaneFailed,
    NotFound,
    NotWarm,
    Overloaded,
    RetryLater,
    TooLarge,
    WarmpoolError,
    shown,
)
from warmpool.http_health import health_routes
from warmpool.http_messages import CallerGone, Request, Response, json_response
from warmpool.http_repository import repository_routes
from warmpool.http_request import Call, read_body, wish_of
from warmpool.http_routes import Handler, Route, Routes
from warmpool.limits import request_bytes_max
from warmpool.received_spans import EXPORT_BYTES_MAX, received_spans
from warmpool.tracing import trace_context
from warmpool.urgency import Urgency, whole_number
from warmpool.validation import sizes_of

if TYPE_CHECKING:
    from warmpool.catalog import ServedMethod, ServedModel
    from warmpool.dataplane import Answer
    from warmpool.instance import Instance

log = logging.getLogger(__name__)

TRACES_READ_MAX = 1000
HEADER_LENGTH = wire.HEADER_LENGTH.lower()
EXTENSIONS = ["binary_tensor_data", "schedule_policy"]

STATUS: dict[type[WarmpoolError], int] = {
    BadInput: 400,
    NotFound: 404,
    TooLarge: 413,
    Overloaded: 429,
    Cancelled: 499,
    LaneFailed: 500,
    NotWarm: 503,
    DeadlineExceeded: 504,
}


def error_response(error: WarmpoolError) -> Response:
    """The documented form of an error: {"error": message}, and Retry-After where waiting helps."""
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    headers = {"retry-after": error.retry_after} if isinstance(error, RetryLater) else {}
    return json_response({"error": str(error)}, status, headers)


def http_app(instance: Instance) -> Handler:
    """What answers an instance's requests. It raises nothing."""
    api = HttpApi(instance)
    listed: list[Route] = [
        ("GET", "/v2", api.server_metadata),
        ("GET", "/v1/status", api.status),
        ("GET", "/v1/traces", api.traces),
        ("POST", "/v1/traces", api.receive_traces),
        ("GET", "/metrics", api.metrics),
        ("GET", "/v1/models/{model}", api.model_status),
        ("POST", "/v1/models/{model}", api.predict),
    ]
    listed += health_routes(instance)
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        listed += [
            ("GET", model, api.model_metadata),
            ("GET", f"{model}/ready", api.model_ready),
            ("POST", f"{model}/infer", api.infer),
        ]
    listed += repository_routes(instance)
    routes = Routes(listed)

    async def routed(request: Request) -> Response:
        handlers, request.parameters = routes.find(request.path)
        if handler := handlers.get(request.method):
            return await handler(request)
        if not handlers:
            raise NotFound(f"there is nothing at {shown(request.path)}")
        allowed = ", ".join(sorted(handlers))
        message = f"{request.method} is not allowed at {shown(request.path)}; allowed: {allowed}"
        return json_response({"error": message}, 405, {"allow": allowed})

    return guarded(routed)


def guarded(handler: Handler) -> Handler:
    """A handler whose known errors become their documented answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except WarmpoolError as error:
            return error_response(error)
        except CallerGone:
            return error_response(Cancelled("the caller went away"))
        except asyncio.CancelledError:  # only the end of the drain does that: the caller is to try elsewhere
            return error_response(NotWarm("the instance is shutting down"))
        except Exception:
            log.exception("request failed", extra={"path": request.path})
            return json_response({"error": "internal error"}, 500)

    return answer


class HttpApi:
    """The handlers."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    async def server_metadata(self, _: Request) -> Response:
        return json_response({"name": "warmpool", "version": __version__, "extensions": EXTENSIONS})

    async def status(self, _: Request) -> Response:
        return json_response(await self.instance.status())

    async def traces(self, request: Request) -> Response:
        count = whole_number("count", request.asked("count", "100"), 1, TRACES_READ_MAX)
        cold_only = request.asked("cold", "") in {"1", "true"}
        return json_response(self.instance.traces.read(count, cold_only=cold_only))

    async def receive_traces(self, request: Request) -> Response:
        settings = self.instance.settings
        bytes_max = min(EXPORT_BYTES_MAX, settings.body_bytes_max)
        wait_s = Urgency.of_headers(request.headers).timeout_s or settings.deadline_ms / 1000
        with self.instance.byte_budget.hold() as held:
            try:
                spans = received_spans(await read_body(request, bytes_max, wait_s, held))
            except ValueError as error:
                raise BadInput(str(error)) from None
        for trace_id, received in spans.items():
            self.instance.traces.receive(trace_id, received)
        return Response(b"", 200, media_type="application/x-protobuf")

    async def metrics(self, request: Request) -> Response:
        body, content_type = self.instance.metrics.exposition(request.header("accept"))
        return Response(body, 200, {"content-type": content_type})

    async def model_status(self, request: Request) -> Response:
        model = self._model(request)
        state = "AVAILABLE" if self.instance.readiness.model_ready(model) else "LOADING"
        return json_response({"model_version_status": [{"version": model.manifest.version, "state": state}]})

    async def model_metadata(self, request: Request) -> Response:
        method = self.instance.dataplane.method(request.parameters["model"], request.parameters.get("version"))
        return json_response(
            {
                "name": request.parameters["model"],
                "versions": [method.version],
                "platform": "jax_stablehlo",
                "inputs": [metadata(spec) for spec in method.spec.inputs],
                "outputs": [metadata(spec) for spec in method.spec.outputs],
                "parameters": {
                    "methods": list(self.instance.dataplane.model(method.model, method.version).methods),
                    "dimensions": {name: {"max": dim.max, "sizes": dim.sizes} for name, dim in method.dims.items()},
                    "optional": [spec.name for spec in method.spec.inputs if spec.may_be_left_out],
                },
            }
        )

    async def model_ready(self, request: Request) -> Response:
        model = self._model(request)
        ready = self.instance.readiness.model_ready(model)
        return json_response({"name": model.manifest.model, "ready": ready}, 200 if ready else 503)

    async def infer(self, request: Request) -> Response:
        async def work(call: Call) -> tuple[Answer, Response]:
            dataplane, path, wish = self.instance.dataplane, request.parameters["model"], wish_of(request)
            body = await self._body(call, dataplane.candidates(path, wish.version))
            methods: list[ServedMethod] = []

            def route(parameters: wire.Parameters) -> None:
                methods.append(dataplane.choose(path, wish.with_parameters(parameters)))

            length = request.header(HEADER_LENGTH) or None
            decoded = wire.decode_request(body, length, route=route, accept=lambda inputs: sizes_of(methods[0], inputs))
            (method,) = methods
            wanted = [output.name for output in decoded.outputs]
            timeout_s, priority = call.urgency(decoded.parameters)
            with call.caller:
                answer = await self.instance.dataplane.infer(
                    method,
                    decoded.inputs,
                    wanted=wanted,
                    timeout_s=timeout_s,
                    priority=priority,
                    pinned=bool(wish.version),
                )
            body, header_length = wire.encode_response(
                wire.InferResponse(
                    id=decoded.id,
                    model_name=request.parameters["model"],
                    model_version=method.version,
                    outputs=answer.tensors(),
                    parameters={**answer.served(), "trace_id": call.trace_id},
                ),
                decoded.wants_binary,
            )
            if header_length is None:
                return answer, Response(body, 200, media_type="application/json")
            headers = {wire.HEADER_LENGTH: str(header_length)}
            return answer, Response(body, 200, headers, "application/octet-stream")

        return await self._traced(request, request.parameters["model"], work)

    async def predict(self, request: Request) -> Response:
        async def work(call: Call) -> tuple[Answer, Response]:
            dataplane, path, wish = self.instance.dataplane, request.parameters["model"], wish_of(request)
            model = dataplane.model(path.partition(":")[0], wish.version or None)
            paths = [path] if ":" in path else [f"{path}:{name}" for name in model.methods]  # the body may name any
            methods = [method for each in paths for method in dataplane.candidates(each, wish.version)]
            body = await self._body(call, methods)
            parsed = rows_form.parse(body)
            method = dataplane.choose(rows_form.named(path, parsed), wish.with_parameters(parsed.parameters or {}))
            form, inputs = rows_form.decode(method, parsed)
            timeout_s, priority = call.urgency(parsed.parameters or {})
            with call.caller:
                answer = await self.instance.dataplane.infer(
                    method, inputs, timeout_s=timeout_s, priority=priority, pinned=bool(wish.version)
                )
            served = {**answer.served(), "trace_id": call.trace_id}
            content = {**rows_form.encode(form, answer), "model_version": method.version, "served": served}
            return answer, json_response(content)

        return await self._traced(request, request.parameters["model"], work)

    async def _body(self, call: Call, methods: Iterable[ServedMethod]) -> bytes:
        """The body of a request for one of these methods."""
        return await call.body(request_bytes_max(methods, self.instance.settings.body_bytes_max))

    def _model(self, request: Request) -> ServedModel:
        """The model that a path names, with a version and a method that exist if it names those too."""
        method = self.instance.dataplane.method(request.parameters["model"], request.parameters.get("version"))
        return self.instance.dataplane.model(method.model, method.version)

    async def _traced(
        self, request: Request, model: str, work: Callable[[Call], Awaitable[tuple[Answer, Response]]]
    ) -> Response:
        """Run an inference, then record its trace and metrics, whatever came of it."""
        context = trace_context(request.header("traceparent"))
        answer = None

        async def answered(_: Request) -> Response:
            nonlocal answer
            await call.known(self.instance.dataplane)
            answer, response = await work(call)
            return response

        with self.instance.byte_budget.hold() as held:
            call = Call(request, context.trace_id, held, self.instance.settings.deadline_ms)
            response = await guarded(answered)(request)
        end_ns, status = time.time_ns(), response.status

        def record() -> None:  # it knows nothing of the response that knows it: only a collection would free both
            self.instance.record_request(
                context,
                start_ns=call.start_ns,
                end_ns=end_ns,
                answer=answer,
                model=model,
                status=status,
            )

        response.after = record
        response.headers[wire.TRACE_ID_HEADER] = context.trace_id
        response.headers[wire.FRONT_HEADER] = f"{call.start_ns} {end_ns}"
        return response
