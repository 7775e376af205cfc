"""What the front and a lane say to each other, one JSON datagram a message; tensors travel through the arena.

    front -> lane   Begin once, then Weights, Load, Unload, Unmap, Grow, Run, Ask, Stop
    lane -> front   Hello once, then Mapped for Weights, perhaps Loading and then Warm or Cold for every Load, Unloaded
    and Unmapped for what is to go, Done or Failed for every Run, Answer for every Ask; Lost instead of any, and last

The zygote adds {"pid"} before and {"exit"} after. The kernel queues only about ten datagrams a socket, so the front
keeps at most LOADS_IN_FLIGHT_MAX of what comes and goes, two runs and one question under way.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="is"):
    """Base of all messages; the class's name is the tag."""


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """Something that took time: its name, and when it began and ended in nanoseconds since the epoch."""

    name: str
    start_ns: int
    end_ns: int


class Begin(Message, frozen=True):
    """What a lane has to know, with the descriptor of its arena: the size of each half, and `Trust.to_json`.

    A lane's process can be there before the front knows it.
    """

    arena_bytes: int
    trust: dict[str, Any]


class Weights(Message, frozen=True):
    """Map the weights blob of a manifest and put it on the device; `version` names it in later messages.

    `verified` is the identity of the file that the front found whole: the lane itself has to verify any other. It is ""
    while the front still verifies: it runs nothing before it has, and replaces a lane that mapped another file.
    """

    version: str
    manifest_path: str
    weights_path: str
    verified: str


class Load(Message, frozen=True):
    """Read, verify, load and run once. Tensors are (dtype name, shape), in the program's order.

    `made_of` are ingredients that the artifact has to have: the program and bucket that the manifest says. A file of
    more than `bytes_max` is not read.
    """

    executable: int
    version: str
    artifact_path: str
    key: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    bytes_max: int
    made_of: dict[str, str] = {}


class Unload(Message, frozen=True):
    """Let go of an executable, if it is warm. It does not run, and will not before it is loaded again."""

    executable: int


class Unmap(Message, frozen=True):
    """Let go of a version's weights: nothing of it is loaded any more, or all of it is being unloaded."""

    version: str


class Grow(Message, frozen=True):
    """The arena has become larger."""

    arena_bytes: int


class Run(Message, frozen=True):
    """Run a warm executable on what lies in a half of the arena: 0 or 1."""

    executable: int
    half: int = 0


class Ask(Message, frozen=True):
    """How is it going?"""


class Stop(Message, frozen=True):
    """Finish what was asked and exit."""


class Hello(Message, frozen=True):
    """The lane has a client; its fingerprint decides which executables it may load.

    `memory_bytes_max` is what it may take of its device's own memory; 0 where the device has none or does not say.
    """

    fingerprint: dict[str, str]
    stages: list[Stage]
    memory_bytes_max: int = 0


class Mapped(Message, frozen=True):
    """Weights are on the device, or `reason` says why not. `identity` is that of the file which was mapped.

    `out_of_memory`: there was no room for them, and nothing is wrong with them.
    """

    version: str
    stages: list[Stage]
    reason: str = ""
    identity: str = ""
    out_of_memory: bool = False


class Loading(Message, frozen=True):
    """What was read is right, and is given to XLA now, which may be the lane's death. `content` is its SHA-256."""

    executable: int
    content: str


class Warm(Message, frozen=True):
    """An executable has run once and its result was read."""

    executable: int
    stages: list[Stage]


class Cold(Message, frozen=True):
    """An executable could not be made warm; `content` is the SHA-256 of what was read, "" if nothing was.

    `out_of_memory`: there was no room for it, and nothing is wrong with it.
    """

    executable: int
    reason: str
    content: str = ""
    out_of_memory: bool = False


class Unloaded(Message, frozen=True):
    """An executable is gone, and its memory with it."""

    executable: int


class Unmapped(Message, frozen=True):
    """Weights are gone, and their memory with them."""

    version: str


class Done(Message, frozen=True):
    """The results lie in the half of the arena that was told. Times in nanoseconds since the epoch."""

    start_ns: int
    end_ns: int


class Failed(Message, frozen=True):
    """The run failed; the lane lives. `out_of_memory`: there was no room for it, a smaller one may do."""

    reason: str
    out_of_memory: bool = False


class Lost(Message, frozen=True):
    """Nothing can be done on the device any more: the lane ends."""

    reason: str


class Answer(Message, frozen=True):
    """Compilations in this process (0, or the promise is broken), resident memory."""

    compiles: int
    resident_bytes: int


class Born(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First message of every fork, from the zygote's code."""

    pid: int


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Last message of every fork, from the zygote: exit status, negative for a signal."""

    exit: int


FromFront = Weights | Load | Unload | Unmap | Grow | Run | Ask | Stop
FromLane = Hello | Mapped | Loading | Warm | Cold | Unloaded | Unmapped | Done | Failed | Lost | Answer

Work = Weights | Load | Unload | Unmap
Settled = Mapped | Warm | Cold | Unloaded | Unmapped

LOADS_IN_FLIGHT_MAX = 3

encode = msgspec.json.Encoder().encode
decode_from_front = msgspec.json.Decoder(FromFront).decode
_from_lane = msgspec.json.Decoder(FromLane).decode
_from_zygote = msgspec.json.Decoder(dict[str, int]).decode


def decode_from_lane(data: bytes) -> FromLane | Born | Gone:
    """A message of the channel's other end: the lane's own, or one of the zygote's about it."""
    if data.startswith(b'{"is"'):
        return _from_lane(data)
    message = _from_zygote(data)
    return Born(message["pid"]) if "pid" in message else Gone(message["exit"])
