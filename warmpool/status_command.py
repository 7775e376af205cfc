"""`warmpool status`: what an instance is doing, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from warmpool import asking
from warmpool.compiling.shown import Compiling, show_compiling, show_compiling_in_full
from warmpool.manifest import bucket_name


class Version(msgspec.Struct, frozen=True):
    """How a version of a model is, and why."""

    state: str
    reason: str


class Model(msgspec.Struct, frozen=True):
    """A served model, as far as it is shown; `version` is the one that gets requests."""

    version: str
    ready: bool
    methods: list[str]
    versions: dict[str, Version] = {}


class Cost(msgspec.Struct, frozen=True):
    """What a lane believes that a batch of one bucket takes, in microseconds; how many it is concluded from."""

    model: str
    method: str
    bucket: dict[str, int]
    published_us: float
    predicted_us: float
    bound_us: float
    runs: int


class Memory(msgspec.Struct, frozen=True):
    """What weights and executables take of a lane's memory, and of how much (0: any); executables without room."""

    bytes: int
    bytes_max: int
    evicted: int


class Circuit(msgspec.Struct, frozen=True):
    """Whether a lane that kept failing is trusted: "closed" if it is, "open" while it is down, "half-open" on trial."""

    state: str
    reason: str
    next_try_in_s: float | None


class Lane(msgspec.Struct, frozen=True):
    """A lane, as far as it is shown; a reason for each model that it misses and executable that it cannot have warm."""

    name: str
    pid: int | None
    state: str
    warm: int
    planned: int
    batches: int
    restarts: int
    last_end: str
    circuit: Circuit
    compiles: int | None
    resident_bytes: int | None
    missing: dict[str, str]
    cold: dict[str, str]
    memory: Memory
    costs: list[Cost]


class StoreStatus(msgspec.Struct, frozen=True):
    """Why the store cannot be used now, "" if it can, and how many executables the instance set aside."""

    trouble: str
    quarantined: int


class Churn(msgspec.Struct, frozen=True):
    """Whether the instance has what it needs: how much is missing, and in how many seconds nothing is, if known."""

    state: str
    missing: int
    steady_in_s: float | None


class Rollout(msgspec.Struct, frozen=True):
    """A rollout under way: what this instance concludes of the canary by now, and why."""

    stable: str
    canary: str
    verdict: str
    reason: str


class Status(msgspec.Struct, frozen=True):
    """The document of /v1/status, as far as it is shown."""

    version: str
    state: str
    ready: bool
    reasons: dict[str, str]
    models: dict[str, Model]
    store: StoreStatus
    churn: Churn
    compiling: Compiling
    lanes: list[Lane]
    rows_waiting: int
    rollouts: dict[str, Rollout] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `warmpool status`."""
    asking.add_arguments(parser)
    parser.add_argument("--costs", action="store_true", help="what batches are predicted to take, too")
    parser.add_argument("--compiling", action="store_true", help="what is compiled, waits and was compiled, too")


def main(arguments: argparse.Namespace) -> int:
    """Print the status; 0 if the instance is ready, 3 if it answers and is not."""
    document, status = asking.ask(arguments.url, "/v1/status", Status)
    if arguments.json:
        asking.print_json(document)
    else:
        console = asking.console()
        show(console, status)
        if arguments.costs:
            show_costs(console, status.lanes)
        if arguments.compiling:
            show_compiling_in_full(console, status.compiling)
    return 0 if status.ready else 3


def show(console: Console, status: Status) -> None:
    """Draw the status."""
    ready = "[green]ready[/]" if status.ready else "[red]not ready[/]"
    console.print(f"warmpool {status.version}  {status.state}, {ready}  {status.rows_waiting} rows waiting")
    for name, reason in status.reasons.items():
        console.print(escape(f"  {name or 'instance'}: {reason}"), style="red", soft_wrap=True)
    if status.store.trouble:
        console.print(escape(f"  store: {status.store.trouble}"), style="yellow", soft_wrap=True)
    if status.store.quarantined:
        console.print(f"  {status.store.quarantined} executables quarantined: `warmpool cache ls`", style="yellow")
    _show_churn(console, status.churn)
    show_compiling(console, status.compiling)
    _show_models(console, status)
    columns = ("lane", "pid", "state", "warm", "evicted", "held", "batches", "restarts", "compiles", "memory")
    lanes = Table(*columns, box=None)
    for lane in status.lanes:
        lanes.add_row(
            lane.name,
            _shown(lane.pid),
            lane.state,
            f"{lane.warm}/{lane.planned}",
            str(lane.memory.evicted),
            _held(lane.memory),
            str(lane.batches),
            str(lane.restarts),
            _shown(lane.compiles),
            "-" if lane.resident_bytes is None else _mib(lane.resident_bytes),
        )
    console.print(lanes)
    for lane in status.lanes:
        for trouble in _troubles(lane):
            console.print(escape(f"  {lane.name}: {trouble}"), style="yellow", soft_wrap=True)


def _show_models(console: Console, status: Status) -> None:
    models = Table("model", "version", "ready", "methods", box=None)
    for name, model in status.models.items():
        models.add_row(name, escape(model.version), "yes" if model.ready else "no", ", ".join(model.methods))
    console.print(models)
    for name, model in status.models.items():
        for version, one in model.versions.items():
            if version != model.version or one.state != "serving":
                why = f": {one.reason}" if one.reason else ""
                style = "yellow" if one.state == "refused" else None
                console.print(escape(f"  {name}: version {version} is {one.state}{why}"), style=style, soft_wrap=True)
    for name, rollout in status.rollouts.items():
        versions = f"{rollout.canary} beside {rollout.stable}"
        console.print(escape(f"  {name}: {versions}: {rollout.verdict} ({rollout.reason})"), soft_wrap=True)


def show_costs(console: Console, lanes: list[Lane]) -> None:
    """Draw what batches take: as measured at publish, as predicted now, and what one in fifty takes more than."""
    table = Table("lane", "batch", "published", "predicted", "bound", "runs", box=None)
    for lane in lanes:
        for cost in lane.costs:
            times = (f"{us / 1e3:.3g} ms" for us in (cost.published_us, cost.predicted_us, cost.bound_us))
            batch = f"{cost.model}:{cost.method} {bucket_name(cost.bucket)}"
            table.add_row(lane.name, escape(batch), *times, str(cost.runs))
    console.print(table)


def _show_churn(console: Console, churn: Churn) -> None:
    if churn.state == "steady":
        return
    steady = "it is not known when it will be steady"
    if churn.steady_in_s is not None:
        steady = f"steady in about {churn.steady_in_s:.0f} s"
    line = f"  {churn.state}: {churn.missing} executables are missing, {steady}"
    console.print(escape(line), style="yellow", soft_wrap=True)


def _troubles(lane: Lane) -> Iterator[str]:
    """What became of its processes, and what it cannot have warm."""
    if lane.last_end:
        yield f"the last one {lane.last_end}"
    if lane.circuit.state == "open":
        yield f"it is down: {lane.circuit.reason}; it is tried again in {lane.circuit.next_try_in_s:g} s"
    elif lane.circuit.state != "closed":
        yield f"it is on trial: {lane.circuit.reason}"
    for title, reason in (*lane.missing.items(), *lane.cold.items()):
        yield f"{title}: {reason}"


def _held(memory: Memory) -> str:
    return f"{_mib(memory.bytes)} of {_mib(memory.bytes_max)}" if memory.bytes_max else _mib(memory.bytes)


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
