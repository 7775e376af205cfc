"""`warmpool traces`: where the time went, as waterfalls: cold starts first, then cold requests, then the slowest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.markup import escape

from warmpool import asking
from warmpool.tracing import Span, Trace

SHOWN_DEFAULT = 5
NAME_COLUMNS_MAX = 46
BAR_COLUMNS_MIN = 20
PIPE_COLUMNS = 130  # a pipe has no width; this is what a log shows well


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool traces`."""
    asking.add_arguments(parser)
    parser.add_argument("--cold", action="store_true", help="cold starts and cold requests only")
    parser.add_argument("--count", type=int, default=SHOWN_DEFAULT, help=f"how many, 1 to 1000 ({SHOWN_DEFAULT})")


def main(arguments: argparse.Namespace) -> int:
    """Print the traces."""
    path = f"/v1/traces?count={max(1, min(arguments.count, 1000))}&cold={int(arguments.cold)}"
    documents = asking.ask(arguments.url, path)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(documents)).decode())
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    for trace in msgspec.convert(documents, list[Trace]):
        show(console, trace)
    return 0


def show(console: Console, trace: Trace) -> None:
    """Draw one trace: a line a span, indented by depth, its bar on the trace's own time axis."""
    start_ns = min(span.start_ns for span in trace.spans)
    duration_ns = max(trace.duration_ns, 1)
    columns = max(BAR_COLUMNS_MIN, min(console.width, 160) - NAME_COLUMNS_MAX - 24)
    console.print(f"[bold]trace {trace.trace_id}[/]  {duration_ns / 1e6:.1f} ms{'  cold' if trace.cold else ''}")
    for depth, span in ordered(trace.spans):
        begin = (span.start_ns - start_ns) * columns // duration_ns
        width = max(1, (span.end_ns - span.start_ns) * columns // duration_ns)
        bar = " " * min(begin, columns - 1) + "█" * min(width, columns - min(begin, columns - 1))
        name = ("  " * depth + span.name)[:NAME_COLUMNS_MAX]
        took_ms, after_ms = (span.end_ns - span.start_ns) / 1e6, (span.start_ns - start_ns) / 1e6
        console.print(
            f"{escape(name):<{NAME_COLUMNS_MAX}} {after_ms:>8.1f} +{took_ms:>8.2f} ms [cyan]{bar:<{columns}}[/]",
            no_wrap=True,
            overflow="crop",
        )
    console.print()


def ordered(spans: list[Span]) -> Iterator[tuple[int, Span]]:
    """Spans with their depth, each below its parent and in order of time; orphans count as roots."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    stack: list[tuple[int, Span]] = [(0, span) for span in reversed(children.get("", []))]
    while stack:
        depth, span = stack.pop()
        yield depth, span
        stack += [(depth + 1, child) for child in reversed(children.get(span.span_id, []))]
