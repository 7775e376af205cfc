"""HTTP: an instance's probes. Whether it is live, started and ready are three questions.

live: the process answers. Restart it if it does not.
started: its first lane has tried what every model needs at least, or has died of it. Wait for that before requests are
sent; those that come sooner wait, too.
ready: every model's minimum set is warm. Send requests elsewhere while it is not; those that come are answered as far
as something warm covers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warmpool.http_messages import Request, Response, json_response
from warmpool.http_routes import Route

if TYPE_CHECKING:
    from warmpool.instance import Instance


class HealthApi:
    """The handlers."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    async def live(self, _: Request) -> Response:
        return _answer({"live": True}, holds=True)

    async def started(self, _: Request) -> Response:
        started = self.instance.settled.is_set()
        return _answer({"started": started}, holds=started)

    async def ready(self, _: Request) -> Response:
        reasons = self.instance.unready_reasons()
        return _answer({"ready": not reasons, "reasons": reasons}, holds=not reasons)


def health_routes(instance: Instance) -> list[Route]:
    """Method, path and handler of each probe."""
    api = HealthApi(instance)
    return [
        ("GET", "/v2/health/live", api.live),
        ("GET", "/v2/health/ready", api.ready),
        ("GET", "/v1/started", api.started),
    ]


def _answer(content: dict[str, Any], *, holds: bool) -> Response:
    return json_response(content, 200 if holds else 503)
