"""The spans of one request in the front: validate, queue, batch, lane (handover, run, return), respond.

The leaves lie end to end, so that they sum to the request's wall time and a slow request shows where its time went.
Most traces are never read, so what is kept of a request are its times; spans are made of them when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, override

from warmpool.batches import PartResult
from warmpool.dataplane import Answer
from warmpool.tracing import Span, Spans, new_span_id

SPANS_OF_ALL = 3  # front, validate, respond
SPANS_OF_A_PART = 6


class _Part(NamedTuple):
    """Of a part's result what its spans say: all but the outputs, which are much larger."""

    lane: str
    bucket: str
    padding: float
    batch_rows: int
    cold: bool
    formed_ns: int
    sent_ns: int
    run_start_ns: int
    run_end_ns: int
    received_ns: int

    @classmethod
    def of(cls, part: PartResult) -> _Part:
        return cls(
            part.lane,
            part.bucket,
            part.padding,
            part.batch_rows,
            part.cold,
            part.formed_ns,
            part.sent_ns,
            part.run_start_ns,
            part.run_end_ns,
            part.received_ns,
        )


class RequestTrace(Spans):
    """The front's spans of one request.

    Args:
        parent_id: the caller's span, "" for none.
        start_ns: when its body had arrived.
        end_ns: when the response was handed to the server.
        answer: what the data plane gave; None for a refused request.
        attributes: of the root span.
    """

    __slots__ = ("_attributes", "_end_ns", "_made", "_parent_id", "_parts", "_start_ns", "_validated_ns")

    def __init__(
        self, *, parent_id: str, start_ns: int, end_ns: int, answer: Answer | None, attributes: Mapping[str, Any]
    ) -> None:
        self._parent_id = parent_id
        self._start_ns, self._end_ns = start_ns, end_ns
        self._attributes = attributes
        self._validated_ns = answer.validated_ns if answer else None
        self._parts = tuple([_Part.of(part) for part in answer.parts]) if answer else ()
        self._made: list[Span] | None = None

    @override
    def __len__(self) -> int:
        return 1 if self._validated_ns is None else SPANS_OF_ALL + SPANS_OF_A_PART * len(self._parts)

    @property
    @override
    def start_ns(self) -> int:
        return self._start_ns

    @property
    @override
    def end_ns(self) -> int:
        return self._end_ns

    @property
    @override
    def cold(self) -> bool:
        return any(part.cold for part in self._parts)

    @override
    def made(self) -> list[Span]:
        if self._made is None:
            self._made = self._spans()
            assert len(self._made) == len(self)
        return self._made

    def _spans(self) -> list[Span]:
        root = new_span_id()
        front = Span(
            name="front",
            span_id=root,
            parent_id=self._parent_id,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            attributes=dict(self._attributes),
        )
        if self._validated_ns is None:
            return [front]
        spans = [front, _span("validate", root, self._start_ns, self._validated_ns)]
        for part in self._parts:
            spans.extend(_part_spans(root, part, self._validated_ns))
        answered_ns = max((part.received_ns for part in self._parts), default=self._validated_ns)
        return [*spans, _span("respond", root, answered_ns, self._end_ns)]


def _part_spans(root: str, part: _Part, validated_ns: int) -> list[Span]:
    lane = new_span_id()
    attributes = {
        "warmpool.lane": part.lane,
        "warmpool.bucket": part.bucket,
        "warmpool.padding": round(part.padding, 4),
        "warmpool.batch_rows": part.batch_rows,
        "warmpool.cold": part.cold,
    }
    return [
        _span("queue", root, validated_ns, part.formed_ns),
        _span("batch", root, part.formed_ns, part.sent_ns),
        Span(
            name="lane",
            span_id=lane,
            parent_id=root,
            start_ns=part.sent_ns,
            end_ns=part.received_ns,
            attributes=attributes,
        ),
        _span("handover", lane, part.sent_ns, part.run_start_ns),
        _span("run", lane, part.run_start_ns, part.run_end_ns),
        _span("return", lane, part.run_end_ns, part.received_ns),
    ]


def _span(name: str, parent_id: str, start_ns: int, end_ns: int) -> Span:
    return Span(name=name, span_id=new_span_id(), parent_id=parent_id, start_ns=start_ns, end_ns=max(start_ns, end_ns))
