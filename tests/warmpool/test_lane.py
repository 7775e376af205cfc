"""A lane by itself: forked from a zygote, spoken to in its own messages, with an arena that the test holds."""

import hashlib
import os
import resource
import signal
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache.artifact import Header, pack, unpack
from cache.local_store import LocalStore
from cache.signing import ANYONE
from tests.instance_process import alive, mapped_bytes, own_bytes, wait_until
from tests.tiny import BIAS, MATRIX, METHODS
from tests.warmpool.large import ROW_BYTES, WEIGHT_BYTES, hungry
from tests.warmpool.tampering import Genuine, deadly
from warmpool import messages
from warmpool.arena import Arena, regions
from warmpool.catalog import read_catalog, verify_weights
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.forking import Zygote
from warmpool.load_plan import plan_loads
from warmpool.load_queue import CRASHES

SLOW_STEPS = 400_000_000
REPLY_S_MAX = 60.0
COPIES = 20  # of an executable: as many as that, that one more or less makes no difference


@pytest.fixture(scope="module", params=["jaxlib", "jax"])
def zygote(request):
    with Zygote.start(request.param) as running:
        running.read_stages()
        yield running, request.param


@pytest.fixture
def store(own_store):
    return LocalStore(own_store)


@pytest.fixture
def model(store):
    return read_catalog(store).models["tiny"]


class Lane:
    """The front's half of a lane, one message at a time."""

    def __init__(self, zygote, mode, model, arena_bytes=1 << 16, channel=None):
        self.arena = Arena.create(arena_bytes)
        self.channel = channel or zygote.fork_lane(mode)
        begin = messages.Begin(self.arena.size_bytes, ANYONE.to_json())
        socket.send_fds(self.channel, [messages.encode(begin)], [self.arena.descriptor])
        self.channel.settimeout(REPLY_S_MAX)
        self.begun = []
        self.model = model
        self.pid = self.receive(messages.Born).pid
        self.hello = self.receive(messages.Hello)

    def close(self):
        self.channel.close()
        self.arena.close()
        wait_until(lambda: not alive(self.pid))

    def send(self, message):
        self.channel.send(messages.encode(message))

    def receive(self, kind):
        message = messages.decode_from_lane(self.channel.recv(MESSAGE_BYTES_MAX))
        while isinstance(message, messages.Loading):
            self.begun.append(message)
            message = messages.decode_from_lane(self.channel.recv(MESSAGE_BYTES_MAX))
        assert isinstance(message, kind), message
        return message

    def ask(self, message, kind):
        self.send(message)
        return self.receive(kind)

    def weights(self, verified=""):
        return messages.Weights(
            version=self.model.key,
            manifest_path=str(self.model.manifest_file),
            weights_path=str(self.model.weights_file),
            verified=verified,
        )

    def map_weights(self, verified=""):
        return self.ask(self.weights(verified), messages.Mapped)

    def run(self, load, *inputs):
        """Write inputs where the executable has them, run it, and read its results where they are."""
        placed = regions(load.inputs)
        for region, values in zip(placed, inputs, strict=True):
            self.arena.array(region)[...] = values
        done = self.ask(messages.Run(executable=load.executable), messages.Done)
        assert done.start_ns <= done.end_ns
        return [self.arena.array(region).copy() for region in regions(load.outputs, placed[-1].end)]


@pytest.fixture
def lane(zygote, model):
    process, mode = zygote
    running = Lane(process, mode, model)
    yield running
    running.close()


@pytest.fixture
def loads(store, model, fingerprint):
    """What the front would send, by method and bucket."""
    plan = plan_loads(store, [model], fingerprint, verified={}, ladder_only=False)
    return {
        (loadable.method.name, *loadable.candidate.bucket.values()): loadable.message
        for loadable in plan.loadables.values()
    }


def changed(load, **fields):
    return msgspec.structs.replace(load, **fields)


def test_it_says_hello_with_the_fingerprint_that_executables_were_made_for(lane, fingerprint):
    assert lane.hello.fingerprint == dict(fingerprint.ingredients)
    assert [stage.name for stage in lane.hello.stages] == ["client", "fingerprint"]
    assert all(stage.start_ns <= stage.end_ns for stage in lane.hello.stages)


