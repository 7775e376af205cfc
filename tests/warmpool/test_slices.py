"""Slices that threads ask for, as the kernel tells them."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from tests.warmpool.sliced import told_of
from warmpool import slices


def in_a_thread(work):
    """What it returns there."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(not told_of(), reason="this kernel takes no slices from threads")
def test_a_thread_gets_what_it_asks_for_and_so_do_those_that_it_starts_until_it_asks_for_the_systems_own():
    own_s = in_a_thread(slices.slice_s)

    def asking():
        slices.ask_for(slices.SHORT_S)
        short_s = slices.slice_s(), in_a_thread(slices.slice_s)
        slices.ask_for(slices.OWN_S)
        return *short_s, slices.slice_s()

    assert in_a_thread(asking) == pytest.approx((slices.SHORT_S, slices.SHORT_S, own_s))
    assert slices.slice_s() == pytest.approx(own_s) != slices.SHORT_S, "it is of the thread that asked"


def test_where_no_such_call_is_known_nothing_happens(monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname="Linux", machine="pdp11"))
    slices.ask_for(slices.SHORT_S)
    with pytest.raises(OSError, match="pdp11"):
        slices.slice_s()
