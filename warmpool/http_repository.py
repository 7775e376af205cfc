"""HTTP: the model repository extension of the Open Inference Protocol, and word that the store has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from warmpool.errors import BadInput
from warmpool.http_messages import Request, Response, json_response
from warmpool.http_request import read_body
from warmpool.http_routes import Route
from warmpool.urgency import Urgency

if TYPE_CHECKING:
    from warmpool.instance import Instance

BODY_BYTES_MAX = 1 << 16


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index is asked for: only what is ready, or all."""

    ready: bool = False


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a load may say, which is nothing that matters: a model is loaded as it was published."""

    parameters: dict[str, Any] = {}


class RepositoryApi:
    """The handlers."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    async def index(self, request: Request) -> Response:
        asked = await self._body(request, Index, "ready")
        return json_response(self.instance.repository.index(ready=asked.ready))

    async def load(self, request: Request) -> Response:
        if parameters := (await self._body(request, Load, "parameters")).parameters:
            raise BadInput.about("parameters", min(parameters), "none: a model is loaded as it was published")
        wait_s = Urgency.of_headers(request.headers).timeout_s or self.instance.settings.deadline_ms / 1000
        await self.instance.repository.load(request.parameters["model"], wait_s)
        return json_response({})

    async def unload(self, request: Request) -> Response:
        await self._body(request, Load, "parameters")
        self.instance.repository.unload(request.parameters["model"])
        return json_response({})

    async def changed(self, _: Request) -> Response:
        """Nothing of what is pushed is read: it is only a reason to look."""
        self.instance.versions.changed()
        return json_response({})

    async def _body[B](self, request: Request, kind: type[B], field: str) -> B:
        """What a body says; it may be empty. Raises BadInput."""
        with self.instance.byte_budget.hold() as held:
            body = await read_body(request, BODY_BYTES_MAX, self.instance.settings.deadline_ms / 1000, held)
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise BadInput(f"body: {error}; allowed: nothing, or an object with {field}") from None


def repository_routes(instance: Instance) -> list[Route]:
    """Method, path and handler of each."""
    api = RepositoryApi(instance)
    return [
        ("POST", "/v2/repository/index", api.index),
        ("POST", "/v2/repository/models/{model}/load", api.load),
        ("POST", "/v2/repository/models/{model}/unload", api.unload),
        ("POST", "/v1/store/changed", api.changed),
    ]
