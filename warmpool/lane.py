"""A lane: the process that owns a device and runs warm executables. It never traces, compiles or sees user code.

The main thread waits for a batch, runs it and answers. Others make executables warm, so that a lane serves while it
still loads, and let go of those that are not to be any more; XLA releases the interpreter lock for all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache.artifact import Calling, Header, TensorType, unpack
from cache.devices import Buffer
from cache.document import unseal
from cache.errors import CacheError, Damaged, DeviceLost, Foreign, OutOfMemory
from cache.executable import Executable, Runtime
from cache.fingerprint import Fingerprint
from cache.ingredients import differences, digest_ingredients
from cache.key import made_for
from cache.signing import Trust
from warmpool import messages, slices
from warmpool.arena import Arena, Region, regions
from warmpool.datagram import MESSAGE_BYTES_MAX
from warmpool.loaders import Loaders
from warmpool.manifest import Manifest, manifest_path
from warmpool.parent_death import outlive_parent
from warmpool.process_memory import give_back, resident_bytes, use_one_heap
from warmpool.weights import WeightsFile

_REASON_CHARACTERS_MAX = 4000  # what an artifact says of itself may be longer than a datagram


class _Weights(NamedTuple):
    """A version's weights on the device."""

    buffers: list[Buffer]
    types: tuple[TensorType, ...]


class _Warm:
    """A warm executable and where its tensors lie in the arena."""

    __slots__ = ("executable", "inputs", "outputs", "weights")

    def __init__(self, executable: Executable, weights: list[Buffer], load: messages.Load) -> None:
        self.executable = executable
        self.weights = weights
        self.inputs = regions(load.inputs)
        self.outputs = regions(load.outputs, self.inputs[-1].end if self.inputs else 0)


