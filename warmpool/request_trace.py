"""The spans of one request in the front: validate, queue, batch, lane (handover, run, return), respond.

The leaves lie end to end, so that they sum to the request's wall time and a slow request shows where its time went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmpool.batches import PartResult
from warmpool.dataplane import Answer
from warmpool.tracing import Span, new_span_id


def request_spans(
    *, parent_id: str, start_ns: int, end_ns: int, answer: Answer | None, attributes: Mapping[str, Any]
) -> list[Span]:
    """The front's spans of one request.

    Args:
        parent_id: the caller's span, "" for none.
        start_ns: when its body had arrived.
        end_ns: when the response was handed to the server.
        answer: what the data plane gave; None for a refused request.
        attributes: of the root span.
    """
    root = new_span_id()
    spans = [
        Span(
            name="front",
            span_id=root,
            parent_id=parent_id,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=dict(attributes),
        )
    ]
    if answer is None:
        return spans
    spans.append(_span("validate", root, start_ns, answer.validated_ns))
    for part in answer.parts:
        spans.extend(_part_spans(root, part, answer.validated_ns))
    received_ns = max((part.received_ns for part in answer.parts), default=answer.validated_ns)
    spans.append(_span("respond", root, received_ns, end_ns))
    return spans


def _part_spans(root: str, part: PartResult, validated_ns: int) -> list[Span]:
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
