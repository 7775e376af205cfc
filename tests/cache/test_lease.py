"""A lease has one holder, whatever clocks say; who stops renewing loses it, and learns that."""

from __future__ import annotations

import logging
import threading
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache import lease
from cache.errors import LeaseLost, NotStored, StoreUnavailable
from cache.lease import RENEWALS_A_TTL, TTL_S_DEFAULT, TTL_S_MAX, Contender, Lease
from cache.local_store import LocalStore

PATH = "leases/key"
WAIT_S_MAX = 60.0


class Clock:
    """Tells the time that a test says."""

    def __init__(self, now_s=1000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


class Store(LocalStore):
    """A store with an outage, or one that answers a put after having been asked twice."""

    down = False
    answers_lost = 0

    def get_versioned(self, path):
        self._require_up()
        return super().get_versioned(path)

    def put_if(self, path, data, generation):
        self._require_up()
        done = super().put_if(path, data, generation)
        if self.answers_lost:
            self.answers_lost -= 1
            return super().put_if(path, data, generation)  # as a client does that heard nothing
        return done

    def delete_if(self, path, generation):
        self._require_up()
        return super().delete_if(path, generation)

    def _require_up(self):
        if self.down:
            raise StoreUnavailable("it is down")


class SlowStore:
    """Takes 2 s of a clock's time until it does something, and 2 s more until that is known."""

    def __init__(self, inner, clock):
        self.inner = inner
        self.clock = clock

    def get_versioned(self, path):
        return self.slowly(lambda: self.inner.get_versioned(path))

    def put_if(self, path, data, generation):
        return self.slowly(lambda: self.inner.put_if(path, data, generation))

    def slowly(self, ask):
        self.clock.pass_s(2)
        try:
            return ask()
        finally:
            self.clock.pass_s(2)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def clock():
    return Clock()


def contender(store, clock, name="one", ttl_s=10.0):
    return Contender(store, PATH, owner=name, ttl_s=ttl_s, clock=clock)


def acquired(store, ttl_s):
    """With real time."""
    held = Contender(store, PATH, ttl_s=ttl_s).acquire()
    assert held
    return held


def content(store):
    return msgspec.json.decode(store.get(PATH))


def stored(store, **changes):
    """A lease that somebody else wrote."""
    written = {"owner": "other", "nonce": "0", "ttl_s": 10.0, "renewals": 0} | changes
    assert store.put_if(PATH, msgspec.json.encode(written), None)


def test_what_nobody_holds_is_acquired_and_says_who_holds_it(store, clock):
    held = contender(store, clock).acquire()
    assert held.held
    found = content(store)
    assert (found["owner"], found["ttl_s"], found["renewals"]) == ("one", 10.0, 0)
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    assert waiting.holder == "one"


def test_what_is_released_is_gone_and_can_be_acquired_at_once(store, clock):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    held.release()
    assert not held.held
    with pytest.raises(NotStored):
        store.get(PATH)
    assert waiting.acquire().held
    assert waiting.holder == ""


def test_a_second_release_does_not_take_it_from_the_next_holder(store, clock):
    held = contender(store, clock).acquire()
    held.release()
    other = contender(store, clock, "two").acquire()
    held.release()
    other.renew()
    assert content(store)["owner"] == "two"


def test_a_waiter_takes_over_when_it_saw_nothing_change_for_the_ttl_that_the_lease_names(store, clock):
    stored(store, ttl_s=7.0)
    waiting = contender(store, clock, ttl_s=100.0)
    clock.pass_s(1000)  # how old it is by then does not count
    assert waiting.acquire() is None
    clock.pass_s(6.9)
    assert waiting.acquire() is None
    clock.pass_s(0.1)
    taken = waiting.acquire()
    assert taken.held
    assert (content(store)["owner"], content(store)["ttl_s"]) == ("one", 100.0)


def test_every_renewal_makes_waiters_wait_from_the_start(store, clock):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    for _ in range(5):
        clock.pass_s(9.9)
        held.renew()
        assert held.held
        assert waiting.acquire() is None
    clock.pass_s(9.9)
    assert waiting.acquire() is None
    clock.pass_s(0.2)
    assert waiting.acquire().held


def test_time_that_the_store_takes_counts_against_the_holder_and_for_it_against_waiters(store, clock):
    slow = SlowStore(store, clock)
    held = contender(slow, clock, ttl_s=10.0).acquire()  # 8 s after it looked
    assert held.held
    clock.pass_s(2)
    assert not held.held
    held.renew()  # 4 s
    clock.pass_s(5.9)
    assert held.held
    clock.pass_s(0.1)
    assert not held.held
    waiting = contender(slow, clock, "two")
    assert waiting.acquire() is None  # it may have been renewed just before it was read
    clock.pass_s(9.9)
    assert waiting.acquire() is None
    clock.pass_s(0.1)
    assert waiting.acquire()


def test_releasing_and_acquiring_again_is_a_sign_of_life(store, clock):
    one, waiting = contender(store, clock), contender(store, clock, "two")
    one.acquire()
    assert waiting.acquire() is None
    clock.pass_s(9)
    store.delete(PATH)
    assert one.acquire()
    clock.pass_s(2)
    assert waiting.acquire() is None


def test_of_many_who_see_it_stale_one_gets_it(store, clock):
    stored(store)
    waiting = [contender(store, clock, str(number)) for number in range(8)]
    assert [one.acquire() for one in waiting] == [None] * 8
    clock.pass_s(10)
    taken = [one.acquire() for one in waiting]
    assert [one is not None for one in taken] == [True] + [False] * 7


def test_a_takeover_is_on_condition_of_the_generation_that_was_seen(store, clock, monkeypatch):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    clock.pass_s(10)
    really = store.get_versioned

    def renewed_just_after(path):
        monkeypatch.setattr(store, "get_versioned", really)
        found = really(path)
        held.renew()
        return found

    monkeypatch.setattr(store, "get_versioned", renewed_just_after)
    assert waiting.acquire() is None
    assert held.held
    assert content(store)["owner"] == "one"


def test_a_holder_that_slept_longer_than_the_ttl_learns_that_it_lost_it(store, clock):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    clock.pass_s(10)
    assert not held.held  # before it asked anybody
    assert waiting.acquire().held
    with pytest.raises(LeaseLost, match="lease 'leases/key' was lost: another process has it by now"):
        held.renew()
    held.release()
    assert content(store)["owner"] == "two"
    with pytest.raises(LeaseLost):
        held.renew()


def test_a_late_release_takes_nothing_from_the_new_holder_even_where_deletes_compare_nothing(store, clock, monkeypatch):
    monkeypatch.setattr(store, "delete_if", lambda path, generation: store.delete(path))
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    waiting.acquire()
    clock.pass_s(10)
    assert waiting.acquire().held
    held.release()
    assert content(store)["owner"] == "two"


def test_a_holder_that_slept_keeps_what_nobody_wanted(store, clock):
    held = contender(store, clock).acquire()
    clock.pass_s(1000)
    held.renew()
    assert held.held


def test_a_removed_lease_is_lost(store, clock):
    held = contender(store, clock).acquire()
    store.delete(PATH)
    with pytest.raises(LeaseLost, match="or it was removed"):
        held.renew()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"{}",
        b'{"owner": "x", "nonce": "y", "ttl_s": 0}',
        b'{"owner": "x", "nonce": "y", "ttl_s": -1}',
        b'{"owner": "x", "nonce": "y", "ttl_s": "long"}',
    ],
)
def test_a_lease_that_cannot_be_read_is_reported_and_taken_over_after_the_usual_ttl(store, clock, caplog, data):
    assert store.put_if(PATH, data, None)
    waiting = contender(store, clock)
    assert waiting.acquire() is None
    assert "cannot be read" in caplog.text
    clock.pass_s(TTL_S_DEFAULT - 0.1)
    assert waiting.acquire() is None
    clock.pass_s(0.1)
    assert waiting.acquire().held
    assert caplog.text.count("cannot be read") == 1