class Lane:
    """The state of a lane process."""

    def __init__(
        self, runtime: Runtime, fingerprint: Fingerprint, arena: Arena, trust: Trust, channel: socket.socket
    ) -> None:
        self.runtime = runtime
        self.trust = trust
        self.fingerprint = fingerprint
        self.arena = arena
        self.channel = channel
        self.warm: dict[int, _Warm] = {}
        self.weights: dict[str, Future[_Weights]] = {}
        self._loaders = Loaders(lambda work: self._send(self._worked(work)))

    def serve(self, stages: list[messages.Stage]) -> None:
        """Say hello with the stages so far, then answer messages until told to stop or the front is gone."""
        self._send(
            messages.Hello(
                fingerprint=dict(self.fingerprint.ingredients),
                stages=stages,
                memory_bytes_max=self.runtime.devices.memory_bytes_max,
            )
        )
        self._loaders.start()
        slices.ask_for(slices.SHORT_S)  # for the thread that runs batches: the loaders are there already
        while data := self.channel.recv(MESSAGE_BYTES_MAX):
            match messages.decode_from_front(data):
                case messages.Run() as run:
                    self._send(self._run(self.warm[run.executable], run.half))
                case messages.Ask():
                    self._send(self._answer())
                case messages.Grow() as grown:
                    self.arena.view(grown.arena_bytes)
                case messages.Stop():
                    return
                case messages.Weights() as weights:
                    self.weights[weights.version] = Future()
                    self._loaders.put(weights)
                case work:
                    self._loaders.put(work)

    def _run(self, warm: _Warm, half: int) -> messages.Done | messages.Failed:
        start_ns = time.time_ns()
        self.arena.begin_run()
        try:
            arguments = [*warm.weights, *(self.runtime.put(self.arena.array(region, half)) for region in warm.inputs)]
            for region, result in zip(warm.outputs, warm.executable.run(arguments), strict=True):
                np.copyto(self.arena.array(region, half), result, casting="no")
        except DeviceLost as error:
            self._lost(error)
        except CacheError as error:
            return messages.Failed(reason=str(error), out_of_memory=isinstance(error, OutOfMemory))
        return messages.Done(start_ns=start_ns, end_ns=time.time_ns())

    def _worked(self, work: messages.Work) -> messages.Settled:
        match work:
            case messages.Weights():
                return self._map(work)
            case messages.Load():
                return self._load(work)
            case messages.Unload():
                self.warm.pop(work.executable, None)  # it may have stayed cold
                self._give_back()
                return messages.Unloaded(executable=work.executable)
            case messages.Unmap():
                del self.weights[work.version]
                self._give_back()
                return messages.Unmapped(version=work.version)

    def _give_back(self) -> None:
        self.runtime.devices.let_go()
        give_back()

    def _map(self, message: messages.Weights) -> messages.Mapped:
        stages: list[messages.Stage] = []
        try:
            with _staged(stages, "weights"):
                spec = self._manifest(message).weights
                with WeightsFile(Path(message.weights_path)) as file:
                    if message.verified not in {"", file.identity} and file.digest() != spec.digest:
                        raise Damaged(f"weights of {message.version}", "they changed since they were verified")
                    buffers = [self.runtime.put(array) for array in file.map(spec)]
                    identity = file.identity
        except DeviceLost as error:
            self._lost(error)
        except (CacheError, OSError, ValueError, TypeError, OverflowError) as error:  # no such dtype, no such size
            reason = f"its weights cannot be mapped: {_reason(error)}"
            short = isinstance(error, OutOfMemory)
            self.weights[message.version].set_exception((OutOfMemory if short else CacheError)(reason))
            return messages.Mapped(version=message.version, stages=stages, reason=reason, out_of_memory=short)
        types = tuple(TensorType(one.dtype, one.shape) for one in spec.tensors)
        self.weights[message.version].set_result(_Weights(buffers, types))
        return messages.Mapped(version=message.version, stages=stages, identity=identity)

    def _manifest(self, message: messages.Weights) -> Manifest:
        """The manifest of a version ("model/version"), read from its file, with the signature that it has to bear."""
        path = manifest_path(*message.version.split("/"))
        return msgspec.json.decode(unseal(path, Path(message.manifest_path).read_bytes(), self.trust), type=Manifest)

    def _load(self, load: messages.Load) -> messages.Warm | messages.Cold:
        stages: list[messages.Stage] = []
        content = ""
        try:
            with _staged(stages, "fetch"):
                data = _artifact(load)
                content = hashlib.sha256(data).hexdigest()
            weights = self.weights[load.version].result()
            with _staged(stages, "verify"):
                payload = self._verified(data, load, weights.types)
            self._send(messages.Loading(executable=load.executable, content=content))
            with _staged(stages, "load"):
                executable = self.runtime.load(payload)
            warm = _Warm(executable, weights.buffers, load)
            with _staged(stages, "first run"):
                self._first_run(warm)
        except DeviceLost as error:
            self._lost(error)
        except (CacheError, OSError) as error:
            short = isinstance(error, OutOfMemory)
            return messages.Cold(
                executable=load.executable, reason=_reason(error), content=content, out_of_memory=short
            )
        self.warm[load.executable] = warm
        return messages.Warm(executable=load.executable, stages=stages)

    def _verified(self, data: bytes, load: messages.Load, weights: tuple[TensorType, ...]) -> memoryview:
        """The payload, if the artifact is whole, trusted, and made for this lane's fingerprint, key and tensors."""
        key = load.key
        header, payload = unpack(data, key=key, kind="executable", trust=self.trust)
        found = {name: header.ingredients.get(name, "") for name in load.made_of}
        if differ := differences(load.made_of, found) or self.fingerprint.differences(made_for(header.ingredients)):
            raise Foreign(f"artifact {key[:16]}", differ)
        if (made_of := digest_ingredients(header.ingredients)) != key:
            raise Foreign(f"artifact {key[:16]}", {"key": (key, made_of)})
        _check_calling(header, load, weights)
        return payload

    def _first_run(self, warm: _Warm) -> None:
        """Run on zeros in memory of its own: the arena may hold a batch."""
        inputs = [self.runtime.put(_zeros(region)) for region in warm.inputs]
        results = warm.executable.run([*warm.weights, *inputs])
        found = [(result.dtype, result.shape) for result in results]
        declared = [(region.dtype, region.shape) for region in warm.outputs]
        if found != declared:
            raise CacheError(f"the executable's results are {found}, the manifest says {declared}")

    def _lost(self, error: DeviceLost) -> NoReturn:
        """End a process that is of no use any more."""
        self._send(messages.Lost(reason=_reason(error)))
        os._exit(1)

    def _answer(self) -> messages.Answer:
        self.runtime.devices.let_go()  # of what a thread of XLA's still held when it was to go
        return messages.Answer(compiles=self.runtime.compiles(), resident_bytes=resident_bytes())

    def _send(self, message: messages.FromLane) -> None:
        self.channel.send(messages.encode(message))


