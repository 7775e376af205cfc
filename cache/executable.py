"""Executables in a live process: the one file that hands bytes to XLA. Private JAX interfaces are here or nowhere.

A CPU lane needs nothing of jax itself: jaxlib's client loads and runs an executable, and a process that never imports
jax starts in a fraction of the time and has no way to trace or compile. On other platforms jax registers the plugins,
so there the client comes from `jax.devices()`; everything after that is the same.

What concerns tensors and not executables is in `cache/devices.py`. `tests/cache/test_executable.py` runs every private
name that the two use against plain JAX, on both ends of the supported range.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache as memoise
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from cache.artifact import Calling, TensorType
from cache.devices import Buffer, Devices, Memory, memory_of, on_host
from cache.errors import Foreign, Refused
from cache.fingerprint import Fingerprint, fingerprint_of, topology_of
from cache.xla_errors import failure

if TYPE_CHECKING:  # imported for the executables that need it: most lanes have none
    from cache.arguments import Argument, Call, Placement

Mode = Literal["jaxlib", "jax"]
Payload = bytes | bytearray | memoryview

_COMPILED = "/jax/core/compile/backend_compile_duration"


def serialize(compiled: Any) -> bytes:
    """The PJRT bytes of a `jax.stages.Compiled`.

    Only of a fresh one: after a run, programs that sort no longer serialise; and one that was itself loaded (JAX's
    persistent cache does that too) serialises to bytes that load and then fail.
    """
    return bytes(compiled.runtime_executable().serialize())


def calling_of(lowered: Any, compiled: Any) -> Calling:
    """How a `jax.stages.Compiled` is called, from itself and what it was lowered to.

    Raises ValueError if it is sharded over the devices in another order than the one it would be loaded for.
    """
    import jax

    devices = list(compiled.runtime_executable().local_devices())
    if len(devices) > 1 and devices != jax.local_devices()[: len(devices)]:
        found = ", ".join(str(device.id) for device in devices)
        raise ValueError(
            f"the executable is sharded over the devices {found}: make the mesh of the first of "
            "jax.local_devices(), in their order"
        )
    arguments = jax.tree.leaves(lowered.args_info)
    return Calling(
        arguments=tuple(TensorType(one.dtype.name, tuple(one.shape)) for one in arguments),
        results=tuple(TensorType(one.dtype.name, tuple(one.shape)) for one in jax.tree.leaves(lowered.out_info)),
        kept=tuple(sorted(compiled._executable._kept_var_idx)),  # noqa: SLF001
        donated=tuple(index for index, one in enumerate(arguments) if one.donated),
        devices=len(devices),
    )


def without_locations(lowered: Any) -> Any:
    """A `jax.stages.Lowered` whose module says nothing of source files: they would go into every executable.

    It is changed in place. A tenth of the executable is less to parse at every load, and no path leaves the machine.
    """
    from jaxlib.mlir import passmanager

    module = lowered.compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    return lowered


class Runtime:
    """The PJRT client of this process and the devices that a lane owns; most own one."""

    def __init__(self, client: Any, devices: Sequence[Any], compiles_seen: Callable[[], int]) -> None:
        self._client = client
        self.devices = Devices(devices)
        self._compiles_seen = compiles_seen
        self._counting = threading.RLock()  # a collection in the middle of counting may drop an executable
        self._loading = 0
        self.loaded = 0

    @classmethod
    def open(cls, mode: Mode, device_count: int = 1) -> Runtime:
        """Make this process's client. From here on the process must not fork.

        Args:
            mode: "jaxlib" for the CPU alone, "jax" for what jax finds.
            device_count: How many devices every executable runs on: on a CPU without jax as many virtual ones are made,
                with jax they are the first of its local ones.

        Raises:
            ValueError: jax finds fewer.
        """
        if mode == "jax":
            import jax

            found = jax.local_devices()
            if len(found) < device_count:
                how = "jax_num_cpu_devices makes more of a CPU"
                raise ValueError(f"device_count is {device_count}, jax finds {len(found)} local devices; {how}")
            return cls(found[0].client, found[:device_count], _count_compiles())
        # The C++ side imports jax where it can: this keeps it, and every compile, out of the process.
        sys.modules.setdefault("jax", None)  # type: ignore[arg-type]
        from jaxlib import xla_client

        # A run is waited for at once: a thread of XLA that begins it would be one more to wake, and to be woken by.
        devices = device_count if device_count > 1 else None
        client: Any = xla_client.make_cpu_client(asynchronous=False, num_devices=devices)
        compiles_seen = _count_compiles() if sys.modules.get("jax") else lambda: 0
        return cls(client, client.local_devices()[:device_count], compiles_seen)

    @property
    def platform(self) -> str:
        """The platform's name: "cpu", "cuda", "tpu", ..."""
        return str(self._client.platform)

    def fingerprint(self) -> Fingerprint:
        """What decides whether an executable may be loaded here."""
        return fingerprint_of(
            platform_name=self.platform,
            platform_version=str(self._client.platform_version),
            device_kind=str(self.devices.each[0].device_kind),
            device_count=len(self._client.local_devices()),
            topology=topology_of(self._client.devices()),
        )

    def compiles(self) -> int:
        """Compilations in this process since it opened its client.

        JAX's own monitoring counts them where jax is imported. Where it is not, every executable that the client holds
        beyond those loaded here counts; what other threads are loading meanwhile is not counted before they are done.
        """
        if sys.modules.get("jax"):
            return self._compiles_seen()
        with self._counting:
            return max(0, len(self._client.live_executables()) - self.loaded - self._loading)

    def load(self, payload: Payload, calling: Calling | None = None) -> Executable:
        """Load verified bytes of `serialize`.

        Args:
            payload: The bytes.
            calling: What their artifact says of how they are called; None, as older ones do not: all arguments are
                taken, on one device, and none is donated.

        Raises:
            Foreign: They are for another number of devices than this runtime's. XLA has not seen them.
            Refused: XLA does not take them, or they are not called so.
            OutOfMemory: There is no room for it.
            DeviceLost: This process can do nothing more on the device.
        """
        if calling and calling.devices != len(self.devices):
            raise Foreign("the executable", {"devices": (str(len(self.devices)), str(calling.devices))})
        data = bytes(payload)
        if b"lapack_" in data:
            _register_lapack()
        self.count(loading=1)
        try:
            handle = self._client.deserialize_executable(data, executable_devices=self.devices.listed)
        except Exception as error:
            self.count(loading=-1)
            raise failure("XLA would not load the executable", error) from error
        self.count(loading=-1, loaded=1)
        return Executable(self, handle, calling)

    def count(self, *, loading: int = 0, loaded: int = 0) -> None:
        """Change what is known of the client's executables."""
        with self._counting:
            self._loading += loading
            self.loaded += loaded

    def drop(self, executable: Executable) -> None:
        """Let the client free an executable."""
        with self._counting:
            del executable.handle
            self.loaded -= 1

    def put(self, array: NDArray[Any]) -> Buffer:
        """The array on the first device.

        Where the device is the CPU and the memory is 64-byte aligned it is aliased, not copied: it has to stay alive
        and unchanged as long as the buffer is used.
        """
        return self.devices.put(array)


