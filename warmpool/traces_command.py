"""`warmpool traces`: where the time went, as waterfalls: cold starts first, then cold requests, then the slowest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from warmpool import asking
from warmpool.logged_spans import NoLog, logged_traces
from warmpool.tracing import Span, Trace

SHOWN_DEFAULT = 5
SHOWN_MAX = 1000
NAME_COLUMNS_MAX = 46
BAR_COLUMNS_MIN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool traces`."""
    asking.add_arguments(parser)
    parser.add_argument(
        "--file", metavar="FILE", help="those that a log has, in place of an instance's; - for standard input"
    )
    parser.add_argument("--cold", action="store_true", help="cold starts and cold requests only")
    parser.add_argument(
        "--count", type=count, default=SHOWN_DEFAULT, help=f"how many, 1 to {SHOWN_MAX} ({SHOWN_DEFAULT})"
    )


def count(text: str) -> int:
    """A number of traces."""
    number = int(text) if text.isdecimal() and len(text) <= len(str(SHOWN_MAX)) else 0
    if not 1 <= number <= SHOWN_MAX:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to {SHOWN_MAX}")
    return number


def main(arguments: argparse.Namespace) -> int:
    """Print the traces."""
    if arguments.file:
        traces = logged_traces(_read(arguments.file)).read(arguments.count, cold_only=arguments.cold)
        document = msgspec.to_builtins(traces)
    else:
        path = f"/v1/traces?count={arguments.count}&cold={int(arguments.cold)}"
        document, traces = asking.ask(arguments.url, path, list[Trace])
    if arguments.json:
        asking.print_json(document)
        return 0
    console = asking.console()
    for trace in traces:
        show(console, trace)
    return 0


def _read(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise NoLog(f"--file {file!r} cannot be read: {error}") from None


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
        name = ("  " * depth + _printable(span.name))[:NAME_COLUMNS_MAX]
        took_ms, after_ms = (span.end_ns - span.start_ns) / 1e6, (span.start_ns - start_ns) / 1e6
        console.print(
            f"{escape(f'{name:<{NAME_COLUMNS_MAX}}')} {after_ms:>8.1f} +{took_ms:>8.2f} ms [cyan]{bar:<{columns}}[/]",
            no_wrap=True,
            overflow="crop",
        )
    console.print()


def ordered(spans: list[Span]) -> Iterator[tuple[int, Span]]:
    """Spans with their depth, each below its parent and in order of time; orphans count as roots.

    A span that was sent twice is there twice, its children once.
    """
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    stack: list[tuple[int, Span]] = [(0, span) for span in reversed(children.get("", []))]
    while stack:
        depth, span = stack.pop()
        yield depth, span
        stack += [(depth + 1, child) for child in reversed(children.pop(span.span_id, []))]


def _printable(text: str) -> str:
    """What others named must not move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