def main(argument: dict[str, Any], channel: socket.socket, _descriptors: list[int]) -> None:
    """Entry of the fork: `argument` has "mode"; all else comes with the first message, once the front knows it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to the whole group, it is the front's to act on
    use_one_heap()
    slices.ask_for(slices.OWN_S)  # not the front's, which its zygotes may have
    stages: list[messages.Stage] = []
    with _staged(stages, "client"):
        runtime = Runtime.open(argument["mode"])
    with _staged(stages, "fingerprint"):
        fingerprint = runtime.fingerprint()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the front is gone: so is the reason to be
        data, descriptors, *_ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 1)
        if data:
            outlive_parent()  # one that was forked ahead would not
            begin = msgspec.json.decode(data, type=messages.Begin)
            arena = Arena(descriptors[0], begin.arena_bytes)
            Lane(runtime, fingerprint, arena, Trust.from_json(begin.trust), channel).serve(stages)
    os._exit(0)  # the loader may be inside XLA, which does not take part in an orderly exit


def _artifact(load: messages.Load) -> bytes:
    """The content of its file. Raises Damaged, with nothing read, where that is much larger than what was published."""
    with Path(load.artifact_path).open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > load.bytes_max:
            reason = f"it is {size_bytes} bytes long, no more than {load.bytes_max} are expected"
            raise Damaged(f"artifact {load.key[:16]}", reason)
        return file.read(size_bytes)


def _check_calling(header: Header, load: messages.Load, weights: tuple[TensorType, ...]) -> None:
    """Raise Foreign unless the executable is called as a lane calls it: with everything that the manifest says.

    It must not take over the memory of an argument either: weights are everybody's. Format 1 says nothing of all this.
    """
    if header.calling is None:
        return
    arguments = (*weights, *(TensorType(*one) for one in load.inputs))
    results = tuple(TensorType(*one) for one in load.outputs)
    wanted = Calling(arguments=arguments, results=results, kept=tuple(range(len(arguments))))
    if differ := differences(_told(wanted), _told(header.calling)):
        raise Foreign(f"artifact {load.key[:16]}", differ)


def _told(calling: Calling) -> dict[str, str]:
    """A calling convention by named parts, as differences are told by."""
    tensors = {"argument": calling.arguments, "result": calling.results}
    return {
        f"{role} {index}": f"{one.dtype}{list(one.shape)}"
        for role, types in tensors.items()
        for index, one in enumerate(types)
    } | {name: str(getattr(calling, name)) for name in ("kept", "donated", "devices")}


def _reason(error: Exception) -> str:
    """What may be told of an error, of bounded length: the system's own text names paths."""
    text = error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)
    return text if len(text) <= _REASON_CHARACTERS_MAX else text[: _REASON_CHARACTERS_MAX - 1] + "…"


def _zeros(region: Region) -> NDArray[Any]:
    return np.zeros(region.shape, region.dtype)


@contextmanager
def _staged(stages: list[messages.Stage], name: str) -> Iterator[None]:
    start_ns = time.time_ns()
    yield
    stages.append(messages.Stage(name, start_ns, time.time_ns()))
