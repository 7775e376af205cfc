"""An HTTP request as handlers see it, and their answer. Bodies come in pieces: nobody holds more than was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

import msgspec

from warmpool.caller import Caller


class CallerGone(Exception):
    """The rest of a request will not come."""


class Request:
    """One request; its connection feeds it.

    Args:
        method: As it came: "GET".
        path: Without the query, what was percent-encoded decoded.
        query: As it came, without "?".
        headers: Names in lower case, in the order in which they came.
        wanted: Is called whenever more of the body is waited for.
        keeps_alive: Whether the connection may go on behind it.

    Attributes:
        parameters: What stands in the path where the route has a name.
        caller: Who waits for the answer.
        ended: Whether all of its body has come.
        gone: Whether nobody will take its answer, or the rest of it will not come.
        answered: Whether its answer was sent.
        unread_bytes: Of its body, those that came and were not taken.
    """

    __slots__ = (
        "__weakref__",
        "_arrival",
        "_fields",
        "_pieces",
        "_wanted",
        "answered",
        "caller",
        "ended",
        "gone",
        "headers",
        "keeps_alive",
        "method",
        "parameters",
        "path",
        "query",
        "unread_bytes",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: list[tuple[str, str]] | None = None,
        *,
        wanted: Callable[[Request], None] = lambda _: None,
        keeps_alive: bool = True,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers or []
        self.parameters: Mapping[str, str] = {}
        self.caller = Caller()
        self.keeps_alive = keeps_alive
        self.ended = self.gone = self.answered = False
        self.unread_bytes = 0
        self._fields = dict(reversed(self.headers))
        self._wanted = wanted
        self._pieces: list[bytes] = []
        self._arrival: asyncio.Future[None] | None = None

    def header(self, name: str, default: str = "") -> str:
        """The first header of a name, in lower case."""
        return self._fields.get(name, default)

    def asked(self, name: str, default: str) -> str:
        """What the query says last of a name."""
        return dict(parse_qsl(self.query, keep_blank_values=True)).get(name, default)

    def take(self) -> bytes:
        """What came of the body since."""
        pieces, self._pieces, self.unread_bytes = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def more(self) -> None:
        """Wait for more of the body, or its end. Raises CallerGone."""
        while not (self._pieces or self.ended or self.gone):
            arrival = self._arrival = asyncio.get_running_loop().create_future()
            self._wanted(self)
            await arrival
        if self.gone:
            raise CallerGone

    # What its connection calls

    def feed(self, piece: bytes) -> None:
        """More of the body has come."""
        self._pieces.append(piece)
        self.unread_bytes += len(piece)
        self._wake()

    def end(self) -> None:
        """The body has come to its end."""
        self.ended = True
        self._wake()

    def leave(self) -> None:
        """Nothing more will come, and no answer is sent. What is done for its caller is not interrupted by that."""
        self.gone = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class Response:
    """An answer.

    Attributes:
        status: Such as 200.
        body: All of it.
        headers: All but its length, date and what concerns the connection; they are written as they are.
        after: Is called once it has been sent.
    """

    __slots__ = ("__weakref__", "after", "body", "headers", "status")

    def __init__(
        self, body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = ""
    ) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})
        if media_type:
            self.headers["content-type"] = media_type
        self.after: Callable[[], None] | None = None


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response whose body is `content` as JSON."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")
