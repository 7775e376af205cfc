"""Of all who miss the same artifact one makes it: in one process with hand-made time, and with a fleet of real ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time

import msgspec
import numpy as np
import pytest

from cache import failures
from cache.artifact import unpack
from cache.errors import CompileFailed, Damaged, NotMadeYet, NotStored, Refused, StoreUnavailable
from cache.executable import Runtime
from cache.failures import FAILED_MAX, REASON_CHARACTERS_MAX, Failure, reason_of
from cache.lease import RENEWALS_A_TTL
from cache.local_store import LocalStore
from cache.opening import raw_store
from cache.signing import ANYONE
from cache.single_flight import PAUSE_S_MAX, Flight, Found, Terms, Turn, fetch_or_make, pauses
from tests.cache.flight_process import KEY, PATH
from tests.cache.forks import Fork

WAIT_S_MAX = 120.0
LEASE = f"leases/{KEY}"
FAILURE = f"failures/{KEY}"


# One process.


class Store(LocalStore):
    """A store whose coordination can be down, and whose artifacts can be gone."""

    down = False
    gone = False

    def get(self, path, *, bytes_max=None):
        self._require_up(path)
        return super().get(path, bytes_max=bytes_max)

    def put(self, path, data):
        self._require_up(path)
        super().put(path, data)

    def _require_up(self, path):
        if self.down and not path.startswith("executables/"):
            raise StoreUnavailable(f"{path} is down")
        if self.gone and path.startswith("executables/"):
            raise StoreUnavailable(f"{path} is gone")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


class Want:
    """One who wants the artifact, and counts what it did for it."""

    def __init__(self, store, error=None):
        self.store = store
        self.error = error
        self.looks = 0
        self.makes = 0
        self.between = lambda: None  # what others do after our first look

    def found(self):
        self.looks += 1
        if self.looks == 2:
            self.between()
        with contextlib.suppress(NotStored):
            return self.store.get(PATH)
        return None

    def make(self):
        self.makes += 1
        if self.error:
            raise self.error
        self.store.put(PATH, b"made")
        return b"made"

    def fetch(self, **terms):
        return fetch_or_make(
            self.store, KEY, self.found, self.make, what="the toy", fingerprint="f00", terms=Terms(**terms)
        )

    def flight(self, **terms):
        return Flight(self.store, KEY, self.found, what="the toy", fingerprint="f00", terms=Terms(**terms))


def test_what_is_there_is_found_with_one_look_and_nothing_else(store, monkeypatch):
    store.put(PATH, b"there")
    monkeypatch.setattr(store, "get_versioned", None)  # neither a lease nor a failure is looked at
    want = Want(store)
    assert want.fetch() == b"there"
    assert (want.looks, want.makes) == (1, 0)
    assert [entry.path for entry in store.entries("")] == [PATH]


def test_what_is_missing_is_made_and_nothing_of_it_stays_behind(store):
    want = Want(store)
    assert want.fetch() == b"made"
    assert want.makes == 1
    assert [entry.path for entry in store.entries("")] == [PATH]


# The circuit breaker of a program


PROGRAM = "9f"


def fail_others(store, count, *, program=PROGRAM, fingerprint="f00"):
    for number in range(count):
        reason = f"crash: number {number}"
        key = f"other-{number}"
        failures.record(store, Failure.now(key=key, what="it", reason=reason, fingerprint=fingerprint, program=program))


def look(store, key=KEY, *, program=PROGRAM, found=lambda: None):
    return Flight(store, key, found, what="the toy", fingerprint="f00", program=program).look()


def is_tried(store, **of):
    answer = look(store, **of)
    if isinstance(answer, Turn):
        assert answer.lease is not None
        answer.lease.release()
        return True
    assert isinstance(answer, Failure)
    return False


def test_what_many_others_of_its_program_failed_at_is_not_tried(store):
    fail_others(store, FAILED_MAX - 1)
    turn = look(store)
    assert isinstance(turn, Turn)
    with turn:
        turn.failed("crash: the third")
    assert store.names(f"breakers/{PROGRAM}-f00") == sorted([KEY, *(f"other-{n}" for n in range(FAILED_MAX - 1))])
    told = look(store, "another")
    assert isinstance(told, Failure)
    assert told.reason.startswith(
        f"it was not tried, since {FAILED_MAX} others of its program failed; one of them: cras"
    )
    assert store.names("failures") == sorted([KEY, *(f"other-{n}" for n in range(FAILED_MAX - 1))]), "no failure itself"
    assert store.names("leases") == []


def test_what_was_made_all_the_same_is_found_whatever_failed(store):
    fail_others(store, FAILED_MAX)
    assert look(store, found=lambda: b"made") == Found(b"made")


@pytest.mark.parametrize("other", [{"program": "a0"}, {"fingerprint": "f01"}, {"program": ""}])
def test_another_program_or_kind_of_machine_is_tried(store, other):
    fail_others(store, FAILED_MAX, **other)
    assert is_tried(store)


def test_a_failure_that_is_forgotten_counts_no_more_and_a_reset_forgets_all_of_the_program(store):
    fail_others(store, FAILED_MAX)
    assert not is_tried(store)
    failure = failures.recorded(store, "other-0")
    assert failure is not None
    failures.forget(store, failure)
    assert is_tried(store)
    fail_others(store, FAILED_MAX)
    fail_others(store, FAILED_MAX, program="a0")
    failures.reset(store, PROGRAM, "f00")
    assert is_tried(store)
    assert not is_tried(store, program="a0")


def try_again(store, key):
    terms = Terms(retry_failed=True)
    flight: Flight[bytes] = Flight(
        store, key, lambda: None, what="the toy", fingerprint="f00", program=PROGRAM, terms=terms
    )
    turn = flight.look()
    assert isinstance(turn, Turn)
    with turn:
        turn.succeeded()


def test_who_tries_again_and_succeeds_takes_it_off_the_count(store):
    fail_others(store, FAILED_MAX)
    key = "other-1"
    try_again(store, key)
    assert key not in failures.failed_of(store, PROGRAM, "f00")
    assert failures.recorded(store, key) is None


def test_it_is_looked_for_again_under_the_lease(store):
    """Made between our look and our lease, by one who released it."""
    want = Want(store)
    want.between = lambda: store.put(PATH, b"just made")
    assert want.fetch() == b"just made"
    assert (want.looks, want.makes) == (2, 0)
    assert store.names("leases") == []


def test_a_failure_recorded_between_the_look_and_the_lease_counts(store, monkeypatch):
    want = Want(store)
    flight = want.flight()
    failure = Failure.now(key=KEY, what="the toy", reason="no", fingerprint="")
    really = store.get_versioned

    def acquired(path):
        failures.record(store, failure)
        return really(path)

    monkeypatch.setattr(store, "get_versioned", acquired)
    assert flight.look() == failure
    monkeypatch.setattr(store, "get_versioned", really)
    assert store.names("leases") == []


def test_who_looks_while_another_makes_it_waits_and_knows_for_whom(store):
    one, two = Want(store), Want(store)
    with one.flight().look() as turn:
        assert isinstance(turn, Turn)
        waiting = two.flight()
        assert waiting.look() is None
        assert waiting.holder.endswith(f":{os.getpid()}")
        one.make()
        assert waiting.look() == Found(b"made")  # it need not wait for the release


def test_who_waits_too_long_is_told_whom_for(store):
    with Want(store).flight().look():
        start_s = time.monotonic()
        with pytest.raises(NotMadeYet, match=rf"the toy is still being made by .*:{os.getpid()} after 0\.3 s"):
            Want(store).fetch(wait_s_max=0.3)
        assert time.monotonic() - start_s < WAIT_S_MAX


def test_an_error_is_recorded_and_told_to_all_in_the_same_words(store):
    one = Want(store, ValueError("at /var/lib/models/x.mlir:3: no such dialect"))
    with pytest.raises(CompileFailed) as first:
        one.fetch()
    assert str(first.value) == "the toy failed to compile: ValueError: at x.mlir:3: no such dialect"
    assert first.value.__cause__ is one.error
    two = Want(store)
    with pytest.raises(CompileFailed) as second:
        two.fetch()
    assert str(second.value) == str(first.value)
    assert two.makes == 0
    found = failures.recorded(store, KEY)
    assert found
    assert (found.what, found.fingerprint, found.key) == ("the toy", "f00", KEY)
    assert found.by.endswith(f":{os.getpid()}")
    assert store.names("leases") == []


def test_what_is_there_is_found_whatever_failed_before(store):
    with pytest.raises(CompileFailed):
        Want(store, ValueError("no")).fetch()
    store.put(PATH, b"made on another day")
    assert Want(store).fetch() == b"made on another day"


def test_another_try_is_made_on_request_and_a_success_forgets_the_failure(store):
    with pytest.raises(CompileFailed):
        Want(store, ValueError("no")).fetch()
    assert Want(store).fetch(retry_failed=True) == b"made"
    assert store.names("failures") == []


def test_another_failure_replaces_the_record(store):
    for words in ("no", "still no"):
        with pytest.raises(CompileFailed, match=f"ValueError: {words}$"):
            Want(store, ValueError(words)).fetch(retry_failed=True)
    with pytest.raises(CompileFailed, match=r"ValueError: still no$"):
        Want(store).fetch()


def test_of_two_who_ask_for_another_try_the_second_takes_the_first_one_s_failure(store):
    failures.record(store, Failure.now(key=KEY, what="the toy", reason="old", fingerprint=""))
    one, two = Want(store).flight(retry_failed=True), Want(store).flight(retry_failed=True)
    with one.look() as turn:
        assert two.look() is None
        turn.failed("new")
    assert two.look().reason == "new"


def test_a_reason_that_a_maker_gave_is_kept_as_it_is(store):
    with pytest.raises(CompileFailed, match=r"^the toy failed to compile: memory: more than 2 GiB$"):
        Want(store, CompileFailed("child", "memory: more than 2 GiB")).fetch()


@pytest.mark.parametrize("error", [RuntimeError("x"), MemoryError(), Refused("x"), CompileFailed("a", "b")])
def test_what_says_something_about_the_program_is_recorded(store, error):
    with pytest.raises(CompileFailed):
        Want(store, error).fetch()
    assert store.names("failures") == [KEY]


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        StoreUnavailable("x"),
        Damaged("a", "b"),
        OSError(28, "no space"),
        TimeoutError(),
    ],
)
def test_what_says_nothing_about_the_program_is_raised_and_not_recorded(store, error):
    with pytest.raises(type(error)) as caught:
        Want(store, error).fetch()
    assert caught.value is error
    assert store.names("failures") == []
    assert store.names("leases") == []
    assert Want(store).fetch() == b"made"


@pytest.mark.parametrize("data", [b"", b"\x00", b"{}", b'{"key": 3}', b"[" * (1 << 17)])
def test_a_record_that_cannot_be_read_is_told_and_stops_nobody(store, caplog, data):
    store.put(FAILURE, data)
    assert Want(store).fetch() == b"made"
    assert f"{FAILURE} cannot be read, it is ignored" in caplog.text


@pytest.mark.parametrize(
    "of", [{"key": "other-0"}, {"key": "../../up"}, {"key": ""}, {"fingerprint": "f01"}, {"program": "a0/../x"}]
)
def test_a_record_that_says_that_it_is_of_something_else_counts_for_nothing_and_names_nothing(store, caplog, of):
    fail_others(store, 1)
    before = {entry.path for entry in store.entries("")}
    said = {"key": KEY, "fingerprint": "f00", "program": PROGRAM, **of}
    store.put(FAILURE, msgspec.json.encode(Failure.now(what="it", reason="no", **said)))
    assert is_tried(store)
    assert f"{FAILURE} says that it is of something else, it is ignored" in caplog.text
    try_again(store, KEY)
    assert {entry.path for entry in store.entries("")} == before | {FAILURE}


def test_a_record_that_does_not_say_what_it_is_of_counts_and_a_success_takes_it_off_the_count(store):
    fail_others(store, FAILED_MAX)
    key = "other-1"
    store.put(f"failures/{key}", msgspec.json.encode(Failure.now(key=key, what="it", reason="no", fingerprint="")))
    assert not is_tried(store, key=key)
    try_again(store, key)
    assert failures.failed_of(store, PROGRAM, "f00") == ["other-0", "other-2"]


def test_where_others_cannot_be_asked_one_goes_on_alone_and_says_so(store, caplog):
    store.down = True
    with Want(store).flight().look() as turn:  # the one who would be waited for
        assert turn.lease is None
        assert Want(store).fetch() == b"made"
    assert "the toy: others cannot be asked, it is made here whatever they do" in caplog.text


def test_a_failure_that_cannot_be_recorded_is_raised_all_the_same(store, caplog):
    want = Want(store)
    want.error = ValueError("no")
    flight = want.flight()
    with flight.look() as turn:
        store.down = True
        assert turn.failed("no").reason == "no"
    assert "could not be written" in caplog.text


def test_an_artifact_that_cannot_be_looked_for_is_the_caller_s_to_know(store):
    store.put(PATH, b"there")
    store.gone = True
    want = Want(store)
    with pytest.raises(StoreUnavailable, match="is gone"):
        want.fetch()
    assert want.makes == 0


def test_who_lost_its_lease_records_no_failure(store):
    with Want(store).flight().look() as turn:
        store.delete(LEASE)
        with pytest.raises(Exception, match="was lost"):
            turn.lease.renew()
        turn.failed("no")
    assert store.names("failures") == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/tmp/warmpool-publish-x1/artifact-3: gone", "OSError: artifact-3: gone"),
        ("jit(predict)/jit(main)/dot_general and a/b and 1/2", None),
        ("see https://jax.dev/errors/x.html", None),
        ("in '/a/b c/d.py'", "OSError: in 'b c/d.py'"),
        ("external/xla/xla/service/cpu.cc:12", None),
        ("divided by / or //", None),
    ],
)
def test_a_reason_names_no_folders_of_a_machine(text, shown):
    assert reason_of(OSError(text)) == (shown or f"OSError: {text}")


def test_a_reason_is_bounded():
    assert len(reason_of(ValueError("x" * 10**6))) == REASON_CHARACTERS_MAX


def test_pauses_grow_to_their_limit_and_are_never_nothing():
    drawn = [next_s for next_s, _ in zip(pauses(), range(60), strict=False)]
    assert all(0 < pause_s <= PAUSE_S_MAX for pause_s in drawn)
    assert sum(drawn[:5]) < 1
    assert min(drawn[-20:]) >= PAUSE_S_MAX / 2
    assert len(set(drawn[-20:])) > 10, "waiters would stay in step"


def test_threads_of_one_process_are_a_fleet_too(store):
    wants = [Want(store) for _ in range(8)]
    got = []
    threads = [threading.Thread(target=lambda want=want: got.append(want.fetch())) for want in wants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert got == [b"made"] * 8
    assert sum(want.makes for want in wants) == 1


# A fleet.


class Fleet:
    """Processes that want the same artifact of one store."""

    def __init__(self, uri, folder):
        self.uri = uri
        self.store = raw_store(uri)
        self.shared = folder
        self.processes = []

    def start(self, count, kind="bytes", *, gated=False, skew_s=0.0, **terms):
        """Processes that have opened the store and start as one."""
        begun = []
        for number in range(count):
            options = {
                "store": self.uri,
                "shared": str(self.shared),
                "kind": kind,
                "gated": gated,
                "terms": terms,
                "skew_s": skew_s * number,
                "emulator": os.environ.get("STORAGE_EMULATOR_HOST"),
            }
            begun.append(Fork("tests.cache.flight_process:main", options, tells_errors=True))
            self.processes.append(begun[-1])
        for process in begun:
            assert process.hear() == "ready", process.rest()[1]
        for process in begun:
            process.tell("go")
        return begun

    def makers(self):
        """Pids of those who began to make it, the first first."""
        notes = sorted(self.shared.glob("*.made"), key=lambda note: note.stat().st_mtime_ns)
        return [int(note.stem) for note in notes]

    def maker(self, number):
        """Pid of the one who was the so manieth to begin, once it did."""
        self.until(lambda: len(self.makers()) >= number)
        return self.makers()[number - 1]

    def missing(self):
        """How many found it missing."""
        return len(list(self.shared.glob("*.missed")))

    def let(self, pid):
        (self.shared / f"{pid}.go").touch()

    def lease(self):
        try:
            return msgspec.json.decode(self.store.get(LEASE))
        except NotStored:
            return {"owner": "", "renewals": -1}

    def until(self, holds):
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not (value := holds()):
            assert time.monotonic() < deadline_s, "waited in vain"
            time.sleep(0.01)
        return value

    def results(self, processes):
        """What each got, and what it wrote to standard error."""
        told = [process.rest() for process in processes]
        assert [process.wait() for process in processes] == [0] * len(processes), told
        return [json.loads(out) | {"said": said} for out, said in told]

    def stored(self):
        _, payload = unpack(self.store.get(PATH), key=KEY, trust=ANYONE)
        return bytes(payload)

    def close(self):
        for process in self.processes:
            process.kill()
            process.close()


@pytest.fixture(params=["a folder", "a bucket"])
def uri(request, tmp_path, monkeypatch):
    if request.param == "a folder":
        return str(tmp_path / "store")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs").url)
    return f"gs://{request.getfixturevalue('bucket')}/fleet"


@pytest.fixture
def fleet(uri, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    with contextlib.closing(Fleet(uri, shared)) as made:
        yield made


def payloads(results):
    return {one["payload"] for one in results}


def digest(payload):
    return hashlib.sha256(payload).hexdigest()


def test_sixteen_processes_that_miss_one_key_make_it_once_whatever_their_clocks_say(fleet):
    processes = fleet.start(16, gated=True, skew_s=300.0)
    fleet.until(lambda: fleet.missing() == 16)
    fleet.let(fleet.maker(1))
    results = fleet.results(processes)
    assert len(fleet.makers()) == 1
    assert [one["made"] for one in results].count(True) == 1
    assert payloads(results) == {digest(fleet.stored())}
    assert {one["error"] for one in results} == {None}
    assert fleet.store.names("leases") == []


def test_sixteen_processes_that_miss_one_executable_compile_once(fleet):
    processes = fleet.start(16, "jax", gated=True)
    fleet.until(lambda: fleet.missing() == 16)
    fleet.let(fleet.maker(1))
    results = fleet.results(processes)
    assert [one["made"] for one in results].count(True) == 1
    assert [one["jax"] for one in results] == [one["made"] for one in results]
    assert payloads(results) == {digest(fleet.stored())}
    runtime = Runtime.open("jax")
    x = np.eye(4, dtype=np.float32)
    (answer,) = runtime.load(fleet.stored()).run([runtime.put(x)])
    np.testing.assert_allclose(answer, np.tanh(np.ones(4)), rtol=1e-5)


def test_when_the_holder_is_killed_one_takes_over_and_the_others_hit(fleet):
    processes = fleet.start(6, gated=True, ttl_s=3.0)
    killed = fleet.maker(1)
    (holder,) = [process for process in processes if process.pid == killed]
    os.kill(killed, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    heir = fleet.maker(2)
    fleet.until(lambda: fleet.lease()["renewals"] > RENEWALS_A_TTL)  # the others could have come in by then
    fleet.let(heir)
    results = fleet.results([process for process in processes if process is not holder])
    assert fleet.makers() == [killed, heir]
    assert [one["made"] for one in results].count(True) == 1
    assert payloads(results) == {digest(f"made by {heir}".encode())}
    assert any("did not renew it for" in one["said"] for one in results)
    assert fleet.store.names("leases") == []


def test_what_takes_longer_than_the_ttl_is_not_taken_over(fleet):
    processes = fleet.start(4, gated=True, ttl_s=3.0)
    maker = fleet.maker(1)
    fleet.until(lambda: fleet.lease()["renewals"] > RENEWALS_A_TTL)
    fleet.let(maker)
    results = fleet.results(processes)
    assert fleet.makers() == [maker]
    assert payloads(results) == {digest(f"made by {maker}".encode())}


def test_a_holder_that_was_stopped_learns_that_it_lost_and_the_result_is_one_whole_artifact(fleet):
    processes = fleet.start(3, gated=True, ttl_s=3.0)
    stopped = fleet.maker(1)
    before = fleet.lease()["renewals"]
    fleet.until(lambda: fleet.lease()["renewals"] > before)
    fleet.store.delete_if(LEASE, "another one")  # waits until who renewed it holds no lock on the folder
    os.kill(stopped, signal.SIGSTOP)
    heir = fleet.maker(2)
    os.kill(stopped, signal.SIGCONT)
    (sleeper,) = [process for process in processes if process.pid == stopped]
    line = sleeper.stderr.readline()
    assert line == f"lease '{LEASE}' was lost: another process has it by now, or it was removed\n"
    fleet.let(stopped)  # it goes on all the same, at the same time as the other
    fleet.let(heir)
    results = fleet.results(processes)
    assert fleet.makers() == [stopped, heir]
    assert payloads(results) <= {digest(f"made by {pid}".encode()) for pid in (stopped, heir)}
    assert digest(fleet.stored()) in payloads(results)
    assert fleet.store.names("leases") == []


def test_a_failure_is_met_once_and_told_to_all_in_the_same_words(fleet):
    processes = fleet.start(4, "error", gated=True)
    fleet.until(lambda: fleet.missing() == 4)
    fleet.let(fleet.maker(1))
    results = fleet.results(processes)
    assert len(fleet.makers()) == 1
    (error,) = {one["error"] for one in results}
    assert error == ("CompileFailed: the toy failed to compile: RuntimeError: no such operation, see program.mlir:3")
    (late,) = fleet.results(fleet.start(1))
    assert (late["error"], late["made"]) == (error, False)
    results = fleet.results(fleet.start(4, retry_failed=True))
    assert len(fleet.makers()) == 2
    assert payloads(results) == {digest(fleet.stored())}
    assert fleet.store.names("failures") == []
