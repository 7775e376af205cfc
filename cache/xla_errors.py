"""What it means that XLA failed: is it the executable, the room, or the device? Only its words say so.

XLA's errors begin with a status code and carry the driver's own name of what happened. After some of those a process
gets the same error for everything that it does on the device, whatever it is: CUDA says of them that the process has to
be started anew (the driver's documentation of CUresult), and a TPU's core that halted stays halted. Such an error says
nothing of the executable, and much of the process.
"""

from __future__ import annotations

import re

from cache.errors import CacheError, DeviceLost, OutOfMemory, Refused

_READ_CHARACTERS_MAX = 4000

_CUDA_LOST = (
    "ASSERT|CONTAINED|CONTEXT_IS_DESTROYED|DEINITIALIZED|DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE|EXTERNAL_DEVICE"
    "|HARDWARE_STACK_ERROR|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED"
    "|LAUNCH_TIMEOUT|MISALIGNED_ADDRESS|MPS_CONNECTION_FAILED|MPS_RPC_FAILURE|NO_DEVICE|NVLINK_UNCORRECTABLE"
    "|SYSTEM_NOT_READY|UNKNOWN"
)

# The first that is found in an error decides. Codes count only where a status begins, words wherever they are.
_MEANINGS: tuple[tuple[re.Pattern[str], type[CacheError]], ...] = (
    (re.compile(r"\ARESOURCE_EXHAUSTED\b"), OutOfMemory),
    (re.compile(r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\bhipErrorOutOfMemory\b"), OutOfMemory),
    (re.compile(rf"\bCUDA_ERROR_(?:{_CUDA_LOST})\b"), DeviceLost),
    (re.compile(r"\bhipError(?:IllegalAddress|LaunchFailure|NoDevice|Unknown|ECCNotCorrectable)\b"), DeviceLost),
    (re.compile(r"\bHSA_STATUS_ERROR\w*"), DeviceLost),
    (re.compile(r"\b(?:Core|device|TPU) (?:is )?halted\b", re.IGNORECASE), DeviceLost),
    (re.compile(r"already in an error state|stream (?:is )?in (?:an? )?(?:bad|error) state"), DeviceLost),
    (re.compile(r"\A(?:UNAVAILABLE|DATA_LOSS)\b"), DeviceLost),
)


def failure(what: str, error: Exception) -> CacheError:
    """What it means that XLA failed, as the error to raise.

    Returns:
        OutOfMemory where nothing was wrong but the room, DeviceLost where this process gets nothing done any more, else
        Refused.
    """
    kind = OutOfMemory if isinstance(error, MemoryError) else meaning(str(error))
    return kind(f"{what}: {first_line(error)}")


def meaning(text: str) -> type[CacheError]:
    """The kind of error that XLA's words stand for."""
    shown = text[:_READ_CHARACTERS_MAX]
    return next((kind for pattern, kind in _MEANINGS if pattern.search(shown)), Refused)


def first_line(error: BaseException) -> str:
    """What XLA says, without the trace of where it says so."""
    return str(error).partition("\n")[0][:500] or type(error).__name__
