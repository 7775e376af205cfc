"""What `warmpool status` shows of a compile service."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from tests.warmpool.compiling.made_up import as_found, at, gap
from warmpool.compiling.backlog import Backlog
from warmpool.compiling.protocol import Placed
from warmpool.compiling.shown import Compiling, show_compiling, show_compiling_in_full


def drawn(show, found):
    console = Console(file=io.StringIO(), width=130, highlight=False, record=True)
    show(console, found)
    return console.export_text()


def of(backlog, state="running", reason=""):
    """A document as a service gives it."""
    return msgspec.convert({"state": state, "reason": reason, **backlog.describe(2.0)}, Compiling)


def busy():
    """One made, one failed, one under way, one waiting."""
    gaps = [gap(1, 16), gap(2, 16), gap(4, 16), gap(1, 8)]
    found = Backlog(1)
    found.take_in(as_found(*gaps), at(0))
    found.begin(at(0))
    found.placed(Placed(job=1, place=gaps[0].place, seconds=1.5, failure="", visible=True), at(1))
    found.placed(Placed(job=1, place=gaps[1].place, seconds=0.5, failure="it [red] crashed", visible=False), at(2))
    return found


def test_an_idle_service_needs_no_line():
    assert drawn(show_compiling, of(Backlog(1), "idle")) == ""
    assert drawn(show_compiling, of(Backlog(1), "off", "--compile off")) == ""


def test_one_that_starts_has_no_more_than_a_state():
    found = msgspec.convert({"state": "starting"}, Compiling)
    assert drawn(show_compiling, found) == ""
    assert drawn(show_compiling_in_full, found).startswith("compiling: starting\n")


def test_a_busy_one_has_a_line_and_one_for_each_failure():
    lines = drawn(show_compiling, of(busy())).splitlines()
    assert lines[0].startswith("  compiling: tiny:predict batch=4,seq=16; 1 more wait, all in about ")
    assert lines[1:] == ["  cannot be made: tiny:predict batch=2,seq=16 of 1: it [red] crashed"]


def test_in_full_there_is_the_history_what_runs_and_what_waits():
    lines = [line.split() for line in drawn(show_compiling_in_full, of(busy())).splitlines()]
    assert lines[0] == ["compiling:", "running"]
    rows = {line[1]: line[2:] for line in lines[2:]}
    assert rows["batch=1,seq=16"][:3] == ["1", "made", "1.50"]
    assert rows["batch=2,seq=16"] == ["1", "failed", "0.50", "it", "[red]", "crashed"]
    assert rows["batch=4,seq=16"] == ["1", "running", "2.00"]
    assert rows["batch=1,seq=8"][:2] == ["1", "waiting"]


def test_in_full_it_is_said_why_it_is_off():
    assert drawn(show_compiling_in_full, of(Backlog(1), "off", "--compile off")).startswith(
        "compiling: off, --compile off\n"
    )


def test_what_is_too_much_to_show_is_counted():
    found = Backlog(1)
    found.take_in(as_found(*(gap(1, seq) for seq in range(1, 101))), at(0))
    assert drawn(show_compiling_in_full, of(found)).splitlines()[-1] == "and 36 more"
