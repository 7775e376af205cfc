"""Instances that mend what they can while they serve: each in a process of its own, on a signed store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cache.artifact import pack, peek
from cache.data_keys import FileKey, read_keys
from cache.encrypted_store import EncryptedStore
from cache.local_store import LocalStore
from cache.quarantine import quarantined
from cache.sightings import sightings
from cache.signed_store import SignedStore
from cache.wanted import wanted
from tests.instance_process import InstanceProcess, records_of, wait_until
from tests.tiny import executable_file, publish_tiny, take_executables
from tests.warmpool.tampering import COLLEAGUE, SIGNER, TRUST, Genuine, deadly
from tests.warmpool.test_chaos import Load
from warmpool.settings import Settings

LANES = ("primary", "cpu")
LOOKS, TRIES = 200, 40
SPARE = 20  # files and threads that are there for a moment; one a try would be more
GROWTH_BYTES_MAX = 8 << 20


class OddInstance(InstanceProcess):
    """Its upkeep looks often."""

    command: tuple[str, ...] = (sys.executable, "-m", "tests.warmpool.odd_instance")


@pytest.fixture(scope="session")
def trusting(tmp_path_factory):
    """The flags of an instance that has the public keys of two who publish."""
    folder = tmp_path_factory.mktemp("keys")
    for name, signer in {"signer": SIGNER, "colleague": COLLEAGUE}.items():
        signer.write(folder / name)
    return "--trusted-keys", str(folder)


@pytest.fixture(scope="session")
def small(tiny_store, fingerprint, tmp_path_factory):
    """The folder of a signed store with the methods `predict` and `count`, and the fingerprint; no test changes it."""
    folder = tmp_path_factory.mktemp("small")
    store = SignedStore(LocalStore(folder), TRUST, SIGNER)
    methods = ("predict", "count")
    take_executables(store, LocalStore(tiny_store), fingerprint, methods)
    return folder, publish_tiny(store, methods=methods)


class Place:
    """The store of one test, and one executable in it: not of the minimum set, and both lanes hold it."""

    def __init__(self, folder: Path, fingerprint, batch: int = 8) -> None:
        self.folder = folder
        self.bottom = LocalStore(folder)
        self.path = executable_file("predict", {"batch": batch}, fingerprint)
        self.key = self.path.removeprefix("executables/")
        self.sound = self.bottom.get(self.path)
        self.title = f"tiny:predict batch={batch}"
        self.x = np.arange(4.0 * batch).reshape(batch, 4)

    def put(self, data: bytes) -> None:
        self.bottom.put(self.path, data)

    @property
    def flipped(self) -> bytes:
        return self.sound[:-200] + bytes([self.sound[-200] ^ 1]) + self.sound[-199:]

    @property
    def reasons(self) -> list[str]:
        """Why it was set aside, each time."""
        assert {kept.path for kept in quarantined(self.bottom)} <= {self.path}
        return [kept.reason for kept in quarantined(self.bottom)]

    def answers(self, instance, bucket: int) -> None:
        """A request that fits exactly is answered right, in the bucket of that size."""
        outputs, parameters = instance.infer("predict", x=self.x)
        assert outputs["sum"].tolist() == self.x.sum(-1).tolist()
        assert parameters["bucket"] == f"batch={bucket}"
        assert parameters["lane"] == "primary"


@pytest.fixture
def place(small, tmp_path):
    folder, fingerprint = small
    return Place(Path(shutil.copytree(folder, tmp_path / "store")), fingerprint)


@pytest.fixture
def started(tmp_path, trusting):
    """Starts an instance on a store and waits until both lanes have tried everything."""
    with contextlib.ExitStack() as stack:

        def start(folder, *flags, **environment):
            instance = OddInstance(folder, tmp_path / "log", *trusting, *flags, **environment)
            stack.enter_context(instance)
            wait_until(lambda: instance.answers("/v1/status") == 200)
            wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
            return instance

        yield start


def cold(instance):
    return [list(lane["cold"]) for lane in instance.status()["lanes"]]


def all_warm(instance):
    lanes = instance.status()["lanes"]
    return all(lane["state"] == "warm" and not lane["cold"] and lane["warm"] == lane["planned"] for lane in lanes)


def restarts(instance):
    return [instance.lane(name)["restarts"] for name in LANES]


def counted(place, what):
    """How often the upkeep looked at something, or asked for something, on a store that counts."""
    file = place.folder.with_name(f"{place.folder.name}.{what}")
    return file.stat().st_size if file.exists() else 0


def looked_again(place, looks=3):
    """Wait until the upkeep has looked that often more at what is cold."""
    before = counted(place, "looks")
    wait_until(lambda: counted(place, "looks") >= before + looks)


def test_a_damaged_executable_is_set_aside_and_a_sound_one_is_loaded_without_a_restart(place, started, tmp_path):
    place.put(place.flipped)
    instance = started(place.folder, "--audit-log", str(tmp_path / "audit"), ODD_STORE="counting")
    wait_until(lambda: instance.status()["store"]["quarantined"] == 1)
    assert place.reasons == ["it is damaged: its digest does not match its content"]
    wait_until(lambda: wanted(place.bottom) == [place.key])
    assert json.loads(place.bottom.get(f"wanted/{place.key}"))["reason"] == place.reasons[0]
    assert instance.status()["ready"] is True
    assert instance.gauge("warmpool_quarantined_total") == 1
    assert instance.gauge("warmpool_store_trouble") == 0
    assert cold(instance) == [[place.title]] * 2
    outputs, parameters = instance.infer("predict", x=place.x)
    assert outputs["sum"].tolist() == place.x.sum(-1).tolist()
    assert parameters["parts"] == 2
    looked_again(place)
    assert instance.status()["store"]["quarantined"] == 1
    place.put(place.sound)
    wait_until(lambda: all_warm(instance))
    place.answers(instance, bucket=8)
    assert restarts(instance) == [0, 0]
    assert instance.log.count("executable is quarantined") == 1
    said = records_of(tmp_path / "audit")
    events = [(one["event"], one.get("lane")) for one in said if one.get("key") == place.key]
    assert ("quarantine", None) in events
    assert {("load", name) for name in LANES} == {event for event in events if event[0] == "load"}
    assert all("@" in one["who"] for one in said)


@pytest.mark.parametrize("batch", [8, 1], ids=["of both lanes", "of the minimum set"])
def test_a_missing_executable_is_asked_for_and_loaded_without_a_restart_once_it_is_there(small, place, started, batch):
    place = Place(place.folder, small[1], batch)
    place.bottom.delete(place.path)
    instance = started(place.folder, ODD_STORE="counting")
    wait_until(lambda: wanted(place.bottom) == [place.key])
    ready = batch != 1
    assert instance.status()["ready"] is ready
    assert instance.answers("/v2/models/tiny/ready") == (200 if ready else 503)
    assert instance.infer("count", steps=[3]).outputs["counted"].tolist() == [3]
    looked_again(place)
    assert (place.reasons, instance.status()["store"]) == ([], {"trouble": "", "quarantined": 0})
    place.put(place.sound)
    wait_until(lambda: all_warm(instance))
    assert instance.status()["ready"] is True
    place.answers(instance, bucket=batch)
    assert restarts(instance) == [0, 0]
    assert instance.lane("primary")["compiles"] == instance.lane("cpu")["compiles"] == 0


def test_where_only_the_copy_here_is_damaged_it_is_read_again_and_nothing_is_set_aside(place, started):
    copy = place.folder.with_name("store.copies") / place.path
    copy.parent.mkdir(parents=True)
    copy.write_bytes(place.flipped)
    instance = started(place.folder, ODD_STORE="copying")
    wait_until(lambda: all_warm(instance))
    assert "its digest does not match its content" in instance.log
    place.answers(instance, bucket=8)
    assert copy.read_bytes() == place.sound
    assert (place.reasons, wanted(place.bottom)) == ([], [])
    assert instance.status()["store"] == {"trouble": "", "quarantined": 0}
    assert restarts(instance) == [0, 0]


def test_one_that_kills_lanes_is_set_aside_after_two_deaths_and_not_tried_again_until_it_is_another(place, started):
    genuine = Genuine(place.sound, ())
    killing = genuine.with_payload(deadly(genuine.payload))
    place.put(killing)
    instance = started(place.folder, ODD_STORE="counting")
    wait_until(lambda: place.reasons)
    wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
    assert place.reasons == ["lanes died 2 times while they loaded it"]
    wait_until(lambda: wanted(place.bottom) == [place.key])
    died = restarts(instance)
    assert died[0] == 2
    assert died[1] <= 2
    instance.infer("predict", x=place.x)
    looked_again(place)
    place.put(killing)  # by somebody who puts back what was set aside
    wait_until(lambda: len(place.reasons) == 2)
    looked_again(place)
    assert restarts(instance) == died
    assert cold(instance) == [[place.title]] * 2
    place.put(place.sound)
    wait_until(lambda: all_warm(instance))
    place.answers(instance, bucket=8)
    assert restarts(instance) == died


def test_one_that_xla_refuses_is_not_set_aside_and_not_tried_again_until_it_is_another(place, started):
    """Hundreds of looks at it take nothing more."""
    place.put(pack(peek("it", place.sound), b"no executable at all", SIGNER))
    instance = started(place.folder, ODD_STORE="counting")
    looked_again(place, 20)
    before = held(instance.process.pid)
    looked_again(place, LOOKS)
    assert_no_growth(before, held(instance.process.pid))
    assert cold(instance) == [[place.title]] * 2
    assert "XLA would not load the executable" in instance.lane("primary")["cold"][place.title]
    assert (place.reasons, wanted(place.bottom)) == ([], [])
    assert instance.status()["store"] == {"trouble": "", "quarantined": 0}
    assert "is tried again" not in instance.log
    assert instance.log.count("executable cannot be made warm") == 2  # once a lane
    place.put(place.sound)
    wait_until(lambda: all_warm(instance))
    place.answers(instance, bucket=8)
    assert restarts(instance) == [0, 0]


def test_when_a_key_is_distrusted_its_executables_go_and_no_request_on_the_others_is_lost(place, started):
    place.put(Genuine(place.sound, ()).saying(COLLEAGUE))
    instance = started(place.folder)
    assert all_warm(instance)
    place.answers(instance, bucket=8)
    before = {name: instance.lane(name)["pid"] for name in LANES}
    with Load(instance, callers=4) as load:
        load.wait_for(20)
        command = [sys.executable, "-m", "warmpool.cli", "cache", "distrust", COLLEAGUE.key_id, "--allow-unsigned"]
        subprocess.run([*command, "--store", str(place.folder)], check=True, timeout=60, capture_output=True)
        wait_until(lambda: all(instance.lane(name)["pid"] not in {None, before[name]} for name in LANES))
        wait_until(lambda: place.reasons)
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        load.wait_for(100)
    assert (load.wrong, load.failed) == ([], [])
    signed = f"it is signed by the key {COLLEAGUE.key_id[:16]}, which is distrusted"
    assert place.reasons == [f"it is not trusted: {signed}"]
    wait_until(lambda: wanted(place.bottom) == [place.key])
    assert cold(instance) == [[place.title]] * 2
    assert signed in instance.lane("primary")["cold"][place.title]  # the CPU's may find that it is gone already
    assert restarts(instance) == [1, 1]
    assert "lane died" not in instance.log
    assert instance.log.count("keys are distrusted: lanes are replaced") == 1
    place.put(place.sound)
    wait_until(lambda: all_warm(instance))
    place.answers(instance, bucket=8)


def test_a_key_that_is_distrusted_already_is_not_trusted_for_a_moment(small, place, started):
    """And the instance leaves word which kind of machine it is."""
    place.put(Genuine(place.sound, ()).saying(COLLEAGUE))
    place.bottom.put(f"distrusted/{COLLEAGUE.key_id}", b"{}")
    instance = started(place.folder)
    wait_until(lambda: place.reasons)
    assert cold(instance) == [[place.title]] * 2
    assert restarts(instance) == [0, 0]
    assert "lanes are replaced" not in instance.log
    wait_until(lambda: set(sightings(place.bottom)) == {small[1].digest})


class ReadOnlyInstance(OddInstance):
    """It sees its store through a mount that cannot be written."""

    command = (
        *("unshare", "--map-root-user", "--mount", "sh", "-c"),
        'mount --bind "$STORE" "$STORE" && mount -o remount,bind,ro "$STORE" && exec "$@"',
        *("sh", *OddInstance.command),
    )


def may_mount():
    return subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False)


@pytest.mark.skipif(
    not os.environ.get("CI") and may_mount().returncode != 0, reason="this machine lets nobody make mounts of their own"
)
def test_on_a_store_that_cannot_be_written_it_serves_and_says_so_once(place, tmp_path, trusting):
    place.put(place.flipped)
    flags = (*trusting, "--audit-log", "")
    with ReadOnlyInstance(place.folder, tmp_path / "log", *flags, STORE=str(place.folder)) as instance:
        wait_until(lambda: instance.answers("/v1/status") == 200)
        trouble = wait_until(lambda: instance.status()["store"]["trouble"])
        assert trouble == "the store cannot be read or written now; the log says why"
        assert "Read-only file system" in instance.log
        wait_until(lambda: [lane["state"] for lane in instance.status()["lanes"]] == ["warm", "warm"])
        for number in range(20):
            outputs, _ = instance.infer("predict", x=place.x + number)
            assert outputs["sum"].tolist() == (place.x + number).sum(-1).tolist()
            assert instance.status()["store"] == {"trouble": trouble, "quarantined": 0}
        assert instance.gauge("warmpool_store_trouble") == 1
        assert instance.status()["ready"] is True
        assert instance.log.count("store cannot be used now") == 1
        place.put(place.sound)  # by who may write
        wait_until(lambda: all_warm(instance))
        place.answers(instance, bucket=8)


def test_a_store_that_is_moved_away_is_in_trouble_until_it_is_back_and_is_not_begun_again(place, started, tmp_path):
    place.bottom.delete(place.path)
    instance = started(place.folder)
    wait_until(lambda: wanted(place.bottom) and sightings(place.bottom))
    place.folder.rename(tmp_path / "elsewhere")
    wait_until(lambda: instance.status()["store"]["trouble"])
    outputs, _ = instance.infer("predict", x=place.x)
    assert outputs["sum"].tolist() == place.x.sum(-1).tolist()
    assert instance.status()["ready"] is True
    assert not place.folder.exists()
    LocalStore(tmp_path / "elsewhere").put(place.path, place.sound)
    (tmp_path / "elsewhere").rename(place.folder)
    wait_until(lambda: all_warm(instance) and not instance.status()["store"]["trouble"])
    place.answers(instance, bucket=8)
    assert restarts(instance) == [0, 0]
    assert instance.log.count("store cannot be used now") == instance.log.count("store can be used again") == 1


def test_a_target_with_a_key_that_makes_no_path_does_not_end_the_instance(small, place, started):
    """Sealed by a trusted key: a mistake of who published it."""
    store = SignedStore(place.bottom, TRUST, SIGNER)
    path = f"models/tiny/1/targets/{small[1].digest}.json"
    target = json.loads(store.get(path))
    spec = next(one for one in target["executables"] if one["key"] == place.key)
    spec["key"] = "../../secret"
    store.put(path, json.dumps(target).encode() + b"\n")
    missing = executable_file("predict", {"batch": 4}, small[1])
    sound = place.bottom.get(missing)
    place.bottom.delete(missing)
    instance = started(place.folder, ODD_STORE="counting")
    looked_again(place)
    assert "is not a store path" in instance.lane("primary")["cold"][place.title]
    assert wanted(place.bottom) == [missing.removeprefix("executables/")]
    place.bottom.put(missing, sound)
    wait_until(lambda: cold(instance) == [[place.title]] * 2)
    assert instance.status()["store"] == {"trouble": "", "quarantined": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_time_while_its_upkeep_waits_for_the_store(place, started, number):
    """Another process holds the lock that asking for an executable needs, and never lets go."""
    place.bottom.put_if("leases/any", b"x", None)  # makes the lock
    place.bottom.delete(place.path)
    with (place.folder / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        instance = started(place.folder, ODD_STORE="counting")
        wait_until(lambda: counted(place, "wants"))
        outputs, _ = instance.infer("predict", x=place.x)
        assert outputs["sum"].tolist() == place.x.sum(-1).tolist()
        started_s = time.monotonic()
        assert instance.stop(number) == 0
        assert time.monotonic() - started_s < Settings(store="").drain_s_max
    assert wanted(place.bottom) == []


# For as long as an instance lives


def held(pid):
    """Open files, threads, and bytes of memory that are a process's own."""
    status = Path(f"/proc/{pid}/status").read_text().split()
    own = int(status[status.index("RssAnon:") + 1]) * 1024 + int(status[status.index("RssShmem:") + 1]) * 1024
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status[status.index("Threads:") + 1]), own


