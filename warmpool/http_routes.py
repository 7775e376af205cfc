"""Which handler gets a request, by its method and the segments of its path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from warmpool.http_messages import Request, Response

Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str, str, Handler]
"""Method, path and handler. A segment "{name}" of the path stands for any that is not empty."""


@dataclass(slots=True)
class _Node:
    """A segment: what may come after it, and who handles a path that ends with it."""

    name: str = ""  # where it stands for any
    segments: dict[str, _Node] = field(default_factory=dict)
    handlers: dict[str, Handler] = field(default_factory=dict)


class Routes:
    """A tree of segments. What is named comes before what stands for any."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for method, path, handler in routes:
            node = self._root
            for segment in path.split("/"):
                any_name = segment[1:-1] if segment.startswith("{") else ""
                node = node.segments.setdefault("{}" if any_name else segment, _Node(any_name))
            node.handlers[method] = handler
            if method == "GET":
                node.handlers["HEAD"] = handler

    def find(self, path: str) -> tuple[dict[str, Handler], dict[str, str]]:
        """Who handles a path, by method (nobody where there is no such path), and its segments by their names."""
        found: dict[str, str] = {}
        node = self._root
        for segment in path.split("/"):
            following = node.segments.get(segment)
            if following is None or segment == "{}":
                following = node.segments.get("{}")
                if following is None or not segment:
                    return {}, found
                found[following.name] = segment
            node = following
        return node.handlers, found
