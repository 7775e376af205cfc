"""What one end of a lane's channel says, the other understands, and no message is larger than the channel takes."""

from __future__ import annotations

import json
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.fingerprint import fingerprint_of
from warmpool import messages
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.messages import Stage

texts = st.text(max_size=12)
counts = st.integers(0, 2**40)
tensors = st.lists(st.tuples(texts, st.lists(counts, max_size=4).map(tuple)), max_size=3).map(tuple)
stages = st.lists(st.builds(Stage, name=texts, start_ns=counts, end_ns=counts), max_size=3)

from_front = (
    st.builds(messages.Weights, version=texts, manifest_path=texts, weights_path=texts)
    | st.builds(
        messages.Load,
        executable=counts,
        version=texts,
        artifact_path=texts,
        key=texts,
        inputs=tensors,
        outputs=tensors,
        bytes_max=counts,
    )
    | st.builds(messages.Unload, executable=counts)
    | st.builds(messages.Unmap, version=texts)
    | st.builds(messages.Run, executable=counts)
    | st.builds(messages.Ask)
    | st.builds(messages.Stop)
)
from_lane = (
    st.builds(
        messages.Hello,
        fingerprint=st.dictionaries(texts, texts, max_size=3),
        stages=stages,
        memory_bytes_max=counts,
    )
    | st.builds(messages.Mapped, version=texts, stages=stages, reason=texts, out_of_memory=st.booleans())
    | st.builds(messages.Unloaded, executable=counts)
    | st.builds(messages.Unmapped, version=texts)
    | st.builds(messages.Loading, executable=counts, content=texts)
    | st.builds(messages.Warm, executable=counts, stages=stages)
    | st.builds(messages.Cold, executable=counts, reason=texts, out_of_memory=st.booleans())
    | st.builds(messages.Done, start_ns=counts, end_ns=counts)
    | st.builds(messages.Failed, reason=texts, out_of_memory=st.booleans())
    | st.builds(messages.Answer, compiles=counts, resident_bytes=counts)
)


@given(from_front)
def test_what_the_front_says_the_lane_understands(message):
    assert messages.decode_from_front(messages.encode(message)) == message


@given(from_lane)
def test_what_a_lane_says_the_front_understands(message):
    assert messages.decode_from_lane(messages.encode(message)) == message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pid": 7}, messages.Born(7)),
        ({"exit": 0}, messages.Gone(0)),
        ({"exit": -9}, messages.Gone(-9)),
    ],
)
def test_what_the_zygote_says_of_a_lane_is_told_from_what_the_lane_says(said, message):
    assert messages.decode_from_lane(json.dumps(said).encode()) == message


@pytest.mark.parametrize("data", [b"{}", b'{"is":"Rum","executable":1}', b'{"is":"Run"}', b"\0", b'{"is":"Hello"}'])
def test_what_is_no_message_is_not_taken_for_one(data):
    with pytest.raises((msgspec.MsgspecError, KeyError)):
        messages.decode_from_lane(data)
    with pytest.raises(msgspec.MsgspecError):
        messages.decode_from_front(data)


def test_every_message_has_a_direction():
    directed = {messages.Begin, *messages.FromFront.__args__, *messages.FromLane.__args__}
    assert directed == {*messages.Message.__subclasses__()}


def test_the_largest_messages_fit_into_the_channel_that_front_and_lane_have():
    """A hello with this machine's fingerprint, a refusal that names all of it twice, a load with many tensors."""
    fingerprint = fingerprint_of(
        platform_name="cpu", platform_version="cpu " * 20, device_kind="cpu", device_count=1
    ).ingredients
    shown = "; ".join(f"{name}: wanted {value!r}, found {value!r}" for name, value in fingerprint.items())
    many = tuple((f"tensor{number}", (64, 128, 256, 512)) for number in range(1024))
    large = [
        messages.Hello(fingerprint=dict(fingerprint), stages=[Stage("client", 2**63, 2**63)] * 8),
        messages.Cold(executable=1, reason=shown),
        messages.Load(
            executable=1,
            version="v" * 100,
            artifact_path="p" * 4096,
            key="k" * 64,
            inputs=many,
            outputs=many,
            bytes_max=2**63,
        ),
    ]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for message in large:
            data = messages.encode(message)
            assert len(data) <= MESSAGE_BYTES_MAX
            ours.send(data)
            assert theirs.recv(MESSAGE_BYTES_MAX) == data


def test_all_that_may_be_under_way_at_once_fits_into_the_channel():
    """The front never waits in a send: two loads, a run and a question have to fit unread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        load = messages.Load(
            executable=1, version="v", artifact_path="p" * 4096, key="k" * 64, inputs=(), outputs=(), bytes_max=9
        )
        under_way = [load] * messages.LOADS_IN_FLIGHT_MAX + [messages.Run(1), messages.Ask(), messages.Stop()]
        for message in under_way:
            ours.send(messages.encode(message))