def test_it_maps_loads_and_runs(lane, loads):
    mapped = lane.map_weights()
    assert (mapped.version, mapped.reason, [stage.name for stage in mapped.stages]) == ("tiny/1", "", ["weights"])
    load = loads["predict", 4]
    warm = lane.ask(load, messages.Warm)
    assert (warm.executable, [stage.name for stage in warm.stages]) == (
        load.executable,
        ["fetch", "verify", "load", "first run"],
    )
    for turn in range(3):  # the arena is written again and again: nothing of an earlier batch may stay
        rows = np.arange(16, dtype=np.float32).reshape(4, 4) + turn
        expected = METHODS["predict"].reference(x=rows)
        y, total = lane.run(load, rows)
        np.testing.assert_array_equal(y, expected["y"])
        np.testing.assert_array_equal(total, expected["sum"])
    answer = lane.ask(messages.Ask(), messages.Answer)
    assert answer.compiles == 0
    assert answer.resident_bytes > 1 << 20


def test_executables_asked_for_before_the_weights_are_there_wait_for_them(lane, loads):
    lane.send(lane.weights())
    asked = [loads["predict", 1], loads["tokens", 2, 8], loads["scale", 4]]
    for load in asked:
        lane.send(load)
    kinds = [type(lane.receive((messages.Mapped, messages.Warm))) for _ in range(4)]
    assert kinds.count(messages.Warm) == 3
    assert lane.run(asked[0], [[1, 0, 0, 0]])[0].tolist() == (MATRIX[:1] + BIAS).tolist()


def test_it_runs_while_it_loads(lane, loads):
    lane.map_weights()
    count = loads["count", 1]
    lane.ask(count, messages.Warm)
    placed = regions(count.inputs)
    lane.arena.array(placed[0])[...] = SLOW_STEPS
    others = [loads["predict", 8], loads["tokens", 8, 16], loads["scale", 10]]
    for message in (*others, messages.Run(executable=count.executable)):
        lane.send(message)
    kinds = [type(lane.receive((messages.Done, messages.Warm))) for _ in range(4)]
    assert kinds.count(messages.Done) == 1
    result = lane.arena.array(regions(count.outputs, placed[-1].end)[0])
    assert result.tolist() == [SLOW_STEPS]


def nices_of(pid):
    """By thread, how nice it is."""
    stats = (task.joinpath("stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return sorted(int(stat.rpartition(")")[2].split()[16]) for stat in stats)


def test_no_thread_of_a_lane_is_put_off_for_another(lane, loads):
    lane.map_weights()
    lane.ask(loads["predict", 1], messages.Warm)
    assert len(set(nices_of(lane.pid))) == 1


def test_a_first_run_does_not_touch_what_lies_in_the_arena(lane, loads):
    lane.map_weights()
    everything = lane.arena.array(regions([("uint8", (lane.arena.size_bytes,))])[0])
    everything[...] = 7
    for load in loads.values():
        lane.ask(load, messages.Warm)
    assert (everything == 7).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "damaged"),
        (lambda data: b"", "damaged"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "damaged"),
        (None, "No such file"),
    ],
    ids=["truncated", "empty", "a bit", "missing"],
)
def test_an_artifact_that_is_not_whole_stays_cold(lane, loads, tmp_path, change, words):
    lane.map_weights()
    load = loads["predict", 4]
    file = tmp_path / "artifact"
    if change:
        file.write_bytes(change(Path(load.artifact_path).read_bytes()))
    cold = lane.ask(changed(load, artifact_path=str(file)), messages.Cold)
    assert words in cold.reason
    assert lane.begun == [], "nothing of it reached XLA"
    assert str(tmp_path) not in cold.reason
    lane.ask(load, messages.Warm)


def test_an_artifact_that_is_far_larger_than_what_was_published_is_not_read(lane, loads, tmp_path):
    lane.map_weights()
    load = loads["predict", 4]
    file = tmp_path / "artifact"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # of nothing: to read it would take more memory than there is
    cold = lane.ask(changed(load, artifact_path=str(file)), messages.Cold)
    assert f"it is {1 << 40} bytes long, no more than {load.bytes_max} are expected" in cold.reason
    assert cold.content == ""
    file.write_bytes(Path(load.artifact_path).read_bytes())
    lane.ask(changed(load, artifact_path=str(file), bytes_max=file.stat().st_size), messages.Warm)


def test_an_artifact_of_another_machine_stays_cold_and_names_what_differs(lane, loads, tmp_path):
    lane.map_weights()
    load = loads["predict", 4]
    header, payload = unpack(Path(load.artifact_path).read_bytes(), key=load.key, trust=ANYONE)
    ingredients = {**header.ingredients, "fingerprint.cpu_features": "avx1024"}
    file = tmp_path / "artifact"
    file.write_bytes(pack(Header(key=load.key, ingredients=ingredients), bytes(payload)))
    cold = lane.ask(changed(load, artifact_path=str(file)), messages.Cold)
    assert "cpu_features" in cold.reason
    assert "avx1024" in cold.reason


