"""Executables in a live process: the one file that hands bytes to XLA and that uses private JAX interfaces.

A CPU lane needs nothing of jax itself: jaxlib's client loads and runs an executable, and a process that never imports
jax starts in a fraction of the time and has no way to trace or compile. On other platforms jax registers the plugins,
so there the client comes from `jax.devices()`; everything after that is the same.

`tests/cache/test_executable.py` runs every private name used here against plain JAX, on both ends of the supported
range.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache as memoise
from typing import Any, Literal

from numpy.typing import NDArray

from cache.artifact import Calling, TensorType
from cache.errors import Refused
from cache.fingerprint import Fingerprint, fingerprint_of

Mode = Literal["jaxlib", "jax"]
Buffer = Any  # a jaxlib array on the runtime's device; its type is private
Payload = bytes | bytearray | memoryview

_COMPILED = "/jax/core/compile/backend_compile_duration"


def serialize(compiled: Any) -> bytes:
    """The PJRT bytes of a `jax.stages.Compiled`.

    Only of a fresh one: after a run, programs that sort no longer serialise; and one that was itself loaded (JAX's
    persistent cache does that too) serialises to bytes that load and then fail.
    """
    return bytes(compiled.runtime_executable().serialize())


def calling_of(lowered: Any, compiled: Any) -> Calling:
    """How a `jax.stages.Compiled` is called, from itself and what it was lowered to."""
    import jax

    arguments = jax.tree.leaves(lowered.args_info)
    return Calling(
        arguments=tuple(TensorType(one.dtype.name, tuple(one.shape)) for one in arguments),
        results=tuple(TensorType(one.dtype.name, tuple(one.shape)) for one in jax.tree.leaves(lowered.out_info)),
        kept=tuple(sorted(compiled._executable._kept_var_idx)),  # noqa: SLF001
        donated=tuple(index for index, one in enumerate(arguments) if one.donated),
        devices=len(compiled.runtime_executable().local_devices()),
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
    """The PJRT client of this process and the device that a lane owns."""

    def __init__(self, client: Any, device: Any, compiles_seen: Callable[[], int]) -> None:
        from jaxlib import _jax

        self._jax = _jax
        self._client = client
        self._device = device
        self._devices = _jax.DeviceList((device,))
        self._sharding = _jax.SingleDeviceSharding(device)
        self._semantics = _jax.HostBufferSemantics.ZERO_COPY
        self._compiles_seen = compiles_seen
        self._counting = threading.RLock()  # a collection in the middle of counting may drop an executable
        self._loading = 0
        self.loaded = 0

    @classmethod
    def open(cls, mode: Mode) -> Runtime:
        """Make this process's client. From here on the process must not fork."""
        if mode == "jax":
            import jax

            device = jax.local_devices()[0]
            return cls(device.client, device, _count_compiles())
        # The C++ side imports jax where it can: this keeps it, and every compile, out of the process.
        sys.modules.setdefault("jax", None)  # type: ignore[arg-type]
        from jaxlib import xla_client

        client: Any = xla_client.make_cpu_client()
        compiles_seen = _count_compiles() if sys.modules.get("jax") else lambda: 0
        return cls(client, client.local_devices()[0], compiles_seen)

    @property
    def platform(self) -> str:
        """The platform's name: "cpu", "cuda", "tpu", ..."""
        return str(self._client.platform)

    def fingerprint(self) -> Fingerprint:
        """What decides whether an executable may be loaded here."""
        return fingerprint_of(
            platform_name=self.platform,
            platform_version=str(self._client.platform_version),
            device_kind=str(self._device.device_kind),
            device_count=len(self._client.local_devices()),
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

    def load(self, payload: Payload) -> Executable:
        """Load verified bytes of `serialize`. Raises Refused if XLA does not take them."""
        data = bytes(payload)
        if b"lapack_" in data:
            _register_lapack()
        self.count(loading=1)
        try:
            handle = self._client.deserialize_executable(data, executable_devices=self._devices)
        except Exception as error:
            self.count(loading=-1)
            raise Refused(f"XLA would not load the executable: {_first_line(error)}") from error
        self.count(loading=-1, loaded=1)
        return Executable(self, handle)

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
        """The array on the device.

        Where the device is the CPU and the memory is 64-byte aligned it is aliased, not copied: it has to stay alive
        and unchanged as long as the buffer is used.
        """
        try:
            return self._jax.batched_device_put(
                _Aval(array), self._sharding, [array], [self._device], True, False, self._semantics, False
            )
        except Exception as error:
            raise Refused(f"the device took no array of {array.nbytes} bytes: {_first_line(error)}") from error


class Executable:
    """A loaded executable. It is warm once `run` has returned."""

    __slots__ = ("_runtime", "handle")

    def __init__(self, runtime: Runtime, handle: Any) -> None:
        self._runtime = runtime
        self.handle = handle

    def __del__(self) -> None:
        self._runtime.drop(self)

    def run(self, arguments: Sequence[Buffer]) -> list[NDArray[Any]]:
        """Run and wait. Takes every argument in the program's order, returns its results in order as host arrays.

        Raises Refused if the run fails.
        """
        try:
            results = self.handle.execute(arguments)
            return [result._single_device_array_to_np_array_did_copy()[0] for result in results]  # noqa: SLF001
        except Exception as error:
            raise Refused(f"the executable failed: {_first_line(error)}") from error


class _Aval:
    """The part of jax's ShapedArray that `batched_device_put` reads."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, array: NDArray[Any]) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.weak_type = False


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


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:500] or type(error).__name__
