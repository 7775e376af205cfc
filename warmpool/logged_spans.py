"""Spans that processes wrote as lines of JSON, found again in a log: what an instance knows only while it lives.

A line is what the OpenTelemetry SDK says of a span; instances and functions write it where no collector takes it.
Google Cloud's log puts an entry around it, and gives all of them as one list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from warmpool.errors import WarmpoolError
from warmpool.tracing import Span, Traces

TRACES_MAX = 100_000
_LIST = re.compile(r"\s*\[\s*[{\]]")  # a line of a log may begin with a bracket, too
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_A_RESOURCE = ("service.name", "service.instance.id")  # kept with each of its spans


class NoLog(WarmpoolError):
    """The text is no log of spans; the message says where it is not."""


class _Context(msgspec.Struct, frozen=True):
    trace_id: str
    span_id: str


class _Resource(msgspec.Struct, frozen=True):
    attributes: dict[str, Any] = {}


class _Logged(msgspec.Struct, frozen=True):
    """A span as the SDK writes it; ids in hex after 0x, times in UTC to the microsecond."""

    name: str
    context: _Context
    start_time: datetime
    end_time: datetime
    parent_id: str | None = None
    attributes: dict[str, Any] = {}
    resource: _Resource = _Resource()

    def span(self) -> Span:
        named = {name: text for name in _OF_A_RESOURCE if (text := self.resource.attributes.get(name))}
        start_ns = _ns(self.start_time)
        return Span(
            name=self.name,
            span_id=self.context.span_id.removeprefix("0x"),
            parent_id=(self.parent_id or "").removeprefix("0x"),
            start_ns=start_ns,
            end_ns=max(start_ns, _ns(self.end_time)),
            attributes={**self.attributes, **named},
        )


def logged_traces(text: str) -> Traces:
    """The traces of a log: lines, or one list of entries. What in it is no span is left out.

    Of more than TRACES_MAX traces, or 16 times as many spans, those that come last in the log are kept.

    Raises:
        NoLog: The list, or a line that begins with a brace, is no JSON, or a span is not what one has to be.
    """
    found = Traces(TRACES_MAX)
    for place, entry in _entries(text):
        content = entry.get("jsonPayload", entry) if isinstance(entry, dict) else None
        if isinstance(content, dict) and "context" in content and "start_time" in content:
            try:
                logged = msgspec.convert(content, _Logged)
            except msgspec.ValidationError as error:
                raise NoLog(f"{place} is no span: {error}") from None
            found.receive(logged.context.trace_id.removeprefix("0x"), [logged.span()])
    return found


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """What the text consists of, and where that is."""
    if _LIST.match(text):
        for number, entry in enumerate(_decoded("the list", text), 1):
            yield f"entry {number}", entry
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("{"):  # others are what else was written there
            yield f"line {number}", _decoded(f"line {number}", line)


def _decoded(place: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise NoLog(f"{place} is no JSON ({error})") from None


def _ns(time: datetime) -> int:
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1) * 1000