@pytest.mark.parametrize("made_of", [{"program": "another"}, {"bucket.batch": "8"}, {"bucket.seq": "4"}])
def test_an_executable_of_another_program_or_bucket_stays_cold_though_its_key_is_the_right_one(lane, loads, made_of):
    lane.map_weights()
    load = loads["predict", 4]
    cold = lane.ask(changed(load, made_of=load.made_of | made_of), messages.Cold)
    assert next(iter(made_of)) in cold.reason
    lane.ask(load, messages.Warm)


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": (("float32", (4, 4)), ("float32", (4,)))},
        {"outputs": (("int32", (4, 3)), ("float32", (4,)))},
        {"outputs": (("float32", (4, 3)),)},
        {"inputs": (("float32", (2, 4)),)},
        {"inputs": (("float32", (8, 4)),)},
        {"inputs": ()},
    ],
    ids=["shape", "dtype", "an output fewer", "fewer rows", "more rows", "no inputs"],
)
def test_an_executable_that_is_not_as_the_manifest_says_stays_cold(lane, loads, fields):
    lane.map_weights()
    lane.ask(changed(loads["predict", 4], **fields), messages.Cold)
    lane.ask(loads["predict", 4], messages.Warm)


def test_whole_bytes_that_xla_refuses_stay_cold(lane, loads, tmp_path):
    lane.map_weights()
    load = loads["predict", 4]
    header, _ = unpack(Path(load.artifact_path).read_bytes(), key=load.key, trust=ANYONE)
    file = tmp_path / "artifact"
    file.write_bytes(pack(header, b"these bytes are whole and no executable"))
    cold = lane.ask(changed(load, artifact_path=str(file)), messages.Cold)
    assert "XLA" in cold.reason
    assert cold.content == hashlib.sha256(file.read_bytes()).hexdigest()
    assert lane.begun == [messages.Loading(executable=load.executable, content=cold.content)]
    lane.ask(load, messages.Warm)


@pytest.mark.parametrize("change", [lambda data: data[:-4], lambda data: data + b"1234"], ids=["short", "long"])
def test_weights_of_another_size_are_not_mapped_and_their_executables_stay_cold(lane, loads, change):
    file = lane.model.weights_file
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(change(content))
    assert "weights" in lane.map_weights().reason
    for load in (loads["predict", 1], loads["scale", 4]):
        assert "weights" in lane.ask(load, messages.Cold).reason
    lane.ask(messages.Ask(), messages.Answer)


def test_weights_are_verified_again_where_their_file_is_another_one(lane, loads):
    file = lane.model.weights_file
    verified = verify_weights(lane.model)
    assert lane.map_weights(verified=verified).reason == ""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)  # another file with the same content
    assert lane.map_weights(verified=verified).reason == ""
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "changed" in lane.map_weights(verified=verified).reason


def test_before_it_may_die_of_an_executable_it_says_of_which_content(lane, loads, tmp_path):
    lane.map_weights()
    load = loads["predict", 4]
    genuine = Genuine(Path(load.artifact_path).read_bytes(), ())
    file = tmp_path / "artifact"
    file.write_bytes(genuine.with_payload(deadly(genuine.payload)))
    assert lane.ask(changed(load, artifact_path=str(file)), messages.Gone).exit in CRASHES
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    assert lane.begun == [messages.Loading(executable=load.executable, content=content)]


def test_it_ends_when_told_to_and_says_so_to_the_zygote(lane):
    lane.send(messages.Stop())
    assert lane.receive(messages.Gone).exit == 0


def test_it_ends_when_the_front_is_gone_even_in_the_middle_of_loading(lane, loads):
    lane.send(lane.weights())
    for load in list(loads.values())[:5]:
        lane.send(load)
    lane.channel.close()
    wait_until(lambda: not alive(lane.pid))


def test_the_signals_of_its_group_do_not_end_it(lane, loads):
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(lane.pid, number)
    lane.map_weights()
    lane.ask(loads["predict", 1], messages.Warm)


# What goes


def memory_of(pid):
    """What a process has in bytes: resident with no file behind it, and mapped of weights."""
    return own_bytes(pid), mapped_bytes(pid)


