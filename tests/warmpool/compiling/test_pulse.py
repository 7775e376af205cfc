"""A pulse in this process: who beats, where, and when not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.instance_process import wait_until
from warmpool.compiling.pulse import PROCESSORS_MAX, Pulse


@pytest.fixture(scope="module")
def pulse():
    return Pulse(sorted(os.sched_getaffinity(0))[:PROCESSORS_MAX])


def beating(pulse):
    """By processor, the thread that beats there."""
    found = {one.name: one.native_id for one in threading.enumerate() if one.name.startswith("pulse ")}
    assert pulse is not None
    return {int(name.partition(" ")[2]): thread for name, thread in found.items()}


def woken(thread):
    """How often it has gone to sleep."""
    status = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_each_processor_has_a_beat_of_its_own_of_the_class_of_who_made_it(pulse):
    found = beating(pulse)
    assert set(found) == set(sorted(os.sched_getaffinity(0))[:PROCESSORS_MAX])
    wait_until(lambda: all(os.sched_getaffinity(thread) == {one} for one, thread in found.items()))
    assert {os.sched_getscheduler(thread) for thread in found.values()} == {os.sched_getscheduler(0)}


@pytest.mark.parametrize(("processors", "beats"), [(PROCESSORS_MAX, PROCESSORS_MAX), (PROCESSORS_MAX + 1, 0)])
def test_no_beat_is_made_where_there_are_many_processors(monkeypatch, processors, beats):
    threads = Mock()
    monkeypatch.setattr(threading, "Thread", threads)
    Pulse(range(processors))
    assert threads().start.call_count == beats


def test_it_beats_again_and_again_while_it_is_entered_and_then_no_more(pulse):
    found = beating(pulse)
    with pulse:
        before = {thread: woken(thread) for thread in found.values()}
        wait_until(lambda: all(woken(thread) > before[thread] + 20 for thread in found.values()))
    looks = []

    def at_rest():
        looks.append([woken(thread) for thread in found.values()])
        return looks[-3:] == [looks[-1]] * 3

    wait_until(at_rest)