class Executable:
    """A loaded executable. It is warm once `run` has returned."""

    __slots__ = ("_call", "_devices", "_results", "_runtime", "_shardings", "handle")

    def __init__(self, runtime: Runtime, handle: Any, calling: Calling | None) -> None:
        self._runtime = runtime
        self._devices = runtime.devices
        self.handle = handle
        self._call: Call | None = None
        self._shardings: dict[int, Any] = {}
        self._results: list[Placement] | None = None  # where they lie, if on more than one device
        if calling and (calling.donated or calling.devices > 1 or len(calling.kept) < len(calling.arguments)):
            self._prepare(calling)

    def __del__(self) -> None:
        self._runtime.drop(self)

    def _prepare(self, calling: Calling) -> None:
        from cache.arguments import Call

        kept = [calling.arguments[index] for index in calling.kept]
        spread = self._spread(self.handle.get_parameter_shardings(), kept)
        self._shardings = dict(zip(calling.kept, (sharding for sharding, _ in spread), strict=True))
        self._call = Call(calling, dict(zip(calling.kept, (placement for _, placement in spread), strict=True)))
        if calling.devices > 1:
            spread = self._spread(self.handle.get_output_shardings(), calling.results)
            self._results = [placement for _, placement in spread]

    def _spread(self, described: list[Any] | None, tensors: Sequence[TensorType]) -> list[tuple[Any, Placement]]:
        described = described or [None] * len(tensors)
        if len(described) != len(tensors):
            raise Refused(f"the executable has {len(described)} tensors where its artifact says {len(tensors)}")
        return [self._devices.spread(*one) for one in zip(described, tensors, strict=True)]

    def memory(self) -> Memory:
        """What it takes of the device while it is loaded, and beside that while it runs."""
        return memory_of(self.handle)

    def put(self, index: int, array: NDArray[Any]) -> Argument | Buffer:
        """The array on the devices as the argument `index` of the program, for `run`.

        It is copied where the argument is donated, and can then be used by one run; else it is as with `Runtime.put`.
        Raises Refused if the executable takes another type.
        """
        if self._call is None:
            return self._runtime.put(array)
        from cache.arguments import Argument

        placement = self._call.placement(index, array.dtype.name, array.shape)
        donated = index in self._call.donated
        buffer = self._devices.place(array, placement, self._shardings.get(index), copied=donated)
        return Argument(placement, buffer, donated=donated)

    def run(self, arguments: Sequence[Argument | Buffer]) -> list[NDArray[Any]]:
        """Run and wait. Takes every argument in the program's order, returns its results in order as host arrays.

        Donated arguments, and all of an executable on more than one device, have to come from its `put`.

        Raises Refused if an argument is not taken so, or if the run fails; OutOfMemory if that was for want of room,
        DeviceLost if this process can do nothing more on the device.
        """
        taken = arguments if self._call is None else self._call.buffers(arguments)
        try:
            if self._results is None:
                return [on_host(result) for result in self.handle.execute(taken)]
            results = self.handle.execute_sharded(taken).disassemble_into_single_device_arrays()
            return [self._devices.gathered(*one) for one in zip(self._results, results, strict=True)]
        except Exception as error:
            raise failure("the executable failed", error) from error


@memoise
def _register_lapack() -> None:
    """Point LAPACK calls at the library; a process that only loads executables dies in them otherwise (jax #28908)."""
    from jaxlib import lapack, xla_client
    from jaxlib.cpu import _lapack

    _lapack.initialize()
    if not sys.modules.get("jax"):
        for platform, targets in lapack.registrations().items():
            for name, target, api_version in targets:
                xla_client.register_custom_call_target(name, target, platform=platform, api_version=api_version)


def _count_compiles() -> Callable[[], int]:
    import jax

    count = 0

    def listen(event: str, duration_secs: float, **_: str | int) -> None:  # noqa: ARG001  # jax's names
        nonlocal count
        count += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: count
