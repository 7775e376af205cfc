"""The devices of a runtime: how host memory gets onto them and back, whole or in parts, aliased or copied.

Beside `cache/executable.py` this is the one file that uses private JAX interfaces; that one's tests run them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.artifact import TensorType
from cache.errors import Refused
from cache.xla_errors import failure

if TYPE_CHECKING:
    from cache.arguments import Placement

Buffer = Any  # a jaxlib array on the devices; its type is private


class Devices:
    """Devices of one PJRT client, in the order in which executables number them."""

    def __init__(self, devices: Sequence[Any]) -> None:
        from jaxlib import _jax

        self._jax = _jax
        self.each = tuple(devices)
        self.listed = _jax.DeviceList(self.each)  # as jaxlib takes them
        self._single = [_jax.SingleDeviceSharding(device) for device in self.each]
        self._semantics = _jax.HostBufferSemantics.ZERO_COPY

    def __len__(self) -> int:
        return len(self.each)

    @property
    def memory_bytes_max(self) -> int:
        """What the runtime may take of the first device's own memory; 0 where it does not say, as on a CPU."""
        return int((self.each[0].memory_stats() or {}).get("bytes_limit", 0))

    def put(self, array: NDArray[Any], number: int = 0, *, copied: bool = False) -> Buffer:
        """The array on one device.

        Where that is the CPU and the memory is 64-byte aligned it is aliased, unless it has to be `copied`.
        """
        return self._put(array, self._single[number], [array], self.each[number : number + 1], copied=copied)

    def let_go(self) -> None:
        """Let go of host memory whose buffers are gone: jaxlib does so at its next call, which may be long to come."""
        self._jax.collect_garbage()

    def place(self, array: NDArray[Any], placement: Placement, sharding: Any, *, copied: bool) -> Buffer:
        """The array on all devices, on each its part; None where the placement has no parts."""
        # An array without dimensions has no parts, and jaxlib takes no numpy scalar.
        pieces = [
            self.put(array[part] if part else array, number, copied=copied)
            for number, part in enumerate(placement.parts)
        ]
        # Only what lies on the devices already is put together: jaxlib copies into no more than one at a time.
        return self._put(array, sharding, pieces, self.each) if len(pieces) > 1 else (pieces or [None])[0]

    def spread(self, described: Any, tensor: TensorType) -> tuple[Any, Placement]:
        """How a tensor is spread, as jaxlib takes it and as we do.

        Args:
            described: What an executable says of it; None means that every device has all of it.
            tensor: The tensor.

        Raises:
            Refused: In another way than replicated and in equal parts.
        """
        from jaxlib import _hlo  # type: ignore[attr-defined]  # a native module without types

        from cache.arguments import Placement, parts_of

        found = _hlo.HloSharding.replicate() if described is None else _hlo.HloSharding.from_proto(described)
        if not found.is_replicated() and (not found.is_tiled() or found.subgroup_types()):
            raise Refused(f"a tensor is spread as {found}: only replicated tensors and equal parts are supported")
        tiles = [] if found.is_replicated() else found.tile_assignment_dimensions()
        parts = parts_of(tensor.shape, tiles, found.tile_assignment_devices(), len(self))
        return self._jax.GSPMDSharding(self.listed, found), Placement(tensor, parts)

    def gathered(self, placement: Placement, pieces: Sequence[Buffer]) -> NDArray[Any]:
        """A tensor as one host array, from what each device has of it."""
        distinct = dict(zip(placement.parts, pieces, strict=True))  # of devices with the same part one is read
        read = {part: on_host(piece) for part, piece in distinct.items()}
        whole = np.empty(placement.type.shape, next(iter(read.values())).dtype)
        for part, array in read.items():
            whole[part] = array
        return whole

    def _put(
        self,
        array: NDArray[Any],
        sharding: Any,
        pieces: Sequence[Any],
        devices: Sequence[Any],
        *,
        copied: bool = False,
    ) -> Buffer:
        try:
            return self._jax.batched_device_put(
                _Aval(array), sharding, pieces, devices, True, copied, self._semantics, False
            )
        except Exception as error:
            raise failure(f"the device took no array of {array.nbytes} bytes", error) from error


class Memory(NamedTuple):
    """Bytes of a device that an executable takes, by XLA's account; 0 for what it does not say: on a CPU, its code.

    `code` while it is loaded, the others while it runs.
    """

    code: int = 0
    temp: int = 0
    arguments: int = 0
    outputs: int = 0


def memory_of(handle: Any) -> Memory:
    """What a loaded executable takes."""
    try:
        found = handle.get_compiled_memory_stats()
    except RuntimeError:  # UNIMPLEMENTED: not every platform keeps account
        return Memory()
    return Memory(
        found.generated_code_size_in_bytes,
        found.temp_size_in_bytes,
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
    )


def on_host(buffer: Buffer) -> NDArray[Any]:
    """A buffer of one device as a host array, once it is there; on a CPU it is the same memory."""
    array: NDArray[Any] = buffer._single_device_array_to_np_array_did_copy()[0]  # noqa: SLF001
    return array


class _Aval:
    """The part of jax's ShapedArray that `batched_device_put` reads."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, array: NDArray[Any]) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.weak_type = False
