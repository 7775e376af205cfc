"""`warmpool rollout status [MODEL]`: what is served, and how the last rollouts went, by what the store says."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cache.errors import CacheError
from cache.signed_store import SignedStore
from warmpool import asking
from warmpool.cache_commands.opened import opened
from warmpool.errors import printable
from warmpool.manifest import Serving
from warmpool.rollout.changes import RolloutRefused
from warmpool.rollout.record import FOLDER, Rollout, read_record
from warmpool.rollout.serving_change import read_serving
from warmpool.settings import add_store_flags

SHOWN_MAX = 5


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What is served of a model, why that cannot be read ("" if it can), and its last rollouts, the latest first."""

    model: str
    serving: Serving | None
    problem: str
    rollouts: list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_store_flags(parser)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="which; by default all")
    parser.add_argument("--count", type=int, default=SHOWN_MAX, help="of rollouts to show a model (%(default)d)")


def main(args: argparse.Namespace) -> int:
    """Show them; 1 if something cannot be read."""
    store = opened(args)
    models = [_read(store, model, max(args.count, 1)) for model in args.models or store.names("models")]
    if args.json:
        print(msgspec.json.encode({"models": models}).decode())
    else:
        show(asking.console(), models)
    return 1 if any(model.problem for model in models) else 0


def show(console: Console, models: list[Model]) -> None:
    """Draw what is served, and below it the rollouts with the figures of their decisions."""
    table = Table("model", "stable", "canary", "share", "mirror", "previous", box=None)
    for model in models:
        serving = model.serving
        cells = (
            (serving.stable, serving.canary or "-", f"{serving.share:.1%}", f"{serving.mirror:.1%}") if serving else ()
        )
        previous = (serving.previous or "-",) if serving else (model.problem,)
        table.add_row(*(escape(printable(cell)) for cell in (model.model, *cells, *previous)))
    console.print(table)
    for model in models:
        for rollout in model.rollouts:
            title = f"{model.model} {rollout['stable']} -> {rollout['canary']}: {rollout['state']}"
            console.print(escape(printable(title)), style="bold", soft_wrap=True)
            for event in rollout["events"]:
                time = datetime.fromtimestamp(event["time_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
                line = f"  {time}  {event['what']} by {event['who']}: {event['reason'] or '-'}"
                console.print(escape(printable(line)), soft_wrap=True)
                if figures := event["figures"]:
                    text = "  ".join(f"{name} {value:g}" for name, value in figures.items())
                    console.print(escape(printable(f"    {text}")), style="dim", soft_wrap=True)


def _read(store: SignedStore, model: str, count: int) -> Model:
    serving, problem = None, ""
    try:
        serving, _ = read_serving(store, model)
    except (CacheError, RolloutRefused) as error:
        problem = str(error)
    names = sorted(store.names(f"{FOLDER}/{model}"), reverse=True)[:count]
    found = ((name, read_record(store, f"{FOLDER}/{model}/{name}")) for name in names)
    rollouts = [_document(name, rollout) for name, rollout in found if rollout]
    return Model(model=model, serving=serving, problem=problem, rollouts=rollouts)


def _document(name: str, rollout: Rollout) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(rollout)
    return {"started": name.removesuffix(".json"), "state": rollout.state, **fields}
