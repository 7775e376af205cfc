"""A path leads to what was named for it, and to nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from warmpool.http_messages import Request, Response
from warmpool.http_routes import Routes


async def one(_: Request) -> Response:
    return Response()


async def other(_: Request) -> Response:
    return Response()


ROUTES = Routes(
    [
        ("GET", "/v2", one),
        ("GET", "/v2/models/{model}", one),
        ("POST", "/v2/models/{model}", other),
        ("POST", "/v2/models/{model}/versions/{version}/infer", one),
        ("POST", "/v2/models/special/infer", other),
    ]
)


@pytest.mark.parametrize(
    ("path", "handlers", "parameters"),
    [
        ("/v2", {"GET": one, "HEAD": one}, {}),
        ("/v2/models/a:b", {"GET": one, "HEAD": one, "POST": other}, {"model": "a:b"}),
        ("/v2/models/a/versions/7/infer", {"POST": one}, {"model": "a", "version": "7"}),
        ("/v2/models/{}", {"GET": one, "HEAD": one, "POST": other}, {"model": "{}"}),
        ("/v2/models/special/infer", {"POST": other}, {}),
    ],
)
def test_a_path_has_its_handlers_by_method_and_its_segments_by_name(path: str, handlers: Any, parameters: Any):
    assert ROUTES.find(path) == (handlers, parameters)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "v2",
        "/v2/",
        "/v2/models",
        "/v2/models/",
        "/v2/models//versions/7/infer",
        "/v2/models/a/infer",
        "/v3",
        "*",
    ],
)
def test_nothing_is_at_a_path_that_is_shorter_longer_or_has_an_empty_segment(path: str):
    handlers, _ = ROUTES.find(path)
    assert handlers == {}
