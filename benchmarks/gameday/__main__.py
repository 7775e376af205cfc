"""`python -m benchmarks.gameday`: bring faults upon an instance under load, and print what became of it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.gameday.faults import FAULTS
from benchmarks.gameday.game import ANSWERS_MIN, CALLERS, Game, Outcome
from benchmarks.gameday.place import place
from benchmarks.stores import Folders
from warmpool.publishing.progress import shown_on

ROOT = Path(__file__).resolve().parents[2]
SECONDS, SECONDS_MAX = 180, 24 * 3600
COLUMNS = 140  # of a table that goes to a file


def seconds(text: str) -> int:
    """A number of seconds."""
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 0 to {SECONDS_MAX}")
    return number


def kinds(text: str) -> list[str]:
    """Names of faults, after commas."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in FAULTS]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}; allowed: {', '.join(FAULTS)}")
    return list(dict.fromkeys(names))


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gameday",
        description="Bring faults upon an instance under load, with every answer checked, and report: injected, seen, "
        "recovered in, lost, wrong.",
        epilog="Exit status: 0; 3 if anything was lost or wrong, was not noticed, or did not recover within its bound.",
    )
    parser.add_argument(
        "--faults", type=kinds, default=list(FAULTS), metavar="NAMES", help=f"which, after commas: {', '.join(FAULTS)}"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=SECONDS,
        help="how long new faults begin; each comes once in any case (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order, and of what is drawn (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".store-bench", help="the store that is copied for it, used again; the log"
    )
    return parser.parse_args(arguments)


def show(console: Console, outcomes: dict[str, Outcome], seed: int) -> None:
    """Draw the report."""
    table = Table(title=f"game day, seed {seed}", title_justify="left", box=None, header_style="bold")
    table.add_column("fault")
    for column in ("injected", "seen", "recovered in", "bound", "answers", "refused", "lost", "wrong", "not so ready"):
        table.add_column(column, justify="right")
    table.add_column("")
    for name in (name for name in FAULTS if name in outcomes):
        one = outcomes[name]
        table.add_row(
            name,
            str(one.injected),
            str(one.seen),
            f"{max(one.recovered_s):.1f} s" if len(one.recovered_s) == one.injected else "never",
            f"{one.recovery_s_max:.0f} s",
            *(f"{count:,}" for count in (one.right, one.refused, one.lost, one.wrong, one.contradictions)),
            "[green]good[/]" if one.good else "[red]bad[/]",
        )
    console.print(table)
    for name, one in outcomes.items():
        for text in (*(f"refused, such as: {said}" for said in one.refusals[:1]), *one.troubles):
            console.print(f"{name}: {text}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all went well, 3 if not; what goes wrong with the game itself is raised."""
    options = read_options(arguments)
    os.chdir(ROOT)
    logging.disable(logging.WARNING)  # of the store that is looked at from here
    with shown_on(sys.stderr) as progress, tempfile.TemporaryDirectory(prefix="warmpool-gameday-") as scratch:
        progress.say(f"{len(options.faults)} kinds of faults, {options.seconds} s, seed {options.seed}")
        with place(Folders(options.work.absolute()), Path(scratch)) as here:
            progress.say(f"the instance is warm; {CALLERS} callers, at least {ANSWERS_MIN} answers after each fault")
            game = Game(here, options.seed, progress.say)
            game.play(options.faults, options.seconds)
    if options.json:
        document = {
            "seed": options.seed,
            "seconds": options.seconds,
            "faults": {name: one.document() for name, one in game.outcomes.items()},
            "good": all(one.good for one in game.outcomes.values()),
        }
        print(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        show(Console(highlight=False, width=None if sys.stdout.isatty() else COLUMNS), game.outcomes, options.seed)
    return 0 if all(one.good for one in game.outcomes.values()) else 3


if __name__ == "__main__":
    sys.exit(main())