def assert_no_growth(before, after):
    assert after[0] < before[0] + SPARE
    assert after[1] < before[1] + SPARE
    assert after[2] - before[2] < GROWTH_BYTES_MAX


def test_hundreds_of_tries_of_encrypted_executables_keep_none_of_them_in_memory(place, started, tmp_path):
    """Each is sound, decrypted into memory, given to both lanes, and refused by them."""
    FileKey.write(tmp_path / "secret")
    encrypted = EncryptedStore(place.bottom, read_keys(str(tmp_path / "secret")))
    store = SignedStore(encrypted, TRUST, SIGNER)
    for entry in list(place.bottom.entries("")):
        if not entry.path.startswith("models/"):
            encrypted.put(entry.path, place.bottom.get(entry.path))
    padding = bytes(1 << 20)
    tries = 0

    def put_another():
        nonlocal tries
        store.put(place.path, pack(peek("it", place.sound), b"no executable at all %d" % tries + padding, SIGNER))
        tries += 1

    def refused():
        wait_until(lambda: instance.log.count("executable is tried again") == len(LANES) * tries)
        wait_until(lambda: cold(instance) == [[place.title]] * 2)

    place.bottom.delete(place.path)
    instance = started(place.folder, "--encryption-key", str(tmp_path / "secret"))
    for _ in range(5):
        put_another()
        refused()
    before = held(instance.process.pid)
    for _ in range(TRIES):
        put_another()
        refused()
    assert_no_growth(before, held(instance.process.pid))
    encrypted.put(place.path, place.sound)
    wait_until(lambda: all_warm(instance))
    place.answers(instance, bucket=8)
