"""What an instance says of itself, read from the answer to GET /v1/status."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.connection import Response, ask_once, http_request
from benchmarks.server import Server

STATUS = http_request("GET", "/v1/status")
LIVE = http_request("GET", "/v2/health/live")


def status(server: Server) -> Any:
    """The document of /v1/status."""
    return msgspec.json.decode(ask_once(server.port, STATUS).body)


def lanes(response: Response) -> list[dict[str, Any]]:
    """All lanes. Raises ValueError where one could not warm what it is to hold: waiting would not help."""
    found: list[dict[str, Any]] = msgspec.json.decode(response.body)["lanes"]
    for lane in found:
        if lane["cold"] or lane["missing"]:
            raise ValueError(f"the {lane['name']} lane cannot warm everything: {lane}")
    return found


def primary_lane(response: Response) -> dict[str, Any]:
    """The primary lane; a lane that is not known yet has no pid and nothing planned."""
    absent = {"name": "primary", "pid": None, "state": "starting", "warm": 0, "planned": 0}
    return next((lane for lane in lanes(response) if lane["name"] == "primary"), absent)


def all_warm(response: Response) -> bool:
    """Whether the primary lane holds all it is to hold, each executable run once and its result read."""
    lane = primary_lane(response)
    return bool(lane["planned"]) and lane["warm"] == lane["planned"]


def settled(response: Response) -> bool:
    """Whether every lane holds all it is to hold."""
    found = lanes(response)
    return bool(found) and all(lane["planned"] and lane["warm"] == lane["planned"] for lane in found)


def model_ready(response: Response, model: str) -> bool:
    """Whether the primary lane holds a model's minimum set."""
    models = msgspec.json.decode(response.body)["models"]
    return model in models and bool(models[model]["ready"])
