"""`python -m infra.stack`: up, down, logs and status of the stack on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TextIO

import msgspec
from rich.console import Console

from examples.children import RunFailed
from examples.terminal import foreground
from infra.stack import marked
from infra.stack import options as stack_options
from infra.stack.ascent import bring_up
from infra.stack.descent import take_down
from infra.stack.folder import Folder
from infra.stack.log_view import Line, LogView, coloured, shown
from infra.stack.report import COLUMNS, report_of, show
from infra.stack.state import State, read_state
from infra.stack.supervisor import OWN_LOG, Supervisor

LOOK_S = 1.0
PROCESSES = (OWN_LOG, "gcs", "otlp", "prometheus", "instance-1", "instance-2", "functions")


def parser() -> argparse.ArgumentParser:
    """All flags."""
    found = argparse.ArgumentParser(prog="python -m infra.stack", description=__doc__)
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    up = _add(commands, "up", do_up, "bring the stack up, and return when all of it is ready")
    stack_options.add_arguments(up, os.environ)
    up.add_argument("--foreground", action="store_true", help="then show its logs until Ctrl-C, and take it down")
    down = _add(commands, "down", do_down, "take it down; artifacts, keys, logs and metrics stay")
    down.add_argument(
        "--destroy", action="store_true", help="then remove all that it kept; CONFIRM=yes, or you are asked"
    )
    logs = _add(commands, "logs", do_logs, "show what its processes say, until Ctrl-C")
    logs.add_argument("names", nargs="*", metavar="PROCESS", help=f"only these ({', '.join(PROCESSES)})")
    logs.add_argument("--lines", type=_lines, default=10, metavar="N", help="old lines of each first (%(default)s)")
    logs.add_argument("--no-follow", action="store_true", help="end after the old lines")
    _add(commands, "status", do_status, "tell how it is; 0 if all of it is ready, else 1")
    return found


def main(arguments: list[str] | None = None) -> int:
    """0 if it worked; 1 with one line that says why not; 130 if it was interrupted."""
    chosen = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with foreground():
            run: Callable[[argparse.Namespace, Folder], int] = chosen.run
            return run(chosen, Folder(Path(chosen.folder)))
    except BrokenPipeError:  # whoever read our output has left
        _discard(sys.stdout)
        return 0
    except (RunFailed, OSError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def do_up(chosen: argparse.Namespace, folder: Folder) -> int:
    """Bring it up."""
    began_s = time.monotonic()
    asked = stack_options.read(chosen)
    with folder.alone():
        state = bring_up(folder, asked, say)
    say(f"up after {time.monotonic() - began_s:.1f} s; `make logs`, `make stack-status`, `make down`")
    urls = {one.name: one.url for one in state.services}
    if chosen.json:
        _print_json({"folder": str(folder.path), "store": state.options.store, "urls": urls})
    else:
        print(*_addresses(state, urls), sep="\n", flush=True)
    return _stay(folder, state, json=chosen.json) if chosen.foreground else 0


def do_down(chosen: argparse.Namespace, folder: Folder) -> int:
    """Take it down."""
    there = folder.path.is_dir() or bool(marked.marked(folder.mark))
    ended = there and _take_down(folder, destroy=chosen.destroy)
    if not ended:
        say(f"no stack is up in {folder.path}")
    if chosen.json:
        _print_json({"folder": str(folder.path), "ended": ended, "removed": there and chosen.destroy})
    return 0


def _take_down(folder: Folder, *, destroy: bool) -> bool:
    """Whether a stack was up, or what was left of one."""
    if destroy:
        _confirm(folder)
    with folder.alone():
        began_s = time.monotonic()
        there = folder.state.exists() or bool(marked.marked(folder.mark))
        if there:
            take_down(folder, say)
            say(f"down after {time.monotonic() - began_s:.1f} s")
        if destroy:
            folder.destroy()
            say(f"removed {folder.path}")
    return there


def do_logs(chosen: argparse.Namespace, folder: Folder) -> int:
    """Show what they say."""
    unknown = [name for name in chosen.names if name not in PROCESSES]
    if unknown:
        raise RunFailed(f"{unknown[0]}: there is no such process; allowed: {', '.join(PROCESSES)}")
    if not folder.logs.is_dir():
        raise RunFailed(f"no stack was ever up in {folder.path}; `make up` brings one up")
    view = _view(folder, chosen.names, chosen.lines)
    try:
        for line in view.follow(lambda: chosen.no_follow):
            print(_shown(line, json=chosen.json), flush=True)
    except KeyboardInterrupt:
        return 0
    finally:
        view.close()
    return 0


def do_status(chosen: argparse.Namespace, folder: Folder) -> int:
    """Tell how it is."""
    report = report_of(folder, read_state(folder))
    if chosen.json:
        _print_json(report)
    else:
        show(Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else COLUMNS), report)
    return 0 if report.well else 1


def say(line: str) -> None:
    """Tell what happens; standard output stays free for answers. Nobody has to listen: what is done goes on."""
    try:
        print(f"stack: {line}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace, Folder], int],
    what: str,
) -> argparse.ArgumentParser:
    found = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    folder = os.environ.get("STACK") or ".stack"
    found.add_argument("--folder", metavar="DIR", default=folder, help="where it keeps what it keeps (%(default)s)")
    found.add_argument("--json", action="store_true", help="print JSON; of logs, a line each")
    found.set_defaults(run=run)
    return found


def _stay(folder: Folder, state: State, *, json: bool) -> int:
    """Show logs until Ctrl-C or SIGTERM, or until the supervisor has ended; then take the stack down."""
    view = _view(folder, [], 0)
    supervisor = Supervisor(folder)
    look_s = time.monotonic()

    def ended() -> bool:
        nonlocal look_s
        if time.monotonic() < look_s + LOOK_S:
            return False
        look_s = time.monotonic()
        return supervisor.processes() is None

    status = 1
    try:
        for line in view.follow(ended):
            print(_shown(line, json=json), flush=True)
    except KeyboardInterrupt:
        status = 0
    finally:
        view.close()
        with folder.alone():
            there = read_state(folder)
            if there and there.since_s == state.since_s:  # else a `down` from elsewhere was first
                take_down(folder, say)
    return status


def _view(folder: Folder, names: list[str], lines_max: int) -> LogView:
    return LogView({name: folder.log(name) for name in names or PROCESSES}, lines_max)


def _shown(line: Line, *, json: bool) -> str:
    if json:
        return msgspec.json.encode(line._asdict()).decode()
    return shown(line, PROCESSES.index(line.process), colours=coloured())


def _print_json(document: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(document)).decode(), flush=True)


def _addresses(state: State, urls: Mapping[str, str]) -> list[str]:
    """Where a person goes next."""
    return [
        f"functions   {urls['functions']}",
        f"instances   {urls['instance-1']} {urls['instance-2']}",
        f"store       {state.options.store}, with STORAGE_EMULATOR_HOST={urls['gcs']}",
        f"traces      .venv/bin/warmpool traces --url {urls['otlp']}",
        *([f"metrics     {urls['prometheus']}"] if "prometheus" in urls else []),
    ]


def _confirm(folder: Folder) -> None:
    given = os.environ.get("CONFIRM", "")
    if given == "yes":
        return
    if given or not sys.stdin.isatty():
        raise RunFailed(f"removing {folder.path} needs CONFIRM=yes, or somebody at a terminal who types yes")
    print(f"Remove {folder.path} with all artifacts and keys? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RunFailed("yes was not typed, nothing is changed")


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 0 to 10000")
    return int(text)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