@pytest.mark.parametrize("ttl_s", ["1e9", "1e308", "301"])
def test_a_ttl_beyond_the_limit_blocks_nobody_for_longer_than_the_limit(store, clock, ttl_s):
    assert store.put_if(PATH, f'{{"owner": "x", "nonce": "y", "ttl_s": {ttl_s}}}'.encode(), None)
    waiting = contender(store, clock)
    assert waiting.acquire() is None
    clock.pass_s(TTL_S_MAX)
    assert waiting.acquire().held


def test_what_a_later_release_writes_beside_is_no_reason_to_distrust_a_lease(store, clock, caplog):
    stored(store, ttl_s=200.0, zone="a field of the future")
    waiting = contender(store, clock)
    assert waiting.acquire() is None
    clock.pass_s(199)
    assert waiting.acquire() is None
    assert caplog.text == ""


@pytest.mark.parametrize("ttl_s", [0, -1.0, 301.0, float("inf"), float("nan")])
def test_a_ttl_that_is_not_allowed_is_refused(store, ttl_s):
    with pytest.raises(ValueError, match=r"ttl_s is .*, allowed: more than 0 and at most 300"):
        Contender(store, PATH, ttl_s=ttl_s)


def test_nothing_but_the_given_clock_is_read(store, clock, monkeypatch):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    monkeypatch.setattr(lease, "time", None)
    assert waiting.acquire() is None
    clock.pass_s(10)
    waiting.acquire().renew()
    with pytest.raises(LeaseLost):
        held.renew()