def address_bytes(pid):
    """The address space that a process uses."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def large(zygote, large_store, fingerprint):
    """Makes a lane for one of the large models, and gives its loads by rows."""
    process, mode = zygote
    running = []

    def make(name):
        store = LocalStore(large_store)
        model = read_catalog(store).models[name]
        plan = plan_loads(store, [model], fingerprint, verified={}, ladder_only=False)
        running.append(Lane(process, mode, model, 1 << 20))
        running[-1].map_weights()
        return running[-1], {one.candidate.bucket["batch"]: one.message for one in plan.loadables.values()}

    yield make
    for lane in running:
        lane.close()


def test_what_it_lets_go_of_leaves_its_memory_and_may_come_back(large):
    lane, loads = large("heavy")

    def fill():
        for turn in range(COPIES):
            lane.ask(changed(loads[1], executable=100 + turn), messages.Warm)
        (found,) = lane.run(changed(loads[1], executable=100), np.eye(16, dtype=np.float32)[:1])
        assert found.tolist() == [1008.0]
        return memory_of(lane.pid)

    def empty():
        for turn in range(COPIES):
            assert lane.ask(messages.Unload(executable=100 + turn), messages.Unloaded).executable == 100 + turn
        without_executables = memory_of(lane.pid)
        assert lane.ask(messages.Unmap(version=lane.model.key), messages.Unmapped).version == lane.model.key
        # A thread of XLA's may hold what it ran on for a moment: then it is gone once the lane is asked how it is.
        wait_until(lambda: lane.ask(messages.Ask(), messages.Answer) and memory_of(lane.pid)[1] == 0)
        lane.map_weights()
        return without_executables

    fill()
    empty()
    full = fill()
    anonymous, files = again = empty()
    one = (full[0] - anonymous) / COPIES
    assert one > 200_000, "so much is an executable at the least"
    assert files == WEIGHT_BYTES
    for _ in range(3):
        fill()
        again = empty()
    assert again[0] - anonymous < COPIES / 2 * one, "of three times as many that came and went"
    answer = lane.ask(messages.Ask(), messages.Answer)
    assert answer.compiles == 0


def test_letting_go_of_what_stayed_cold_is_no_error(lane, loads, tmp_path):
    lane.map_weights()
    lane.ask(changed(loads["predict", 4], artifact_path=str(tmp_path / "nowhere")), messages.Cold)
    lane.ask(messages.Unload(executable=loads["predict", 4].executable), messages.Unloaded)
    lane.ask(loads["predict", 4], messages.Warm)
    assert lane.run(loads["predict", 4], np.zeros((4, 4)))[0].tolist() == [BIAS.tolist()] * 4


def test_a_run_for_which_there_is_no_room_fails_and_says_so_and_smaller_ones_do_not(large):
    """The lane may grow by less than the largest bucket takes, and by more than the next one does."""
    lane, loads = large("hungry")
    before = address_bytes(lane.pid)
    for load in loads.values():
        lane.ask(load, messages.Warm)
    wait_until(lambda: address_bytes(lane.pid) < before + 6 * ROW_BYTES)  # what the first runs took is given back
    limit = address_bytes(lane.pid) + 6 * ROW_BYTES
    resource.prlimit(lane.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    failed = lane.ask(messages.Run(executable=loads[8].executable), messages.Failed)
    assert failed.out_of_memory
    assert "RESOURCE_EXHAUSTED" in failed.reason
    x = np.linspace(-1, 1, 2 * 4096, dtype=np.float32).reshape(2, 4096)
    np.testing.assert_array_equal(lane.run(loads[2], x)[0], hungry(x))
    cold = lane.ask(changed(loads[8], executable=100), messages.Cold)
    assert cold.out_of_memory, "its first run takes as much"
    lane.ask(messages.Unload(executable=100), messages.Unloaded)
    resource.prlimit(lane.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    x = np.linspace(-1, 1, 8 * 4096, dtype=np.float32).reshape(8, 4096)
    np.testing.assert_array_equal(lane.run(loads[8], x)[0], hungry(x))


def test_a_lane_that_fails_for_another_reason_is_not_out_of_memory(lane, loads, tmp_path):
    lane.map_weights()
    assert not lane.ask(changed(loads["predict", 4], artifact_path=str(tmp_path)), messages.Cold).out_of_memory
    assert lane.hello.memory_bytes_max == 0, "a CPU has no memory of its own"


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_a_lane_whose_device_is_lost_says_so_and_ends_whatever_it_was_doing(zygote, model, loads, runs):
    """In the first run of a load, which another thread does, and in a batch."""
    process, mode = zygote
    argument = {"mode": mode, "runs": runs}
    channel = process.fork("tests.warmpool.forked:lane_that_loses_its_device", argument, orphan=True)
    lane = Lane(process, mode, model, channel=channel)
    lane.map_weights()
    load = loads["predict", 4]
    if runs:
        lane.ask(load, messages.Warm)
        for _ in range(runs - 1):
            lane.ask(messages.Run(executable=load.executable), messages.Done)
        lost = lane.ask(messages.Run(executable=load.executable), messages.Lost)
    else:
        lost = lane.ask(load, messages.Lost)
    assert lost.reason == "the executable failed: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: encountered"
    assert lane.receive(messages.Gone).exit == 1
    lane.close()
