"""How an executable takes its arguments: which of them, which part of each on which device, and whose memory it is.

A compiler may drop arguments that are not used, spread tensors over devices, and write results into the memory of an
argument that was donated. Memory that is a caller's must never be written into, and with a sharded executable one
argument in the wrong place does not fail but waits for ever. So where either can happen, an executable takes nothing
but what it placed itself, and what is donated only once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from cache.artifact import Calling, TensorType
from cache.errors import Refused

Part = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lies: its type, and the part of it that each device has, in the order of the devices."""

    type: TensorType
    parts: tuple[Part, ...]


class Argument:
    """An array that an executable placed as one of its arguments. A donated one serves a single run."""

    __slots__ = ("_buffer", "_taken", "donated", "placement")

    def __init__(self, placement: Placement, buffer: Any, *, donated: bool) -> None:
        self.placement = placement
        self.donated = donated
        self._buffer = buffer
        self._taken = False

    def take(self, index: int) -> Any:
        """The buffer, for one run as the argument `index`; for the last time if it is donated."""
        if self._taken:
            raise Refused(f"argument {index} was donated to an earlier run, which took its memory: place it again")
        buffer = self._buffer
        if self.donated:
            self._buffer, self._taken = None, True
        return buffer


class Call:
    """The arguments of one executable.

    Args:
        calling: What its artifact says of them.
        placements: Of every argument that it takes, by index.
    """

    def __init__(self, calling: Calling, placements: Mapping[int, Placement]) -> None:
        self.calling = calling
        self.placements = placements
        self.kept = calling.kept
        self.donated = frozenset(calling.donated)

    def placement(self, index: int, dtype: str, shape: Sequence[int]) -> Placement:
        """Where this argument goes; nowhere if the executable dropped it. Raises Refused if it is of another type."""
        if not 0 <= index < len(self.calling.arguments):
            raise Refused(f"there is no argument {index}: the executable takes {len(self.calling.arguments)}")
        wanted = self.calling.arguments[index]
        if (dtype, tuple(shape)) != (wanted.dtype, wanted.shape):
            raise Refused(f"argument {index} is {_shown(dtype, shape)}, the executable takes {_shown(*_pair(wanted))}")
        return self.placements.get(index, Placement(wanted, ()))

    def buffers(self, arguments: Sequence[Any]) -> list[Any]:
        """What the executable is given for a program's arguments; donated ones are used up by it.

        Raises:
            Refused: There are more or fewer, one is not as the executable takes it, or a donated one was taken before.
        """
        if len(arguments) != len(self.calling.arguments):
            raise Refused(f"the executable takes {len(self.calling.arguments)} arguments, not {len(arguments)}")
        for index in self.kept:
            self._check(index, arguments[index])
        return [
            argument.take(index) if isinstance(argument := arguments[index], Argument) else argument
            for index in self.kept
        ]

    def _check(self, index: int, argument: Any) -> None:
        if not isinstance(argument, Argument):
            if index in self.donated or self.calling.devices > 1:
                how = "donated" if index in self.donated else f"spread over {self.calling.devices} devices"
                raise Refused(f"argument {index} is {how}: only what this executable placed as it is taken")
        elif argument.placement != self.placements[index]:
            raise Refused(f"argument {index} was placed as another argument, or for another executable")
        elif argument.donated != (index in self.donated):
            wanted, found = ("donated", "kept") if index in self.donated else ("kept", "donated")
            raise Refused(f"argument {index} is {wanted}, this one was placed to be {found}")


def parts_of(shape: Sequence[int], tiles: Sequence[int], order: Sequence[int], device_count: int) -> tuple[Part, ...]:
    """The part of a tensor that each device has.

    Args:
        shape: Of the tensor.
        tiles: Into how many parts each dimension is divided; what else there is, is how often every part is repeated.
            Nothing at all means that every device has all of it.
        order: The numbers of the devices, part by part with the last dimension running fastest, repetitions inmost.
        device_count: How many devices there are.

    Raises:
        Refused: A dimension cannot be divided so, or the devices are not each named once.
    """
    whole = tuple(slice(0, size) for size in shape)
    if not tiles:
        return (whole,) * device_count
    divided, repeated = tuple(tiles[: len(shape)]), math.prod(tiles[len(shape) :])
    if len(divided) != len(shape) or any(size % count for size, count in zip(shape, divided, strict=True)):
        raise Refused(f"a tensor of shape {list(shape)} cannot be divided into {list(tiles)} equal parts")
    if sorted(order) != list(range(device_count)) or math.prod(divided) * repeated != device_count:
        raise Refused(f"{list(tiles)} parts on the devices {list(order)} are not one for each of {device_count}")
    found: list[Part] = [whole] * device_count
    devices = iter(order)
    for at in product(*map(range, divided)):
        steps = [size // count for size, count in zip(shape, divided, strict=True)]
        part = tuple(slice(number * step, (number + 1) * step) for number, step in zip(at, steps, strict=True))
        for _ in range(repeated):
            found[next(devices)] = part
    return tuple(found)


def _pair(type_: TensorType) -> tuple[str, tuple[int, ...]]:
    return type_.dtype, type_.shape


def _shown(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}{list(shape)}"