def test_an_answer_that_was_lost_is_no_lost_lease(store, clock):
    store.answers_lost = 1
    held = contender(store, clock).acquire()
    assert held.held
    store.answers_lost = 1
    held.renew()
    store.answers_lost = 0
    held.renew()
    assert content(store)["renewals"] == 2
    assert contender(store, clock, "two").acquire() is None


def test_a_renewal_that_the_store_could_not_take_is_made_later(store, clock):
    held = contender(store, clock).acquire()
    store.down = True
    with pytest.raises(StoreUnavailable):
        held.renew()
    clock.pass_s(9.9)
    assert held.held
    clock.pass_s(0.1)
    assert not held.held
    store.down = False
    held.renew()
    assert held.held


def test_what_cannot_be_released_is_told_and_goes_stale(store, clock, caplog):
    held = contender(store, clock).acquire()
    waiting = contender(store, clock, "two")
    assert waiting.acquire() is None
    store.down = True
    held.release()
    assert "could not be released, it goes stale in 10 s: it is down" in caplog.text
    store.down = False
    clock.pass_s(10)
    assert waiting.acquire().held


def test_who_asks_a_store_that_is_down_is_told(store, clock):
    store.down = True
    with pytest.raises(StoreUnavailable):
        contender(store, clock).acquire()


def renewals(store, least):
    """How often it was renewed, once that is so often."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while (found := content(store)["renewals"]) < least:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return found


def test_in_its_block_it_is_renewed_several_times_a_ttl_and_after_it_is_gone(store):
    ttl_s = 2.0
    with acquired(store, ttl_s) as held:
        start_s = time.monotonic()
        renewals(store, RENEWALS_A_TTL + 1)
        assert time.monotonic() - start_s > ttl_s  # not sooner than it should
        assert held.held
    with pytest.raises(NotStored):
        store.get(PATH)
    assert not [thread for thread in threading.enumerate() if PATH in thread.name]


def test_an_error_in_its_block_releases_it(store):
    def fail():
        with acquired(store, 10.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with pytest.raises(NotStored):
        store.get(PATH)


def test_a_loss_in_its_block_is_told_and_seen(store, caplog):
    caplog.set_level(logging.WARNING)
    with acquired(store, 0.1) as held:
        store.delete(PATH)
        stored(store)
        assert held._renewing
        held._renewing.join(WAIT_S_MAX)
        assert not held.held
    assert "lease 'leases/key' was lost" in caplog.text
    assert content(store)["owner"] == "other"


def test_an_outage_in_its_block_is_told_and_survived(store, caplog):
    with acquired(store, 1.5) as held:
        store.down = True
        deadline_s = time.monotonic() + WAIT_S_MAX
        while "could not be renewed" not in caplog.text:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        store.down = False
        renewals(store, 1)
        assert held.held


class Fleet:
    """Three contenders whose clocks show different times, and go equally fast."""

    def __init__(self, store, offsets, ttls):
        self.store = store
        self.clocks = [Clock(offset) for offset in offsets]
        self.ttls = ttls
        self.contenders = [self.newcomer(number) for number in range(3)]
        self.leases: dict[int, Lease] = {}

    def newcomer(self, number):
        return contender(self.store, self.clocks[number], "abc"[number], ttl_s=self.ttls[number])

    def acquire(self, number):
        if lease := self.contenders[number].acquire():
            self.leases[number] = lease

    def renew(self, number):
        if number in self.leases:
            try:
                self.leases[number].renew()
            except LeaseLost:
                del self.leases[number]

    def release(self, number):
        if number in self.leases:
            self.leases.pop(number).release()

    def be_killed(self, number):
        """Comes back, and knows nothing."""
        self.leases.pop(number, None)
        self.contenders[number] = self.newcomer(number)

    def pass_s(self, seconds):
        for clock in self.clocks:
            clock.pass_s(seconds)

    @property
    def holders(self):
        return [number for number, lease in self.leases.items() if lease.held]


actions = st.one_of(
    st.tuples(st.sampled_from(["acquire", "renew", "release", "be_killed"]), st.integers(0, 2)),
    st.tuples(st.just("pass_s"), st.sampled_from([0.0, 1.0, 2.9, 3.0, 3.1, 5.0, 10.0])),
)


@settings(max_examples=300)
@given(
    actions=st.lists(actions, max_size=30),
    offsets=st.tuples(*[st.floats(-1e6, 1e6)] * 3),
    ttls=st.tuples(*[st.sampled_from([1.0, 3.0, 5.0])] * 3),
)
def test_at_no_time_two_hold_it_and_who_is_gone_blocks_nobody_for_ever(tmp_path_factory, actions, offsets, ttls):
    fleet = Fleet(LocalStore(tmp_path_factory.mktemp("store")), offsets, ttls)
    for name, value in actions:
        getattr(fleet, name)(value)
        assert len(fleet.holders) <= 1
    fleet.acquire(0)
    fleet.pass_s(5.0)
    fleet.acquire(0)
    fleet.renew(0)
    assert fleet.holders == [0]
